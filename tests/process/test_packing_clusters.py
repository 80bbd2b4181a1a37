"""`pack` and `verify` on a Dask cluster, of whose workers one is killed in the middle; test_ray.py has those of Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zarrfeed
from tests.support.distributed_stores import make_damaged
from tests.support.packing import MANY_UNITS, Killer, check_many_units, make_source
from zarrfeed.packing.pack import pack
from zarrfeed.tools.verify import Progress

distributed: Any = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("packing") / "source.zarr"
    make_source(path, 2000)
    return path


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[Any]:
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": None, "worker_dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, silence_logs=50, **options) as cluster:
        yield cluster


def test_a_dask_cluster_loses_a_worker_and_no_sample(source: Path, tmp_path: Path, dask_cluster: Any) -> None:
    killer = Killer(lambda: [worker.pid for worker in dask_cluster.workers.values()])
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    report = pack(source, tmp_path / "out.zarr", executor=address, on_progress=killer, **MANY_UNITS)
    assert killer.killed == 1
    check_many_units(report, tmp_path / "out.zarr", source)


def test_a_client_of_dask_gives_an_executor(source: Path, tmp_path: Path, dask_cluster: Any) -> None:
    with distributed.Client(dask_cluster) as client:
        report = pack(source, tmp_path / "out.zarr", executor=client.get_executor(), **MANY_UNITS)
    check_many_units(report, tmp_path / "out.zarr", source)


@pytest.mark.slow
def test_a_dask_cluster_loses_a_worker_and_verify_finds_what_threads_find(
    tmp_path: Path, dask_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_damaged(tmp_path / "a.zarr")
    expected = zarrfeed.verify(tmp_path / "a.zarr")
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._SLICE_BYTES", 1000)  # many ranges
    killed: list[int] = []

    def kill(_: Progress) -> None:
        if not killed:
            killed.extend([worker.pid for worker in dask_cluster.workers.values() if worker.pid][:1])
            os.kill(killed[0], signal.SIGKILL)

    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    assert zarrfeed.verify(tmp_path / "a.zarr", executor=address, on_progress=kill) == expected
    assert killed

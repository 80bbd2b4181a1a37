"""`pack`, `verify` and `stats` on a Dask and on a Ray cluster, of whose workers one is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.distributed_stores import make_damaged
from tests.support.packing import check_packed, make_source
from tests.support.ray_cluster import ray_cluster
from zarrfeed.plan.random_bijection import RandomBijection
from zarrfeed.tools.pack import PackProgress, PackReport, pack
from zarrfeed.tools.verify import Progress

distributed: Any = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COUNT, SEED = 2000, 12
SMALL: dict[str, Any] = {"sample_chunk": 5, "shard": 600, "shuffle": SEED, "verify": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("packing") / "source.zarr"
    make_source(path, COUNT)
    return path


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[Any]:
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": None, "worker_dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, silence_logs=50, **options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_cluster() as ray:
        yield ray


def check(report: PackReport, out: Path, source: Path) -> None:
    assert report.proof is not None
    assert report.proof.ok
    numbers = RandomBijection(COUNT, SEED).numbers(np.arange(COUNT))
    check_packed(zarr.open_group(out, mode="r"), zarr.open_group(source, mode="r"), numbers)


class Killer:
    """Kills a process after some units."""

    def __init__(self, find: Any) -> None:
        self._find, self.killed = find, 0

    def __call__(self, now: PackProgress) -> None:
        if now.stage == "write" and now.done > 5 and not self.killed:
            for pid in self._find()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1


def test_a_dask_cluster_loses_a_worker_and_no_sample(source: Path, tmp_path: Path, dask_cluster: Any) -> None:
    killer = Killer(lambda: [worker.pid for worker in dask_cluster.workers.values()])
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    report = pack(source, tmp_path / "out.zarr", executor=address, on_progress=killer, **SMALL)
    assert killer.killed == 1
    check(report, tmp_path / "out.zarr", source)


def test_a_client_of_dask_gives_an_executor(source: Path, tmp_path: Path, dask_cluster: Any) -> None:
    with distributed.Client(dask_cluster) as client:
        check(
            pack(source, tmp_path / "out.zarr", executor=client.get_executor(), **SMALL), tmp_path / "out.zarr", source
        )


def test_a_dask_cluster_loses_a_worker_and_verify_finds_what_threads_find(
    tmp_path: Path, dask_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_damaged(tmp_path / "a.zarr")
    expected = zarrfeed.verify(tmp_path / "a.zarr")
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._PART_BYTES", 1000)  # many ranges
    killed: list[int] = []

    def kill(_: Progress) -> None:
        if not killed:
            killed.extend([worker.pid for worker in dask_cluster.workers.values() if worker.pid][:1])
            os.kill(killed[0], signal.SIGKILL)

    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    assert zarrfeed.verify(tmp_path / "a.zarr", executor=address, on_progress=kill) == expected
    assert killed


def test_a_ray_cluster_loses_a_worker_and_no_sample(source: Path, tmp_path: Path, ray: Any) -> None:
    killer = Killer(_workers_of_ray)
    report = pack(source, tmp_path / "out.zarr", executor="ray", on_progress=killer, **SMALL)
    assert killer.killed == 1
    check(report, tmp_path / "out.zarr", source)
    assert ray.is_initialized()  # a cluster that was there before stays


def test_tasks_of_ray_measure_as_threads_do_and_fail_alike(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_damaged(tmp_path / "a.zarr")
    monkeypatch.setattr("zarrfeed.tools.stats._BATCH_BYTES", 10_000)
    monkeypatch.setattr("zarrfeed.tools.stats._RANGE_BYTES", 30_000)
    data = zarrfeed.open(tmp_path / "a.zarr", variables=["values"])
    assert zarrfeed.stats(data, axis=1, executor="ray") == zarrfeed.stats(data, axis=1)
    errors = []
    for executor in (None, "ray"):
        with pytest.raises(zarrfeed.CorruptChunkError) as failed:
            zarrfeed.stats(zarrfeed.open(tmp_path / "a.zarr", variables=["plain"]), executor=executor)
        errors.append((type(failed.value), str(failed.value)))
    assert errors[0] == errors[1]
    assert ray.is_initialized()


def _workers_of_ray() -> list[int]:
    """Return the processes that do units, as they call themselves."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"ray::_call"):
                found.append(int(process.name))
    return found

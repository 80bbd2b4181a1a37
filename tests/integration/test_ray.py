"""`zarrfeed.compat.ray`, Ray Train, `pack` and `stats` on one small local cluster, also where a worker dies."""

from __future__ import annotations

import doctest
import importlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.distributed_stores import make_damaged
from tests.support.later import Later
from tests.support.packing import MANY_UNITS, Killer, check_many_units, make_source
from tests.support.paths import ROOT
from tests.support.ray_cluster import processes_with_a_task, ray_cluster
from tests.support.sparse import numbered_rows, put_csr
from zarrfeed import ConfigError, CorruptChunkError, UnsupportedError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.packing.pack import pack

ray: Any = Later("ray")
ray_data: Any = Later("ray.data")
blocks_of_ray: Any = Later("ray.data.block")
callbacks_of_ray: Any = Later("ray.train.v2._internal.execution.callback")
compat: Any = Later("zarrfeed.compat.ray")

#: Callbacks of Ray Train that start processes, for datasets of Ray and for a driver that dies; here they do nothing.
_IDLE_PROCESSES = ("DatasetsCallback", "PlacementGroupCleanerCallback")
EXAMPLES = ROOT / "examples"
N = 203

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning:ray"),
]


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Start a cluster whose workers can import the examples; Ray starts one on each core, and each imports torch."""
    cores = 2 if pytestconfig.getoption("--large") else 1
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{EXAMPLES}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with ray_cluster(cores, environment) as module:
        yield module


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write arrays whose items tell their sample: sharded, packed as CF, records, text, and one of Zarr v2."""
    path = tmp_path_factory.mktemp("ray") / "train.zarr"
    group = zarr.create_group(path)
    numbers = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
    group.create_array("x", data=numbers, chunks=(16, 2, 3), shards=(64, 2, 3))
    group.create_array("y", data=np.arange(N), chunks=(50,))
    packed = group.create_array("t2m", data=np.arange(N * 2, dtype=np.int16).reshape(N, 2), chunks=(32, 2))
    packed.attrs.update({"scale_factor": 0.5, "add_offset": 3.0})
    records = np.zeros(N, dtype=[("a", "f4"), ("b", "i2")])
    records["a"], records["b"] = np.arange(N) / 4, np.arange(N)
    group.create_array("records", data=records, chunks=(32,))
    group.create_array("name", shape=(N,), dtype="str", chunks=(32,))[:] = np.array([f"sample {i}" for i in range(N)])
    zarr.create_array(path.with_name("v2.zarr"), data=numbers, chunks=(20, 1, 3), zarr_format=2)
    return path


def rows_of(blocks: Iterable[Any]) -> dict[str, Any]:
    """Return the columns of some tables."""
    batches = [blocks_of_ray.BlockAccessor.for_block(block).to_numpy() for block in blocks]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def read(source: Any, parallelism: int = 4) -> dict[str, Any]:
    """Run all tasks in this process; return the columns, in the order of the tasks."""
    return rows_of(block for task in source.get_read_tasks(parallelism) for block in task())


def test_columns_are_what_zarr_python_reads(store: Path) -> None:
    """Shards, packed numbers, text and records of one group; the index tells which sample a row is."""
    group: Any = zarr.open_group(store, mode="r")
    columns = read(compat.ZarrfeedDatasource(store, return_index=True))
    assert list(columns) == ["name", "records.a", "records.b", "t2m", "x", "y", "index"]
    assert columns["index"].tolist() == list(range(N))
    for name in ("x", "y"):
        assert np.array_equal(columns[name], group[name][:])
        assert columns[name].dtype == group[name].dtype
    assert np.array_equal(columns["t2m"], group["t2m"][:] * np.float32(0.5) + np.float32(3))
    assert np.array_equal(columns["records.a"], group["records"][:]["a"])
    assert np.array_equal(columns["records.b"], group["records"][:]["b"])
    assert columns["name"].tolist() == group["name"][:].tolist()


def test_whatever_open_describes_is_read(store: Path) -> None:
    """Zarr v2, many stores, targets, selections, windows, patches, arrays in memory and static ones."""
    numbers, x = np.arange(N), np.asarray(zarr.open_array(store / "x", mode="r")[:])
    both = read(compat.ZarrfeedDatasource([store / "x", store.with_name("v2.zarr")], return_index=True))
    assert np.array_equal(both["samples"], np.concatenate([x, x]))
    assert both["index"].tolist() == list(range(2 * N))

    some = read(compat.ZarrfeedDatasource(zarrfeed.open(store / "x", store / "y").select(slice(5, None, 3))))
    assert np.array_equal(some["samples"], x[5::3])
    assert np.array_equal(some["targets"], numbers[5::3])

    windows = read(compat.ZarrfeedDatasource(zarrfeed.open({"x": store / "x"}).window((-2, 0)), return_index=True))
    assert windows["index"].tolist() == list(range(2, N)), "windows go across the borders of tasks"
    assert np.array_equal(windows["x"], np.stack([x[:-2], x[2:]], axis=1))

    patches = zarrfeed.open(store / "x").patch({0: 7, 2: 2}, sampling="grid", stride={0: 7, 2: 1})
    boxes = [x[i : i + 7, :, k : k + 2] for i in range(0, N - 6, 7) for k in range(2)]
    assert np.array_equal(read(compat.ZarrfeedDatasource(patches))["samples"], np.stack(boxes))

    mask = np.arange(3, dtype=np.int32)
    static = read(compat.ZarrfeedDatasource(zarrfeed.open({"n": numbers, "y": store / "y"}).static(mask=mask)))
    assert np.array_equal(static["mask"], np.broadcast_to(mask, (N, 3)))
    assert np.array_equal(static["n"], numbers)


def test_a_chunk_is_read_by_one_task_and_a_block_is_bounded(store: Path) -> None:
    source = compat.ZarrfeedDatasource({"x": store / "x"}, return_index=True)
    assert source.estimate_inmemory_data_size() == N * (6 * 4 + 8)
    for parallelism in (1, 3, 5, 100):
        tasks = source.get_read_tasks(parallelism)
        assert len(tasks) == min(parallelism, 13), "there are 13 chunks"
        parts = [rows_of(task())["index"] for task in tasks]
        assert np.concatenate(parts).tolist() == list(range(N))
        assert all(part[0] % 16 == 0 for part in parts)
        assert [task.metadata.num_rows for task in tasks] == [len(part) for part in parts]
        assert sum(task.metadata.size_bytes for task in tasks) == source.estimate_inmemory_data_size()
    context = ray_data.DataContext.get_current().copy()
    for rows, lengths in ((40, {32, 11}), (5, {5, 1})):  # whole chunks, or parts of one
        context.target_max_block_size = 32 * rows + 31
        (task,) = source.get_read_tasks(1, data_context=context)
        assert {block.num_rows for block in task()} <= lengths | {N % 16 % 5}
    (task,) = source.get_read_tasks(1, per_task_row_limit=3)
    assert rows_of(task())["index"].tolist() == [0, 1, 2]
    text = compat.ZarrfeedDatasource(store / "name")
    assert text.estimate_inmemory_data_size() is None


def test_edges_and_ends() -> None:
    """For all edges and counts: parts are whole chunks in order, none is empty, and blocks end in the part."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        edges = np.concatenate(([0], np.cumsum(rng.integers(1, 9, rng.integers(1, 20)))))
        count, rows = int(rng.integers(1, 25)), int(rng.integers(1, 20))
        cuts = compat.nearest_edges(edges, count)
        assert cuts[0] == 0
        assert cuts[-1] == edges[-1]
        assert set(cuts) <= set(edges.tolist())
        assert all(np.diff(cuts) > 0)
        assert len(cuts) <= count + 1
        for begin, end in pairwise(cuts):
            ends = compat.block_ends(edges, begin, end, rows)
            assert ends[-1] == end
            assert all(0 < length <= rows for length in np.diff([begin, *ends]))


def test_what_cannot_be_a_table_is_refused(store: Path) -> None:
    data = zarrfeed.open(store / "x")
    with pytest.raises(UnsupportedError, match=r"samples: Arrow has no bfloat16; use Data.cast\('float32'\)"):
        compat.ZarrfeedDatasource(data.cast("bfloat16"))
    with pytest.raises(ConfigError, match=r"two columns would be named 'x': open an array under another name"):
        compat.ZarrfeedDatasource({"x": store / "x"}, {"x": store / "y"})
    with pytest.raises(ConfigError, match=r"two columns would be named 'index'"):
        compat.ZarrfeedDatasource({"index": store / "y"}, return_index=True)
    with pytest.raises(ConfigError, match="a mixture has an order"):
        compat.ZarrfeedDatasource(zarrfeed.mix([data, data]))
    with pytest.raises(ConfigError, match="on_error = 'skip', must be 'raise'"):
        compat.ZarrfeedDatasource(data, faults={"on_error": "skip"})
    with pytest.raises(ConfigError, match="num_threads = 0"):
        compat.ZarrfeedDatasource(data, num_threads=0)
    with pytest.raises(ConfigError, match="return_index"):
        compat.ZarrfeedDatasource(data, return_index=1)


def test_sparse_rows_are_columns_once_they_are_dense(tmp_path: Path) -> None:
    dense = numbered_rows(60, 20)
    stored = put_csr(zarr.create_group(tmp_path / "cells.zarr"), dense)
    with pytest.raises(UnsupportedError, match=r"Arrow has no sparse matrices; use Data.dense\(\)"):
        compat.ZarrfeedDatasource(stored)
    assert np.array_equal(read(compat.ZarrfeedDatasource(zarrfeed.open(stored).dense()))["samples"], dense)


def test_without_ray_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; import zarrfeed.compat.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "zarrfeed.compat.ray needs Ray Data" in done.stderr
    assert "pip install 'ray[data]'" in done.stderr


@pytest.mark.usefixtures("cluster")
def test_ray_data_reads_each_sample_once(store: Path) -> None:
    """Workers read; an array in memory, too large to be sent with each task, goes through the object store."""
    large = np.arange(N * 1000).reshape(N, 1000)
    source = compat.ZarrfeedDatasource({"x": store / "x", "large": large}, return_index=True)
    dataset = ray_data.read_datasource(source, override_num_blocks=4)
    assert dataset.schema().names == ["x", "large", "index"]
    batches = list(dataset.iter_batches(batch_size=None))
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    order = np.argsort(rows["index"])
    assert rows["index"][order].tolist() == list(range(N))
    assert np.array_equal(rows["x"][order], zarr.open_array(store / "x", mode="r")[:])
    assert np.array_equal(rows["large"][order], large)
    assert dataset.limit(5).count() == 5


def test_a_task_reads_no_chunk_of_another_one(tmp_path: Path) -> None:
    """Small arrays, too, which a `ZarrDataset` reads as a whole."""
    broken = zarr.create_array(tmp_path / "x.zarr", data=np.arange(64.0), chunks=(16,))
    (tmp_path / "x.zarr" / "c" / "2").write_bytes(b"no chunk")
    tasks = compat.ZarrfeedDatasource(broken).get_read_tasks(4)
    for number in (0, 1, 3):
        assert rows_of(tasks[number]())["samples"].tolist() == list(range(16 * number, 16 * number + 16))
    with pytest.raises(CorruptChunkError, match=r"x.zarr.*c/2"):
        rows_of(tasks[2]())


def test_the_examples_of_docstrings_do_what_they_show() -> None:
    assert doctest.testmod(importlib.import_module("zarrfeed.compat.ray")) == (0, 7)


@pytest.mark.usefixtures("cluster")
def test_a_bad_chunk_is_an_error_on_the_driver(tmp_path: Path) -> None:
    broken = zarr.create_array(tmp_path / "x.zarr", data=np.arange(64.0), chunks=(16,))
    (tmp_path / "x.zarr" / "c" / "2").write_bytes(b"no chunk")
    with pytest.raises(ray.exceptions.RayTaskError, match=r"x.zarr.*c/2") as raised:
        ray_data.read_datasource(compat.ZarrfeedDatasource(broken)).materialize()
    assert isinstance(raised.value.cause, CorruptChunkError)


@pytest.mark.slow
def test_a_ray_cluster_loses_a_worker_and_pack_no_sample(tmp_path: Path, cluster: Any) -> None:
    source, out = tmp_path / "source.zarr", tmp_path / "out.zarr"
    make_source(source, 2000)
    killer = Killer(lambda: processes_with_a_task("_call"))
    report = pack(source, out, executor="ray", on_progress=killer, **MANY_UNITS)
    assert killer.killed == 1
    check_many_units(report, out, source)
    assert cluster.is_initialized()  # a cluster that was there before stays


def test_tasks_of_ray_measure_as_threads_do_and_fail_alike(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
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
    assert cluster.is_initialized()


def train_and_tell(config: dict[str, Any]) -> None:
    """Train as the example does; write which samples each process was given."""
    ray_train: Any = importlib.import_module("ray_train")

    class Telling(ZarrDataLoader):
        def __iter__(self) -> Any:
            rank = ray.train.get_context().get_world_rank()
            with (config["data"].parent / f"{rank}-{time.time_ns()}.txt").open("w") as file:
                for batch in super().__iter__():
                    print(*batch[2].tolist(), file=file, flush=True)
                    yield batch

    ray_train.ZarrDataLoader = Telling
    ray_train.train(config)


def told(directory: Path, rank: int) -> list[list[list[int]]]:
    """Return the batches of each pass of a rank, in the order of the passes."""
    files = sorted(directory.glob(f"{rank}-*.txt"), key=lambda path: path.stem)
    return [[[int(index) for index in line.split()] for line in path.read_text().splitlines()] for path in files]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_leaves_the_samples_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches after the restart are, one by one, those of a run without a kill from the checkpoint on."""
    monkeypatch.syspath_prepend(EXAMPLES)
    ray_train: Any = importlib.import_module("ray_train")
    for name in _IDLE_PROCESSES:
        monkeypatch.setattr(
            f"ray.train.v2.api.data_parallel_trainer.{name}", lambda **_: callbacks_of_ray.RayTrainCallback()
        )

    kill_after = random.Random().randrange(33, 64)  # in the middle of epoch 1, which has 32 steps, as epoch 0 has
    metrics = ray_train.fit(tmp_path, 2, kill_after=kill_after, train=train_and_tell)
    assert (metrics["step"], metrics["exact_epochs"]) == (64, 2)
    saved = max(32, kill_after // 10 * 10) - 32  # the steps of epoch 1 that the last checkpoint has
    names = [tmp_path / "train.zarr" / name for name in ("samples", "targets")]
    options: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 42, "return_index": True}
    used = []
    for rank in range(2):
        whole = ZarrIterableDataset(*names, **options, rank=rank, world_size=2)
        epochs = [[batch[2].tolist() for batch in whole] for _ in range(2)]
        first, cut, rest = told(tmp_path, rank)
        assert first == epochs[0]
        least = kill_after - 32 + rank  # rank 0 may be ended before it takes a batch more
        assert least <= len(cut) <= kill_after - 32 + 1
        assert cut == epochs[1][: len(cut)], f"killed after step {kill_after}"
        assert rest == epochs[1][saved:], f"killed after step {kill_after}"
        used += cut[:saved] + rest
    assert sorted(chain(*used)) == list(range(ray_train.NUM_SAMPLES))

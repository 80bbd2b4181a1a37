"""`verify`, `stats` and `cache warm` by an executor of processes: what threads of one process find, bit by bit.

What holds: the report of `verify` and the figures of `stats` are equal to those of threads, whoever does which range. A
pool that lost a process is an error, and what was done is kept. A cache that workers do not see is not warmed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.distributed_stores import make_damaged
from zarrfeed.base.errors import LostWorkerError
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.tools import cli
from zarrfeed.tools.cache import commands
from zarrfeed.tools.cache.shared_warming import WarmJob, token_in, warm_keys
from zarrfeed.tools.verify import Progress, chunk_ranges

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, get_context("forkserver")) as executor:
        yield executor


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("stores") / "damaged.zarr"
    make_damaged(path)
    return path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._SLICE_BYTES", 1000)
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._SLICE_CHUNKS", 7)


@pytest.mark.usefixtures("small_parts")
def test_processes_find_what_threads_find(damaged: Path, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    seen: list[Progress] = []
    by_threads = zarrfeed.verify(damaged, missing="error")
    assert {f.cause for f in by_threads.findings} == {"corrupt", "missing"}
    assert {f.array for f in by_threads.findings} == {"plain", "shards"}
    assert not by_threads.ok
    for source in (damaged, zarr.open_group(damaged, mode="r")):
        by_processes = zarrfeed.verify(source, missing="error", executor=pool, on_progress=seen.append)
        assert by_processes == by_threads
    assert len(seen) > 16  # many ranges of each array
    assert seen[-1].done == sum(a.chunks for a in by_threads.arrays)
    # a run that threads began is ended by processes
    file = tmp_path / "progress.json"

    def stop(now: Progress) -> None:
        if now.done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(damaged, missing="error", progress_file=file, on_progress=stop, num_threads=1)
    said: list[str] = []
    again = zarrfeed.verify(damaged, missing="error", progress_file=file, executor=pool, on_message=said.append)
    assert again == by_threads
    assert "were checked before" in said[0]
    assert not file.exists()


@pytest.mark.usefixtures("small_parts")
def test_findings_beyond_the_most_are_counted_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing shards whose chunks lie in several parts, and more findings than are listed."""
    monkeypatch.setattr("zarrfeed.tools.verify.progress_file.MOST_LISTED", 60)
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(440,), chunks=(1,), shards=(4,), dtype="u1", fill_value=9, compressors=None
    )
    array[4 * 50 : 4 * 70] = 1  # all other shards are missing
    expected = zarrfeed.verify(array, num_threads=1)
    assert (expected.arrays[0].missing, len(expected.findings)) == (360, 60)
    monkeypatch.setattr(chunk_ranges, "_MOST_SLICES", 1)
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._SLICE_CHUNKS", 3)  # shards of four lie in two ranges
    with ThreadPoolExecutor(3) as threads:
        assert zarrfeed.verify(array, executor=threads) == expected


@pytest.mark.usefixtures("small_parts")
def test_a_process_that_is_killed_breaks_the_pool_and_what_was_checked_is_kept(tmp_path: Path) -> None:
    path, file = tmp_path / "a.zarr", tmp_path / "progress.json"
    array = zarr.create_array(path, shape=(4_000,), chunks=(1,), shards=(100,), dtype="u1", compressors=None)
    array[...] = 1
    (path / "c" / "30").unlink()

    with ProcessPoolExecutor(2, get_context("forkserver")) as executor:

        def kill(_: Progress) -> None:
            for pid in list(executor._processes):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(LostWorkerError, match=r"a worker process died.*call again with a new executor"):
            zarrfeed.verify(path, executor=executor, progress_file=file, on_progress=kill)
    said: list[str] = []
    report = zarrfeed.verify(path, progress_file=file, on_message=said.append)
    assert "of 4000 chunks were checked before" in said[0]
    assert report == zarrfeed.verify(path)


def test_a_worker_that_sees_another_store_is_an_error(damaged: Path, tmp_path: Path) -> None:
    job = chunk_ranges.RangeJob(
        chunk_ranges.describe_store(damaged), "plain", "of another one", StoreAccess(), num_threads=1, budget=1 << 28
    )
    with pytest.raises(zarrfeed.ConfigError, match=r"finds another array at .*: all workers must see the same store"):
        chunk_ranges.check_range(job, (0, 1))
    gone = chunk_ranges.RangeJob(
        chunk_ranges.describe_store(tmp_path / "nothing.zarr"),
        "plain",
        "",
        StoreAccess(),
        num_threads=1,
        budget=1 << 28,
    )
    with pytest.raises(zarrfeed.StoreReadError, match=r"nothing\.zarr"):
        chunk_ranges.check_range(gone, (0, 1))


def test_statistics_of_processes_have_the_bits_of_threads(
    damaged: Path, tmp_path: Path, pool: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarrfeed.tools.stats._BATCH_BYTES", 3000)
    monkeypatch.setattr("zarrfeed.tools.stats._RANGE_BYTES", 10_000)
    data = zarrfeed.open(damaged, variables=["values"]).select(np.flatnonzero(np.arange(600) % 5))
    for axis in (None, 1):
        by_threads = zarrfeed.stats(data, axis=axis)
        assert zarrfeed.stats(data, axis=axis, executor=pool) == by_threads
    # a run that threads began in the middle of a range is ended by processes
    output = tmp_path / "stats.json"
    seen: list[Any] = []

    def stop(now: Any) -> None:
        seen.append(now)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zarrfeed.stats(data, axis=1, output=output, on_progress=stop)
    assert zarrfeed.stats(data, axis=1, output=output, executor=pool) == by_threads
    errors = []
    for executor in (None, pool):
        with pytest.raises(zarrfeed.CorruptChunkError) as failed:
            zarrfeed.stats(zarrfeed.open(damaged, variables=["plain"]), executor=executor)
        errors.append((type(failed.value), str(failed.value)))
    assert errors[0] == errors[1]


def test_processes_warm_the_cache_of_the_caller(damaged: Path, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    pytest.importorskip("obstore")
    site = tmp_path / "site"
    shutil.copytree(damaged, site / "a.zarr")
    for path in site.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    zarr.consolidate_metadata(site / "a.zarr")
    with CountingServer(site) as server:
        url = f"{server.url}/a.zarr"

        def warm(cache: str, executor: Any) -> Any:
            arguments = argparse.Namespace(
                path=url, cache=tmp_path / cache, cache_limit="1GiB", cache_version=None, arrays=["plain", "values"]
            )
            arguments.memory_budget, arguments.timeout, arguments.executor = "1GiB", 60.0, executor
            arguments.zarr_format = None
            return commands.warm(arguments, None)

        by_threads, by_processes = warm("a", None), warm("b", pool)
        assert by_processes.arrays == by_threads.arrays
        assert all(array.objects == array.of > 0 for array in by_threads.arrays)
        server.gets.clear()
        again = warm("b", pool)
        assert [a.added_bytes for a in again.arrays] == [0, 0]
        assert [a.hit_bytes for a in again.arrays] == [a.added_bytes for a in by_threads.arrays]
        assert sum(server.chunk_gets().values()) == 0
        assert not list((tmp_path / "b").glob("warming-*"))
        # a worker of another machine has another directory at this path, or none
        options = CacheOptions.parse(tmp_path / "b", "1GiB")
        assert options is not None
        job = WarmJob.of(url, StoreAccess(cache=options), 1 << 30)
        with pytest.raises(
            zarrfeed.ConfigError, match=r"does not see the cache .*/b: run `zarrfeed cache warm` on each"
        ):
            pool.submit(warm_keys, job, "plain", ["c/0/0"]).result(60)
        with token_in(job):
            assert pool.submit(warm_keys, job, "plain", ["c/0/0"]).result(60)[0].objects == 1


@pytest.mark.parametrize("run", [zarrfeed.verify, zarrfeed.stats])
def test_what_other_processes_cannot_open_is_refused(run: Any, damaged: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        in_memory = zarr.array(np.arange(100.0), chunks=(10,))
        with pytest.raises(zarrfeed.ConfigError, match="a MemoryStore is in the memory of this process"):
            run(in_memory, executor=pool)
        with pytest.raises(zarrfeed.ConfigError):
            run(np.arange(100.0), executor=pool)
        for wrong in ("slurm", 5, "dask"):
            if wrong != "dask":
                with pytest.raises(zarrfeed.ConfigError, match="executor = "):
                    run(zarr.open_array(damaged / "values", mode="r"), executor=wrong)


@pytest.mark.parametrize("command", [["verify"], ["stats", "--sample-axis=0", "--variables=values"]])
def test_the_command_refuses_what_is_no_executor(
    command: list[str], damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, str(damaged), "--executor", "spark://host"]) == cli.EXIT_ERROR
    assert "executor = 'spark://host', must be dask://HOST:PORT, ray or ray://HOST:PORT" in capsys.readouterr().err

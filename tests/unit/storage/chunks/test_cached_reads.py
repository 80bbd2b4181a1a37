"""Chunks that zarr-python decodes go through the node cache, too: fetched once, versioned, checked, counted.

The server counts what it is asked, and zarr-python says what the samples are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.oracle import NUMCODECS_WARNING
from tests.support.scripts import run_script
from zarrfeed.base.native import core
from zarrfeed.storage.access.read_counts import CacheCounts
from zarrfeed.storage.chunks import cached_reads
from zarrfeed.storage.chunks.cached_reads import CachedReads

pytest.importorskip("obstore")

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

N, ROWS = 48, 4
KINDS = ("numbers", "numbers in shards", "text", "text in shards", "text in shards of gzip")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CountingServer]:
    """Serve an empty directory."""
    (tmp_path / "site").mkdir()
    with CountingServer(tmp_path / "site") as server:
        yield server


def write(server: CountingServer, kind: str, shift: int = 0) -> str:
    """Write samples that say which one they are; return the URL."""
    root = server.directory / "a.zarr"
    shutil.rmtree(root, ignore_errors=True)
    shards = (3 * ROWS,) if "shards" in kind else None
    if kind.startswith("numbers"):  # a codec that the engine does not have
        compressors: Any = [zarr_numcodecs.BZ2(level=1)]
        array = zarr.create_array(
            root, shape=(N,), chunks=(ROWS,), shards=shards, dtype="i8", compressors=compressors, fill_value=-1
        )
        array[:] = np.arange(N) + shift
    else:
        compressors = [zarr.codecs.GzipCodec(level=1)] if "gzip" in kind else "auto"
        array = zarr.create_array(root, shape=(N,), chunks=(ROWS,), shards=shards, dtype=str, compressors=compressors)
        array[:] = np.array([f"sample {i + shift}" for i in range(N)], dtype=object)
    for path in root.rglob("*"):
        os.utime(path, (1_000_000_000 + shift, 1_000_000_000 + shift))
    return f"{server.url}/a.zarr"


def read(data: Any, root: Path, epochs: int = 1) -> zarrfeed.Stats:
    """Read shuffled epochs and compare them with zarr-python; return the statistics."""
    stored = sorted(np.asarray(zarr.open_array(root, mode="r")[:]).tolist())
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_threads": 2, "mixing": {"lanes": 1}}
    with zarrfeed.ZarrIterableDataset(data, **options) as dataset:
        assert dataset.explain().fields[0].amplification == 1
        assert not dataset.explain().fields[0].native
        for _ in range(epochs):
            seen = [one for batch in dataset for one in (batch.tolist() if hasattr(batch, "tolist") else batch)]
            assert sorted(seen) == stored
        return dataset.stats()


@pytest.mark.parametrize("kind", KINDS)
def test_each_chunk_is_fetched_once_and_then_hit(site: CountingServer, tmp_path: Path, kind: str) -> None:
    url, root = write(site, kind), site.directory / "a.zarr"
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}
    first = read(zarrfeed.open(url, **options), root)
    gets = site.chunk_gets()
    assert set(gets.values()) == {1}
    assert first.cache.troubles == ()
    assert first.cache.misses == (N // ROWS if "shards" not in kind else N // ROWS + N // ROWS // 3)
    assert first.cache.written_bytes == first.cache.miss_bytes
    assert first.cache.hits + first.cache.refused + first.cache.unversioned + first.cache.damaged == 0
    again = read(zarrfeed.open(url, **options), root, epochs=2)
    assert not site.chunk_gets()
    assert again.cache.hit_ratio == 1
    assert again.cache.misses == again.cache.written_bytes == 0
    assert again.requests == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_changed_is_never_served_from_the_cache(site: CountingServer, tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}
    root = site.directory / "a.zarr"
    read(zarrfeed.open(write(site, kind), **options), root)
    read(zarrfeed.open(write(site, kind, shift=500), **options), root)
    assert read(zarrfeed.open(f"{site.url}/a.zarr", **options), root).cache.misses == 0


def test_damaged_entries_are_fetched_again(site: CountingServer, tmp_path: Path) -> None:
    url, root = write(site, "text"), site.directory / "a.zarr"
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}
    read(zarrfeed.open(url, **options), root)
    site.chunk_gets()
    entries = sorted(p for p in (tmp_path / "cache" / "entries").rglob("*") if p.is_file() and p.name != "store")
    for path in entries[:3]:
        stored = bytearray(path.read_bytes())
        stored[-1] ^= 1
        path.write_bytes(stored)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    stats = read(zarrfeed.open(url, **options), root)
    assert stats.cache.damaged == stats.cache.misses == sum(site.chunk_gets().values()) == 3
    assert read(zarrfeed.open(url, **options), root).cache.misses == 0


def test_a_full_cache_refuses_and_hits_what_it_has(site: CountingServer, tmp_path: Path) -> None:
    url, root = write(site, "numbers"), site.directory / "a.zarr"
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit=6 * 4096)
    read(data, root)
    stats = read(data, root, epochs=2)
    assert stats.cache.hit_ratio == 0.5
    assert stats.cache.refused == N // ROWS
    with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
        expected = dataset.explain().cache
        assert expected is not None
        assert expected.expected_hit_ratio == 0.5


def test_missing_chunks_and_unknown_versions_are_no_entries(site: CountingServer, tmp_path: Path) -> None:
    url, root = write(site, "numbers"), site.directory / "a.zarr"
    (root / "c" / "2").unlink()
    os.utime(root / "c" / "5", (2**33, 2**33))  # a clock that is ahead
    with CountingServer(site.directory, "time") as server:
        data = zarrfeed.open(f"{server.url}/a.zarr", cache=tmp_path / "cache", cache_limit="1GiB")
        stats = read(data, root, epochs=2)
        assert server.chunk_gets()["/a.zarr/c/5"] == 2
    assert stats.cache.unversioned == 4
    assert (stats.cache.hits, stats.cache.misses) == (N // ROWS - 2, N // ROWS - 2)
    assert url.endswith("a.zarr")


_RANKS = """
    import os, sys
    import zarrfeed

    url, cache, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid:
            children.append(pid)
            continue
        status = 1
        try:
            data = zarrfeed.open(url, cache=cache, cache_limit="1GiB")
            dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, seed=rank, num_threads=1, rank=0, world_size=1)
            seen = [one for batch in dataset for one in (batch.tolist() if hasattr(batch, "tolist") else batch)]
            stats = dataset.stats().cache
            status = 0 if len(set(seen)) == 48 and not (stats.damaged or stats.troubles) else 2
        finally:
            os._exit(status)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""


@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_processes_on_a_cold_cache_fetch_each_chunk_once(site: CountingServer, tmp_path: Path, kind: str) -> None:
    url = write(site, kind)
    result = run_script(_RANKS, url, str(tmp_path / "cache"), "4", timeout=90)
    assert result.stdout.strip() == str([0] * 4), result.stderr
    gets = site.chunk_gets()
    assert len(gets) == N // ROWS
    assert set(gets.values()) == {1}


def make_reads(path: Path, versions: dict[str, str] | None = None) -> CachedReads:
    directory = core.CacheDirectory(os.fsencode(path), 1 << 20)
    known = core.ObjectVersions(list((versions or {"a": "1"}).items()))
    called = core.CachedArray(directory, store="s3://b", prefix="x/", versions=known)
    return CachedReads(directory, called, known, CacheCounts())


def test_parts_that_are_there_are_not_fetched_with_those_that_are_not(tmp_path: Path) -> None:
    content = np.arange(200, dtype=np.uint8)
    asked: list[list[tuple[int, int | None]]] = []

    async def fetch(parts: list[tuple[int, int | None]]) -> list[Any]:
        asked.append(parts)
        return [content[begin:end] for begin, end in parts]

    async def run() -> None:
        reads = make_reads(tmp_path / "cache")
        for parts in ([(10, 20)], [(0, 10), (10, 20), (20, 20), (150, 160)], [(0, None)], [(-4, None)], [(-4, None)]):
            found = await reads.get("a", parts, fetch)
            for (begin, end), data in zip(parts, found, strict=True):
                assert isinstance(data, np.ndarray)
                assert data.tolist() == content[begin:end].tolist()
        assert (reads.counts.hits, reads.counts.misses) == (2, 6)

    asyncio.run(run())
    assert asked == [[(10, 20)], [(0, 10), (20, 20), (150, 160)], [(0, None)], [(-4, None)]]


def test_an_answer_of_another_size_is_handed_on_and_not_kept(tmp_path: Path) -> None:
    async def fetch(_: list[tuple[int, int | None]]) -> list[Any]:
        return [np.zeros(3, np.uint8)]

    async def run() -> None:
        reads = make_reads(tmp_path / "cache")
        for _ in range(2):
            (data,) = await reads.get("a", [(0, 10)], fetch)
            assert isinstance(data, np.ndarray)
            assert len(data) == 3
        assert (reads.counts.hits, reads.counts.misses, reads.counts.written_bytes) == (0, 2, 0)

    asyncio.run(run())


def test_who_misses_what_another_fetches_waits_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        reads = make_reads(tmp_path / "cache")
        began, go_on = asyncio.Event(), asyncio.Event()

        async def fetch(parts: list[tuple[int, int | None]]) -> list[Any]:
            began.set()
            await go_on.wait()
            return [np.full(7, 5, np.uint8) for _ in parts]

        async def never(parts: list[tuple[int, int | None]]) -> list[Any]:
            raise AssertionError(parts)

        first = asyncio.create_task(reads.get("a", [(0, None)], fetch))
        await began.wait()
        second = asyncio.create_task(reads.get("a", [(0, None)], never))
        await asyncio.sleep(0.02)
        go_on.set()
        for (data,) in (await first, await second):
            assert isinstance(data, np.ndarray)
            assert data.tolist() == [5] * 7
        assert (reads.counts.hits, reads.counts.misses) == (1, 1)

    asyncio.run(run())


def test_who_waits_too_long_asks_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached_reads._TIMEOUT_S == 20.0  # as NodeCache::kTimeout
    monkeypatch.setattr(cached_reads, "_TIMEOUT_S", 0.0)

    async def fetch(parts: list[tuple[int, int | None]]) -> list[Any]:
        return [np.full(7, 5, np.uint8) for _ in parts]

    async def run() -> None:
        reads = make_reads(tmp_path / "cache")
        stopped = reads.called.try_claim("a")
        assert stopped is not None
        (data,) = await reads.get("a", [(0, None)], fetch)
        assert isinstance(data, np.ndarray)
        assert reads.counts.refused == 1

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError("down"), asyncio.CancelledError()])
def test_an_error_of_the_store_gives_the_claim_back(tmp_path: Path, error: BaseException) -> None:
    async def fetch(_: list[tuple[int, int | None]]) -> list[Any]:
        raise error

    async def run() -> None:
        reads = make_reads(tmp_path / "cache")
        with pytest.raises(type(error)):
            await reads.get("a", [(0, None)], fetch)
        assert reads.called.try_claim("a") is not None

    asyncio.run(run())

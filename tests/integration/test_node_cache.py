"""The node cache behind `zarrfeed.open(cache=...)`: hits, versions, processes, kills, limits, and what it refuses.

The server counts what it is asked, and each sample says which one it is.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.examples import slow
from tests.support.scripts import run_script
from zarrfeed import ConfigError
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.chunks.object_versions import name_store, object_keys

pytest.importorskip("obstore")

N, ROWS = 96, 4
LONG_AGO = 1_000_000_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CountingServer]:
    """Serve an empty directory."""
    (tmp_path / "site").mkdir()
    with CountingServer(tmp_path / "site") as server:
        yield server


def write_array(server: CountingServer, name: str = "a.zarr", *, shift: int = 0, shards: bool = False) -> str:
    """Write samples that hold their index, and `shift`; return the URL. Incompressible, 4 KiB a chunk."""
    root = server.directory / name
    shutil.rmtree(root, ignore_errors=True)
    shape, chunks = (N, 256), (ROWS, 256)
    rows = np.random.default_rng(shift).integers(0, 2**31, shape, "i4")
    rows[:, 0] = np.arange(N) + shift
    array = zarr.create_array(root, shape=shape, chunks=chunks, shards=(6 * ROWS, 256) if shards else None, dtype="i4")
    array[:] = rows
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO + shift, LONG_AGO + shift))
    return f"{server.url}/{name}"


def read(data: Any, *, shift: int = 0, epochs: int = 1, **options: Any) -> zarrfeed.Stats:
    """Read shuffled epochs, check that each sample comes once; return the statistics."""
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, seed=3, num_threads=2, **options)
    for _ in range(epochs):
        seen = np.concatenate([batch.numpy() for batch in dataset])
        assert sorted(seen[:, 0] - shift) == list(range(N))
    return dataset.stats()


@pytest.mark.parametrize("shards", [False, True])
def test_each_chunk_is_fetched_once_by_all_datasets_and_epochs(
    site: CountingServer, tmp_path: Path, shards: bool
) -> None:
    url = write_array(site, shards=shards)
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}
    stats = read(zarrfeed.open(url, **options), epochs=2)
    gets = site.chunk_gets()
    assert set(gets.values()) == {1}
    assert len(gets) == N // ROWS if not shards else 4 <= len(gets) <= 4 + N // ROWS
    assert stats.cache.damaged == stats.cache.unversioned == stats.cache.refused == 0
    assert stats.cache.troubles == ()
    again = read(pickle.loads(pickle.dumps(zarrfeed.open(url, **options))), epochs=2)
    assert not site.chunk_gets()
    assert again.cache.hit_ratio == 1
    assert again.cache.misses == 0
    assert again.cache.hit_bytes == again.bytes_read + (4 * (16 * 6 + 4) * 2 if shards else 0)
    assert "node cache" in str(again)


def test_an_object_that_changed_is_never_served_from_the_cache(site: CountingServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}
    read(zarrfeed.open(write_array(site), **options))
    site.chunk_gets()
    url = write_array(site, shift=500)
    read(zarrfeed.open(url, **options), shift=500)
    assert sum(site.chunk_gets().values()) == N // ROWS
    chunk = site.directory / "a.zarr" / "c" / "3" / "0"
    changed = np.frombuffer(chunk.read_bytes(), "u1")
    os.utime(chunk, (LONG_AGO + 900, LONG_AGO + 900))  # the same bytes, but who knows
    stats = read(zarrfeed.open(url, **options), shift=500)
    assert dict(site.chunk_gets()) == {"/a.zarr/c/3/0": 1}
    assert stats.cache.misses == 1
    assert len(changed) > 4000


def test_versions_come_from_headers_or_from_the_user(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    for tells, is_cached in (("time", True), ("tag", True), ("nothing", False)):
        with CountingServer(tmp_path / "site", tells) as server:
            url = write_array(server)
            stats = read(zarrfeed.open(url, cache=tmp_path / tells, cache_limit="1GiB"), epochs=2)
            assert sum(server.chunk_gets().values()) == N // ROWS * (1 if is_cached else 2)
            assert bool(stats.cache.troubles) != is_cached
    assert "cache_version=" in stats.cache.troubles[0]
    with CountingServer(tmp_path / "site", "nothing") as server:
        url = write_array(server)
        for version, gets in (("1", 1), ("1", 0), ("2", 1)):
            data = zarrfeed.open(url, cache=tmp_path / "nothing", cache_limit="1GiB", cache_version=version)
            assert read(data).cache.troubles == ()
            assert set(server.heads) <= {"/a.zarr/zarr.json"}
            assert sum(server.chunk_gets().values()) == N // ROWS * gets


def test_an_object_that_changed_a_moment_ago_has_no_version_without_a_tag(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    with CountingServer(tmp_path / "site", "time") as server:
        url = write_array(server)
        (server.directory / "a.zarr" / "c" / "5" / "0").touch()
        os.utime(server.directory / "a.zarr" / "c" / "5" / "0", (2**33, 2**33))  # a clock that is ahead
        stats = read(zarrfeed.open(url, cache=tmp_path / "cache", cache_limit="1GiB"), epochs=2)
        assert stats.cache.unversioned == 2
        assert server.chunk_gets()["/a.zarr/c/5/0"] == 2


def test_a_cache_of_half_the_data_hits_half_the_reads(site: CountingServer, tmp_path: Path) -> None:
    url = write_array(site)
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit=N // ROWS // 2 * 8192)
    read(data)
    stats = read(data, epochs=2)
    assert stats.cache.hit_ratio == pytest.approx(0.5, abs=0.01)
    assert stats.cache.refused > 0
    tiny = read(zarrfeed.open(url, cache=tmp_path / "tiny", cache_limit=100))
    assert tiny.cache.hits == 0
    assert tiny.cache.written_bytes == 0


@pytest.mark.parametrize(("affinity", "shards"), [("node", False), ("node", True), (None, False)])
def test_two_nodes_with_room_for_half_the_data_each_hit_always_if_each_reads_its_part(
    site: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: Any, shards: bool
) -> None:
    """A directory a node; without affinity, half of the reads hit."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    url = write_array(site, shards=shards)
    limit = (N // ROWS // 2 + (4 if shards else 0)) * 8192  # 12 of 24 chunks, and the indices of the shards
    nodes = [
        zarrfeed.ZarrIterableDataset(
            zarrfeed.open(url, cache=tmp_path / f"node-{rank}", cache_limit=limit),
            batch_size=8,
            shuffle=True,
            seed=3,
            affinity=affinity,
            rank=rank,
            world_size=2,
        )
        for rank in range(2)
    ]

    def epochs(count: int) -> tuple[int, int]:
        for _ in range(count):
            seen = np.concatenate([batch.numpy() for dataset in nodes for batch in dataset])
            assert sorted(seen[:, 0]) == list(range(N))
        caches = [dataset.stats().cache for dataset in nodes]
        return sum(cache.hits for cache in caches), sum(cache.misses for cache in caches)

    hits, misses = epochs(1)
    site.chunk_gets()
    more_hits, more_misses = epochs(8)
    hits, misses = more_hits - hits, more_misses - misses
    fetched = sum(site.chunk_gets().values())
    caches = [dataset.explain().cache for dataset in nodes]
    expected = [cache.expected_hit_ratio for cache in caches if cache is not None]
    if affinity is None:
        assert hits / (hits + misses) == pytest.approx(0.5, abs=0.1)
        assert fetched > 0
        assert expected == [pytest.approx(0.5, abs=0.05)] * 2
    else:
        assert (misses, fetched) == (0, 0)
        assert expected == [1, 1]


def test_a_damaged_entry_is_fetched_again(site: CountingServer, tmp_path: Path) -> None:
    url = write_array(site)
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit="1GiB")
    read(data)
    site.chunk_gets()
    entries = [p for p in (tmp_path / "cache" / "entries").rglob("*") if p.is_file() and p.name != "store"]
    for number, path in enumerate(sorted(entries)[:5]):
        stored = bytearray(path.read_bytes())
        if number == 4:
            del stored[100:]
        else:
            stored[-1 - number * 997] ^= 1
        path.write_bytes(stored)
        os.utime(path, (LONG_AGO, LONG_AGO))
    stats = read(data)
    assert stats.cache.damaged == stats.cache.misses == 5
    assert sum(site.chunk_gets().values()) == 5
    assert read(data).cache.misses == 0


_RANKS = """
    import json, os, sys, time
    import numpy as np
    import zarrfeed

    url, cache, ranks, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), 5
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
            seen = np.concatenate([batch.numpy()[:, 0] for batch in dataset])
            status = 0 if sorted(seen) == list(range(%d)) else 2
            stats = dataset.stats().cache
            if stats.damaged or stats.troubles:
                status = 3
        finally:
            os._exit(status)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""


@pytest.mark.parametrize("shards", [slow(False), True])
def test_eight_processes_on_a_cold_cache_fetch_each_chunk_once(
    site: CountingServer, tmp_path: Path, shards: bool
) -> None:
    url = write_array(site, shards=shards)
    result = run_script(_RANKS % N, url, str(tmp_path / "cache"), "8", timeout=120)
    assert result.stdout.strip() == str([0] * 8), result.stderr
    gets = site.chunk_gets()
    if shards:  # ranges that one process reads together are divided otherwise by the next one
        index = 16 * 6 + 4
        stored = {path.partition(" ")[0] for path in gets}
        assert len(stored) == 4
        assert sum(n for path, n in gets.items() if path.endswith(f"bytes=-{index}")) == 4
        assert _bytes_asked(gets) <= sum((site.directory / p[1:]).stat().st_size for p in stored) + 4 * index
    else:
        assert len(gets) == N // ROWS
        assert set(gets.values()) == {1}


def _bytes_asked(gets: Any) -> int:
    asked = 0
    for path, count in gets.items():
        first, _, last = path.partition("bytes=")[2].partition("-")
        asked += count * (int(last) - int(first) + 1 if first else int(last))
    return asked


_KILLS = """
    import os, signal, sys, time
    import numpy as np
    import zarrfeed

    url, cache, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def read(epochs):
        data = zarrfeed.open(url, cache=cache, cache_limit="1GiB")
        dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, seed=1, num_threads=1, rank=0, world_size=1)
        for _ in range(epochs):
            seen = np.concatenate([batch.numpy()[:, 0] for batch in dataset])
            assert sorted(seen) == list(range(%d))
        return dataset.stats().cache

    def child(work):
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)

    for number in range(kills):
        if number %% 10 == 9:
            import shutil
            shutil.rmtree(cache + "/entries")
            os.mkdir(cache + "/entries")
        pid = child(lambda: read(1000))
        time.sleep(0.02 + (number * 37 %% 100) / 700)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def check():
        assert read(2).damaged == 0
        assert not os.listdir(cache + "/tmp")

    print(os.waitstatus_to_exitcode(os.waitpid(child(check), 0)[1]))
"""


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_that_are_killed_leave_no_bad_entry(site: CountingServer, tmp_path: Path, kills: int) -> None:
    url = write_array(site)
    result = run_script(_KILLS % N, url, str(tmp_path / "cache"), str(kills), timeout=60 + kills)
    assert result.stdout.strip() == "0", result.stderr


def test_workers_share_the_cache(site: CountingServer, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    url = write_array(site)
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit="1GiB")
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, seed=3, num_threads=1)
    for _ in range(2):
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
        assert sorted(np.concatenate([batch.numpy()[:, 0] for batch in loader])) == list(range(N))
    gets = site.chunk_gets()
    assert len(gets) == N // ROWS
    assert set(gets.values()) == {1}


def test_a_map_style_dataset_reads_through_the_cache(site: CountingServer, tmp_path: Path) -> None:
    url = write_array(site)
    dataset = zarrfeed.ZarrDataset(zarrfeed.open(url, cache=tmp_path / "cache", cache_limit="1GiB"))
    for _ in range(2):
        assert dataset[[5, 90, 17]][:, 0].tolist() == [5, 90, 17]
    assert sum(site.chunk_gets().values()) == 3
    assert dataset.stats().cache.misses == 3


def test_a_directory_that_cannot_be_used_is_told_and_no_error(site: CountingServer) -> None:
    stats = read(zarrfeed.open(write_array(site), cache="/proc/no/such/cache", cache_limit="1GiB"))
    assert "cannot be made" in stats.cache.troubles[0]
    assert stats.cache.hits == 0
    assert json.dumps(stats.cache.troubles)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": 3}, "cache = 3, must be the path of a directory"),
        ({"cache": ""}, "cache = '', must be the path of a directory"),
        ({"cache": "s3://bucket/cache"}, "must be a local directory and no URL"),
        ({"cache": "a\0b"}, "must be the path of a directory"),
        ({"cache": "  "}, "cache = '  ', must be the path of a directory"),
        ({"cache": b"cache"}, "cache = b'cache', must be the path of a directory"),
        ({"cache": ["cache"]}, "cache = ['cache'], must be the path of a directory"),
        ({"cache": True}, "cache = True, must be the path of a directory"),
        ({"cache": "\ud800"}, "must be the path of a directory"),
        ({"cache": "x" * 300}, "File name too long"),
        ({"cache": "file.txt/cache"}, "Not a directory"),
        ({"cache_limit": "1GiB"}, "cache_limit = '1GiB' without cache"),
        ({"cache_version": "1"}, "cache_version = '1' without cache"),
        ({"cache": "cache", "cache_limit": "lots"}, "cache_limit = 'lots', must be bytes or text such as \"2GiB\""),
        ({"cache": "cache", "cache_limit": 0}, "cache_limit = 0, must be at least 1 byte"),
        ({"cache": "cache", "cache_limit": -1}, "cache_limit = -1, must be"),
        ({"cache": "cache", "cache_limit": True}, "cache_limit = True, must be"),
        ({"cache": "cache", "cache_limit": [1]}, "cache_limit = [1], must be"),
        ({"cache": "cache", "cache_limit": float("nan")}, "cache_limit = nan, must be"),
        ({"cache": "cache", "cache_limit": ""}, "cache_limit = '', must be"),
        ({"cache": "cache", "cache_version": True}, "cache_version = True, must be text of 1 to 200 characters"),
        ({"cache": "cache", "cache_version": "1" * 201}, "must be text of 1 to 200 characters"),
        ({"cache": "cache", "cache_version": 3}, "cache_version = 3, must be text of 1 to 200 characters"),
        ({"cache": "cache", "cache_version": ""}, "cache_version = '', must be text of 1 to 200 characters"),
        ({"cache": "."}, "has files of something else, such as file.txt"),
        ({"cache": "file.txt"}, "is not a directory"),
    ],
)
def test_bad_options_are_refused_when_the_data_are_opened(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("mine")
    with pytest.raises(ConfigError) as caught:
        zarrfeed.open(np.zeros(3), **options)
    assert message in str(caught.value)
    assert (tmp_path / "file.txt").read_text() == "mine"


def test_any_limit_and_a_home_directory_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = CacheOptions.parse("~/cache", 2**70)
    assert options is not None
    assert options.path == str(tmp_path / "cache")
    assert options.directory().limit() == 2**62 - 1


def test_without_a_limit_most_of_what_is_free_may_be_used(tmp_path: Path) -> None:
    options = CacheOptions.parse(tmp_path / "deep" / "cache")
    assert options is not None
    free = shutil.disk_usage(tmp_path).free
    assert 0.5 * free < options.limit < 0.95 * free


def test_a_cache_is_not_part_of_what_the_samples_are(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(4, 2), chunks=(2, 2), dtype="f4")
    array[:] = 1
    cached = zarrfeed.open(tmp_path / "a.zarr", cache=tmp_path / "cache", cache_limit="1MiB")
    assert cached == zarrfeed.open(tmp_path / "a.zarr")
    assert "cache=" in repr(cached)


def test_names_of_stores_have_no_credentials() -> None:
    from obstore.store import HTTPStore, S3Store
    from zarr.storage import MemoryStore, ObjectStore

    secret = HTTPStore.from_url("http://user:secret@127.0.0.1:1/x/y", client_options={"allow_http": True})
    assert name_store(ObjectStore(secret)) == ("http://127.0.0.1:1", "x/y")
    bucket = S3Store(
        "data", prefix="p/q", endpoint="http://me:secret@host:9/", access_key_id="key", secret_access_key="secret"
    )
    assert name_store(ObjectStore(bucket)) == ("s3://data at host:9", "p/q")
    assert name_store(MemoryStore()) is None


def test_keys_of_objects_are_those_of_chunks_or_shards(tmp_path: Path) -> None:
    from zarrfeed.metadata.array.array import read_layout

    for shards, v2 in ((None, True), (None, False), ((4, 4), False)):
        root = tmp_path / f"{shards}-{v2}"
        array = zarr.create_array(
            root, shape=(6, 5), chunks=(2, 2), shards=shards, dtype="i4", zarr_format=2 if v2 else 3
        )
        array[:] = 1
        stored = {
            str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.name.startswith((".z", "z"))
        }
        assert set(object_keys(read_layout(root))) == stored


def test_a_last_chunk_that_was_filled_up_is_not_served_as_it_was(site: CountingServer, tmp_path: Path) -> None:
    """Objects had the versions of when the growing store was opened, so new samples were read as fill values."""
    root = site.directory / "grows.zarr"
    array = zarr.create_array(root, shape=(10, 4), chunks=(ROWS, 4), dtype="i4", fill_value=-1)
    array[:] = np.arange(10)[:, None]
    data = zarrfeed.open(f"{site.url}/grows.zarr", refresh="epoch", complete="shape", cache=tmp_path / "cache")
    with zarrfeed.ZarrIterableDataset(data, batch_size=1, shuffle=False) as dataset:
        assert [int(batch[0, 0]) for batch in dataset] == list(range(10))
        array.resize((15, 4))
        array[10:] = np.arange(10, 15)[:, None]
        site.chunk_gets()
        assert [int(batch[0, 0]) for batch in dataset] == list(range(15))
        assert sorted(site.chunk_gets()) == ["/grows.zarr/c/2/0", "/grows.zarr/c/3/0"]  # the others hit
        assert [int(batch[0, 0]) for batch in dataset] == list(range(15))
        assert not site.chunk_gets()
        assert dataset.stats().cache.unversioned == 0


def test_a_store_that_grows_cannot_be_declared_unchanging(site: CountingServer, tmp_path: Path) -> None:
    url = write_array(site)
    with pytest.raises(ConfigError, match=r"cache_version = '1' declares that objects never change"):
        zarrfeed.open(url, refresh="epoch", cache=tmp_path / "cache", cache_version="1")

"""Many stores as one on servers: an S3 server in this process that counts and fails as told, and a web server.

Each sample holds its number, so that any other order, and any other store, is seen.
"""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from benchmarks.harness.object_server import Act, ObjectServer, Request, Stored
from tests.support.counting_server import CountingServer
from tests.support.examples import slow
from tests.support.oracle import NUMCODECS_WARNING
from tests.support.scripts import run_script
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.storage.chunks.parted_source import PartedSource

pytest.importorskip("obstore")
pytestmark = pytest.mark.filterwarnings(NUMCODECS_WARNING)

TIMEOUT_S = 60.0
_LZMA = [{"name": "numcodecs.lzma", "configuration": {}}]
Write = Callable[[MemoryStore, str, npt.NDArray[np.int64]], None]


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """Start an S3 server."""
    with ObjectServer() as started:
        yield started


def array_of(store: MemoryStore, name: str, rows: npt.NDArray[np.int64]) -> None:
    """Write an array with two chunks, or three."""
    zarr.create_array(store, name=name, data=rows, chunks=(3, 2))


def any_group(store: MemoryStore, name: str, rows: npt.NDArray[np.int64]) -> None:
    """Write a group whose codecs, chunks and shards depend on its first sample."""
    kind = int(rows[0, 0]) % 4
    group = zarr.create_group(store, path=name, zarr_format=2 if kind == 3 else 3)
    kinds: list[dict[str, Any]] = [{}, {"shards": (6, 2)}, {"compressors": _LZMA}, {"compressors": None}]
    group.create_array(
        "x", shape=rows.shape, dtype=rows.dtype, chunks=(2 + kind % 2, 2) if kind != 1 else (3, 2), **kinds[kind]
    )
    group["x"][:] = rows  # type: ignore[index]
    text = group.create_array("name", shape=rows.shape[:1], chunks=(4,), dtype=str)
    text[:] = np.array([f"n{i}" for i in rows[:, 0]], dtype=object)


def write_stores(server: ObjectServer, lengths: list[int], write: Write = array_of) -> list[str]:
    """Write stores to the server; return their URLs."""
    memory: Any = {}
    store = MemoryStore(memory)
    first, urls = 0, []
    for number, length in enumerate(lengths):
        rows = np.repeat(np.arange(first, first + length), 2).reshape(length, 2)
        write(store, f"train/s{number:03}.zarr", rows)
        urls.append(f"s3://bucket/train/s{number:03}.zarr")
        first += length
    for key, value in memory.items():
        if ".zarr/" in key:  # not the groups above the stores
            server.objects[key] = Stored((np.frombuffer(value.to_bytes(), np.uint8),), f'"{key} {first}"')
    return urls


def read(dataset: ZarrIterableDataset, count: int) -> list[int]:
    """Read an epoch; return the numbers of its samples, which come once each."""
    order = [i for batch in dataset for i in batch[:, 0].tolist()]
    assert sorted(order) == list(range(count))
    return order


def chunk_gets(server: ObjectServer) -> Counter[str]:
    """Return how often each chunk was asked for; forget all requests."""
    counts = Counter(one.key for one in server.requests if one.kind == "get" and "/c/" in one.key)
    server.requests.clear()
    return counts


# --- what is read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["list", "pattern"])
def test_stores_of_any_length_codec_and_format_are_one(server: ObjectServer, by: str) -> None:
    lengths = [5, 8, 3, 10, 7, 7, 1, 4]
    urls = write_stores(server, lengths, any_group)
    server.objects["train/readme.txt"] = server.objects["train/.hidden.zarr/zarr.json"] = Stored((), '"1"')
    data = zarrfeed.open(urls if by == "list" else "s3://bucket/train/*.zarr", storage_options=server.options())
    assert list(data.stores) == urls
    assert len(data) == sum(lengths)
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, seed=1, return_index=True)
    seen: list[int] = []
    for batch, index in dataset:
        numbers = index.tolist()
        assert batch["x"].tolist() == [[i, i] for i in numbers]
        assert batch["name"] == [f"n{i}" for i in numbers]
        store, index_in_store = data.locate(index)
        assert [sum(lengths[:s]) + p for s, p in zip(store.tolist(), index_in_store.tolist(), strict=True)] == numbers
        seen += numbers
    assert sorted(seen) == list(range(sum(lengths)))
    some = ZarrDataset(data)[[44, 0, 13, 13]]
    assert some["x"][:, 0].tolist() == [44, 0, 13, 13]
    assert "in 8 stores of 1 to 10 samples" in str(dataset.explain())


def test_patterns_match_names_of_folders_at_any_depth(server: ObjectServer) -> None:
    url, *_ = write_stores(server, [4])
    for name in ("b/2020/t.zarr", "b/2021/t.zarr", "b/2021-x/t.zarr", "b/x/other.zarr"):
        for key in [key for key in server.objects if key.startswith("train/")]:
            server.objects[key.replace("train/s000.zarr", name)] = server.objects[key]
    options = server.options()
    assert zarrfeed.open("s3://bucket/b/20*/t.zarr", storage_options=options).stores == (
        "s3://bucket/b/2020/t.zarr",
        "s3://bucket/b/2021-x/t.zarr",
        "s3://bucket/b/2021/t.zarr",
    )
    assert zarrfeed.open("s3://bucket/*/*/t.zarr", storage_options=options).stores[0] == "s3://bucket/b/2020/t.zarr"
    assert zarrfeed.open("s3://bucket/tra?n/s0[0-9]0.zarr/", storage_options=options).stores == (url,)


def test_a_name_with_an_escape_in_its_url_is_read_beside_others(server: ObjectServer) -> None:
    urls = write_stores(server, [4, 4])
    for key in [key for key in server.objects if "s001" in key]:
        server.objects[key.replace("s001", "a b")] = server.objects.pop(key)
    data = zarrfeed.open([urls[0], "s3://bucket/train/a%20b.zarr"], storage_options=server.options())
    read(ZarrIterableDataset(data, batch_size=3), 8)


def test_stores_on_a_web_server(tmp_path: Path) -> None:
    for number in range(6):
        rows = np.repeat(np.arange(4 * number, 4 * number + 4), 2).reshape(4, 2)
        zarr.create_array(tmp_path / f"s{number}.zarr", data=rows, chunks=(3, 2))
    with CountingServer(tmp_path) as web:
        data = zarrfeed.open([f"{web.url}/s{number}.zarr" for number in range(6)])
        read(ZarrIterableDataset(data, batch_size=5, shuffle=True), 24)
        with pytest.raises(StoreReadError, match=r"s9\.zarr: no Zarr array is there"):
            zarrfeed.open([f"{web.url}/s0.zarr", f"{web.url}/s9.zarr"])
        with pytest.raises(UnsupportedError, match=r"\*\.zarr: a web server does not list its files; give a list"):
            zarrfeed.open(f"{web.url}/*.zarr")
        shutil.rmtree(tmp_path / "s3.zarr")
        with pytest.raises(StoreReadError, match=r"s3\.zarr"):
            list(ZarrIterableDataset(data, batch_size=5))


# --- requests ---------------------------------------------------------------------------------------------------


def test_opening_costs_two_requests_a_store_and_an_epoch_each_object_once(server: ObjectServer) -> None:
    urls = write_stores(server, [5] * 40)
    data = zarrfeed.open(urls, storage_options=server.options())
    assert len(server.requests) <= 2 * 40 + 4  # the first store is looked for in all formats
    assert not chunk_gets(server)
    dataset = ZarrIterableDataset(data, batch_size=10)
    for _ in range(2):
        before = dataset.stats().hedges
        assert read(dataset, 200) == list(range(200))
        counts = chunk_gets(server)
        assert len(counts) == 80
        assert counts.total() - 80 <= dataset.stats().hedges - before


@pytest.mark.parametrize("by", ["open", "concat"])
def test_stores_are_opened_32_at_once_over_one_client(
    by: str, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = write_stores(server, [5] * 33)
    waiting, everyone = threading.Semaphore(0), threading.Event()

    def hold(request: Request) -> Act | None:
        """Answer no store but the first before 32 others are asked for."""
        if request.kind == "get" and not request.key.startswith("train/s000"):
            waiting.release()
            assert everyone.wait(TIMEOUT_S)
        return None

    def count() -> None:
        if all(waiting.acquire(timeout=TIMEOUT_S) for _ in range(32)):
            everyone.set()

    counting = threading.Thread(target=count)
    counting.start()
    server.fault = hold
    if by == "open":
        data = zarrfeed.open(urls, storage_options=server.options(), timeout=TIMEOUT_S)
    else:
        named = {"endpoint": "ENDPOINT_URL", "key": "ACCESS_KEY_ID", "secret": "SECRET_ACCESS_KEY"}
        for name, value in server.options().items():
            monkeypatch.setenv(f"AWS_{named.get(name, name.upper())}", str(value).lower())
        data = zarrfeed.concat(urls)
        server.fault = None
        assert data == zarrfeed.concat(map(zarrfeed.open, urls))
    counting.join(TIMEOUT_S)
    assert everyone.is_set()
    (field,) = data.resolved.fields
    assert isinstance(field, StoredField)
    source = field.spec.source
    assert isinstance(source, PartedSource)
    assert len(source.sources) == 33
    assert len({id(one.store) for one in source.sources}) == 1
    assert len(pickle.dumps(data)) < 33 * 2500


def test_the_node_cache_serves_the_second_epoch_and_the_next_process(server: ObjectServer, tmp_path: Path) -> None:
    urls = write_stores(server, [5] * 12)
    options: dict[str, Any] = {"storage_options": server.options(), "cache": tmp_path / "c", "cache_limit": "1GiB"}
    dataset = ZarrIterableDataset(zarrfeed.open(urls, **options), batch_size=10, shuffle=True)
    read(dataset, 60)
    assert set(chunk_gets(server)) == {f"train/s{n:03}.zarr/c/{i}/0" for n in range(12) for i in range(2)}
    read(dataset, 60)
    assert not chunk_gets(server)
    alone = ZarrIterableDataset(zarrfeed.open(urls[0], **options), batch_size=5)  # the same names in the cache
    again = ZarrIterableDataset(zarrfeed.open("s3://bucket/train/*.zarr", **options), batch_size=10)
    read(again, 60)
    read(alone, 5)
    assert not chunk_gets(server)
    assert again.stats().cache.hit_ratio == 1


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_errors_that_pass_are_not_seen(server: ObjectServer) -> None:
    urls = write_stores(server, [5] * 40)
    server.fault = lambda request: Act("status", 503) if request.number % 5 == 2 else None
    data = zarrfeed.open(urls, storage_options=server.options())
    dataset = ZarrIterableDataset(data, batch_size=10, shuffle=True)
    read(dataset, 200)
    assert server.hits > 20
    assert dataset.stats().retries > 0
    server.fault = lambda request: Act("status", 503) if request.kind == "list" and request.number < 1 else None
    assert len(zarrfeed.open("s3://bucket/train/*.zarr", storage_options=server.options())) == 200


def test_a_store_that_is_missing_is_named(server: ObjectServer) -> None:
    urls = write_stores(server, [5] * 40)
    options = server.options()
    stored = server.objects.pop("train/s023.zarr/zarr.json")
    with pytest.raises(StoreReadError, match=r"s3://bucket/train/s023\.zarr: no Zarr array is there"):
        zarrfeed.open(urls, storage_options=options)
    server.objects["train/s023.zarr/zarr.json"] = Stored((np.frombuffer(b"{", np.uint8),), '"2"')
    with pytest.raises((ConfigError, StoreReadError), match=r"s3://bucket/train/s023\.zarr"):
        zarrfeed.open(urls, storage_options=options)
    server.objects["train/s023.zarr/zarr.json"] = stored
    for key in [key for key in server.objects if "s024" in key]:
        server.objects[key.replace("s024", "s023")] = server.objects[key]
    odd = Stored((np.frombuffer(stored.content().replace(b"int64", b"int32"), np.uint8),), '"3"')
    server.objects["train/s030.zarr/zarr.json"] = odd
    with pytest.raises(ConfigError, match=r"train/s030\.zarr: .* is int32 .* in s3://bucket/train/s000\.zarr it is"):
        zarrfeed.open(urls, storage_options=options)
    server.fault = lambda request: Act("status", 403) if "s011" in request.key else None
    with pytest.raises(StoreReadError, match=r"s3://bucket/train/s011\.zarr: permission denied"):
        zarrfeed.open(urls, storage_options=options)


def test_a_store_that_goes_after_it_was_opened_is_named(server: ObjectServer) -> None:
    urls = write_stores(server, [5] * 20)
    data = zarrfeed.open(urls, storage_options=server.options())
    for key in [key for key in server.objects if "s013" in key]:
        del server.objects[key]
    with pytest.raises(StoreReadError, match=r"train/s013\.zarr.*zarr\.json is gone"):
        list(ZarrIterableDataset(data, batch_size=10, shuffle=True))


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ([], ConfigError, "an empty list of stores"),
        ("s3://bucket/none/*.zarr", StoreReadError, r"none/\*\.zarr: no store matches this pattern"),
        ("s3://buck*/x.zarr", ConfigError, "the name of the bucket must be given"),
        ("s3://me:secret@bucket/*.zarr", ConfigError, "has a user, a query or a fragment"),
        ("s3://bucket/*.zarr?signature=secret", ConfigError, "has a user, a query or a fragment"),
        ("https://host/*.zarr?signature=secret", UnsupportedError, "does not list"),
        ("https://host/a.zarr?signature=secret", ConfigError, "has a user, a query or a fragment"),
        ("https://me:secret@host/*.zarr", UnsupportedError, "does not list"),
        ("gopher://host/*.zarr", UnsupportedError, "gopher:// is not supported"),
    ],
)
def test_sources_that_name_no_stores(source: Any, kind: type[Exception], message: str, server: ObjectServer) -> None:
    options = server.options() if "s3://" in source else None
    with pytest.raises(kind, match=message) as caught:
        zarrfeed.open(source, storage_options=options)
    assert "secret" not in str(caught.value)


def test_an_address_in_brackets_is_no_pattern() -> None:
    with pytest.raises(StoreReadError, match=r"http://\[::1\]:9/a\.zarr: cannot be read"):
        zarrfeed.open("http://[::1]:9/a.zarr", retries=0)


@pytest.mark.parametrize("progress", [1, "yes", "auto"])
def test_progress_is_a_flag(progress: Any, server: ObjectServer) -> None:
    urls = write_stores(server, [3, 3])
    with pytest.raises(ConfigError, match="progress"):
        zarrfeed.open(urls, storage_options=server.options(), progress=progress)


@pytest.mark.parametrize("progress", [True, False, None])
def test_progress_tells_how_many_stores_are_open(
    progress: bool | None, server: ObjectServer, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = write_stores(server, [3, 3])
    zarrfeed.open(urls, storage_options=server.options(), progress=progress)
    assert ("stores opened" in capfd.readouterr().err) == bool(progress)


# --- processes --------------------------------------------------------------------------------------------------

_INTERRUPTED = """
    import json, os, signal, sys, threading, time
    import zarrfeed

    source, options, asked = json.loads(sys.argv[1])

    def interrupt():
        while not os.path.exists(asked):
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        zarrfeed.open(source, storage_options=options, timeout=500)
        print("opened")
    except KeyboardInterrupt:
        print("interrupted", [t.name for t in threading.enumerate() if "zarrfeed" in t.name])
"""


@pytest.mark.parametrize("by", ["list", "pattern"])
def test_an_interrupt_ends_the_opening_and_its_threads(by: str, server: ObjectServer, tmp_path: Path) -> None:
    """Requests wait for 600 s, and the script may take 60. The signal does not end what the main thread waits in."""
    urls = write_stores(server, [3] * 40)

    def hold(request: Request) -> Act | None:
        if by == "list" and "s000" in request.key:
            return None
        (tmp_path / "asked").touch()
        return Act("stall", 600)

    server.fault = hold
    source = urls if by == "list" else "s3://bucket/train/*.zarr"
    arguments = json.dumps([source, server.options(), str(tmp_path / "asked")])
    done = run_script(_INTERRUPTED, arguments, timeout=TIMEOUT_S)
    assert done.stdout == "interrupted []\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize("method", [slow("spawn"), "forkserver"])
def test_workers_read_all_stores_and_resume(method: str, server: ObjectServer) -> None:
    urls = write_stores(server, [5, 8, 4] * 4)
    data = zarrfeed.open(urls, storage_options=server.options())

    def loader() -> ZarrDataLoader:
        dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=7)
        return ZarrDataLoader(dataset, num_workers=2 if method == "forkserver" else 1, multiprocessing_context=method)

    whole = loader()
    order = [batch[:, 0].tolist() for batch in whole]
    assert sorted(i for batch in order for i in batch) == list(range(68))
    if method == "spawn":
        return
    first = loader()
    batches = iter(first)
    assert [next(batches)[:, 0].tolist() for _ in range(3)] == order[:3]
    state = first.state_dict()
    del batches
    second = loader()
    second.load_state_dict(state)
    assert [batch[:, 0].tolist() for batch in second] == order[3:]


def test_forked_workers_are_refused(server: ObjectServer) -> None:
    data = zarrfeed.open(write_stores(server, [5] * 4), storage_options=server.options())
    dataset = ZarrIterableDataset(data, batch_size=4)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ConfigError, match=r"does not work in a process that was forked .*'spawn' or 'forkserver'"):
        list(loader)


def test_what_is_pickled_reads_and_resumes(server: ObjectServer) -> None:
    data = zarrfeed.open(write_stores(server, [5, 8, 4]), storage_options=server.options())
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=5)
    order = read(dataset, 17)
    fresh = ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=5)
    batches = iter(fresh)
    seen = [next(batches)[:, 0].tolist() for _ in range(2)]
    state = fresh.state_dict()
    again = pickle.loads(pickle.dumps(ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=5)))
    again.load_state_dict(state)
    rest = [batch[:, 0].tolist() for batch in again]
    assert [i for batch in seen + rest for i in batch] == order

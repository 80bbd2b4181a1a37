"""Stores that Python reads: samples as zarr-python gives them, many requests in flight, and ends that are normal."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import pickle
import subprocess
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

from tests.support.flat import iterable_dataset
from tests.support.oracle import (
    ZARR_FORMATS,
    AnyArray,
    Layout,
    ZarrFormat,
    assert_parity,
    assert_rows_equal,
    numbered,
    read_all,
)
from tests.support.proc import open_files
from tests.support.scripts import run_script
from zarrfeed import (
    ClosedError,
    ConfigError,
    CorruptChunkError,
    StoreReadError,
    UnsupportedError,
    ZarrIterableDataset,
)
from zarrfeed.engine.store_bridge import _Session
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.storage.chunks.location import StoreSource

N = 120
TIMEOUT_S = 200.0


class SlowStore(WrapperStore[Store]):
    """A store whose chunks take a while, and that counts how many are asked for at once."""

    def __init__(self, store: Store, delay: float = 0.0) -> None:
        super().__init__(store)
        self.delay = delay
        self.now = self.most = self.total = 0
        self.before: Callable[[str], Awaitable[None]] | None = None

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        if is_metadata(key):
            return await super().get(key, prototype, byte_range)
        self.now += 1
        self.total += 1
        self.most = max(self.most, self.now)
        try:
            if self.before is not None:
                await self.before(key)
            if self.delay:
                await asyncio.sleep(self.delay)
            return await super().get(key, prototype, byte_range)
        finally:
            self.now -= 1


def is_metadata(key: str) -> bool:
    return key.rsplit("/", 1)[-1] in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def memory_store(_: Path) -> Store:
    return MemoryStore()


def zip_store(tmp_path: Path) -> Store:
    return ZipStore(tmp_path / "a.zip", mode="w")


def fsspec_store(tmp_path: Path) -> Store:
    pytest.importorskip("fsspec")
    return FsspecStore.from_url(f"memory://{tmp_path.name}", storage_options={})


def object_store(_: Path) -> Store:
    stores = pytest.importorskip("obstore.store")
    return ObjectStore(stores.MemoryStore())


def logging_store(tmp_path: Path) -> Store:
    return LoggingStore(LocalStore(tmp_path / "a"), log_level="WARNING", log_handler=logging.NullHandler())


def slow_store(_: Path) -> Store:
    return SlowStore(MemoryStore(), delay=0.001)


STORES = [memory_store, zip_store, fsspec_store, object_store, logging_store, slow_store]


def write(store: Store, data: AnyArray, chunks: tuple[int, ...], **options: Any) -> zarr.Array[Any]:
    array: zarr.Array[Any] = zarr.create_array(store, shape=data.shape, chunks=chunks, dtype=data.dtype, **options)
    array[...] = data
    return array


def simple(store: Store, *, rows: int = 4, n: int = N) -> tuple[zarr.Array[Any], AnyArray]:
    """Write an array of several samples a chunk that does not compress away."""
    data = numbered((n, 6))
    return write(store, data, (rows, 6)), data


def make(array: Any, **options: Any) -> ZarrIterableDataset:
    defaults: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_threads": 2, "return_index": True}
    return iterable_dataset(array, **(defaults | options))


def drain(dataset: ZarrIterableDataset, expected: AnyArray) -> None:
    seen: list[int] = []
    for rows, index in dataset:
        assert_rows_equal(rows, index, expected)
        seen += index.tolist()
    assert sorted(seen) == list(range(len(expected)))


def tasks_on_the_loop() -> list[str]:
    """Name what is under way on zarr's loop, this question apart."""

    async def ask() -> list[str]:
        return [repr(t) for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    found: list[str] = sync(ask())
    return found


def wait_for_an_empty_loop() -> None:
    """Wait until nothing is under way on zarr's loop; another thread may begin something right afterwards."""
    deadline = time.monotonic() + 240
    while left := tasks_on_the_loop():
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_is_left_on_the_loop() -> Iterator[None]:
    yield
    wait_for_an_empty_loop()


# --- parity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_store", STORES)
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_every_store_gives_what_zarr_python_reads(
    make_store: Callable[[Path], Store], zarr_format: ZarrFormat, tmp_path: Path
) -> None:
    layout = Layout(zarr_format=zarr_format, shape=(23, 6, 5), chunks=(5, 4, 2), codec="blosc-lz4-shuffle")
    array = layout.write(make_store(tmp_path))
    expected = read_all(array)
    np.testing.assert_array_equal(expected, layout.data())
    for shuffle in (False, True):
        assert_parity(array, expected, shuffle=shuffle)


@pytest.mark.parametrize("make_store", STORES)
def test_missing_chunks_are_the_fill_value(make_store: Callable[[Path], Store], tmp_path: Path) -> None:
    store = make_store(tmp_path)
    array: zarr.Array[Any] = zarr.create_array(store, shape=(N, 6), chunks=(4, 3), dtype="f4", fill_value=7)
    array[8:16, :3] = 1
    expected = read_all(array)
    with make(array) as dataset:
        drain(dataset, expected)
        assert dataset.stats().chunks_missing > 0
        assert dataset.stats().chunks_read > 0


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip", "blosc-zstd-bitshuffle", "zstd-crc32c"])
def test_codecs_decode_from_lent_bytes(codec: str) -> None:
    layout = Layout(shape=(23, 4, 5), chunks=(5, 4, 5), codec=codec)
    array = layout.write(MemoryStore())
    assert_parity(array, read_all(array))


def test_targets_may_be_in_another_store(tmp_path: Path) -> None:
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    for samples, targets in ((LocalStore(tmp_path / "x"), MemoryStore()), (MemoryStore(), LocalStore(tmp_path / "y"))):
        a, b = write(samples, x, (4, 6)), write(targets, y, (2, 2))
        with make(a, targets=b) as dataset:
            for rows, other, index in dataset:
                assert_rows_equal(rows, index, x)
                assert_rows_equal(other, index, y)
            assert dataset.explain().memory.max_requests > 0


def test_small_targets_that_are_kept_in_memory_come_from_any_store() -> None:
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    a, b = write(MemoryStore(), x, (4, 6)), write(SlowStore(MemoryStore(), 0.001), y, (7, 2))
    with make(a, targets=b) as dataset:
        assert "kept in memory" in str(dataset.explain())
        for rows, other, index in dataset:
            assert_rows_equal(rows, index, x)
            assert_rows_equal(other, index, y)


def test_an_array_below_the_root_of_a_store(tmp_path: Path) -> None:
    data = numbered((N, 6))
    for store in (MemoryStore(), zip_store(tmp_path)):
        array = zarr.create_group(store).create_array("deep/er", data=data, chunks=(4, 6))
        with make(array) as dataset:
            drain(dataset, data)
            assert "deep/er" in repr(dataset)


def test_a_path_to_a_zip_file_is_opened_and_others_are_refused(tmp_path: Path) -> None:
    store = ZipStore(tmp_path / "a.zip", mode="w")
    _, data = simple(store)
    store.close()
    with make(tmp_path / "a.zip") as dataset:
        drain(dataset, data)
    (tmp_path / "b.zip").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"b\.zip"):
        make(tmp_path / "b.zip")
    with pytest.raises(UnsupportedError, match="ftp://"):
        make("ftp://host/array")


def test_a_subclass_of_local_store_is_asked_itself(tmp_path: Path) -> None:
    class Counted(LocalStore):
        gets = 0

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Buffer | None:
            Counted.gets += not is_metadata(key)
            return await super().get(key, prototype, byte_range)

    array, data = simple(Counted(tmp_path / "a"))
    before = Counted.gets
    with make(array, lanes=1) as dataset:
        drain(dataset, data)
    assert Counted.gets == before + N // 4


def test_threads_and_stores_do_not_change_the_result(tmp_path: Path) -> None:
    local, _ = simple(LocalStore(tmp_path / "a"))
    other, _ = simple(SlowStore(MemoryStore(), 0.001))
    with make(local, seed=3, lanes=4) as a, make(other, seed=3, lanes=4, num_threads=7) as b:
        for (x, i), (y, j) in zip(a, b, strict=True):
            assert torch.equal(i, j)
            assert torch.equal(x, y)


# --- requests ---------------------------------------------------------------------------------------------------


def test_many_requests_are_in_flight_and_no_more_than_the_memory_allows() -> None:
    store = SlowStore(MemoryStore(), delay=0.02)
    array, data = simple(store, rows=1, n=400)
    met = asyncio.Event()

    async def meet(_: str) -> None:
        """Answer no request before 32 are in flight."""
        if store.now >= 32:
            met.set()
        await asyncio.wait_for(met.wait(), TIMEOUT_S)

    store.before, store.most, store.total = meet, 0, 0
    with make(array, faults={"retries": 0}) as dataset:
        allowed = dataset.explain().memory.max_requests
        drain(dataset, data)
    assert store.total == 400  # each chunk once
    assert 32 <= store.most <= allowed


def test_a_small_budget_keeps_few_requests_in_flight() -> None:
    store = SlowStore(MemoryStore(), delay=0.002)
    data = numbered((64, 16, 1024))
    array = write(store, data, (4, 2, 1024))  # 8 chunks of 32 KiB a block
    store.most = 0
    with make(array, batch_size=4, memory_budget="2MiB") as dataset:
        memory = dataset.explain().memory
        assert memory.fetch_bytes == memory.max_requests * 32 * 1024
        assert memory.max_requests <= 16  # a quarter of the memory
        drain(dataset, data)
    assert 1 < store.most <= memory.max_requests


def test_where_a_request_may_be_a_connection_fewer_are_open_at_once() -> None:
    """Servers drop connections beyond what they queue, which costs seconds."""
    obstore = pytest.importorskip("obstore.store")
    connected: Store = ObjectStore(obstore.MemoryStore())
    store: Store
    for store in (connected, WrapperStore(connected), WrapperStore(WrapperStore(connected))):
        assert StoreSource(store, "", "zarr.json").max_requests == 256
    for store in (MemoryStore(), WrapperStore(MemoryStore())):
        assert StoreSource(store, "", "zarr.json").max_requests == 1024


@pytest.mark.parametrize(
    ("budget", "requests", "why"),
    [("16MiB", 256, "what memory allows"), ("1GiB", 1024, "what such a store is asked")],
)
def test_explain_says_how_many_requests_are_open_and_why(budget: str, requests: int, why: str) -> None:
    data = np.zeros((64, 4096), dtype="f4")
    with make(write(MemoryStore(), data, (1, 4096)), memory_budget=budget) as dataset:  # chunks of 16 KiB
        line = f"up to {requests} chunks asked for at once in stores that are not local: {why}"
        assert line in str(dataset.explain())


def test_lent_bytes_are_dropped_when_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an epoch would end with the whole array in memory."""
    most = 0

    class Lent(dict[int, Any]):
        def __setitem__(self, request_id: int, data: Any) -> None:
            nonlocal most
            super().__setitem__(request_id, data)
            most = max(most, len(self))

    opened = _Session.open

    async def open_watched(session: _Session) -> None:
        session._provided = Lent()
        await opened(session)

    monkeypatch.setattr(_Session, "open", open_watched)
    array, _ = simple(MemoryStore(), n=2000)
    with make(array, memory_budget="16KiB") as dataset:
        for _ in dataset:
            pass
        bound, chunks = dataset.explain().memory.max_requests, dataset.stats().chunks_read
        assert 0 < most <= bound < chunks / 2


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no luck"),
        OSError(13, "denied"),
        KeyError("x"),
        asyncio.CancelledError(),
        SystemExit(3),
        KeyboardInterrupt(),
        TimeoutError(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_whatever_a_store_raises_reaches_next_with_array_and_key(error: BaseException) -> None:
    store = SlowStore(MemoryStore())
    array, data = simple(store)

    async def fail(key: str) -> None:
        if key == "c/7/0":
            raise error

    store.before = fail
    with make(array) as dataset:
        with pytest.raises(
            StoreReadError, match=r"chunk c/7/0: the store cannot read it(, after 5 retries in .* s)?: "
        ) as caught:
            drain(dataset, data)
        assert str(array.store_path) in str(caught.value)
        assert caught.value.__cause__ is error
        assert type(error).__name__ in str(caught.value)
        own = error.errno if isinstance(error, OSError) else None
        assert caught.value.errno == (own or (errno.ETIMEDOUT if isinstance(error, TimeoutError) else errno.EIO))
        store.before = None
        drain(dataset, data)  # the next epoch is not touched by it


def test_a_store_that_returns_something_else_is_an_error() -> None:
    class Strange(WrapperStore[Store]):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            return b"bytes" if key == "c/3/0" else await super().get(key, prototype, byte_range)

    array, data = simple(Strange(MemoryStore()))
    with make(array) as dataset, pytest.raises(StoreReadError, match="c/3/0"):
        drain(dataset, data)


def test_a_corrupt_a_truncated_and_an_overlong_chunk_are_errors_with_the_key() -> None:
    for damage in (lambda b: b[: len(b) // 2], lambda b: b"\xff" * len(b), lambda _: b"", lambda b: b + bytes(1 << 20)):
        store = MemoryStore()
        array, data = simple(store)
        good = sync(store.get("c/5/0", cpu.buffer_prototype))
        assert good is not None
        sync(store.set("c/5/0", cpu.Buffer.from_bytes(damage(good.to_bytes()))))
        with make(array) as dataset, pytest.raises(CorruptChunkError, match=r"memory://.* chunk c/5/0: "):
            drain(dataset, data)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_an_array_that_was_deleted_is_an_error_and_never_fill_values(zarr_format: ZarrFormat) -> None:
    store = MemoryStore()
    data = numbered((N, 6))
    group = zarr.create_group(store, zarr_format=zarr_format)
    array = group.create_array("a", data=data, chunks=(4, 6))
    with make(array) as dataset:
        drain(dataset, data)
        sync(store.delete_dir("a"))
        with pytest.raises(StoreReadError, match=r"a/(zarr\.json|\.zarray) is gone") as caught:
            drain(dataset, data)
        assert caught.value.errno == 2


def test_a_store_that_cannot_be_asked_is_an_error_at_construction() -> None:
    class Broken(WrapperStore[Store]):
        async def exists(self, key: str) -> bool:
            raise RuntimeError(f"no luck with {key}")

    array, _ = simple(Broken(MemoryStore()))
    with pytest.raises(StoreReadError, match="no luck"):
        make(array)


# --- ends -------------------------------------------------------------------------------------------------------


def stalled(after: int = 0) -> tuple[SlowStore, zarr.Array[Any]]:
    """Return a store that stops to answer for ever, after some chunks."""
    store = SlowStore(MemoryStore())
    array, _ = simple(store)
    first = store.total

    async def stall(_: str) -> None:
        if store.total - first > after:
            await asyncio.Event().wait()

    store.before = stall
    return store, array


def test_close_from_another_thread_ends_the_wait_for_a_store_that_stalls() -> None:
    store, array = stalled()
    dataset = make(array)
    feed = iter(dataset)

    def close_when_it_stalls() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not store.now and time.monotonic() < deadline:
            time.sleep(0.001)
        dataset.close()

    closer = threading.Thread(target=close_when_it_stalls)
    closer.start()
    with pytest.raises(ClosedError):
        next(feed)
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()
    assert store.now == 0


@pytest.mark.parametrize("how", ["break", "close", "next epoch"])
def test_an_epoch_is_given_up_while_a_store_stalls(how: str) -> None:
    store, array = stalled(after=25)
    dataset = make(array, lanes=2, memory_budget="1MiB")
    feed = iter(dataset)
    next(feed)
    deadline = time.monotonic() + TIMEOUT_S
    while not store.now and time.monotonic() < deadline:
        time.sleep(0.001)
    assert store.now
    if how == "close":
        dataset.close()
    elif how == "next epoch":
        store.before = None
        drain(dataset, numbered((N, 6)))
    if how != "close":
        del feed, dataset
        gc.collect()
    assert store.now == 0


@contextmanager
def reading(dataset: ZarrIterableDataset, store: SlowStore) -> Iterator[None]:
    """Read in a thread, and enter when the store has been asked; the dataset is to be closed inside."""

    def read() -> None:
        with suppress(ClosedError):
            next(iter(dataset))

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not store.now and time.monotonic() < deadline:
        time.sleep(0.001)
    assert store.now
    yield
    reader.join(TIMEOUT_S)
    assert not reader.is_alive()


def test_a_store_that_blocks_the_loop_does_not_block_close() -> None:
    store, array = stalled()
    release = threading.Event()

    async def block(_: str) -> None:
        release.wait(TIMEOUT_S)

    store.before = block
    dataset = make(array)
    with reading(dataset, store):
        begin = time.monotonic()
        dataset.close()
        assert time.monotonic() - begin < TIMEOUT_S / 2
        release.set()


@pytest.mark.parametrize("error", [RuntimeError("late"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_a_store_raises_while_it_is_given_up_is_for_nobody(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    store, array = stalled()

    async def fail_late(_: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    store.before = fail_late
    dataset = make(array)
    with reading(dataset, store):
        dataset.close()
    gc.collect()
    assert store.now == 0
    wait_for_an_empty_loop()  # which is alive
    assert caplog.text == ""


def test_many_epochs_that_are_given_up_leave_no_descriptor() -> None:
    array, _ = simple(SlowStore(MemoryStore(), delay=0.001))

    def give_up_after(batches: int) -> int:
        with make(array) as dataset:
            for i, _ in enumerate(dataset):
                if i == batches:
                    break
        gc.collect()
        return len(open_files())

    gc.collect()  # descriptors that earlier tests left
    before = give_up_after(1)
    assert max(give_up_after(batches) for batches in range(1, 12)) <= before


SCRIPT = """
import asyncio, gc, os, sys
import numpy as np, zarr
from zarr.storage import MemoryStore, WrapperStore
from zarrfeed import ZarrIterableDataset

class Slow(WrapperStore):
    armed = False
    async def get(self, key, prototype, byte_range=None):
        if self.armed and not key.endswith("zarr.json"):
            await asyncio.sleep({delay})
        return await super().get(key, prototype, byte_range)

data = np.arange(6000, dtype="f4").reshape(1000, 6)
store = Slow(MemoryStore())
array = zarr.create_array(store, data=data, chunks=(4, 6))
store.armed = True
dataset = ZarrIterableDataset(array, batch_size=8, shuffle=True, return_index=True)
feed = iter(dataset)
"""


def run_with_slow_store(text: str, delay: str = "0.001") -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT.format(delay=delay) + textwrap.dedent(text))


@pytest.mark.parametrize(
    "ending", ["next(feed)", "next(feed); del dataset", "next(feed)\ndef f(): raise SystemExit(0)\nf()"]
)
def test_the_interpreter_may_exit_in_the_middle(ending: str) -> None:
    result = run_with_slow_store(ending, "0.02")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_interpreter_may_exit_while_the_store_stalls() -> None:
    result = run_with_slow_store("import time; time.sleep(0.2)", "1e6")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_signal_ends_the_wait_for_a_store_that_stalls() -> None:
    result = run_with_slow_store(
        """
        import signal, threading
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            next(feed)
        except KeyboardInterrupt:
            print("interrupted")
        """,
        "1e6",
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n", "")


# --- processes --------------------------------------------------------------------------------------------------


def fork_result(body: Callable[[], None]) -> int:
    """Run `body` in a forked child; return 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:  # noqa: BLE001 (pytest must not go on in the child)
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("make_store", [memory_store, zip_store, fsspec_store, logging_store, slow_store])
def test_a_forked_child_reads_afresh_after_use_in_the_parent(
    make_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    store = make_store(tmp_path)
    array, data = simple(store)
    if isinstance(store, ZipStore):
        store.close()
        array = zarr.open_array(ZipStore(tmp_path / "a.zip", mode="r"), mode="r")
    with make(array) as dataset:
        drain(dataset, data)
        assert fork_result(lambda: drain(dataset, data)) == 0
        drain(dataset, data)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_during_an_epoch_harms_neither_side() -> None:
    array, data = simple(SlowStore(MemoryStore(), delay=0.002))

    def child() -> None:
        with pytest.raises(ClosedError):
            next(feed)
        drain(dataset, data)

    with make(array) as dataset:
        for _ in range(3):
            feed = iter(dataset)
            seen = [next(feed)]
            assert fork_result(child) == 0
            seen += feed
            assert sorted(torch.cat([i for _, i in seen]).tolist()) == list(range(N))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_store_that_does_not_survive_a_fork_is_refused_there(tmp_path: Path) -> None:
    array, data = simple(object_store(tmp_path))

    def child() -> None:
        with pytest.raises(ConfigError, match="'spawn' or 'forkserver'"):
            drain(dataset, data)

    with make(array) as dataset:
        drain(dataset, data)
        assert fork_result(child) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("make_store", "context"), [(memory_store, "fork"), (zip_store, "fork"), (memory_store, "forkserver")]
)
def test_workers_of_a_data_loader_read_any_store(
    make_store: Callable[[Path], Store], context: str, tmp_path: Path
) -> None:
    store = make_store(tmp_path)
    array, data = simple(store)
    if isinstance(store, ZipStore):
        store.close()
        array = zarr.open_array(ZipStore(tmp_path / "a.zip", mode="r"), mode="r")
    with make(array) as dataset:
        drain(dataset, data)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=240)
        seen: list[int] = []
        for rows, index in loader:
            assert_rows_equal(rows, index, data)
            seen += index.tolist()
        assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("make_store", [memory_store, fsspec_store])
def test_a_layout_goes_through_pickle_with_its_store(make_store: Callable[[Path], Store], tmp_path: Path) -> None:
    array, data = simple(make_store(tmp_path))
    spec = read_layout(array)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pickle.loads(pickle.dumps(make(array))) as dataset:
        drain(dataset, data)

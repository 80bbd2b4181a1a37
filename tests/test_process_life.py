"""Early ends are normal: break, exceptions, close, Ctrl-C, exit and fork leave no thread, no hang, no message."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from zarrfeed import ClosedError, CorruptChunkError, ZarrIterableDataset, _core
from zarrfeed.layout import read_layout
from zarrfeed.order import Order

N = 4000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("life") / "samples.zarr")
    data = np.repeat(np.arange(N, dtype=np.int64), 500).reshape(N, 500)
    zarr.create_array(path, data=data, chunks=(10, 500))
    return path


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = num_threads()
    yield
    gc.collect()
    assert num_threads() <= before


def make(store: str) -> ZarrIterableDataset:
    return ZarrIterableDataset(store, batch_size=16, shuffle=True, num_threads=4)


def test_a_break_ends_the_threads(store: str) -> None:
    dataset = make(store)
    for batches in range(1, 20):
        for i, _ in enumerate(dataset):
            if i == batches:
                break
    del dataset


def test_an_iterator_that_is_never_advanced_ends_the_threads(store: str) -> None:
    for _ in range(10):
        iter(make(store))


def test_an_exception_in_the_consumer_ends_the_threads(store: str) -> None:
    def consume() -> None:
        for _ in make(store):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()


def test_close_ends_a_running_iteration(store: str) -> None:
    before = num_threads()
    dataset = make(store)
    feed = iter(dataset)
    next(feed)
    assert num_threads() >= before + 4
    dataset.close()
    assert num_threads() == before
    with pytest.raises(ClosedError):
        next(feed)


def test_close_from_another_thread_ends_a_waiting_consumer(store: str) -> None:
    """An engine that is lent no memory never has a batch to give: its consumer waits until it is stopped."""
    spec = read_layout(store)
    engine = _core.Engine([spec.to_core()], batch_size=16, num_threads=2, num_fetch_threads=1, lent_memory=True)
    engine.start(Order(spec.num_samples, 10, shuffle=False, seed=0, lanes=1).plan(0).to_core(), 8)
    outcome: list[Exception] = []

    def consume() -> None:
        try:
            engine.next()
        except ClosedError as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.1)
    engine.stop()
    consumer.join(timeout=10)
    assert len(outcome) == 1


def test_a_dataset_per_thread(store: str) -> None:
    results: dict[int, int] = {}

    def read(which: int) -> None:
        results[which] = sum(int(batch[:, 0].sum()) for batch in make(store))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == dict.fromkeys(range(4), N * (N - 1) // 2)


def test_an_error_in_a_chunk_reaches_next_and_ends_the_threads(tmp_path: Path) -> None:
    path = tmp_path / "bad.zarr"
    zarr.create_array(str(path), data=np.arange(1000.0), chunks=(10,))
    (path / "c" / "77").write_bytes(b"no zstd frame")
    dataset = ZarrIterableDataset(str(path), batch_size=8, shuffle=True)
    for _ in range(5):
        feed = iter(dataset)
        with pytest.raises(CorruptChunkError, match=r"bad\.zarr chunk c/77: zstd"):
            list(feed)
        assert list(feed) == [], "after its error an iteration is over"


def run_script(body: str, store: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(
        """
        import os, signal, sys, threading, time
        from zarrfeed import ZarrIterableDataset
        dataset = ZarrIterableDataset(sys.argv[1], batch_size=16, shuffle=True, num_threads=4)
        """
    ) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", script, store], capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.parametrize(
    "body",
    [
        "feed = iter(dataset); next(feed)",
        "feed = iter(dataset); next(feed); sys.exit(0)",
        "feeds = [iter(dataset) for _ in range(3)]",
        "import atexit; feed = iter(dataset); atexit.register(lambda: next(feed))",
        "for batch in dataset: pass",
        "batch = next(iter(dataset)); del dataset",
    ],
    ids=["module end", "sys.exit", "several", "used in atexit", "finished", "batch outlives dataset"],
)
def test_the_interpreter_exits_quietly_while_an_epoch_is_read(store: str, body: str) -> None:
    result = run_script(body, store)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_uncaught_exception_gives_its_traceback_and_exit_code_only(store: str) -> None:
    result = run_script("for batch in dataset: raise RuntimeError('boom')", store)
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("RuntimeError: boom")
    assert "terminate" not in result.stderr


def test_ctrl_c_interrupts_the_consumer(store: str) -> None:
    result = run_script(
        """
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                for batch in dataset: pass
        except KeyboardInterrupt:
            pass
        dataset.set_epoch(0)
        print(sum(len(b) for b in dataset))
        """,
        store,
    )
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, str(N), "")


def test_ctrl_c_interrupts_a_consumer_that_waits_without_end(store: str) -> None:
    """The wait is in C++ and has to look at signals: an engine that is lent no memory never has a batch to give."""
    result = run_script(
        """
        from zarrfeed import _core
        from zarrfeed.layout import read_layout
        from zarrfeed.order import Order
        spec = read_layout(sys.argv[1])
        engine = _core.Engine(
            [spec.to_core()], batch_size=16, num_threads=2, num_fetch_threads=1, lent_memory=True
        )
        engine.start(Order(spec.num_samples, 10, shuffle=False, seed=0, lanes=1).plan(0).to_core(), 8)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            engine.next()
        except KeyboardInterrupt:
            print('interrupted')
        """,
        store,
    )
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "interrupted", "")


def in_forked_child(body: Callable[[], None]) -> None:
    """Run `body` in a forked child with a time limit; fail unless it exits with 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the forked child hangs")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_afresh(store: str) -> None:
    dataset = make(store)
    feed = iter(dataset)
    held = next(feed)

    def child() -> None:
        dataset.set_epoch(0)
        index = np.concatenate([batch[:, 0].numpy() for batch in dataset])
        assert np.array_equal(index, dataset.sample_order(0))
        with pytest.raises(RuntimeError):
            next(feed)

    copied = held.clone()
    in_forked_child(child)
    assert torch.equal(held, copied)
    assert sum(len(batch) for batch in feed) == N - 16, "the parent goes on undisturbed"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_drop_what_the_parent_was_reading(store: str) -> None:
    holder = [make(store)]
    feeds = [iter(holder[0])]
    batches = [next(feeds[0])]

    def child() -> None:
        batches.clear()
        feeds.clear()
        holder.clear()
        gc.collect()

    in_forked_child(child)
    assert sum(len(batch) for batch in feeds[0]) == N - 16

"""Ctrl-C, and the end of the interpreter, at the moments where they are easily lost or do harm."""

from __future__ import annotations

import contextlib
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from tests.support.oracle import assert_no_thread_beyond, own_threads
from tests.support.proc import open_files
from tests.support.scripts import run_new_script, run_script
from zarrfeed import ZarrDataset, ZarrIterableDataset
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.store_bridge import _Session
from zarrfeed.torch.passes.epoch_iterator import Pass, SamplePass

N = 400


def make(target: Any) -> ZarrIterableDataset:
    array = zarr.create_array(target, data=np.arange(N), chunks=(10,))
    return ZarrIterableDataset(array, batch_size=16, shuffle=True, num_threads=2)


def test_an_interrupt_that_comes_while_an_iterator_is_dropped_reaches_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending the threads takes a while, in `__del__`, where Python prints what is raised and goes on."""
    dataset = make(tmp_path / "a")
    stop = Reader.stop
    armed: list[bool] = []

    def interrupted_stop(reader: Reader) -> None:
        stop(reader)
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    monkeypatch.setattr(Reader, "stop", interrupted_stop)

    def loop() -> None:
        for _ in dataset:
            armed.append(True)
            break
        for _ in range(1000):
            time.sleep(0.01)

    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            loop()
        assert len(dataset.session.readers._idle) == 1, "the reader serves the next pass"
        assert sorted(i for batch in dataset for i in batch.tolist()) == list(range(N))


@pytest.mark.parametrize("kind", [Pass, SamplePass])
def test_a_pass_whose_construction_was_interrupted_is_dropped_quietly(kind: type[Pass]) -> None:
    del (made := [kind.__new__(kind)])[0]
    assert not made
    gc.collect()  # what a `__del__` raises would fail this test


def test_an_interrupt_while_a_session_is_closed_leaves_nothing_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session had been forgotten by then, and its descriptor was watched for ever."""
    dataset = make(MemoryStore())
    for _ in dataset:
        break
    before = len(open_files())
    feed = iter(dataset)
    next(feed)
    close = _Session.close

    def interrupted_close(_: _Session) -> None:
        monkeypatch.setattr(_Session, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Session, "close", interrupted_close)
    with contextlib.suppress(KeyboardInterrupt):  # nothing keeps the traceback, which has the reader
        feed.close()
        raise AssertionError("it was not interrupted")
    del feed
    gc.collect()
    assert sorted(i for batch in dataset for i in batch.tolist()) == list(range(N))
    assert len(open_files()) <= before


@pytest.mark.parametrize("stopped", [False, True])
def test_an_interrupt_while_random_access_ends_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    data = np.repeat(np.arange(N), 4000).reshape(N, 4000)  # enough for threads to be started
    zarr.create_array(tmp_path / "a", data=data, chunks=(10, 4000))
    dataset = ZarrDataset(str(tmp_path / "a"), num_threads=4)
    assert dataset[7][0] == 7
    before = own_threads()
    stop, start = Reader.stop, Reader.start
    threads = []

    def noted_start(reader: Reader, *arguments: Any, **options: Any) -> None:
        start(reader, *arguments, **options)
        threads.append(own_threads())

    def interrupted_stop(reader: Reader) -> None:
        if stopped or not threads:
            stop(reader)
        if threads:
            monkeypatch.setattr(Reader, "stop", stop)
            raise KeyboardInterrupt

    monkeypatch.setattr(Reader, "start", noted_start)
    monkeypatch.setattr(Reader, "stop", interrupted_stop)
    with pytest.raises(KeyboardInterrupt):
        dataset.__getitems__(list(range(N)))
    assert threads[0] - before, "there were threads to be left behind"
    assert_no_thread_beyond(before)
    assert [sample[0].item() for sample in dataset.__getitems__([3, 300])] == [3, 300]


def test_a_session_that_is_given_up_while_it_opens_watches_nothing() -> None:
    """Who waits for it may be interrupted, and closes it before it is open."""
    dataset = make(MemoryStore())
    feed = iter(dataset)
    next(feed)
    reader: Any = feed.reader
    (running,) = reader._bridge._sessions
    sources = {number: chunks.source for number, chunks in running._readers.items()}
    before = len(open_files())
    session = _Session(reader._bridge, reader._engine, sources, 1)
    session.close()
    sync(session.open())
    assert len(open_files()) <= before
    session.close()


def test_a_daemon_thread_in_the_engine_when_the_interpreter_ends_does_not_end_the_process(tmp_path: Path) -> None:
    """Python ends such a thread by unwinding its stack, which was std::terminate in a destructor."""
    zarr.create_array(tmp_path / "a", data=np.arange(N), chunks=(10,))
    result = run_script(
        """
        import sys, threading, time
        import atexit
        from zarrfeed import _core
        from zarrfeed.metadata.array.array import read_layout
        from zarrfeed.plan.order.order import Order
        from zarrfeed.spec.fields.field import StoredField
        spec = read_layout(sys.argv[1])
        # Lent no memory it never has a batch, and looks at signals, with the GIL, twenty times a second.
        options = _core.EngineOptions(
            batch_size=16, num_threads=1, num_fetch_threads=1, provides_memory=True
        )
        engine = _core.Engine([StoredField("samples", spec).to_core()], options)
        engine.start(Order(spec.num_samples, 10, shuffle=False, seed=0, lanes=1).plan(0).to_core(), 4)

        class Slow:
            def __del__(self):
                time.sleep(0.3)  # the GIL is free, and the interpreter is ending

        slow = Slow()
        threading.Thread(target=engine.next, daemon=True).start()
        time.sleep(0.1)
        """,
        str(tmp_path / "a"),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_dataset_is_of_use_while_the_interpreter_exits(tmp_path: Path) -> None:
    """The file of the epochs had been closed by then, and its number could be another file's."""
    zarr.create_array(tmp_path / "a", data=np.arange(N), chunks=(10,))
    result = run_new_script(
        """
        import atexit, sys
        held = []
        atexit.register(lambda: print(len(held[0].sample_order())))  # runs last, as it was registered first
        from zarrfeed import ZarrIterableDataset
        held.append(ZarrIterableDataset(sys.argv[1], batch_size=16))
        """,
        str(tmp_path / "a"),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{N}\n", "")

"""Early ends are normal: break, exceptions, close, Ctrl-C, exit and fork leave no thread, no hang, no message."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset

from tests.support.examples import slow
from tests.support.oracle import no_thread_left, own_threads
from tests.support.preload import preloaded_by
from tests.support.proc import thread_ids
from tests.support.scripts import run_new_script, run_script
from zarrfeed import ClosedError, CorruptChunkError, ZarrDataLoader, ZarrIterableDataset, _core
from zarrfeed.engine.reader import Reader
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.fields.field import StoredField

N = 4000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("life") / "samples.zarr")
    data = np.repeat(np.arange(N, dtype=np.int64), 500).reshape(N, 500)
    zarr.create_array(path, data=data, chunks=(10, 500))
    return path


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = len(own_threads())
    yield
    gc.collect()
    deadline = time.monotonic() + 240  # threads of torch's queues end a little later
    while len(own_threads()) > before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert len(own_threads()) <= before


def make(store: str) -> ZarrIterableDataset:
    return ZarrIterableDataset(store, batch_size=16, shuffle=True, num_threads=4)


def test_a_break_ends_the_threads_at_once_and_not_with_the_dataset(store: str) -> None:
    """The dataset used to hold the iterator, hence its threads, until it was closed or dropped."""
    dataset = make(store)
    for _ in range(3):
        with no_thread_left():
            for _ in dataset:
                break
    assert dataset.stats().batches == 3


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
    with no_thread_left():
        before = thread_ids()
        dataset = make(store)
        feed = iter(dataset)
        next(feed)
        assert len(thread_ids() - before) >= 4
        dataset.close()
    with pytest.raises(ClosedError):
        next(feed)


def test_close_from_another_thread_ends_a_waiting_consumer(store: str) -> None:
    """An engine that is lent no memory never has a batch to give: its consumer waits until it is stopped."""
    spec = read_layout(store)
    engine = _core.Engine(
        [StoredField("samples", spec).to_core()],
        _core.EngineOptions(batch_size=16, num_threads=2, num_fetch_threads=1, provides_memory=True),
    )
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
    consumer.join(timeout=240)
    assert len(outcome) == 1


def test_a_dataset_per_thread(store: str) -> None:
    results: dict[int, int] = {}

    def read(which: int) -> None:
        results[which] = sum(int(batch[:, 0].sum()) for batch in make(store))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
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


SCRIPT = """
import os, signal, sys, threading, time
from zarrfeed import ZarrIterableDataset
dataset = ZarrIterableDataset(sys.argv[1], batch_size=16, shuffle=True, num_threads=4)
"""


def run_with_dataset(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT + textwrap.dedent(body), *arguments)


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
    result = run_with_dataset(body, store)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_interpreter_that_was_not_forked_exits_quietly(store: str) -> None:
    result = run_new_script(SCRIPT + "feed = iter(dataset); next(feed)", store)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_uncaught_exception_gives_its_traceback_and_exit_code_only(store: str) -> None:
    result = run_with_dataset("for batch in dataset: raise RuntimeError('boom')", store)
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("RuntimeError: boom")
    assert "terminate" not in result.stderr


def test_ctrl_c_interrupts_the_consumer(store: str) -> None:
    result = run_with_dataset(
        """
        try:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
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
    result = run_with_dataset(
        """
        from zarrfeed import _core
        from zarrfeed.metadata.array.array import read_layout
        from zarrfeed.plan.order.order import Order
        from zarrfeed.spec.fields.field import StoredField
        spec = read_layout(sys.argv[1])
        options = _core.EngineOptions(
            batch_size=16, num_threads=2, num_fetch_threads=1, provides_memory=True
        )
        engine = _core.Engine([StoredField("samples", spec).to_core()], options)
        engine.start(Order(spec.num_samples, 10, shuffle=False, seed=0, lanes=1).plan(0).to_core(), 8)
        try:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
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
    deadline = time.monotonic() + 240
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


def indices(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


def epochs_of(store: str, count: int) -> list[list[list[int]]]:
    """Return the batches of the first epochs, as a dataset of its own reads them."""
    dataset = make(store)
    return [indices(dataset) for _ in range(count)]


def loader_of(dataset: ZarrIterableDataset, method: str, **settings: Any) -> ZarrDataLoader:
    return ZarrDataLoader(dataset, num_workers=1, multiprocessing_context=method, timeout=240, **settings)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("method", "use"),
    [
        *(("fork", use) for use in ("none", "begun", "finished")),
        ("forkserver", "finished"),  # these take seconds to start, and unpickle alike
        ("spawn", "begun"),
    ],
)
def test_workers_read_a_dataset_that_its_parent_has_used(store: str, method: str, use: str) -> None:
    expected = epochs_of(store, 3)
    dataset = make(store)
    feed, passes = iter(dataset), 0
    if use != "none":
        first, passes = next(feed), 1
    if use == "finished":
        assert len(indices(feed)) == len(expected[0]) - 1
    loader = loader_of(dataset, method)
    assert indices(loader) == expected[passes]
    if use == "begun":
        assert indices([first, *feed]) == expected[0], "the parent goes on undisturbed"
    assert indices(dataset) == expected[passes + 1], "and takes the epoch after the workers'"


def send_epochs(dataset: ZarrIterableDataset, pipe: Connection, count: int) -> None:
    for _ in range(count):
        pipe.send(indices(dataset))
    pipe.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_a_process_that_is_given_a_dataset_has_epochs_of_its_own(store: str, method: str) -> None:
    """Ranks are often started with the dataset as an argument; what one reads moves no other's epoch."""
    expected = epochs_of(store, 3)
    dataset = make(store)
    feed = iter(dataset)
    first = next(feed)
    context: Any = multiprocessing.get_context(method)
    received = []
    for _ in range(2 if method == "fork" else 1):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=send_epochs, args=(dataset, theirs, 2))
        process.start()
        theirs.close()
        for _ in range(2):
            assert ours.poll(240)
            received.append(ours.recv())
        process.join(timeout=240)
        assert process.exitcode == 0
    assert received == expected[1:] * (len(received) // 2)
    assert indices([first, *feed]) == expected[0]
    assert indices(dataset) == expected[1]


def test_processes_of_forkserver_find_imported_what_takes_seconds_to_import() -> None:
    """As `start_forkserver_when_needed` arranges. Else each process of hundreds of tests would import torch anew."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context) as pool:
        assert pool.submit(preloaded_by).result(240) == pool.submit(os.getppid).result(240)
    assert preloaded_by() is None


def pickled(dataset: ZarrIterableDataset) -> ZarrIterableDataset:
    made: ZarrIterableDataset = pickle.loads(pickle.dumps(dataset))
    return made


@pytest.mark.parametrize("copier", [copy.deepcopy, pickled])
@pytest.mark.parametrize("used", ["not", "begun", "finished", "closed"])
def test_a_copy_and_its_original_go_their_own_ways(
    store: str, copier: Callable[[ZarrIterableDataset], ZarrIterableDataset], used: str
) -> None:
    expected = epochs_of(store, 4)
    original = make(store)
    feed, passes = iter(original), 0
    if used != "not":
        first, passes = next(feed), 1
    if used == "finished":
        list(feed)
    if used == "closed":
        original.close()
    other = copier(original)
    if used == "closed":
        with pytest.raises(ClosedError):
            iter(other)
        return
    assert indices(other) == expected[passes]
    other.set_epoch(3)
    assert indices(other) == expected[3]
    if used == "begun":
        assert indices([first, *feed]) == expected[0]
    assert indices(original) == expected[passes]


def test_a_copy_takes_a_loaded_state_along(store: str) -> None:
    dataset = make(store)
    feed = iter(dataset)
    for _ in range(100):
        next(feed)
    state = dataset.state_dict()
    rest = indices(feed)
    resumed = make(store)
    resumed.load_state_dict(state)
    for copied in (copy.deepcopy(resumed), pickled(resumed), resumed):
        assert indices(copied) == rest


def test_two_datasets_are_read_at_once(store: str, tmp_path: Path) -> None:
    path = str(tmp_path / "other.zarr")
    zarr.create_array(path, data=np.arange(900).reshape(300, 3), chunks=(7, 3))
    other = ZarrIterableDataset(path, batch_size=16, shuffle=True, num_threads=2)
    expected = epochs_of(store, 1)[0], indices(other)
    other.set_epoch(0)
    feeds = iter(make(store)), iter(other)
    got: tuple[list[list[int]], ...] = ([], [])
    for step in range(len(expected[0])):
        for which, feed in enumerate(feeds):
            if step < len(expected[which]):
                got[which].append(next(feed)[:, 0].tolist())
    assert got == expected


class Alternating(IterableDataset[Any]):
    """Two datasets in one DataLoader worker, in turn."""

    def __init__(self, *datasets: ZarrIterableDataset) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for batches in zip(*self.datasets, strict=True):
            yield torch.stack([batch[:, 0] for batch in batches])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_two_datasets_are_read_in_one_worker(store: str, persistent: bool) -> None:
    pair = [ZarrIterableDataset(store, batch_size=16, shuffle=True, seed=seed, drop_last=True) for seed in (1, 2)]
    expected = [[indices(dataset) for _ in range(3)] for dataset in pair]
    for dataset in pair:
        dataset.set_epoch(0)
    loader = DataLoader(
        Alternating(*pair),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        timeout=240,
    )
    for epoch in range(3):
        both = [batch.tolist() for batch in loader]
        assert [one for one, _ in both] == expected[0][epoch]
        assert [one for _, one in both] == expected[1][epoch]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_are_forked_while_other_threads_read(store: str, pytestconfig: pytest.Config) -> None:
    """A child must not wait for a lock that a thread of its parent held."""
    expected = epochs_of(store, 1)[0]
    dataset = make(store)
    done = threading.Event()
    wrong: list[int] = []

    def read_on() -> None:
        while not done.is_set():
            wrong.extend(len(batch) for batch in dataset if len(batch) != 16)

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20 if pytestconfig.getoption("--large") else 1):
            other = make(store)
            assert indices(loader_of(other, "fork")) == expected
            batches = indices(loader_of(dataset, "fork"))
            assert sorted(index for batch in batches for index in batch) == list(range(N))
    finally:
        done.set()
        for thread in threads:
            thread.join(timeout=240)
    assert not wrong


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_and_nothing_is_lost(store: str, persistent: bool) -> None:
    """What the loop received before is known, so that it can go on; in a script, as torch raises anywhere."""
    result = run_with_dataset(
        """
        import multiprocessing
        from zarrfeed import ZarrDataLoader
        pids = multiprocessing.get_context("fork").SimpleQueue()
        settings = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 240}
        persistent = sys.argv[2] == "True"
        loader = ZarrDataLoader(
            dataset, persistent_workers=persistent, worker_init_fn=lambda _: pids.put(os.getpid()), **settings
        )
        seen = []
        feed = iter(loader)
        for _ in range(20):
            seen += next(feed)[:, 0].tolist()
        killed = pids.get()
        try:
            os.kill(killed, signal.SIGKILL)
            for batch in feed:
                seen += batch[:, 0].tolist()
        except (RuntimeError, ConnectionError) as error:  # torch notices, or its connection to the worker does
            assert isinstance(error, ConnectionError) or "DataLoader worker" in str(error), error
            try:  # it may come a second time: torch raises when SIGCHLD comes, which has come when this returns
                os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
            except (RuntimeError, ChildProcessError):
                pass
            print("an error")
        state = loader.state_dict()
        del feed, loader
        resumed = ZarrDataLoader(dataset, **settings)
        resumed.load_state_dict(state)
        for _ in range(2):
            seen += [index for batch in resumed for index in batch[:, 0].tolist()]
            print(sorted(seen) == list(range(4000)))
            seen.clear()
        """,
        store,
        str(persistent),
    )
    assert result.stdout.split("\n") == ["an error", "True", "True", ""], result.stderr


def test_an_error_of_a_connection_in_a_worker_is_handed_on(store: str) -> None:
    """Not taken for that of a worker which ended."""

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise ConnectionResetError("of a service that transform asks")

    dataset = ZarrIterableDataset(store, batch_size=16, transform=fail)
    with pytest.raises(ConnectionResetError, match="of a service"):
        next(iter(ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork")))


def test_workers_end_with_a_killed_training_process_that_torch_does_not_watch(store: str) -> None:
    """Killed while a forked worker starts, it leaves torch's watchdog with the number of another process."""
    result = run_with_dataset(
        """
        import torch.utils.data._utils.worker
        from zarrfeed import ZarrDataLoader
        from zarrfeed.torch.ranks import distributed

        distributed._TO_END_S = 0.2
        torch.utils.data._utils.worker.ManagerWatchdog.is_alive = lambda _: True
        for _ in ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork"):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        store,
    )  # which waits for all who could write to its stdout
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, ""), result.stderr


def test_a_worker_that_is_killed_while_it_asks_whether_to_end_leaves_no_lock(store: str) -> None:
    """`multiprocessing.Event` has one that all wait for; so workers must not look at one."""
    result = run_with_dataset(
        """
        import multiprocessing.synchronize
        from zarrfeed import ZarrDataLoader

        def killed_in_the_lock(event):
            with event._cond:
                os.kill(os.getpid(), signal.SIGKILL)

        def begin(worker):
            if worker == 0:
                multiprocessing.synchronize.Event.is_set = killed_in_the_lock

        loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork", worker_init_fn=begin)
        seen = [index for batch in loader for index in batch[:, 0].tolist()]
        print(sorted(seen) == list(range(4000)))
        """,
        store,
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_close_while_a_pass_starts_ends_it(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass was not known to the dataset before its reader ran, so that nobody ended what started during close()."""
    dataset = make(store)
    begun, closed = threading.Event(), threading.Event()
    start = Reader.start

    def slow_start(reader: Reader, *arguments: Any, **options: Any) -> None:
        begun.set()
        assert closed.wait(240)
        start(reader, *arguments, **options)

    monkeypatch.setattr(Reader, "start", slow_start)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(iter(dataset))
        except ClosedError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert begun.wait(240)
    dataset.close()
    closed.set()
    consumer.join(240)
    assert not consumer.is_alive()
    assert len(errors) == 1


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_seeding_torch_before_every_pass_repeats_no_epoch(store: str, persistent: bool) -> None:
    """Workers of a plain DataLoader have only its seed in common to name their pass by: here it is always the same."""
    loader = DataLoader(
        make(store),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        timeout=240,
    )
    passes = []
    for _ in range(3):
        torch.manual_seed(0)
        passes.append(indices(loader))
        assert sorted(index for batch in passes[-1] for index in batch) == list(range(N))
    assert passes[0] != passes[1] != passes[2] != passes[0]

"""Positions: each pass is whole, and each state is that of the pass that handed the batches out."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.examples import is_large, tries
from tests.support.flat import iterable_dataset
from tests.support.late_device import LateDevice
from tests.unit.torch.device.test_prefetch import on
from zarrfeed import ConfigError, ZarrDataLoader
from zarrfeed.device import prefetch
from zarrfeed.engine.reader import Reader
from zarrfeed.objects import ObjectIterableDataset

#: torch warns where there are more workers than cores.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(300),
]

N, BATCH = 240, 10
BATCHES = N // BATCH
AN_EARLIER_PASS = "an earlier pass is still under way"


def make(**options: Any) -> Any:
    return iterable_dataset(np.arange(N), **{"batch_size": BATCH, "shuffle": True, "seed": 3} | options)


def values(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in batch]


def take(batches: Iterator[Any], count: int) -> list[int]:
    return values(itertools.islice(batches, count))


def is_whole(delivered: list[int]) -> bool:
    return sorted(delivered) == list(range(N))


# One loader is saved while others read


def _read_whole(dataset: Any) -> None:
    list(ZarrDataLoader(dataset))


def _read_some(dataset: Any) -> None:
    take(iter(ZarrDataLoader(dataset)), 2)


def _read_some_with_workers(dataset: Any) -> None:
    take(iter(ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork")), 2)


def _read_with_a_plain_loader(dataset: Any) -> None:
    list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))


def _read_the_dataset(dataset: Any) -> None:
    list(dataset)


def _read_another_epoch(dataset: Any) -> None:
    dataset.set_epoch(7)
    _read_whole(dataset)


def _name_another_epoch(dataset: Any) -> None:
    dataset.set_epoch(7)


def _read_ahead(dataset: Any) -> None:
    take(iter(on(LateDevice(), ZarrDataLoader(dataset))), 2)


def _read_in_a_fork(dataset: Any) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if is_whole(values(dataset)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


OTHERS = [
    _read_whole,
    _read_some,
    _read_some_with_workers,
    _read_with_a_plain_loader,
    _read_the_dataset,
    _read_another_epoch,
    _name_another_epoch,
    _read_ahead,
    _read_in_a_fork,
]
LOADERS: dict[str, Callable[[Any], Any]] = {
    "own": ZarrDataLoader,
    "worker": lambda dataset: ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork"),
    "prepared": lambda dataset: Accelerator(cpu=True).prepare(ZarrDataLoader(dataset)),
    "device": lambda dataset: on(LateDevice(), ZarrDataLoader(dataset)),
    "device of a dataset": lambda dataset: on(LateDevice(), dataset),
    "cpu": lambda dataset: prefetch(ZarrDataLoader(dataset), "cpu"),
    "cpu of a dataset": lambda dataset: prefetch(dataset, "cpu"),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_what_others_read_of_the_dataset_does_not_move_the_state_of_a_loader(kind: str) -> None:
    undisturbed = LOADERS["worker" if kind == "worker" else "own"](make())
    running = iter(undisturbed)
    taken = take(running, 3)
    expected = undisturbed.state_dict()
    rest = values(running)
    assert is_whole(taken + rest)
    again = ZarrDataLoader(make(), num_workers=int(kind == "worker"))
    again.load_state_dict(expected)
    assert values(again) == rest
    step = tries(2, 1)
    for other in OTHERS[list(LOADERS).index(kind) % step :: step]:
        dataset = make()
        loader = LOADERS[kind](dataset)
        running = iter(loader)
        for _ in range(3):
            next(running)
        other(dataset)
        assert loader.state_dict() == expected, other.__name__
        for _ in running:
            pass


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_others_read_does_not_move_the_state_of_a_stateful_loader(num_workers: int) -> None:
    def load(dataset: Any) -> Any:
        context = "fork" if num_workers else None
        return StatefulDataLoader(dataset, None, num_workers=num_workers, multiprocessing_context=context)

    whole = values(load(make()))
    for other in OTHERS[num_workers :: tries(2, 1)] if not is_large() else OTHERS:
        dataset = make()
        loader = load(dataset)
        running = iter(loader)
        take(running, 3)
        other(dataset)
        again = load(make())
        again.load_state_dict(loader.state_dict())
        assert values(again) == whole[3 * BATCH :], other.__name__
        assert values(running) == whole[3 * BATCH :], other.__name__


@pytest.mark.parametrize("kind", LOADERS)
def test_the_state_of_a_pass_that_was_left_stays_until_the_loader_begins_another_one(kind: str) -> None:
    dataset = make()
    loader = LOADERS[kind](dataset)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    _read_some(dataset)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 3 * BATCH)
    dataset.set_epoch(5)  # of the next pass, and nobody has begun it
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, BATCH)


@pytest.mark.parametrize("kind", [name for name in LOADERS if not name.startswith("device of")])
def test_what_a_loader_loaded_is_for_its_own_next_pass(kind: str) -> None:
    saved = ZarrDataLoader(make())
    whole = values(ZarrDataLoader(make()))
    take(iter(saved), 4)
    for other in OTHERS[:5]:
        dataset = make()
        loader = LOADERS[kind](dataset)
        loader.load_state_dict(saved.state_dict())
        assert loader.state_dict()["position"] == 4 * BATCH
        evaluated = ZarrDataLoader(dataset)
        if kind != "cpu of a dataset":  # what the dataset loads is for whoever comes next
            assert evaluated.state_dict()["position"] == 0
            other(dataset)
            assert is_whole(values(evaluated)), other.__name__
            assert loader.state_dict()["position"] == 4 * BATCH, other.__name__
        assert sorted(_arrived(loader)) == sorted(whole[4 * BATCH :]), other.__name__
        assert loader.state_dict()["epoch"] == 1


def _arrived(loader: Any) -> list[int]:
    got = list(loader)
    device = getattr(loader, "_streams", None)
    if device is not None:
        device.run(device.given)
    return values(got)


def test_naming_another_epoch_ends_what_a_loader_loaded() -> None:
    saved = ZarrDataLoader(make())
    take(iter(saved), 4)
    dataset = make()
    loader = ZarrDataLoader(dataset)
    loader.load_state_dict(saved.state_dict())
    dataset.set_epoch(0)  # that of the state
    assert loader.state_dict()["position"] == 4 * BATCH
    dataset.set_epoch(2)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2, 0)
    assert is_whole(values(loader))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_two_loaders_that_loaded_their_states_go_on_each_with_its_own(num_workers: int) -> None:
    def load(dataset: Any) -> list[Any]:
        context = "fork" if num_workers else None
        return [ZarrDataLoader(dataset, num_workers=num_workers, multiprocessing_context=context) for _ in range(2)]

    loaders = load(make())
    running = [iter(loader) for loader in loaders]
    take(running[0], 3)
    take(running[1], 5)
    states = [loader.state_dict() for loader in loaders]
    rests = [values(one) for one in running]
    for order in ((0, 1), (1, 0)):
        again = load(make())
        for loader, state in zip(again, states, strict=True):
            loader.load_state_dict(state)
        assert [loader.state_dict() for loader in again] == states
        for number in order:
            assert values(again[number]) == rests[number], order
            assert again[number].state_dict()["epoch"] == states[number]["epoch"] + 1
        running = [iter(again[0])]
        take(running[0], 1)
        assert again[0].state_dict()["epoch"] == 2, order  # no epoch is begun a second time


def test_another_loader_that_is_told_its_state_or_epoch_moves_no_state() -> None:
    dataset = make()
    loader, other = ZarrDataLoader(dataset), ZarrDataLoader(dataset)
    take(iter(loader), 4)
    state = loader.state_dict()
    other.set_epoch(7)
    assert loader.state_dict() == state
    assert other.state_dict()["epoch"] == dataset.state_dict()["epoch"] == 7
    other.load_state_dict(state)
    assert loader.state_dict() == state
    resumed = ZarrDataLoader(dataset)
    resumed.load_state_dict(state)
    other.set_epoch(5)
    assert other.state_dict()["epoch"] == 5
    assert is_whole(values(other))
    assert resumed.state_dict() == state
    assert values(resumed) == values(ZarrDataLoader(make()))[4 * BATCH :]
    assert resumed.state_dict()["epoch"] == 1
    other.load_state_dict(state)
    loader.set_epoch(0)  # of which only the other one has a rest
    assert is_whole(values(dataset))
    assert values(loader) == values(ZarrDataLoader(make()))
    loader.set_epoch(2)
    assert dataset.state_dict()["epoch"] == 2
    take(iter(dataset), 3)  # who is told nothing reads that epoch, too
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["position"]) == (2, 3 * BATCH)
    loader.load_state_dict(state)
    dataset.set_epoch(9)  # for everybody
    assert loader.state_dict()["epoch"] == other.state_dict()["epoch"] == 9


def test_a_loader_that_is_gone_keeps_nothing_for_itself() -> None:
    dataset = make()
    saved = ZarrDataLoader(make())
    take(iter(saved), 4)
    ZarrDataLoader(dataset).load_state_dict(saved.state_dict())
    assert is_whole(values(dataset))
    assert dataset.state_dict()["epoch"] == 1


def test_objects_have_the_same_positions(tmp_path: Any) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]))
    dataset = ObjectIterableDataset(tmp_path, batch_size=2, shuffle=True)
    loader = ZarrDataLoader(dataset)
    running = iter(loader)
    got = [next(running) for _ in range(2)]
    _read_whole(dataset)
    dataset.set_epoch(4)
    again = ZarrDataLoader(ObjectIterableDataset(tmp_path, batch_size=2, shuffle=True))
    again.load_state_dict(loader.state_dict())
    assert sorted(int(one[0]) for batch in [*got, *again] for one in batch) == list(range(12))


# Ahead of the consumer


def test_what_is_fetched_ahead_for_a_device_is_counted_by_nobody() -> None:
    dataset = make()
    loader = ZarrDataLoader(dataset)
    device = on(LateDevice(), loader)
    running = iter(device)
    for number in range(1, BATCHES + 1):
        next(running)
        for asked in (device, loader, dataset):
            state = asked.state_dict()
            assert (state["epoch"], state["position"]) == ((0, number * BATCH) if number < BATCHES else (1, 0))


def test_a_prepared_loader_that_was_resumed_counts_from_there() -> None:
    accelerator = Accelerator(cpu=True)
    got: list[int] = []
    state: Any = None
    for part in (3, 4, BATCHES):  # saved, resumed, saved, resumed
        loader = accelerator.prepare(ZarrDataLoader(make()))
        if state is not None:
            loader.load_state_dict(state)
        got += take(iter(loader), part)
        state = loader.state_dict()
    assert got == values(ZarrDataLoader(make()))
    assert (state["epoch"], state["position"]) == (1, 0)


# Two passes at once


def test_a_dataset_says_that_its_state_is_that_of_the_pass_begun_last() -> None:
    dataset = make()
    first = iter(dataset)
    take(first, 3)
    assert dataset.state_dict()["position"] == 3 * BATCH
    second = iter(dataset)
    take(second, 1)
    for _ in range(2):
        with pytest.warns(UserWarning, match=AN_EARLIER_PASS):
            assert dataset.state_dict()["position"] == BATCH
        take(first, 1)
    list(second)
    with pytest.warns(UserWarning, match=AN_EARLIER_PASS):
        assert dataset.state_dict()["epoch"] == 2
    del first
    assert dataset.state_dict()["epoch"] == 2


def test_a_dataset_knows_what_the_workers_of_its_loader_handed_out() -> None:
    dataset = make()
    running = iter(ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork"))
    take(running, 3)
    assert dataset.state_dict()["position"] == 3 * BATCH
    del running


def test_a_dataset_does_not_take_an_earlier_pass_of_its_own_for_that_of_workers() -> None:
    dataset = make()
    list(dataset)
    next(iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")))
    with pytest.raises(ConfigError, match="ask a ZarrDataLoader"):
        dataset.state_dict()


def test_a_pass_that_was_interrupted_is_not_over_for_a_loop_that_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make()
    loader = ZarrDataLoader(dataset)
    running = iter(loader)
    take(running, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "next", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(running)
    assert list(running) == []
    for asked in (loader, dataset):
        assert (asked.state_dict()["epoch"], asked.state_dict()["position"]) == (0, 3 * BATCH)


def _interrupted(_: Reader) -> None:
    raise KeyboardInterrupt


def test_set_epoch_keeps_the_position_of_a_dataset_that_is_being_read() -> None:
    dataset = make()
    running = iter(dataset)
    take(running, 3)
    dataset.set_epoch(7)
    assert dataset.state_dict()["position"] == 3 * BATCH
    list(running)
    assert dataset.state_dict()["epoch"] == 7


# Threads that share an iterator


@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [*((kind, BATCH) for kind in ["dataset", *LOADERS]), ("dataset", None), ("cpu of a dataset", None)],
)
def test_threads_share_an_iterator(kind: str, batch_size: int | None) -> None:
    for _ in range(1 if kind == "worker" else 8):
        dataset = make(batch_size=batch_size)
        loader = dataset if kind == "dataset" else LOADERS[kind](dataset)
        running, go = iter(loader), threading.Barrier(4)
        got: list[Any] = []
        ends: list[str] = []

        def pull(running: Any = running, go: Any = go, got: Any = got, ends: Any = ends) -> None:
            go.wait(240)
            try:
                while True:
                    got.append(next(running))
            except BaseException as error:  # noqa: BLE001 - StopIteration, and whatever else there is
                ends.append(repr(error))  # unlike +=, append loses nothing to another thread

        threads = [threading.Thread(target=pull) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert ends == ["StopIteration()"] * 4
        device = getattr(loader, "_streams", None)
        if device is not None:
            device.run(device.given)
        assert is_whole(values(got) if batch_size else [int(one) for one in got])
        assert loader.state_dict()["epoch"] == 1


def test_an_interrupt_ends_the_wait_for_another_thread() -> None:
    """As Ctrl-C does in a notebook whose feeder threads are stuck in a read."""
    waiting, stuck = threading.Event(), threading.Event()

    def slow(batch: Any) -> Any:
        waiting.set()
        stuck.wait(240)
        return batch

    running = iter(iterable_dataset(np.arange(N), batch_size=BATCH, transform=slow))
    thread = threading.Thread(target=lambda: next(running))
    thread.start()
    assert waiting.wait(240)
    main = threading.get_ident()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - before the wait, or in it
        timer.start()
        next(running)
    assert not stuck.is_set()
    assert thread.is_alive()
    stuck.set()
    thread.join(240)
    timer.join(240)


def test_a_child_forked_while_a_thread_waits_for_a_batch_reads_passes_of_its_own() -> None:
    waiting, stuck = threading.Event(), threading.Event()

    def slow(batch: Any) -> Any:
        if os.getpid() == parent:
            waiting.set()
            stuck.wait(240)
        return batch

    parent = os.getpid()
    dataset = iterable_dataset(np.arange(N), batch_size=BATCH, transform=slow)
    loader = ZarrDataLoader(dataset)
    running = iter(loader)
    thread = threading.Thread(target=lambda: next(running))
    thread.start()
    assert waiting.wait(240)
    child = os.fork()
    if child == 0:
        os._exit(0 if is_whole(values(loader)) and loader.state_dict()["epoch"] == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stuck.set()
    thread.join(240)


def test_threads_that_begin_passes_of_one_dataset_take_turns_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass looks up its version of the store, its schedule and its reader, and another one may change them."""
    dataset = make()
    start, inside, most = dataset.session.start_reader, 0, 0

    def slow_start(running: Any, cursor: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)  # for others to come in, if they can
        start(running, cursor)
        inside -= 1

    monkeypatch.setattr(dataset.session, "start_reader", slow_start)
    for _ in range(2):  # readers of the first round wait for the second one
        whole: list[bool] = []
        threads = [
            threading.Thread(target=lambda whole=whole: whole.append(is_whole(values(dataset)))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert whole == [True] * 4
    assert most == 1

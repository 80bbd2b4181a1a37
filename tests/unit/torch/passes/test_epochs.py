"""The table of epochs: one counter for a training process and its workers, another for every other owner."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
from typing import Any

import pytest

from tests.support.oracle import no_file_left
from zarrfeed.torch.passes import epochs
from zarrfeed.torch.passes.epochs import EpochTable


def table() -> EpochTable:
    return EpochTable({"epoch": 0})


def epoch(state: dict[str, Any]) -> int:
    return int(state["epoch"])


def in_child(context: str, function: Any, *arguments: Any) -> Any:
    """Call a function in a process of its own that gets the arguments as a Process does; return what it returns."""
    made: Any = multiprocessing.get_context(context)
    queue = made.SimpleQueue()
    child = made.Process(target=_call, args=(queue, function, arguments))
    child.start()
    child.join(240)
    assert child.exitcode == 0
    return queue.get()


def _call(queue: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    queue.put(function(*arguments))


def begin_twice(shared: EpochTable) -> list[int]:
    return [epoch(shared.begin()), epoch(shared.begin())]


def test_every_pass_takes_the_next_epoch_and_a_named_one_comes_next() -> None:
    shared = table()
    assert [epoch(shared.begin()) for _ in range(3)] == [0, 1, 2]
    shared.name_next({"epoch": 7})
    assert epoch(shared.next()) == 7
    assert [epoch(shared.begin()) for _ in range(2)] == [7, 8]


def test_what_lasts_longer_than_an_epoch_is_handed_on() -> None:
    """Offsets of windows, and the orders of the sources of a mixture, whose passes span epochs."""
    shared, lasting = table(), {"offsets": {"x": [0, 1]}, "sources": [[8, 1, 1]], "unit": 16}
    shared.name_next({"epoch": 3, "lanes": 1, "used": [[40, 0, 1, 0]], **lasting})
    shared.begin()
    for number in (4, 5):
        assert shared.begin() == {"epoch": number, "by_workers": False, **lasting}
    assert shared.join("a", 0) == {"epoch": 6, "by_workers": False, **lasting}
    assert shared.next() == {"epoch": 7, "by_workers": True, **lasting}


def test_workers_of_a_pass_agree_on_its_epoch_in_whatever_order_they_ask() -> None:
    shared = table()
    assert [epoch(shared.join("a", worker)) for worker in (2, 0, 1)] == [0, 0, 0]
    assert [epoch(shared.join("b", worker)) for worker in (1, 2, 0)] == [1, 1, 1]
    assert shared.moved_by_workers()
    shared.name_next({"epoch": 5})
    assert not shared.moved_by_workers()


def test_a_training_process_that_gets_the_pid_of_an_ended_one_has_epochs_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search over hyperparameters forks a process for each trial, and the system uses pids again."""
    shared = table()

    def passes_of(trial: str) -> list[int]:
        monkeypatch.setattr(epochs, "process_name", lambda pid: f"{pid}-{trial}")
        return begin_twice(shared)

    assert [passes_of("first"), passes_of("second"), passes_of("first")] == [[0, 1], [0, 1], [2, 3]]


def test_a_pass_that_has_the_name_of_an_earlier_one_is_another_pass() -> None:
    """A DataLoader names its passes by its seed, and a user who seeds torch before each epoch gives all one seed."""
    shared = table()
    assert [epoch(shared.join("a", worker)) for worker in (0, 1)] == [0, 0]
    assert [epoch(shared.join("a", worker)) for worker in (0, 1)] == [1, 1]


def test_workers_find_what_the_training_process_began_for_them() -> None:
    shared = table()
    shared.name_next({"epoch": 4, "used": [[3, 0, 1, 0]]})
    begun = shared.begin("mine")
    assert [shared.join("mine", worker) for worker in (0, 1)] == [begun, begun]
    assert epoch(shared.next()) == 5
    assert not shared.moved_by_workers()


def test_passes_that_all_workers_joined_do_not_make_the_table_grow() -> None:
    shared = table()
    size = os.fstat(shared._file.descriptor).st_size
    for number in range(200):
        for worker in range(2):
            assert epoch(shared.join(f"pass {number}", worker, 2)) == number
    assert os.fstat(shared._file.descriptor).st_size <= size + 100


def test_passes_whose_workers_were_killed_do_not_make_the_table_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarrfeed.torch.passes.epochs._MAX_PASSES", 10)
    shared = table()
    for number in range(100, 120):
        shared.join(f"pass {number}", 0, 2)
    size = os.fstat(shared._file.descriptor).st_size
    for number in range(120, 300):
        shared.join(f"pass {number}", 0, 2)
    assert os.fstat(shared._file.descriptor).st_size <= size + 100


def test_a_worker_that_asks_after_many_other_passes_began_still_joins_its_own() -> None:
    shared = table()
    assert epoch(shared.join("slow", 0, 2)) == 0
    for number in range(100):
        shared.join(f"pass {number}", 0, 2)
    assert epoch(shared.join("slow", 1, 2)) == 0


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_process_that_is_no_worker_counts_for_itself(context: str) -> None:
    """Ranks that inherit one dataset would else take each other's epochs."""
    shared = table()
    assert epoch(shared.begin()) == 0
    assert in_child(context, begin_twice, shared) == [1, 2]
    assert epoch(shared.begin()) == 1


def test_a_pickled_or_copied_table_is_another_one_and_goes_on_from_there() -> None:
    shared = table()
    shared.begin()
    for other in (pickle.loads(pickle.dumps(shared)), copy.deepcopy(shared)):
        assert begin_twice(other) == [1, 2]
    assert epoch(shared.next()) == 1


def test_threads_do_not_get_one_epoch_twice() -> None:
    shared = table()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(begin_twice(shared))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(seen) == list(range(16))


def _die_with_the_lock(shared: EpochTable) -> None:
    with shared._document():
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_holding_the_lock_blocks_nobody() -> None:
    shared = table()
    child = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(shared,))
    child.start()
    child.join(240)
    assert child.exitcode == -signal.SIGKILL
    assert epoch(shared.begin()) == 0


def test_the_rest_of_a_longer_document_is_not_read() -> None:
    """What is left when a writer is killed between writing and shortening."""
    shared = table()
    size = os.fstat(shared._file.descriptor).st_size
    os.pwrite(shared._file.descriptor, b'"epoch": 9}}', size)
    assert epoch(shared.begin()) == 0


def test_a_table_that_is_dropped_leaves_no_open_file() -> None:
    with no_file_left():
        tables = [table() for _ in range(5)]
        del tables

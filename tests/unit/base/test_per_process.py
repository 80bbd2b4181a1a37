"""Values that each process makes for itself, and objects that belong to the process that made them."""

from __future__ import annotations

import copy
import os
import pickle
import re
import threading
from collections.abc import Callable

import pytest

from tests.support.paths import ROOT
from zarrfeed.base.per_process import OwnerProcess, PerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def holds_in_child(check: Callable[[], bool]) -> bool:
    """Return what a forked child finds."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_makes_a_value_once_and_only_when_it_asks() -> None:
    made: list[list[int]] = []

    def make() -> list[int]:
        made.append([])
        return made[-1]

    value = PerProcess(make)
    assert made == []
    assert value.here is value.here
    assert len(made) == 1


@pytest.mark.timeout(60)
def test_a_forked_child_makes_a_value_of_its_own_and_its_parent_keeps_the_other_one() -> None:
    value = PerProcess(list[int])
    value.here.append(1)

    def in_child() -> bool:
        inherited_nothing = value.here == []
        value.here.append(2)
        return inherited_nothing and value.here == [2] and holds_in_child(lambda: value.here == [])

    assert holds_in_child(in_child)
    assert value.here == [1]


@pytest.mark.timeout(60)
def test_a_child_that_is_forked_while_a_thread_makes_a_value_does_not_wait_for_that_thread() -> None:
    begun, end = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        end.wait(240)
        return 1

    slowly, other = PerProcess(slow), PerProcess(lambda: 2)
    thread = threading.Thread(target=lambda: slowly.here)
    thread.start()
    assert begun.wait(240)
    end_in_child = holds_in_child(lambda: other.here == 2)
    end.set()
    thread.join(240)
    assert end_in_child
    assert slowly.here == 1


@pytest.mark.timeout(60)
def test_threads_that_ask_at_once_get_one_value() -> None:
    barrier, found = threading.Barrier(8), []

    def make() -> object:
        return object()

    for _ in range(50):
        value = PerProcess(make)

        def ask(value: PerProcess[object] = value) -> None:
            barrier.wait(240)
            found.append(value.here)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert len({id(one) for one in found}) == 1
        found.clear()


def test_a_value_may_be_made_of_another_one() -> None:
    first = PerProcess(list[int])
    second = PerProcess(lambda: (first.here, 1))
    assert second.here == ([], 1)


def test_a_value_is_made_anew_where_making_it_failed() -> None:
    fails = [True, False]

    def make() -> int:
        if fails.pop(0):
            raise OSError("not now")
        return 3

    value = PerProcess(make)
    with pytest.raises(OSError, match="not now"):
        value.here  # noqa: B018
    assert value.here == 3


def test_copies_and_pickles_have_values_of_their_own() -> None:
    value = PerProcess(list[int])
    value.here.append(1)
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other.here == []
        assert other.here is not value.here


@pytest.mark.timeout(60)
def test_an_object_belongs_to_the_process_that_made_it() -> None:
    owner = OwnerProcess()
    sent = pickle.dumps(owner)
    assert owner.is_here
    assert holds_in_child(lambda: not owner.is_here and OwnerProcess().is_here and pickle.loads(sent).is_here)
    assert owner.is_here


def test_process_guards_are_not_written_by_hand() -> None:
    compares = re.compile(r"getpid\(\)\s*[!=]=|[!=]=\s*os\.getpid\(\)")
    found = {
        str(path.relative_to(ROOT / "src" / "zarrfeed"))
        for path in (ROOT / "src").rglob("*.py")
        if compares.search(path.read_text())
    }
    assert found == {"base/per_process.py", "engine/store_bridge.py"}

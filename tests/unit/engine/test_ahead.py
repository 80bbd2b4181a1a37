"""`AheadReader`: batches are made before they are wanted, in the order of the plan, for exactly their samples."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.oracle import no_thread_left
from zarrfeed.base.errors import ClosedError, CorruptChunkError
from zarrfeed.engine.ahead import AheadReader, batches_ahead
from zarrfeed.engine.sample_lookup import skipped_alone
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.plan.samples.selection import Int64

pytestmark = pytest.mark.timeout(60)

SIZE = 4


class Squares(AheadReader[Int64, int]):
    """Makes the squares of samples; negative ones cannot be had."""

    def __init__(self, samples: int, *, planned_bytes: int = 1) -> None:
        super().__init__(batch_size=SIZE, num_threads=1, threads_name="squares", planned_bytes=planned_bytes)
        self.order = np.arange(samples)
        self.are_held = False  # the batches of the next epoch, until it ends
        self.may_go_on = threading.Event()
        self.asked: list[tuple[int, list[int]]] = []
        self.made: list[list[int]] = []
        self.made_now: list[list[int]] = []

    def start(self, max_open_batches: int = 8) -> None:
        plan: Any = SimpleNamespace(steps=len(self.order))
        self.open(plan, max_open_batches)

    def grow(self, factor: int) -> None:
        self._batch_bytes *= factor

    def _begin(self, plan: Any, max_open_batches: int) -> Iterator[Int64]:  # noqa: ARG002
        if self.are_held:
            self.may_go_on.clear()
        self._start_threads()
        return iter(self.order.reshape(-1, SIZE))

    def _stop(self) -> None:
        self.may_go_on.set()

    def _make_ahead(self, index: Int64, number: int, epoch: int) -> Future[Int64]:
        self.asked.append((number, index.tolist()))
        assert self._threads is not None
        return self._threads.submit(self._squares, index, epoch)

    def _squares(self, index: Int64, epoch: int) -> Int64:
        assert self.may_go_on.wait(240)
        if epoch == self._epoch:
            self.made.append(index.tolist())
        return index * np.abs(index)

    def _make_now(self, index: Int64) -> Int64:
        if self._threads is None:
            raise ClosedError("this dataset was closed")
        self.made_now.append(index.tolist())
        return index * np.abs(index)

    def _hand_out(self, made: Int64) -> tuple[Any, list[int]]:
        return made.tolist(), made[made < 0].tolist()

    def _error_of(self, bad: int) -> BaseException:
        return CorruptChunkError(f"{bad} is negative")

    @property
    def source(self) -> None:
        return None

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        return {number: skipped_alone(name)}

    def skipped(self, number: int, index: Int64, errors: list[int]) -> Skipped:
        raise NotImplementedError

    def stats(self) -> Stats:
        return Stats()


def batch(number: int) -> Int64:
    return np.arange(number * SIZE, (number + 1) * SIZE)


@pytest.fixture
def reader() -> Iterator[Squares]:
    made = Squares(10 * SIZE)
    yield made
    made.close()


def test_batches_are_asked_for_in_the_order_of_the_plan_and_three_ahead_at_most(reader: Squares) -> None:
    reader.start()
    for number in range(10):
        assert [one for one, _ in reader.asked] == list(range(min(10, number + 3)))
        assert reader.take(batch(number)) == (batch(number) ** 2).tolist()
    assert reader.asked == [(number, batch(number).tolist()) for number in range(10)]
    assert reader.made_now == []


def test_no_more_batches_are_ahead_than_may_be_open_beside_the_wanted_one(reader: Squares) -> None:
    assert [batches_ahead(most) for most in (1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3]
    for most in (1, 2, 3):
        reader.asked.clear()
        reader.start(most)
        assert len(reader.asked) == most - 1, most
        assert reader.take(batch(0)) == (batch(0) ** 2).tolist()


def test_fewer_batches_are_ahead_once_they_are_larger_than_planned() -> None:
    reader = Squares(10 * SIZE, planned_bytes=100)
    reader.start()
    reader.grow(2)
    for number in range(4):
        reader.take(batch(number))
    assert len(reader.asked) == 5  # a room of three batches as planned holds one of twice the size
    reader.grow(2)
    reader.start()
    assert len(reader.asked) == 5  # not in a later epoch either: it holds none of four times the size
    reader.close()


def test_an_epoch_of_one_batch_asks_for_nothing(reader: Squares) -> None:
    reader.start()
    reader.asked.clear()
    reader.order = np.arange(SIZE)
    reader.start()
    assert reader.take(batch(0)) == (batch(0) ** 2).tolist()
    assert (reader.asked, reader.made_now) == ([], [batch(0).tolist()])


def test_a_batch_ahead_is_handed_out_for_exactly_its_samples(reader: Squares) -> None:
    reader.start()
    for other in (batch(0)[:3], batch(0)[::-1], np.array([0, 1, 2, 30])):
        assert reader.take(other) == (other**2).tolist()
        assert reader.made_now[-1] == other.tolist()
    for number in range(10):  # those ahead are still there
        assert reader.take(batch(number)) == (batch(number) ** 2).tolist()
    assert len(reader.made_now) == 3


def test_batches_that_are_passed_over_are_cancelled_unless_the_kind_needs_them(
    reader: Squares, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Future[Int64]] = []

    def begin(index: Int64, number: int, epoch: int) -> Future[Int64]:  # noqa: ARG001
        begun.append(Future())
        return begun[-1]

    monkeypatch.setattr(reader, "_make_ahead", begin)
    reader.start()
    begun[2].set_result(batch(2))
    assert reader.take(batch(2)) == batch(2).tolist()
    assert [one.cancelled() for one in begun] == [True, True, False, False, False, False]
    assert reader.take(batch(0)) == (batch(0) ** 2).tolist()
    assert reader.made_now == [batch(0).tolist()]  # its turn is over
    monkeypatch.setattr(reader, "_pass_over", lambda _: None)
    begun[5].set_result(batch(5))
    assert reader.take(batch(5)) == batch(5).tolist()
    assert not any(one.cancelled() for one in begun[3:])
    reader.close()
    assert len(begun) == 9
    assert all(one.cancelled() for one in begun[6:])


def test_what_a_batch_lacks_is_returned_or_raised(reader: Squares) -> None:
    reader.order = reader.order - 5
    reader.start()
    assert reader.take_what_is_good(batch(0) - 5) == ([-25, -16, -9, -4], [-25, -16, -9, -4])
    with pytest.raises(CorruptChunkError, match="-1 is negative"):
        reader.take(batch(1) - 5)
    assert reader.take(batch(2) - 5) == [9, 16, 25, 36]
    assert reader.made_now == []


def test_a_batch_of_an_epoch_that_ended_is_not_handed_out(reader: Squares) -> None:
    reader.start()
    reader.start()
    assert reader.take(batch(0)) == (batch(0) ** 2).tolist()
    assert [number for number, _ in reader.asked] == [0, 1, 2, 0, 1, 2, 3]
    reader.close()
    with pytest.raises(ClosedError):
        reader.take(batch(1))
    assert [number for number, _ in reader.asked] == [0, 1, 2, 0, 1, 2, 3]


def test_closing_from_another_thread_ends_a_wait_and_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_thread_left():
        reader = Squares(10 * SIZE)
        reader.are_held = True
        reader.start()
        waits, plainly = threading.Event(), reader._awaited

        def awaited(index: Int64) -> Int64 | None:
            waits.set()
            return plainly(index)

        def close_when_it_waits() -> None:
            waits.wait(240)
            reader.close()

        monkeypatch.setattr(reader, "_awaited", awaited)
        closing = threading.Thread(target=close_when_it_waits)
        closing.start()
        with pytest.raises(ClosedError, match="closed"):
            reader.take(batch(0))
        closing.join()
        assert reader.made == []


def test_closing_while_the_next_batch_is_asked_for_is_no_error_of_threads(
    reader: Squares, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.start()
    plainly = reader._make_ahead

    def closed_meanwhile(index: Int64, number: int, epoch: int) -> Future[Int64]:
        threads = reader._threads
        reader.close()
        monkeypatch.setattr(reader, "_threads", threads)  # as a thread saw it a moment before
        return plainly(index, number, epoch)

    monkeypatch.setattr(reader, "_make_ahead", closed_meanwhile)
    assert reader.take(batch(0)) == (batch(0) ** 2).tolist()
    with pytest.raises(RuntimeError, match="after shutdown"):  # nobody closes: an error it is
        reader._threads.submit(int)  # type: ignore[union-attr]


def test_an_error_of_making_a_batch_is_raised_as_it_is(reader: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(index: Int64, epoch: int) -> Int64:
        raise RuntimeError(f"cannot make {index.tolist()}, epoch {epoch}")

    monkeypatch.setattr(reader, "_squares", broken)
    reader.start()
    with pytest.raises(RuntimeError, match=r"cannot make \[0, 1, 2, 3\]") as raised:
        reader.take(batch(0))
    assert not isinstance(raised.value, ClosedError)


def test_a_reader_may_be_closed_on_a_thread_of_its_own() -> None:
    with no_thread_left():
        reader = Squares(10 * SIZE)
        reader.start()
        assert reader._threads is not None
        reader._threads.submit(reader.close).result(240)  # as the garbage collector may
        assert reader._threads is None

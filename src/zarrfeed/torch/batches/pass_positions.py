"""Positions of passes: the pass whose position a dataset or a loader saves, and how batches are counted.

Invariants:

  A pass counts a batch when its consumer gets it, on one cursor. What a thread fetches ahead of the consumer, for a
  device or for accelerate, is not counted before the consumer gets it.
  The state of a loader is the position of the pass under way that handed out a batch last. If no pass is under way, it
  is that of the pass that did so last. Passes of other loaders over the same dataset do not move it. Nor does a pass
  that handed out a single batch before a later one began: that was a look at the data (`batch = next(it)`), and code
  that keeps its iterator does not go on with it.
  The state that a loader loaded is for its own next pass. A pass that anybody else begins before that is whole. A copy
  of a loader begins passes of its own.
  Threads may share a pass: each batch goes to one of them, and every thread learns of the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from zarrfeed.base.process_lock import ProcessLock
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.torch.batches.batch import Batch

T = TypeVar("T")


class Position(Protocol):
    """Progress of a pass."""

    @property
    def under_way(self) -> bool:
        """True if the pass may hand out more batches: it has not ended, and was not closed or dropped."""

    @property
    def handed_out(self) -> int:
        """Batches that the pass handed out itself."""


P = TypeVar("P", bound=Position)


class Positions(Generic[P]):
    """The passes of one dataset or loader that are under way, in the order of their begin, and the one begun last."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all passes; one that hands out a batch afterwards counts again."""
        self._order: dict[int, P] = {}  # by id(); reading and writing an entry are atomic, for threads
        self.last: P | None = None

    def put_last(self, position: P) -> P:
        """Make a pass the last one, and return it."""
        if position is self.last:
            return position
        self.last = position
        for key, one in list(self._order.items()):
            if one is position or not one.under_way:
                self._order.pop(key, None)
        self._order[id(position)] = position
        return position

    def under_way(self) -> list[P]:
        """Return the passes under way, the last one at the end."""
        return [one for one in list(self._order.values()) if one.under_way]

    def latest(self) -> P | None:
        """Return the last pass under way that was no mere look at the data; else the last pass of all."""
        passes = (one for one in reversed(self.under_way()) if one is self.last or one.handed_out > 1)
        return next(passes, self.last)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class MakesStates(Protocol):
    """A session, as far as it matters for the position of a pass."""

    def state_of(self, cursor: Cursor, loader: object) -> EpochState | None:
        """Return the position of a pass of a loader; None, if a user has named the state of the next pass since."""

    def make_state_dict(self, state: EpochState) -> dict[str, Any]:
        """Return a state as a small JSON-able dict."""


class Standing:
    """The position of a pass, as a loader around another loader saves it."""

    def __init__(self, session: MakesStates, cursor: Cursor, loader: object) -> None:
        self._session, self._cursor, self._loader = session, cursor, loader

    @property
    def under_way(self) -> bool:
        """True if the pass may hand out more batches."""
        return self._cursor.under_way

    @property
    def handed_out(self) -> int:
        """Batches that the pass handed out itself."""
        return self._cursor.handed_out

    def state(self) -> dict[str, Any] | None:
        """Return a state dict; None, if a user named the state of the next pass since."""
        state = self._session.state_of(self._cursor, self._loader)
        return None if state is None else self._session.make_state_dict(state)


class CountedPass(Iterator[Batch]):
    """A pass that counts the batches its consumer got. Subclasses fetch batches, and set `cursor` before the first."""

    # These are attributes of the class, because construction may be interrupted before any of them is set.
    cursor: Cursor | None = None
    _positions: Positions[Cursor] | None = None

    def __init__(self, session: MakesStates) -> None:
        self._session = session
        self._lock = ProcessLock()

    def __next__(self) -> Batch:
        with self._lock.held:
            try:
                batch = self.fetch()
            except StopIteration:
                self.count_end()
                raise
            if self._positions is None and self.cursor is not None:
                self.cursor.delivered += 1  # as count() does: this is taken for each batch
            else:
                self.count()
            return batch

    def report_to(self, positions: Positions[Cursor]) -> Self:
        """Tell a loader's positions whenever this pass hands out a batch; return this pass."""
        self._positions = positions
        return self

    def leave_unpinned(self) -> None:
        """Let batches come as workers sent them, as far as nothing has begun: the consumer pins them by itself."""

    def fetch(self) -> Batch:
        """Return the next batch without counting it; the caller calls `count()` once the consumer gets the batch."""
        raise NotImplementedError

    def count(self) -> None:
        """Count one batch that the consumer got."""
        cursor = self.cursor
        assert cursor is not None
        cursor.delivered += 1
        if self._positions is not None:
            self._positions.put_last(cursor)

    def count_end(self) -> None:
        """Note that the consumer asked for more than there is. A pass that was left has more, and stays where it is."""
        if self.cursor is not None and not self.cursor.closed:
            self.cursor.ended = True
            if self.cursor.handed_out == 0:  # else its last batch says where it is among the passes
                self._report()

    def _report(self) -> None:
        if self._positions is not None and self.cursor is not None:
            self._positions.put_last(self.cursor)

    def standing(self) -> Standing:
        """Return the position of this pass, once it has begun; it does not keep the pass alive."""
        assert self.cursor is not None
        return Standing(self._session, self.cursor, self._positions)

    def close(self) -> None:
        """Stop reading."""
        raise NotImplementedError


class SharedIterator(Iterator[T]):
    """An iterator that threads may share, over a generator, which alone raises ValueError in the second thread."""

    def __init__(self, generator: Iterator[T]) -> None:
        self._generator = generator
        self._lock = ProcessLock()

    def __next__(self) -> T:
        with self._lock.held:
            return next(self._generator)

    def close(self) -> None:
        """End the pass."""
        with self._lock.held:
            self._generator.close()  # type: ignore[attr-defined]

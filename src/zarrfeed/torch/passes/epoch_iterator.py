"""One pass over a dataset: an iterator of batches that knows how much of the epoch its consumer has received.

A pass is settled at its first `next()`: only then does it take an epoch, look up its rank, and start threads. So making
an iterator and throwing it away, as frameworks do, costs no epoch. In a DataLoader worker it is settled at once. If an
error occurs at the start of a pass, `next()` raises it, where every loop and every worker can report it.
"""

from __future__ import annotations

import _thread
import signal
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError, ZarrfeedError
from zarrfeed.engine.reader_pool import EpochReader, ReaderPool
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.storage.append.eviction import Lease
from zarrfeed.torch.batches.batch import Batch, Values
from zarrfeed.torch.batches.pass_positions import CountedPass
from zarrfeed.torch.passes.looks import Look, begin_look
from zarrfeed.torch.passes.session import Session


class Pass(CountedPass):
    """Batches of one pass; gives its reader back when it ends for whatever reason."""

    # These are attributes of the class, because construction may be interrupted before any of them is set.
    reader: EpochReader | None = None
    _leases: tuple[Lease, ...] = ()
    _look: Look | None = None

    def __init__(self, session: Session, name: str | None) -> None:
        super().__init__(session)
        self._session: Session = session
        self._assemble: Callable[[tuple[Values, ...]], Any] = session.options.assembler.assembler()
        self._transforms = session.options.transform is not None
        self._readers: ReaderPool | None = None  # of the process that began the pass
        self._name = name
        self._resumed: EpochState | None = None
        self._failure: ZarrfeedError | None = None
        self._begun = False

    def fetch(self) -> Batch:
        """Return the next batch without counting it."""
        if not self._begun:
            self._begin()
        reader = self.reader
        if reader is None:
            self._session.check_open()
            raise StopIteration
        try:
            values = reader.next() if self._look is None else self._checked_values(reader, self._look)
        except BaseException:
            self.close()
            raise
        if values is None:
            self._release()  # the consumer may have batches to count, which were fetched ahead
            raise StopIteration
        batch = self._assemble(values)
        return self._transformed(batch) if self._transforms else batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass, as the dataset's `state_dict()` does; at its end, too."""
        session = self._session
        if self.cursor is None:
            return session.make_state_dict(self._resumed or session.upcoming())
        return session.make_state_dict(self.cursor.stand(at_end=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin where the state says. Only before the first batch.

        Raises
        ------
        ConfigError
            If the state is of another dataset, or the pass was begun.
        """
        if self._begun:
            raise ConfigError("this pass was begun: a state must be loaded before its first batch")
        self._resumed = self._session.read_state_dict(state)
        if self.cursor is not None:
            self.settle()

    def settle(self) -> None:
        """Take an epoch, before the first batch; an error in that is kept for `next()`."""
        try:
            self.cursor = self._session.settle(self._name, self._resumed, self._positions)
            self._leases = self._session.hold(self.cursor.begin.edition)
        except ZarrfeedError as error:
            self._failure = error

    def close(self) -> None:
        """Stop reading; the reader and its memory serve the next pass."""
        if self.cursor is not None:
            self.cursor.closed = True
        self._release()

    def _release(self) -> None:
        self._begun = True
        self._leases = ()
        look, self._look = self._look, None
        if look is not None:
            look.close()
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.stop()
            assert self._readers is not None
            self._readers.take_back(self, reader)

    def __del__(self) -> None:
        reader = self.reader
        try:
            self.close()
        except KeyboardInterrupt:  # a loop was left with `break`, and then came Ctrl-C
            token = _Token()
            self.reader, reader = reader, None
            self.close()  # whatever Python code runs when this object is gone would swallow the interrupt, too
            _interrupt_after(token)

    def _transformed(self, batch: Batch) -> Batch:
        """Return the result of the user's `transform` of a batch or sample; an error in it ends the pass."""
        transform = self._session.options.transform
        if transform is None:
            return batch
        try:
            return transform(batch)
        except StopIteration as error:  # would end the loop as if all were read
            self.close()
            raise RuntimeError("transform raised StopIteration") from error
        except BaseException:
            self.close()
            raise

    def _checked_values(self, reader: EpochReader, look: Look) -> tuple[Values, ...] | None:
        """Return the next batch of the reader, unless an array is known to have changed since it was opened."""
        try:
            values = reader.next()
        except (CorruptChunkError, StoreReadError) as error:
            look.explain(error)
            raise
        look.check_batch(is_end=values is None)
        if look.has_told:
            self._look = None
        return values

    def _begin(self) -> None:
        session = self._session
        session.check_open()
        with session.beginning.held:
            if self.cursor is None and self._failure is None:
                self.settle()
            if self._failure is not None:
                raise self._failure
            assert self.cursor is not None
            if not self.cursor.rank_info.idle:
                self._readers = session.readers_for(self.cursor)  # at once: an interrupted start gives its reader back
                session.start_reader(self, self.cursor)
            self._begun = True
            # a store that grows was looked at when its version was
            if self.reader is not None and self.cursor.begin.edition.version is None:
                self._look = begin_look(session, self.cursor)


class SamplePass(Pass):
    """Single samples: views of the batches of the engine."""

    def __init__(self, session: Session, name: str | None) -> None:
        super().__init__(session, name)
        self._samples: deque[Batch] = deque()
        self._assemble = session.options.assembler.samples_of
        self._is_plain, self._transforms = not self._transforms, False  # samples are transformed one by one

    def __next__(self) -> Batch:
        if self._is_plain:
            with self._lock.held:
                if self._samples:  # the short way: it is taken once a sample, and loaders have batches
                    assert self.cursor is not None
                    self.cursor.delivered += 1
                    return self._samples.popleft()
        return super().__next__()

    def fetch(self) -> Batch:
        """Return the next sample without counting it."""
        while not self._samples:
            self._samples.extend(super().fetch())
        return self._transformed(self._samples.popleft())

    def close(self) -> None:
        """Stop reading, and drop the batches that were not handed out."""
        if hasattr(self, "_samples"):  # not, where construction failed
            self._samples.clear()
        super().close()


#: References whose callback interrupts; each is dropped after its interrupt.
_references: list[_Interrupt] = []


class _Token:
    """A local variable of the function after which the interrupt is to come; nothing else may refer to it."""


class _Interrupt(weakref.ref[_Token]):
    """Is passed to its own callback, `_thread.interrupt_main`, which takes the number of a signal."""

    def __index__(self) -> int:
        _references.clear()
        return int(signal.SIGINT)


def _interrupt_after(token: _Token) -> None:
    """Interrupt the main thread when the token is dropped: hand on a Ctrl-C that Python would forget.

    Python prints an error of a `__del__` and forgets it, an interrupt too. This function is called with the interrupt
    in hand; the same interrupt comes again as soon as the calling function has returned to the code that dropped the
    object. Python looks for signals between two bytecodes, so it must be C that sets the flag, when the frame of that
    function is cleared: the callback of a weak reference to a local variable.
    """
    callback: Any = _thread.interrupt_main  # it takes the reference for a number
    _references.append(_Interrupt(token, callback))

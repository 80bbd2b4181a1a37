"""The readers of a dataset in one process: made for its passes, kept between them, counted over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from zarrfeed.base.errors import ClosedError
from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.schedule.resources import Resources


class EpochReader(Protocol):
    """Reads an epoch: a `Reader` of Zarr arrays, or an `ObjectReader` of objects as they are.

    Attributes
    ----------
    skipped
        Chunks and objects that were skipped since the reader was made.
    has_bad_rows
        True if the reader has to be made anew to read chunks that could not be read before.
    """

    skipped: list[SkippedChunk]
    has_bad_rows: bool

    def start(
        self, plan: ReadPlan, max_open_batches: int, *, short_of_memory: bool = False, keep_bytes: int = 0
    ) -> None:
        """Begin an epoch."""

    def next(self) -> tuple[Any, ...] | None:
        """Return the next batch, as one array or list a field; None at the end."""

    def stop(self) -> None:
        """End the epoch."""

    def stats(self) -> Stats:
        """Return the counters since the reader was made."""


class Running(Protocol):
    """A pass over a dataset, as its reader's owner."""

    reader: EpochReader | None

    def close(self) -> None:
        """Stop reading, and give the reader back."""


class ReaderPool:
    """Readers that run, one a pass, and readers that wait for the next pass with their memory.

    Parameters
    ----------
    make
        Makes a reader that may use so much, and whose batches are of this library of arrays.
    """

    def __init__(self, make: Callable[[Resources, BatchArrays], EpochReader]) -> None:
        self._make = make
        self._idle: list[EpochReader] = []
        self._running: WeakSet[Running] = WeakSet()  # one that its consumer drops ends itself
        self._busy: WeakSet[EpochReader] = WeakSet()  # of the running passes; an interrupted one may lose its reader
        self._past_stats = Stats()
        self._past_skipped: list[SkippedChunk] = []
        self.closed = False
        self._retired = False

    @property
    def is_busy(self) -> bool:
        """True if a pass has a reader of this pool."""
        return bool(self._busy)

    def start(self, running: Running, plan: ReadPlan, resources: Resources, arrays: BatchArrays) -> None:
        """Give a pass a reader that reads `plan`.

        Raises
        ------
        StoreReadError
            If an array is gone.
        ClosedError
            If another thread closed the dataset meanwhile.
        """
        reader = self._idle.pop() if self._idle else self._make(resources, arrays)
        # Before it starts, so that a thread that closes the dataset from now on ends it.
        running.reader = reader
        self._busy.add(reader)
        self._running.add(running)
        try:
            reader.start(
                plan,
                resources.max_open_batches,
                short_of_memory=resources.short_of_memory,
                keep_bytes=resources.memory.keep_bytes,
            )
            if self.closed:
                raise ClosedError("this dataset was closed")
        except BaseException:
            reader.stop()  # the pass may have been closed before its reader started
            running.close()
            raise

    def take_back(self, ended: Running, reader: EpochReader) -> None:
        """Keep the reader of a pass that ended for the next one; once, however often it is closed."""
        self._running.discard(ended)
        if reader not in self._busy:
            return
        self._busy.discard(reader)
        if self.closed or self._retired or reader.has_bad_rows:  # they may be mended until the next pass
            self._retire(reader)
        else:
            self._idle.append(reader)

    def stats(self) -> Stats:
        """Return the counters of all readers that there ever were."""
        return sum((reader.stats() for reader in self._readers()), self._past_stats)

    def skipped(self) -> list[SkippedChunk]:
        """Return the chunks and objects that all readers have skipped, those that are gone included."""
        return self._past_skipped + [chunk for reader in self._readers() for chunk in reader.skipped]

    def close(self) -> None:
        """End all passes, and free the memory of dropped batches."""
        self.closed = True
        for running in list(self._running):
            running.close()
        self.retire()

    def retire(self) -> None:
        """Keep no reader for further passes; those that run go on."""
        self._retired = True
        for reader in self._idle:
            self._retire(reader)
        self._idle.clear()

    def _retire(self, reader: EpochReader) -> None:
        self._past_stats = self._past_stats + reader.stats()
        self._past_skipped += reader.skipped

    def _readers(self) -> list[EpochReader]:
        return [*self._idle, *self._busy]

"""`SampleLookup`: looks samples up by their indices, for fields whose chunks the engine does not scatter.

Two kinds: `AheadReader` (images, and rows of sparse matrices) makes batches before the consumer wants them;
`EncodedLookup` (text and bytes) looks samples up when a batch is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from zarrfeed.base.errors import StoreReadError
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField, SkippedPart
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.storage.access.retry import is_of_chunk
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

#: One thing that a batch lacks, and why.
Bad = TypeVar("Bad")


class SampleLookup(ABC, Generic[Bad]):
    """Looks the samples of one field up: text and bytes as they are, images, or sparse rows."""

    @property
    @abstractmethod
    def source(self) -> StoreSource | PartedSource | None:
        """The source of the chunks; None if readers that this lookup makes report their own source."""

    @abstractmethod
    def open(self, plan: ReadPlan, max_open_batches: int) -> None:
        """Begin an epoch."""

    @abstractmethod
    def close(self) -> None:
        """End the epoch."""

    def take(self, index: Int64) -> Any:
        """Return samples, by their index in the array.

        Raises
        ------
        CorruptChunkError, StoreReadError
            If a chunk cannot be read; the message names the array, the chunk and the samples.
        """
        values, bad = self.take_what_is_good(index)
        for one in bad:  # raised by the caller's thread, and never on zarr-python's loop: an interrupt would end it
            raise self._error_of(one)
        return values

    @abstractmethod
    def take_what_is_good(self, index: Int64) -> tuple[Any, list[Bad]]:
        """Like `take`, but also return the errors of chunks and samples. Samples with an error are undefined."""

    @abstractmethod
    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        """Map the skip ids of array `number`, as `skipped` returns them, to the finders of a sample's chunk."""

    @abstractmethod
    def skipped(self, number: int, index: Int64, errors: list[Bad]) -> Skipped:
        """Return the slots that lack their sample because of these errors, their samples, and the skipped chunks."""

    @abstractmethod
    def stats(self) -> Stats:
        """Return the counters since this was made."""

    @abstractmethod
    def _error_of(self, bad: Bad) -> BaseException:
        """Return the error that `take` raises for a chunk or a sample that could not be read."""


def skipped_part(number: int, unit: int, key: str, error: BaseException) -> SkippedPart:
    """Return one chunk, or one sample, that is skipped, as the engine reports chunks.

    Raises
    ------
    BaseException
        The error, if it says nothing of a chunk.
    """
    if not is_of_chunk(error):
        raise error
    code = error.errno if isinstance(error, StoreReadError) and error.errno is not None else 0
    what = error.strerror if isinstance(error, StoreReadError) else str(error)
    return number, unit, key, type(error).__name__, code, str(what)


def skipped_alone(name: str) -> SkippedField:
    """Return the finder for samples that are skipped one by one: the chunk of a sample is the sample itself."""
    return SkippedField(name, _itself, (0,))


def _itself(samples: Int64, offset: int) -> Int64:
    return samples + offset

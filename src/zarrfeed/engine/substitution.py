"""Replace the samples whose chunk cannot be read or decoded by other samples (`on_error="skip"`).

Invariant: each slot whose sample is bad gets the first good sample among the sample's successors. The successor of a
sample is the same row of the next block in the epoch order, in a mixture of the next block of its source. It is a
function of the order and the epoch, so the replacement does not depend on ranks, workers, threads or timing. Every slot
is filled, so no count changes, and no rank waits for another. The rows of one bad block get different rows of one other
block, which is decoded once.

The patches that touch a bad chunk are not known before they are read, so a slot whose sample is a patch is read again
and again until its sample is good.

A chunk counts once a pass towards `max_errors`, in the first batch that wants it. So the batch at which a pass ends
with an error does not depend on timing either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base import errors
from zarrfeed.base.errors import ChunkSkippedWarning, StoreReadError, ZarrfeedError
from zarrfeed.base.redaction import without_secrets
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.field_rows import FindChunks
from zarrfeed.plan.samples.selection import Int64

#: A chunk that could not be read or decoded: (source, index along the sample axis, key, class of the error, errno,
#: message).
SkippedPart: TypeAlias = tuple[int, int, str, str, int, str]
#: The skipped slots of a batch, as the engine reports them: the slots, their samples, and the chunks.
Skipped: TypeAlias = tuple[list[int], list[int], list[SkippedPart]]
#: One field of a batch: uint8 of shape (rows, bytes of a sample); of objects as they are, an array of these.
Bytes: TypeAlias = npt.NDArray[Any]
#: Reads samples; returns the bytes of each field, and the skipped slots among them.
ReadSamples: TypeAlias = Callable[[Int64], tuple[tuple[Bytes, ...], Skipped | None]]


@dataclass(frozen=True)
class SkippedChunk:
    """A chunk that could not be read or decoded, and whose samples were replaced.

    Attributes
    ----------
    field
        The dataset's name of the array, such as "samples" or "targets['mask']"; of several fields that draw from the
        array, that of the first one.
    key
        The key of the stored chunk below the array, such as "c/3/0"; for an inner chunk, also its index in the shard.
    epoch
        The epoch in which the chunk was needed.
    cause
        The error that would have been raised with `on_error="raise"`.
    """

    field: str
    key: str
    epoch: int
    cause: ZarrfeedError


@dataclass(frozen=True)
class SkippedField:
    """A field that draws from an array, described for substitution.

    Attributes
    ----------
    name
        The name of the field.
    find_chunks
        Returns the number of the chunk that holds the row at an offset from each sample. None: not known; samples are
        patches.
    offsets
        The offsets of the window.
    """

    name: str
    find_chunks: FindChunks | None
    offsets: tuple[int, ...]


class Substitutes:
    """Fills the skipped slots of one pass.

    Parameters
    ----------
    fields
        The fields that draw from each array, by the number of the source in the engine. A bad chunk is bad for all of
        them, and is reported once, under the name of the first one.
    plan
        The plan of the pass.
    max_errors
        Number of chunks that may be skipped.
    report
        A list that skipped chunks are appended to.
    """

    def __init__(
        self,
        fields: Mapping[int, Sequence[SkippedField]],
        plan: ReadPlan,
        *,
        max_errors: int,
        report: list[SkippedChunk],
    ) -> None:
        self._fields = fields
        self._max_errors = max_errors
        self._report = report
        self._epoch = plan.epoch
        self._block_order = _BlockOrder(plan.order.by_block, plan.epoch)
        self._known: set[tuple[int, int, str]] = set()
        self._num_told = 0  # chunks that count towards `max_errors`
        self._told: dict[tuple[str, str], int] = {}  # key and message, which name the array and the chunk -> source
        self._bad: dict[int, set[int]] = {}  # source -> chunks along the sample axis

    def fill(self, batch: Sequence[Bytes], skipped: Skipped, read: ReadSamples) -> None:
        """Write other samples to the skipped slots.

        Raises
        ------
        CorruptChunkError, StoreReadError
            The error of the chunk that exceeds `max_errors`; or of any chunk, if the epoch has no good sample.
        """
        slots, samples = np.array(skipped[0], dtype=np.int64), np.array(skipped[1], dtype=np.int64)
        self._note(skipped)
        tries = 0
        while len(slots):
            tries += 1
            if tries > self._block_order.num_blocks:
                raise _no_good_sample(skipped)
            samples = self._next_good(samples, skipped)
            rows, still = read(samples)
            good = np.ones(len(slots), dtype=bool)
            if still is not None:
                self._note(still)
                good[still[0]] = False
                skipped = still
            for of_field, values in zip(batch, rows, strict=True):
                of_field[slots[good]] = values[good]
            slots, samples = slots[~good], samples[~good]

    def _next_good(self, samples: Int64, skipped: Skipped) -> Int64:
        """Return for each sample the next one that is in no chunk known to be bad."""
        found = samples.copy()
        waiting = np.arange(len(samples))
        for _ in range(self._block_order.num_blocks):
            found[waiting] = self._block_order.successors(found[waiting])
            waiting = waiting[self._is_bad(found[waiting])]
            if not len(waiting):
                return found
        raise _no_good_sample(skipped)

    def _is_bad(self, samples: Int64) -> npt.NDArray[np.bool_]:
        bad = np.zeros(len(samples), dtype=bool)
        for number, chunks in self._bad.items():
            for field in self._fields[number]:
                if field.find_chunks is None:
                    continue
                for offset in field.offsets:
                    bad |= np.isin(field.find_chunks(samples, offset), list(chunks))
        return bad

    def _note(self, skipped: Skipped) -> None:
        for one in sorted(skipped[2]):
            number, chunk, key, *_, message = one
            if (number, chunk, key) in self._known:
                continue
            self._known.add((number, chunk, key))
            self._bad.setdefault(number, set()).add(chunk)
            # One field may have an array in memory that another one reads: the chunk is bad in both, and told once.
            if number >= 0 and self._told.setdefault((key, message), number) != number:
                continue
            self._num_told += 1
            if self._num_told > self._max_errors:
                raise _error_of(one, f" (chunk {self._num_told} that cannot be read, max_errors = {self._max_errors})")
            cause = _error_of(one)
            self._report.append(SkippedChunk(self._fields[number][0].name, key, self._epoch, cause))
            warnings.warn(without_secrets(f"skipped: {cause}"), ChunkSkippedWarning, stacklevel=2)


class _BlockOrder:
    """The blocks in the epoch order: finds the block after a block."""

    def __init__(self, order: Order, epoch: int) -> None:
        self._order = order
        self._epoch = epoch
        self._followers: Callable[[Int64], Int64] | None = None

    @property
    def num_blocks(self) -> int:
        return self._order.num_blocks

    def successors(self, samples: Int64) -> Int64:
        """Return the replacement of each sample: the same row of the next block, modulo the length of that block."""
        if self._followers is None:
            self._followers = self._order.followers(self._epoch)
        held_index, row = self._order.locate(samples)
        held_index = self._followers(held_index)
        return self._order.samples_in(held_index, row % self._order.rows_at(held_index)[1])


def _no_good_sample(skipped: Skipped) -> ZarrfeedError:
    return _error_of(skipped[2][0], "; no block of the epoch has a good sample to put there")


def _error_of(chunk: tuple[int, int, str, str, int, str], more: str = "") -> ZarrfeedError:
    *_, name, errno, message = chunk
    kind: Any = getattr(errors, name)
    made: ZarrfeedError = kind(errno, message + more) if issubclass(kind, StoreReadError) else kind(message + more)
    return made

"""Ascending samples, with an entry for each of them only where no rule says them.

Invariant: a set of samples takes the fewest bytes of four forms, and the form follows from the samples alone. Runs
take 16 bytes each, and the samples of a run are evenly spaced; flags take a bit for each sample of the array; pages
take 2 bytes for each sample of the set; a list takes 8. Evenly spaced samples are a `range`, and no set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.samples.joined_ranges import joined_ranges

Int64: TypeAlias = npt.NDArray[np.int64]

#: Samples, and runs of them, are looked at so many at a time.
AT_ONCE = 1 << 18
#: Flags are looked at so many at a time: a multiple of 8.
_FLAGS_AT_ONCE = 1 << 22
#: Samples of a page, whose offsets in it have 16 bits.
_PAGE_BITS = 16
_BYTES_OF_RUN, _BYTES_OF_OFFSET, _BYTES_OF_SAMPLE = 16, 2, 8
_NO_RUNS: tuple[Int64, Int64] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class SampleSet:
    """Ascending samples, each once; there are some. `as_samples`, and the functions below it, make them.

    Samples of the form "repeats" come as often as they are wanted, in runs that ascend. They are listed and looked up
    by their numbers, and nothing else (`plan/order/weighted_blocks.py`).

    Attributes
    ----------
    form
        "runs", "flags", "pages", "list" or "repeats".
    arrays
        "runs": the first sample and the length of each run. "flags": 8 flags a byte, the first in its lowest bit.
        "pages": each sample's offset in its page, and the number of samples before each page. "list": the samples.
        "repeats": as "pages", and the sample from which the offsets of each page are counted.
    step
        Distance between the samples of a run.
    """

    form: str
    arrays: tuple[npt.NDArray[Any], ...]
    step: int = 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "table"}

    @cached_property
    def table(self) -> core.SampleTable:
        """The samples in the form that the engine takes; it borrows the arrays."""
        if self.form == "runs":
            return core.SampleTable.of_runs(begin=self.arrays[0], count=self.arrays[1], step=self.step)
        if self.form == "flags":
            return core.SampleTable.of_flags(self.arrays[0])
        if self.form == "pages":
            return core.SampleTable.of_pages(offset=self.arrays[0], before=self.arrays[1], bits=_PAGE_BITS)
        if self.form == "repeats":
            return core.SampleTable.of_repeats(offset=self.arrays[0], before=self.arrays[1], base=self.arrays[2])
        return core.SampleTable.of_list(self.arrays[0])

    @property
    def nbytes(self) -> int:
        """Bytes that the samples take, with those that the engine keeps of them."""
        return sum(array.nbytes for array in self.arrays) * (2 if self.form == "runs" else 1)

    def __len__(self) -> int:
        return self.table.length

    def __getitem__(self, number: int) -> int:
        """Return a sample by its number among all of them."""
        return int(self.at(np.array([range(len(self))[number]]))[0])

    def __iter__(self) -> Iterator[int]:
        for piece in self.pieces():
            yield from piece.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        del copy
        return self.listed().astype(np.int64 if dtype is None else dtype, copy=False)

    def at(self, numbers: Int64) -> Int64:
        """Return samples by their numbers."""
        return self.table.at(numbers)

    def rank(self, samples: Int64) -> Int64:
        """Return the rank of each of some samples: the number of samples of the set that are less than it."""
        return self.table.rank(samples)

    def listed(self) -> Int64:
        """Return all samples, shape (samples,)."""
        return self.table.list(0, len(self))

    def pieces(self, most: int = AT_ONCE) -> Iterator[Int64]:
        """Return all samples, some at a time."""
        for first in range(0, len(self), most):
            yield self.table.list(first, min(most, len(self) - first))

    @property
    def digest(self) -> bytes:
        """A hash that tells sets apart."""
        hashed = hashlib.sha256(f"{self.form} {self.step}".encode())
        used = {"flags": self[-1] // 8 + 1, "pages": (self[-1] >> _PAGE_BITS) + 2}.get(self.form)
        for array in (*self.arrays[:-1], self.arrays[-1][:used]):  # what is behind says nothing
            for begin in range(0, len(array), AT_ONCE):
                piece = array[begin : begin + AT_ONCE]
                hashed.update(piece.astype(piece.dtype.newbyteorder("<")).tobytes())
        return hashed.digest()

    def cuts(self) -> Int64:
        """Return samples between which the set is looked at piece by piece, ascending."""
        if self.form == "runs" and self.step == 1:
            return self.arrays[0][AT_ONCE::AT_ONCE]
        if self.form == "flags":
            return np.arange(_FLAGS_AT_ONCE, 8 * len(self.arrays[0]), _FLAGS_AT_ONCE)
        return self.at(np.arange(AT_ONCE, len(self), AT_ONCE))

    def runs_in(self, begin: int, end: int) -> tuple[Int64, Int64]:
        """Return the longest runs of neighbours of [begin, end): the first sample of each, and the one behind it."""
        if self.form == "runs" and self.step == 1:
            of_run, count = self.arrays
            low = max(0, int(np.searchsorted(of_run, begin, side="right")) - 1)
            high = int(np.searchsorted(of_run, end))
            first = np.maximum(of_run[low:high], begin)
            last = np.minimum(of_run[low:high] + count[low:high], end)
            is_there = first < last
            return first[is_there], last[is_there]
        if self.form == "flags":
            byte = slice(begin // 8, -(-end // 8))
            flags = np.unpackbits(self.arrays[0][byte], bitorder="little")[begin % 8 : begin % 8 + end - begin]
            edges = np.flatnonzero(np.diff(flags, prepend=0, append=0))
            return edges[::2] + begin, edges[1::2] + begin
        low, high = self.rank(np.array([begin, end])).tolist()
        return neighbours(self.table.list(low, high - low))


#: Ascending samples, each once.
Samples: TypeAlias = range | SampleSet


def as_samples(samples: npt.NDArray[np.integer[Any]]) -> Samples:
    """Return listed samples, which ascend, in the form that takes the fewest bytes."""
    if not len(samples):
        return range(0)
    begin, end = int(samples[0]), int(samples[-1])
    step = max(1, int(samples[1]) - begin) if len(samples) > 1 else 1
    runs, is_even = 0, end - begin == step * (len(samples) - 1)
    for first in range(0, len(samples), AT_ONCE):
        # from the last sample of the piece before on
        apart = np.diff(samples[max(0, first - 1) : first + AT_ONCE])
        runs += int(np.count_nonzero(apart != 1))
        is_even = is_even and bool((apart == step).all())
    if is_even:
        return range(begin, end + 1, step)
    return _made(
        _form(len(samples), runs + 1, end),
        (samples[first : first + AT_ONCE] for first in range(0, len(samples), AT_ONCE)),
        len(samples),
        end,
    )


def _form(count: int, runs: int, last: int) -> str:
    """Return the form with the fewest bytes for so many samples, in so many runs of neighbours, up to `last`."""
    sizes = {
        "runs": _BYTES_OF_RUN * runs,
        "flags": last // 8 + 1,
        "pages": _BYTES_OF_OFFSET * count + 8 * ((last >> _PAGE_BITS) + 2),
        "list": _BYTES_OF_SAMPLE * count,
    }
    return min(sizes, key=lambda form: sizes[form])


def _made(form: str, pieces: Iterator[npt.NDArray[np.integer[Any]]], count: int, last: int) -> SampleSet:
    """Return a set in a form, given some samples at a time."""
    if form == "runs":
        runs = _RunList()
        for piece in pieces:
            runs.add(*neighbours(piece.astype(np.int64, copy=False)))
        begin, end = runs.joined()
        return SampleSet("runs", (begin, end - begin))
    if form == "flags":
        flags = np.zeros(last // 8 + 1, dtype=np.uint8)
        for piece in pieces:
            _set_flags(flags, *neighbours(piece.astype(np.int64, copy=False)))
        return SampleSet("flags", (flags,))
    done = 0
    listed = np.empty(count, dtype=np.int64 if form == "list" else np.uint16)
    per_page = np.zeros((last >> _PAGE_BITS) + 2 if form == "pages" else 0, dtype=np.int64)
    for piece in pieces:
        # offsets alone where there are pages, since 16 bits have no room for more
        listed[done : done + len(piece)] = piece if form == "list" else piece & ((1 << _PAGE_BITS) - 1)
        if form == "pages":
            page, counts = np.unique(piece >> _PAGE_BITS, return_counts=True)
            per_page[page.astype(np.int64) + 1] += counts
        done += len(piece)
    return SampleSet(form, (listed,) if form == "list" else (listed, np.cumsum(per_page)))


def neighbours(samples: Int64) -> tuple[Int64, Int64]:
    """Return the runs of neighbours among ascending samples: the first of each, and the sample behind it."""
    if not len(samples):
        return _NO_RUNS
    breaks = np.flatnonzero(np.diff(samples) != 1)
    return samples[np.append(0, breaks + 1)], samples[np.append(breaks, len(samples) - 1)] + 1


def _set_flags(flags: npt.NDArray[np.uint8], begin: Int64, end: Int64) -> None:
    """Set the flags of runs."""
    for low in range(int(begin[0]) // 8 * 8 if len(begin) else 0, int(end[-1]) if len(end) else 0, _FLAGS_AT_ONCE):
        high = low + _FLAGS_AT_ONCE
        some = slice(int(np.searchsorted(end, low, side="right")), int(np.searchsorted(begin, high)))
        if some.start >= some.stop:
            continue
        begins, ends = np.maximum(begin[some], low), np.minimum(end[some], high)
        first = int(begins[0]) // 8
        edges = np.zeros(8 * (-(-int(ends[-1]) // 8) - first) + 1, dtype=np.int8)
        edges[begins - 8 * first] += 1
        edges[ends - 8 * first] -= 1
        packed = np.packbits(np.cumsum(edges[:-1], dtype=np.int8), bitorder="little")
        flags[first : first + len(packed)] |= packed


class _RunList:
    """Runs that are found some at a time; those that touch are one."""

    def __init__(self) -> None:
        self._begin: list[Int64] = []
        self._end: list[Int64] = []

    def add(self, begin: Int64, end: Int64) -> None:
        """Add runs behind the others."""
        if not len(begin):
            return
        if self._end and self._end[-1][-1] == begin[0]:
            self._end[-1][-1] = end[0]
            begin, end = begin[1:], end[1:]
        if len(begin):
            self._begin.append(begin.copy())
            self._end.append(end.copy())

    def joined(self) -> tuple[Int64, Int64]:
        """Return the runs: the first sample of each, and the one behind it."""
        if not self._begin:
            return _NO_RUNS
        return np.concatenate(self._begin), np.concatenate(self._end)


class SampleBuilder:
    """Makes a set of samples of runs that are found some at a time, in ascending order.

    Parameters
    ----------
    num_samples
        All samples are less.
    """

    def __init__(self, num_samples: int) -> None:
        self._runs = _RunList()
        self._count = self._num_runs = 0
        self._bytes_of_flags = num_samples // 8 + 1
        self._flags: npt.NDArray[np.uint8] | None = None

    def add(self, begin: Int64, end: Int64) -> None:
        """Add runs: the first sample of each, and the one behind it; behind all that were added before."""
        self._num_runs += len(begin)
        self._count += int((end - begin).sum())
        if self._flags is None and _BYTES_OF_RUN * self._num_runs > self._bytes_of_flags:
            self._flags = np.zeros(self._bytes_of_flags, dtype=np.uint8)
            _set_flags(self._flags, *self._runs.joined())
            self._runs = _RunList()
        if self._flags is None:
            self._runs.add(begin, end)
        else:
            _set_flags(self._flags, begin, end)

    def samples(self) -> Samples:
        """Return all that was added, in the form that takes the fewest bytes."""
        if not self._count:
            return range(0)
        if self._flags is not None:
            return compact(SampleSet("flags", (self._flags,)))
        begin, end = self._runs.joined()
        return compact(SampleSet("runs", (begin, end - begin)))


def compact(samples: SampleSet) -> Samples:
    """Convert the samples to the form that takes the fewest bytes."""
    evenly = _evenly_spaced(samples)
    if evenly is not None:
        return evenly
    last = samples[-1]
    if samples.form == "runs" and samples.step == 1:
        runs = len(samples.arrays[0])
    else:
        runs, reached = 0, -1
        for low, high in pairwise([0, *samples.cuts().tolist(), last + 1]):
            begin, end = samples.runs_in(low, high)
            if len(begin):
                runs += len(begin) - int(begin[0] == reached)  # one that goes on behind a cut is one
                reached = int(end[-1])
            del begin, end  # before the next ones are made
    form = _form(len(samples), runs, last)
    return samples if form == samples.form and samples.step == 1 else _made(form, samples.pieces(), len(samples), last)


def _evenly_spaced(samples: SampleSet) -> range | None:
    """Return the samples as a range, if they are one."""
    begin, last, count = samples[0], samples[-1], len(samples)
    step = samples[min(1, count - 1)] - begin or 1
    if last - begin != step * (count - 1):
        return None
    if samples.form == "runs":  # these do not touch, so runs of several samples are at another distance
        of_run, counts = samples.arrays
        is_one = len(of_run) == 1 or bool((counts == 1).all() and (np.diff(of_run) == step).all())
        return range(begin, last + 1, step) if is_one else None
    before = begin - step
    for piece in samples.pieces():
        if (np.diff(piece, prepend=before) != step).any():
            return None
        before = int(piece[-1])
    return range(begin, last + 1, step)


def runs_of(begin: Int64, count: Int64, step: int) -> Samples:
    """Return runs of evenly spaced samples, each behind the one before it and of some samples."""
    if not len(begin):
        return range(0)
    # runs that go on where the one before them ends are one with it
    starts = np.flatnonzero(np.append(True, begin[1:] != begin[:-1] + step * count[:-1]))
    begin, count = begin[starts], np.add.reduceat(count, starts)
    found = SampleSet("runs", (begin, count), step)
    if step == 1 or _BYTES_OF_RUN * len(begin) > _BYTES_OF_OFFSET * len(found):
        return compact(found)
    evenly = _evenly_spaced(found)
    return found if evenly is None else evenly


def flagged(mask: npt.NDArray[np.bool_]) -> Samples:
    """Return the samples whose flags are set."""
    if not mask.any():
        return range(0)
    return compact(SampleSet("flags", (np.packbits(mask, bitorder="little"),)))


def collected(pieces: Iterable[Int64], num_samples: int) -> Samples:
    """Return samples that are listed some at a time, ascending."""
    found = SampleBuilder(num_samples)
    for piece in pieces:
        found.add(*neighbours(piece))
    return found.samples()


def pieces_of(samples: Samples) -> Iterator[Int64]:
    """Return the samples, some at a time."""
    if isinstance(samples, SampleSet):
        yield from samples.pieces()
        return
    for first in range(0, len(samples), AT_ONCE):
        piece = samples[first : first + AT_ONCE]
        yield np.arange(piece.start, piece.stop, piece.step, dtype=np.int64)


def as_index(samples: range | Int64) -> slice | Int64:
    """Return an index that takes the values of some samples from an array; that of a range copies nothing."""
    return slice(samples.start, samples.stop, samples.step) if isinstance(samples, range) else samples


def distinct(numbers: Int64) -> Int64:
    """Return numbers in ascending order, each once; `numpy.unique` hashes them, which takes several times as long."""
    ascending: Int64 = np.sort(numbers)
    found: Int64 = ascending[np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]]
    return found


def runs_in(samples: Samples, begin: int, end: int) -> tuple[Int64, Int64]:
    """Return the longest runs of neighbours of [begin, end): the first sample of each, and the one behind it."""
    if isinstance(samples, SampleSet):
        return samples.runs_in(begin, end)
    if samples.step > 1:
        low = max(0, -(-(begin - samples.start) // samples.step))
        high = max(low, min(len(samples), -(-(end - samples.start) // samples.step)))
        first = samples.start + samples.step * np.arange(low, high, dtype=np.int64)
        return first, first + 1
    low, high = max(begin, samples.start), min(end, samples.stop)
    return (np.array([low]), np.array([high])) if low < high else _NO_RUNS


def stretches(sets: Sequence[Samples], num_samples: int) -> Iterator[tuple[int, int]]:
    """Return stretches of all samples, [begin, end) each, in which no set has many runs."""
    cuts = [one.cuts() for one in sets if isinstance(one, SampleSet)]
    cuts += [np.arange(0, num_samples, AT_ONCE * one.step) for one in sets if isinstance(one, range) and one.step > 1]
    edges = distinct(np.concatenate([np.array([0, num_samples], dtype=np.int64), *cuts]))
    edges = edges[edges <= num_samples].tolist()
    return pairwise(edges)


def rank_of(samples: Samples, of: Int64) -> Int64:
    """Return the rank of each sample in `of`: the number of `samples` that are less than it."""
    if isinstance(samples, SampleSet):
        return samples.rank(of)
    return np.clip(-(-(of - samples.start) // samples.step), 0, len(samples)).astype(np.int64)


def intersected(samples: Samples, others: Samples, num_samples: int) -> Samples:
    """Return the samples that are in both."""
    if isinstance(samples, range) and isinstance(others, range) and 1 in (samples.step, others.step):
        samples, others = (samples, others) if others.step == 1 else (others, samples)
        skipped = max(0, -(-(others.start - samples.start) // samples.step))
        stop = min(samples.stop, others.stop)
        return range(samples.start + skipped * samples.step, stop, samples.step)
    if isinstance(others, range) and others.start <= samples[0] and samples[-1] < others.stop and others.step == 1:
        return samples
    if isinstance(samples, range):
        evenly = _evenly_within(samples, others)
        if evenly is not None:
            return evenly
    if isinstance(samples, SampleSet) and isinstance(others, range) and others.step == 1:
        return _trimmed(samples, others)
    found = SampleBuilder(num_samples)
    for low, high in stretches([samples, others], num_samples):
        found.add(*common_runs(*runs_in(samples, low, high), *runs_in(others, low, high)))
    return found.samples()


def _evenly_within(samples: range, others: Samples) -> Samples | None:
    """Return the samples of an evenly spaced range that lie in runs; None if these are no runs of neighbours."""
    if not isinstance(others, SampleSet) or others.form != "runs" or others.step != 1:
        return None
    begin, count = others.arrays
    low, high = rank_of(samples, begin), rank_of(samples, begin + count)
    some = np.flatnonzero(high > low)
    return runs_of(samples.start + samples.step * low[some], (high - low)[some], samples.step)


def _trimmed(samples: SampleSet, others: range) -> Samples:
    """Return the samples that lie between the ends of a range without gaps."""
    low, high = samples.rank(np.array([others.start, others.stop])).tolist()
    if low >= high:
        return range(0)
    if samples.form == "runs":
        begin, count = samples.arrays
        before = np.cumsum(count) - count
        skipped = np.clip(low - before, 0, count)
        left = np.clip(high - before, 0, count) - skipped
        some = left > 0
        return runs_of((begin + samples.step * skipped)[some], left[some], samples.step)
    if samples.form == "flags":
        flags = samples.arrays[0][: -(-others.stop // 8)].copy()
        flags[: others.start // 8] = 0
        flags[others.start // 8] &= 0xFF << others.start % 8 & 0xFF
        if others.stop % 8 and others.stop <= 8 * len(flags):
            flags[others.stop // 8] &= (1 << others.stop % 8) - 1
        trimmed = SampleSet("flags", (flags,))
    elif samples.form == "pages":
        offset, before = samples.arrays
        trimmed = SampleSet("pages", (offset[low:high], np.clip(before, low, high) - low))
    else:
        trimmed = SampleSet("list", (samples.arrays[0][low:high],))
    evenly = _evenly_spaced(trimmed)
    return trimmed if evenly is None else evenly


def common_runs(begin: Int64, end: Int64, other_begin: Int64, other_end: Int64) -> tuple[Int64, Int64]:
    """Return the intersection of runs with others; both are disjoint, and ascend."""
    if len(begin) > len(other_begin):
        begin, end, other_begin, other_end = other_begin, other_end, begin, end
    low = np.searchsorted(other_end, begin, side="right")
    counts = np.maximum(0, np.searchsorted(other_begin, end) - low)
    # one entry for each pair of runs that meet from here on
    mine = np.repeat(np.arange(len(begin)), counts)
    other = joined_ranges(low, counts)
    return np.maximum(begin[mine], other_begin[other]), np.minimum(end[mine], other_end[other])


def without_runs(begin: Int64, end: Int64, out_begin: Int64, out_end: Int64) -> tuple[Int64, Int64]:
    """Return runs less others, which are sorted, and may overlap."""
    if not len(out_begin) or not len(begin):
        return begin, end
    # the others as disjoint runs
    starts = np.append(True, out_begin[1:] > out_end[:-1])
    merged_begin = out_begin[starts]
    merged_end = out_end[np.append(np.flatnonzero(starts)[1:] - 1, len(out_end) - 1)]
    # and what lies between these, from the first run to the last one
    free_begin = np.append(min(int(begin[0]), int(merged_begin[0])), merged_end)
    free_end = np.append(merged_begin, max(int(end[-1]), int(merged_end[-1])))
    is_free = free_begin < free_end
    return common_runs(begin, end, free_begin[is_free], free_end[is_free])

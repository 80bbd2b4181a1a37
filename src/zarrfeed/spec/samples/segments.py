"""`Segments`: where the runs of samples end that windows do not leave, such as episodes, and which store has which."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.samples.row_map import SegmentRows

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of the arrays, whatever samples are chosen of them. A segment may have no sample.

    Attributes
    ----------
    ends
        The sample after the last one of each segment, ascending, shape (segments,).
    counts
        Number of segments of each store.
    folder
        The path of the group, from the root of a store, that has the ends: values of segments may lie beside them.
    """

    ends: Int64
    counts: tuple[int, ...]
    folder: str = ""

    @classmethod
    def of(cls, ends: npt.ArrayLike, stores: Int64 | None = None, folder: str = "") -> Self:
        """Return the segments with some ends.

        Parameters
        ----------
        ends
            The ends, which ascend and end with the number of samples.
        stores
            The first sample of each store, and the number of samples at the end. None: there is one store. A segment
            without samples at the border of two stores is of the former one.
        folder
            As in the class.
        """
        last: Int64 = np.ascontiguousarray(ends, dtype=np.int64)
        if stores is None:
            return cls(last, (len(last),), folder)
        behind = np.searchsorted(last, stores[1:], side="right")
        return cls(last, tuple(np.diff(behind, prepend=0).tolist()), folder)

    @classmethod
    def concat(cls, parts: Sequence[Segments], lengths: Sequence[int]) -> Self:
        """Return the segments of several arrays, which have so many samples and are one after another."""
        begins = np.cumsum([0, *lengths])[:-1]
        ends = [begin + one.ends for begin, one in zip(begins, parts, strict=True)]
        return cls(np.concatenate(ends), tuple(n for one in parts for n in one.counts), parts[0].folder)

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def rows(self) -> SegmentRows:
        """The segment of each sample, as rows of arrays with one row for each segment."""
        return SegmentRows(self.ends)

    @property
    def of_samples(self) -> Int64:
        """The segment of each sample, shape (samples,)."""
        rows = self.rows.rows
        assert not isinstance(rows, range)
        return rows

    @property
    def digest(self) -> str:
        """A hash that tells segments apart."""
        return hashlib.sha256(self.ends.astype("<i8").tobytes()).hexdigest()

"""Which rows of an array make a sample, and what takes the place of those that it lacks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Borders:
    """Where segments begin, which windows do not leave.

    Attributes
    ----------
    first
        The first sample of each segment, and the number of samples at the end: ascending from 0, shape
        (segments + 1,).
    """

    first: Int64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Borders) and np.array_equal(self.first, other.first)

    def __hash__(self) -> int:
        return hash(hashlib.sha256(self.first.astype("<i8").tobytes()).digest())

    def around(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the first sample of the segment of each sample, and the end of that segment."""
        behind = np.clip(np.searchsorted(self.first, samples, side="right"), 1, len(self.first) - 1)
        return self.first[behind - 1], self.first[behind]


@dataclass(frozen=True)
class Pad:
    """What takes the place of rows of windows that lie beyond the ends of a segment.

    Attributes
    ----------
    mode
        "edge": the first or the last row of the segment. "fill": a value in every item.
    value
        Of "fill", as it stands in the batch.
    borders
        Of segments. None: all samples are one segment.
    """

    mode: Literal["edge", "fill"]
    value: float | None = None
    borders: Borders | None = None

    def __str__(self) -> str:
        """Return a clause for people."""
        return "padded with the edge" if self.mode == "edge" else f"padded with {self.value}"


@dataclass(frozen=True)
class Window:
    """The rows of a sample, as distances from its own; with `stacked`, along an axis of their own, the first.

    Attributes
    ----------
    pad
        What takes the place of rows that a sample lacks. None: samples that lack a row are left out.
    """

    offsets: tuple[int, ...]
    stacked: bool = True
    pad: Pad | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """What it adds to the shape of a row."""
        return (len(self.offsets),) if self.stacked else ()

    def __str__(self) -> str:
        """Return one line for people."""
        rows = ", ".join(f"{offset:+d}" for offset in self.offsets)
        line = f"rows at {rows}" if self.stacked else f"the row at {rows}"
        return line if self.pad is None else f"{line}, {self.pad}"

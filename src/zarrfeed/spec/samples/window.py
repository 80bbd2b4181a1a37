"""The rows of an array that make a sample, and the values that stand for rows that it lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]

#: At least so many evenly spaced distances are shown as the first and the last.
_SHORTENED = 8


@dataclass(frozen=True, eq=False)
class Borders:
    """The first samples of segments, and the first rows behind gaps: windows do not cross them.

    Attributes
    ----------
    first
        The first sample of each segment, and the number of samples at the end: ascending from 0, shape
        (segments + 1,).
    gaps
        A clause about the borders that are gaps of a coordinate, such as the time; "" if none is.
    """

    first: Int64
    gaps: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Borders) and self.gaps == other.gaps and np.array_equal(self.first, other.first)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """A hash of where the segments begin."""
        return hashlib.sha256(self.first.astype("<i8").tobytes()).hexdigest()

    def around(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the first sample of the segment of each sample, and the end of that segment."""
        behind = np.clip(np.searchsorted(self.first, samples, side="right"), 1, len(self.first) - 1)
        return self.first[behind - 1], self.first[behind]


@dataclass(frozen=True)
class Pad:
    """The values that stand for the rows of windows that lie beyond the ends of a segment.

    Attributes
    ----------
    mode
        "edge": the first or the last row of the segment. "fill": a value in every item.
    value
        The value with "fill", as it stands in the batch.
    borders
        The borders of segments. None: all samples are one segment.
    """

    mode: Literal["edge", "fill"]
    value: float | None = None
    borders: Borders | None = None

    def nearest(self, rows: Int64, samples: Int64, num_samples: int) -> Int64:
        """Return rows, or the nearest ones in the segment of each sample, in an array with so many samples."""
        low, high = (0, num_samples) if self.borders is None else self.borders.around(samples)
        return np.clip(rows, low, np.asarray(high) - 1)

    def __str__(self) -> str:
        """Return a clause for people."""
        gaps = "" if self.borders is None or not self.borders.gaps else f", {self.borders.gaps}"
        return f"{self._value}{gaps}"

    @property
    def in_states(self) -> str:
        """The padding as text for states: it names the borders if some are gaps, which the samples do not tell."""
        if self.borders is None or not self.borders.gaps:
            return self._value
        return f"{self._value}, gaps {self.borders.digest[:16]}"

    @property
    def _value(self) -> str:
        return "padded with the edge" if self.mode == "edge" else f"padded with {self.value}"


@dataclass(frozen=True)
class Lead:
    """A distance that is drawn for each sample anew in each epoch, uniformly from [low, high].

    Attributes
    ----------
    low, high
        The least and the greatest distance, in samples.
    """

    low: int
    high: int

    def __repr__(self) -> str:
        return f"zarrfeed.lead({self.low}, {self.high})"

    @property
    def offsets(self) -> range:
        """All distances that may be drawn."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class Window:
    """The rows of a sample, as distances from its own; with `stacked`, along an axis of their own, the first.

    Attributes
    ----------
    pad
        The values that stand for rows that a sample lacks. None: samples that lack a row are left out.
    lead
        The distance that is drawn in place of some offsets. None: none is.
    drawn
        Indices among the offsets that the drawn distance replaces; the offsets there have the least distance.
    """

    offsets: tuple[int, ...]
    stacked: bool = True
    pad: Pad | None = None
    lead: Lead | None = None
    drawn: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """The distances of all rows that a sample may read."""
        if self.lead is None:
            return self.offsets
        fixed = [offset for index, offset in enumerate(self.offsets) if index not in self.drawn]
        return (*fixed, *self.lead.offsets)

    @property
    def named(self) -> list[Any]:
        """The distances as they are written: those that are drawn as {"lead": [low, high]}."""
        drawn = None if self.lead is None else {"lead": [self.lead.low, self.lead.high]}
        return [drawn if index in self.drawn else offset for index, offset in enumerate(self.offsets)]

    def _shown(self) -> Iterator[str]:
        """Return the distances in words; the first and the last of many that are evenly spaced."""
        lead = "" if self.lead is None else f"{self.lead.low:+d} to {self.lead.high:+d} (drawn)"
        index, offsets = 0, self.offsets
        while index < len(offsets):
            if index in self.drawn:
                yield lead
                index += 1
                continue
            end = index + 1
            while (
                end < len(offsets)
                and end not in self.drawn
                and (end == index + 1 or offsets[end] - offsets[end - 1] == offsets[index + 1] - offsets[index])
            ):
                end += 1
            if end - index < _SHORTENED:
                yield f"{offsets[index]:+d}"
                index += 1
                continue
            step = offsets[index + 1] - offsets[index]
            apart = "" if step == 1 else f" in steps of {step}"
            yield f"{offsets[index]:+d} to {offsets[end - 1]:+d}{apart} ({end - index} rows)"
            index = end

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes that the window adds in front of the shape of a row."""
        return (len(self.offsets),) if self.stacked else ()

    def __str__(self) -> str:
        """Return one line for people."""
        rows = ", ".join(self._shown())
        line = f"rows at {rows}" if self.stacked else f"the row at {rows}"
        return line if self.pad is None else f"{line}, {self.pad}"

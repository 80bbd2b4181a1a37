"""Samples that a dataset does not deliver because of the rows of their windows: how many, of how many, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OUTSIDE_ARRAY = "their windows reach beyond the ends of the array"
OUTSIDE_STORE = "their windows reach beyond the ends of their store"
OUTSIDE_SEGMENT = "their windows leave their segment"
OUTSIDE_SELECTION = "their windows read rows that are not selected"
OUTSIDE_WINDOW_ROWS = "their windows read rows that rows= does not name"
OVER_GAP = "their windows span a gap of"
IN_GAP = "their windows read rows that an array of the join lacks"
OTHER_PART = "their windows read rows of another part"
WITHIN_GAP = "another part reads rows of their windows, or rows less than the gap behind them"


@dataclass(frozen=True)
class LeftOut:
    """Samples that are left out for one reason.

    Attributes
    ----------
    samples, of
        Number of samples that are left out, and number of samples that were selected until then.
    reason
        A clause about the samples, such as "their windows leave their segment".
    segments, of_segments
        Number of segments that have no sample left, and of those that had some; both 0 where no segments are named.
    largest_gap
        The size of the largest gap that windows span, and its place.
    examples
        The places of the first few of these gaps.
    """

    samples: int
    of: int
    reason: str
    segments: int = 0
    of_segments: int = 0
    largest_gap: tuple[float, str] | None = None
    examples: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        line = f"{self.samples} of {self.of} samples left out: {self.reason}"
        if self.segments:
            line += f"; {self.segments} of {self.of_segments} segments have no sample left"
        if self.largest_gap is not None:
            line += f"; the largest is {self.largest_gap[1]}"
        return line


def merged(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Add up entries of several arrays, which left out different samples: one entry for each reason."""
    by_reason: dict[str, LeftOut] = {}
    for one in left_out:
        before = by_reason.get(one.reason, LeftOut(0, 0, one.reason))
        by_reason[one.reason] = LeftOut(
            before.samples + one.samples,
            before.of + one.of,
            one.reason,
            before.segments + one.segments,
            before.of_segments + one.of_segments,
            max((gap for gap in (before.largest_gap, one.largest_gap) if gap is not None), default=None),
            before.examples or one.examples,
        )
    return tuple(by_reason.values())

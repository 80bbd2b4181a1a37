"""`SplitPart`: what a part of a split has of groups and classes, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from zarrfeed.plan.samples.deal_units import SampleLabels
from zarrfeed.spec.samples.block_edges import Int64

_MOST_SHOWN = 8
#: A part may have more or fewer samples than were asked for by this share of all.
_FAR = 0.1


@dataclass(frozen=True)
class SplitPart:
    """The samples, groups and classes of one part.

    Attributes
    ----------
    part, parts
        Its number, of how many.
    samples, of
        Number of samples of the part, and number of samples that were dealt.
    groups, of_groups
        Number of groups of the part, and number of groups that were dealt; 0 and 0 where samples were not dealt by
        groups.
    classes
        Number of the part's samples in each class that was dealt, by label. Empty where there are no strata.
    """

    part: int
    parts: int
    samples: int
    of: int
    groups: int = 0
    of_groups: int = 0
    classes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def counted(
        cls,
        part: int,
        parts: int,
        samples: Int64,
        dealt: Int64,
        groups: SampleLabels | None,
        classes: SampleLabels | None,
    ) -> Self:
        """Count what the samples of a part have, of all samples that were dealt."""
        of_classes: tuple[tuple[str, int], ...] = ()
        if classes is not None:
            counts = np.bincount(classes.codes[samples], minlength=len(classes.distinct))
            of_classes = tuple((classes.text(code), int(counts[code])) for code in classes.of(dealt).tolist())
        num_groups, of_groups = (0, 0) if groups is None else (len(groups.of(one)) for one in (samples, dealt))
        return cls(part, parts, len(samples), len(dealt), num_groups, of_groups, of_classes)

    def __str__(self) -> str:
        """Return one line for people."""
        line = f"part {self.part} of {self.parts}: {self.samples} of {self.of} samples"
        if self.of_groups:
            line += f", {self.groups} of {self.of_groups} groups"
        if self.classes:
            most = sorted(self.classes, key=lambda one: -one[1])[:_MOST_SHOWN]
            shown = ", ".join(f"{label} {count}" for label, count in self.classes if (label, count) in most)
            more = len(self.classes) - len(most)
            line += f"; by class: {shown}" + (f", and {more} more classes" if more > 0 else "")
        return line


def far_from(asked: Sequence[float], got: Sequence[int], units: str) -> str:
    """Return the text of a warning about parts whose sizes are far from those that were asked for; "" if none is.

    Parameters
    ----------
    asked
        Fractions or numbers of samples of the parts.
    got
        Number of samples that each part has.
    units
        The units that were dealt whole, and how to deal smaller ones.
    """
    wanted, there = np.array(asked, dtype=float) / sum(asked), np.array(got) / sum(got)
    if np.abs(wanted - there).max() <= _FAR:
        return ""
    shares = [" : ".join(f"{share:.0%}" for share in shares) for shares in (there, wanted)]
    return f"the parts of this split have {shares[0]} of the samples, and {shares[1]} were asked for: {units}"

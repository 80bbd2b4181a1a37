"""`WeightShares`: how often samples come in an epoch of weighted samples, and how often their blocks are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.base.page import Row
from zarrfeed.plan.order.weighted_order import WeightedOrder

#: Visits of a block, on average, above which memory is said to help.
_OFTEN = 1.2


@dataclass(frozen=True)
class WeightShares:
    """The samples of an epoch, over all ranks.

    Attributes
    ----------
    length, distinct
        Samples of the epoch, and how many different ones these are.
    num_weighted
        Samples with a weight above 0.
    expected
        Number of times that the sample of the largest weight comes, on average over epochs.
    most
        Largest number of times that a sample comes in this epoch.
    num_blocks, visits
        Blocks that the epoch reads, and how often it reads one of them.
    repeats
        Largest number of times that a sample comes in a visit.
    """

    length: int
    distinct: int
    num_weighted: int
    expected: float
    most: int
    num_blocks: int
    visits: int
    repeats: int

    @classmethod
    def of(cls, order: WeightedOrder) -> WeightShares:
        """Count what an epoch takes."""
        counts, blocks = order.blocks.counts(order.epoch), order.reads.blocks
        return cls(
            order.length,
            int(np.count_nonzero(counts)),
            order.num_selected,
            order.expected.most,
            int(counts.max()),
            1 + int(np.count_nonzero(np.diff(blocks))),
            len(blocks),
            order.blocks.repeats,
        )

    @property
    def repeats_blocks(self) -> bool:
        """True if the epoch reads blocks again, so that samples do not come again side by side."""
        return self.visits > self.num_blocks

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows = [
            (
                "weights",
                f"{self.length} samples an epoch, of {self.num_weighted} that may come; this epoch has "
                f"{self.distinct} different ones",
            ),
            ("", f"the most frequent one comes {self.expected:.3g} times on average, and up to {self.most} times here"),
        ]
        if self.repeats_blocks:
            often = self.visits / self.num_blocks
            rows.append(
                ("", f"a block is read {often:.2f} times, and a sample comes at most {self.repeats} times in each")
            )
            if often > _OFTEN:
                rows.append(("", "more memory_budget reads a block about once, as it opens more blocks at a time"))
        return rows

"""The kind of order that random crops have: each epoch draws where the crops of every recording begin.

Invariants:

1. An epoch has `CropStarts.each` crops of every recording, or the number that weights expect, rounded down or up. The
   starts of a recording are equally likely.
2. The draws of a recording follow from (seed, epoch, number of the recording) alone, and no reader has a say in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.order.drawn_order import DrawnOrder
from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.sample_set import Int64, SampleSet
from zarrfeed.plan.samples.selection import Selection

#: A word of the key, so that starts share no draws with the order.
_STARTS = 0x7374617274
_BYTES_OF_CROP, _BYTES_OF_BLOCK = 16, 32


@dataclass(frozen=True, eq=False)
class CropBlocks:
    """Blocks with starts of crops.

    Attributes
    ----------
    samples
        The possible starts, ascending and each once.
    starts
        The recordings that they are of.
    seed
        Key of the draws, with the epoch.
    """

    samples: Selection
    starts: CropStarts
    seed: int

    def draw(self, epoch: int) -> Selection:
        """Return the starts of an epoch's crops, in the blocks that have any."""
        positions = draw_starts(self.starts, self.seed, epoch)
        held, rows = np.unique(np.searchsorted(self._ends, positions, side="right"), return_counts=True)
        blocks = ListedBlocks(self.samples.blocks[held], rows, np.cumsum(rows) - rows)
        return Selection(blocks, samples=SampleSet("list", (self.samples.samples_at(positions),)))

    @cached_property
    def max_rows(self) -> int:
        """Crops that begin in a block in any epoch, at most."""
        begins = np.append(0, self._ends[:-1])
        first = np.searchsorted(self.starts.ends, begins, side="right")
        behind = np.searchsorted(self.starts.begins, self._ends)
        most = np.append(0, np.cumsum(self.starts.most))
        return int((most[behind] - most[first]).max())

    @property
    def nbytes(self) -> int:
        """Bytes that the recordings take, and the crops of any epoch, at most."""
        return self.starts.ends.nbytes + _BYTES_OF_CROP * self.starts.total + _BYTES_OF_BLOCK * len(self.samples.held)

    @cached_property
    def _ends(self) -> Int64:
        """Number of starts up to the end of each block."""
        return np.cumsum(self.samples.rows)


@dataclass(frozen=True, kw_only=True)
class CropOrder(DrawnOrder, unfolds=True):
    """The order of random crops, in one epoch.

    Attributes
    ----------
    expected
        The recordings that the samples of the selection are starts of.
    """

    expected: CropStarts = field(compare=False, repr=False)

    @classmethod
    def of(cls, order: Order, starts: CropStarts) -> CropOrder:
        """Return the order of crops that begin with samples of another order.

        Raises
        ------
        ConfigError
            If blocks are boxes of several sample dimensions.
        """
        if order.selection is not None:
            starts.check_samples(order.selection)
        return cls.drawing(order, starts)

    def make_blocks(self) -> CropBlocks:
        """Return the blocks that starts are drawn from, which are made once for all epochs."""
        return CropBlocks(self.each_once, self.expected, self.seed)

    def check_dealt(self) -> None:
        """Raise ConfigError: random crops are not dealt to nodes."""
        raise ConfigError("affinity = 'node' is not for random crops: all nodes share one draw of them")

    def describe(self) -> dict[str, Any]:
        """Describe all that the epoch order depends on, except for epoch and lanes, as JSON."""
        return {**super().describe(), "crops": self.expected.digest}


def draw_starts(starts: CropStarts, seed: int, epoch: int) -> Int64:
    """Draw the starts of an epoch: their positions among the possible ones, ascending, shape (starts.total,).

    Examples
    --------
    >>> draw_starts(CropStarts(np.array([4, 5]), each=2), 0, 3).tolist()
    [2, 3, 4, 4]
    """
    counts = starts.counts(seed, epoch)
    recording, crop = np.repeat(np.arange(len(starts.ends)), counts), joined_ranges(0, counts)
    possible = (starts.ends - starts.begins)[recording]
    return np.sort(starts.begins[recording] + below(keys_of(_STARTS, seed, epoch, recording, crop), possible))

"""Measures of how an epoch order is shuffled, from its blocks alone: two figures that no layout of blocks deceives.

A *stretch* is one of 256 equal runs of the samples of an epoch, whatever the blocks are. What is measured:

- **Stretches.** How many distinct stretches 64 neighbours in the order draw from, as a share of those that 64 random
  samples would. Neighbouring blocks that stay together are different blocks, and the same stretch.
- **Correlation** of the order with the position of samples: the root mean square over eight epochs, less that of a
  perfect shuffle of as many samples. Samples that drift through the array are correlated, although neighbours differ.

Both are expected values over the order of rows inside of groups, and exact for the blocks of the eight epochs. No
sample is listed. Of more than 2^16 blocks, an order of as many of them with the same lanes is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.order.order import Order
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.sample_set import Int64

NUM_STRETCHES = 256
NEIGHBOURS = 64
#: Shares of the stretches that random samples draw from: at the first, neighbours are mixed well, and below the second
#: badly.
GOOD_SHARE, POOR_SHARE = 0.9, 0.5
#: Correlation that a good shuffle has at most, and from which on it is a poor one.
GOOD_CORRELATION, POOR_CORRELATION = 0.1, 0.2
_EPOCHS = 8
_MOST_BLOCKS = 1 << 16
#: Number of runs of neighbours that are measured in each epoch.
_RUNS = 16


@dataclass(frozen=True)
class ShuffleMeasure:
    """Two figures of how well an order is shuffled.

    Attributes
    ----------
    stretches, ideal_stretches
        Distinct stretches that `NEIGHBOURS` neighbours draw from, and that as many random samples do, on average.
    correlation
        Correlation of order and position, beyond that of a perfect shuffle; not below 0.
    """

    stretches: float
    ideal_stretches: float
    correlation: float

    @property
    def share(self) -> float:
        """Stretches that neighbours draw from, as a share of those of random samples."""
        return min(1.0, self.stretches / self.ideal_stretches) if self.ideal_stretches else 1.0

    @property
    def is_poor(self) -> bool:
        """True if training would notice."""
        return self.share < POOR_SHARE or self.correlation > POOR_CORRELATION

    @property
    def is_good(self) -> bool:
        """True if the order is about as good as a perfect shuffle."""
        return self.share >= GOOD_SHARE and self.correlation <= GOOD_CORRELATION

    @property
    def of_perfect(self) -> float:
        """One figure for both, 1 for a perfect shuffle: the share, or less where samples drift through the array."""
        return min(self.share, 1 - min(1.0, self.correlation))

    def __str__(self) -> str:
        return (
            f"{NEIGHBOURS} neighbours in the order draw from {self.share:.0%} of the stretches that as many random "
            f"samples would; order and position have a correlation of {self.correlation:.2f}"
        )


def measure_shuffle(order: Order) -> ShuffleMeasure | None:
    """Measure how well an order is shuffled: for a mixture, the source that is shuffled worst.

    None: rows keep their order, or samples are patches, whose columns are swept.
    """
    if not order.length:
        return None
    found = [_measure(one) for one in order.shuffled_orders if one.length]
    return min(found, key=lambda one: one.of_perfect, default=None)


def _measure(order: Order) -> ShuffleMeasure:
    if order.num_blocks > _MOST_BLOCKS:
        block_rows = max(1, round(order.length / order.num_blocks))
        num_samples = block_rows * _MOST_BLOCKS
        lanes = min(order.lanes, num_samples)
        order = Order(
            num_samples,
            block_rows,
            shuffle=True,
            seed=order.seed,
            lanes=lanes,
            mix=order.mix,
            strip=min(order.strip, 256),
        )
    n, all_rows = order.length, _Rows.of(order)
    drawn, squares = [], []
    for epoch in range(_EPOCHS):
        blocks = _BlockSequence.of(all_rows, order.held_indices(epoch))
        drawn.append(blocks.stretches_of_neighbours())
        squares.append(blocks.correlation() ** 2)
    sizes = np.diff(all_rows.stretch_edges)
    ideal = _chance(np.full_like(sizes, min(NEIGHBOURS, n)), np.full_like(sizes, n), sizes).sum()
    correlation = math.sqrt(np.mean(squares)) - (1 / math.sqrt(n - 1) if n > 2 else 1)
    return ShuffleMeasure(float(np.mean(drawn)), float(ideal), max(0.0, correlation))


@dataclass(frozen=True)
class _Rows:
    """The facts about the rows of an order that all of its epochs share.

    Attributes
    ----------
    order
        The epoch order that is measured.
    rows, first
        Samples of each block, by its held index, and the number of the first one of those that are read.
    begin, end
        The begin and the end of each lane in the sequence of blocks.
    stretch_edges
        The first sample of each stretch, and the number of samples at the end.
    run, lane, in_sequence
        For each position of the runs of neighbours: the number of its run, its lane, and its place in the sequence.
    """

    order: Order
    rows: Int64
    first: Int64
    begin: Int64
    end: Int64
    stretch_edges: Int64
    run: Int64
    lane: Int64
    in_sequence: Int64

    @classmethod
    def of(cls, order: Order) -> _Rows:
        """Return the facts about an order."""
        n, count = order.length, min(NEIGHBOURS, order.length)
        _, rows = order.rows_at(np.arange(order.num_blocks))
        quotient, longer = divmod(n, order.lanes)
        lane = np.arange(order.lanes + 1)
        edges = lane * quotient + np.minimum(lane, longer)
        position = (np.linspace(0, n - count, _RUNS).astype(np.int64)[:, None] + np.arange(count)).ravel()
        return cls(
            order,
            rows,
            np.cumsum(rows) - rows,
            edges[:-1],
            edges[1:],
            np.arange(NUM_STRETCHES + 1) * n // NUM_STRETCHES,
            np.repeat(np.arange(_RUNS), count),
            position % order.lanes,
            order.in_sequence(position),
        )


@dataclass(frozen=True)
class _BlockSequence:
    """The blocks of an epoch, laid end to end.

    Attributes
    ----------
    all_rows
        The facts about the rows that epochs share.
    held_indices
        The held indices of the blocks, in the order of the epoch.
    begin
        The begin of each block in the sequence, and its end.
    first_piece, last_piece
        The first and the last block of each lane.
    """

    all_rows: _Rows
    held_indices: Int64
    begin: Int64
    first_piece: Int64
    last_piece: Int64

    @classmethod
    def of(cls, all_rows: _Rows, held_indices: Int64) -> _BlockSequence:
        """Return the sequence of an epoch whose blocks come in an order."""
        begin = np.concatenate(([0], np.cumsum(all_rows.rows[held_indices])))
        first = np.searchsorted(begin, all_rows.begin, side="right") - 1
        return cls(all_rows, held_indices, begin, first, np.searchsorted(begin, all_rows.end, side="left") - 1)

    def correlation(self) -> float:
        """Return the expected correlation of the order with the numbers of the samples."""
        of_all, order, n = self.all_rows, self.all_rows.order, self.all_rows.order.length
        if n < 2:
            return 0.0
        begin, counts = of_all.begin, self.last_piece + 1 - self.first_piece
        # one entry for each block of a lane, one lane after another
        piece, lane = joined_ranges(self.first_piece, counts), np.repeat(np.arange(order.lanes), counts)
        low = np.maximum(self.begin[piece], begin[lane])
        high = np.minimum(self.begin[piece + 1], of_all.end[lane])
        # one entry for each group from here on: its rows, and the mean of their numbers
        number = piece - self.first_piece[lane]
        starts = np.flatnonzero(np.append(True, (np.diff(lane) != 0) | (np.diff(number // order.mix) != 0)))
        size = np.add.reduceat(high - low, starts)
        held_index = self.held_indices[piece]
        middles = of_all.first[held_index] + (of_all.rows[held_index] - 1) / 2
        mean = np.add.reduceat((high - low) * middles, starts) / size
        of = lane[starts]
        middle = (low[starts] - begin[of] + (size - 1) / 2) * order.lanes + of
        centre = (n - 1) / 2
        covariance = float((size * (middle - centre) * (mean - centre)).sum()) / n
        return covariance / ((n * n - 1) / 12)

    def stretches_of_neighbours(self) -> float:
        """Return the stretches that neighbours draw from, on average over some runs of them."""
        of_all, order, lane = self.all_rows, self.all_rows.order, self.all_rows.lane
        piece = np.searchsorted(self.begin, of_all.in_sequence, side="right") - 1
        group = self.first_piece[lane] + (piece - self.first_piece[lane]) // order.mix * order.mix
        # one entry for each run and group from here on
        keys, drawn = np.unique(
            (of_all.run * order.lanes + lane) * (len(self.held_indices) + 1) + group, return_counts=True
        )
        of, group = np.divmod(keys, len(self.held_indices) + 1)
        run, lane = np.divmod(of, order.lanes)
        pieces = np.minimum(order.mix, self.last_piece[lane] + 1 - group)
        # one entry for each of their blocks
        entry = np.repeat(np.arange(len(group)), pieces)
        piece = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces) + group[entry]
        low = np.maximum(self.begin[piece], of_all.begin[lane[entry]])
        high = np.minimum(self.begin[piece + 1], of_all.end[lane[entry]])
        size = np.bincount(entry, weights=high - low, minlength=len(group))
        held_index = self.held_indices[piece]
        share = (high - low) / of_all.rows[held_index]
        first, last = of_all.first[held_index], of_all.first[held_index] + of_all.rows[held_index]
        edges = of_all.stretch_edges
        low_stretch = np.searchsorted(edges, first, side="right") - 1
        touched = np.searchsorted(edges, last) - low_stretch
        # one entry for each block and stretch
        block = np.repeat(np.arange(len(held_index)), touched)
        stretch = np.arange(touched.sum()) - np.repeat(np.cumsum(touched) - touched, touched) + low_stretch[block]
        inside = np.minimum(last[block], edges[stretch + 1]) - np.maximum(first[block], edges[stretch])
        # one entry for each group and stretch
        sizes = np.bincount(
            entry[block] * NUM_STRETCHES + stretch, weights=inside * share[block], minlength=len(group) * NUM_STRETCHES
        )
        some = np.flatnonzero(sizes != 0)  # looking for numbers takes five times as long
        of_group, of_stretch = np.divmod(some, NUM_STRETCHES)
        chance = _chance(drawn[of_group], size[of_group], sizes[some])
        with np.errstate(divide="ignore"):
            in_run = np.bincount(run[of_group] * NUM_STRETCHES + of_stretch, weights=np.log1p(-chance))
        return float((1 - np.exp(in_run)).sum()) / _RUNS


def _chance(
    drawn: Int64, of: npt.NDArray[np.float64] | Int64, some: npt.NDArray[np.float64] | Int64
) -> npt.NDArray[np.float64]:
    """Return the chance that samples that are drawn without replacement have one of some.

    None of m samples is among k drawn ones of R with the chance of a product: of 1 - m / (R - i) for i < k, or of
    1 - k / (R - i) for i < m. It is about a power of the middle factor; of few factors it is exact.
    """
    few, many = np.minimum(some, drawn), np.maximum(some, drawn)
    middle = of - (np.maximum(few, 1) - 1) / 2
    chance: npt.NDArray[np.float64] = 1 - np.clip(1 - many / middle, 0, 1) ** few
    return chance

"""The mixing of a batch, and the lanes and the mix that are chosen where the user names neither.

Invariant: the choice is a function of the layout and of the memory for batches alone. It depends neither on the world
size nor, while memory does not limit it, on the batch size: so 1 rank and 8 ranks read the same order, and 8 ranks with
batches of 32 the same global batches as 1 rank with batches of 256. `rank_lanes.py` says what becomes of it beyond 8
ranks. A perfect shuffle is the yardstick: a batch of `TYPICAL_BATCH` samples is to draw from `_GOOD_MIX` of the blocks
that such a batch of a perfect shuffle draws from, if the memory has room for it.

Two parameters widen the mix. Each lane more cuts one more block in two, and both halves decode all of it. Each `mix`
more cuts none, but a lane's blocks still come in turn. So lanes are added as long as cuts are cheap, then `mix`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.order_rules import BATCHES_OF_ROW
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS, LANES_OF_SMALL

#: Samples of the batch that is to be mixed well, whatever the batches of a rank are.
TYPICAL_BATCH = 64
#: Part of the blocks of a perfect shuffle that a well mixed batch draws from.
_GOOD_MIX = 0.9
#: Largest share that cuts of blocks by the ends of lanes may add to the reads of an epoch.
_MOST_CUTS = 0.1
#: The same where samples have several dimensions: there each chunk is to be decoded at most 1.05 times.
MOST_CUTS_OF_BOXES = 0.05
#: Small arrays have `LANES_OF_SMALL` lanes in any case; but where blocks share chunks, cuts cost more, and may not add
#: more than this.
_MOST_SHARED = 0.15
#: Share that cuts may add where lanes hand rows of single samples on, and fewer lanes would not mix well.
_MOST_ROW_CUTS = 0.3
#: More blocks than these are counted by their lengths. The sum over fewer blocks stays as it is, bit by bit: lanes
#: depend on it.
_MANY_BLOCKS = 1 << 22
#: Most open blocks for which one round of lanes may take half of the memory.
_FEW_BLOCKS = 16


@dataclass(frozen=True)
class MixingLimits:
    """The limits that lanes and mix must keep.

    Attributes
    ----------
    batch_size, max_open_batches
        Samples of a batch, and how many batches there is memory for.
    reads_of_cut
        Blocks that are decoded once more where the end of a lane cuts one: more than 1 where blocks share chunks.
    carried_rows
        Memory of each lane in addition, in samples.
    hands_rows_on
        True if that memory is for rows of slabs. A round of lanes then takes up to half of the memory that it leaves,
        until a batch is mixed well: slabs are there to mix, and one of them is decoded soon.
    typical
        Samples of the batch that is to be mixed well; for a source, its share of them.
    most_cuts
        Largest share that cuts of blocks by the ends of lanes may add to the reads of an epoch.
    """

    batch_size: int
    max_open_batches: int
    reads_of_cut: float = 1.0
    carried_rows: int = 0
    hands_rows_on: bool = False
    typical: int = TYPICAL_BATCH
    most_cuts: float = _MOST_CUTS

    @property
    def quarter_steps(self) -> int:
        """Samples of the batches that a quarter of the memory has room for."""
        return self.max_open_batches // 4 * self.batch_size

    def of_share(self, share: float) -> MixingLimits:
        """Return the limits of a source that has this share of the samples."""
        typical = max(1, round(share * self.typical))
        return replace(self, max_open_batches=int(share * self.max_open_batches), typical=typical)

    def choose(self, order: Order, lanes: int | None, mix: int | None) -> tuple[int, int]:
        """Return lanes and mix of an order: those that are named, else those that suit the layout and the memory.

        A mix that is named is the order's already.
        """
        if lanes is not None:
            return min(lanes, order.length), order.mix
        return choose_mixing(order, self) if mix is None else (choose_lanes(order, self), order.mix)

    def hold(self, order: Order, lanes: int, mix: int, parts: int) -> bool:
        """Return whether an order has room with these lanes and this mix.

        A round of lanes has to fit in one of `parts` of the memory, and what must be open in all of it.
        """
        rows = lanes * mix * order.max_rows
        carried = -(-lanes * self.carried_rows // self.batch_size)
        if self.hands_rows_on:
            round_fits = rows <= (self.max_open_batches - carried) // parts * self.batch_size
        else:
            round_fits = rows + lanes * self.carried_rows <= self.max_open_batches // parts * self.batch_size
        open_batches = (min(rows, order.length) - 1) // self.batch_size + 2  # as in `Order.open_batches`
        return round_fits and open_batches + carried <= self.max_open_batches

    def hold_rows(self, order: Order, lanes: int) -> bool:
        """Return whether so many lanes have room whose groups are single samples, and which hand rows on."""
        if not self.hands_rows_on or order.mix * order.max_rows > 1:
            return False
        carried = -(-lanes * self.carried_rows // self.batch_size)
        few_cuts = self.blocks_cut(lanes) <= _MOST_ROW_CUTS * order.num_blocks
        return few_cuts and carried + BATCHES_OF_ROW <= self.max_open_batches

    def cuts_little(self, lanes: int, num_blocks: int) -> bool:
        """Return whether the blocks that ends of lanes cut, which are read twice, add at most `most_cuts`."""
        return self.blocks_cut(lanes) <= self.most_cuts * num_blocks

    def blocks_cut(self, lanes: int) -> float:
        """Return the most blocks that are decoded once more because lanes end in blocks."""
        return (lanes - 1) * self.reads_of_cut


def perfect_mix(order: Order, batch_size: int) -> float:
    """Return the number of distinct blocks that a batch of a perfect shuffle draws from, on average."""
    if order.length == 0:
        return 0.0
    drawn = min(batch_size, order.length)
    # Each block is left out of a batch of b samples with probability about (1 - b / n) ** rows.
    left_out = 1 - drawn / order.length
    if order.num_blocks > _MANY_BLOCKS:
        return math.fsum(count * (1 - left_out**rows) for rows, count in order.count_rows())
    _, rows = order.rows_at(np.arange(order.num_blocks))
    return float((1 - left_out**rows).sum())


def expected_mix(lanes: int, mix: int, batch_size: int) -> float:
    """Return the number of distinct blocks that a batch draws from, on average, with full blocks in every lane.

    A batch has `batch_size / lanes` samples of a lane, which come from `mix` open blocks.
    """
    of_lane = batch_size / lanes
    left_out = float((1 - 1 / mix) ** max(1.0, of_lane))  # the chance that none of a lane's samples is of a block
    return min(lanes, batch_size) * mix * (1 - left_out)


def choose_lanes(order: Order, limits: MixingLimits) -> int:
    """Choose the number of lanes for an order with its `mix`.

    The largest count of `LANE_COUNTS` is taken whose cuts add little to the reads (a tenth), or nothing at all; small
    arrays get up to 8 lanes in any case. One round of lanes takes at most half of the memory, so that the next one can
    be decoded meanwhile. Beyond 16 lanes it takes at most a quarter, and an eighth once a batch is mixed well: fresh
    memory is slow, and little is left to gain.

    Parameters
    ----------
    order
        The epoch order; its lanes do not count.
    limits
        The memory, and the cost of a lane.
    """
    wanted = _GOOD_MIX * perfect_mix(order, limits.typical)
    full_blocks, num_blocks = -(-order.length // order.max_rows), order.num_blocks
    best = 1
    is_mixed = expected_mix(best, order.mix, limits.typical) >= wanted
    for lanes in LANE_COUNTS:
        parts = 2 if lanes <= _FEW_BLOCKS else 8 if is_mixed else 2 if limits.hands_rows_on else 4
        if lanes > order.length or not limits.hold(order, lanes, order.mix, parts):
            break
        even = order.length % (lanes * order.max_rows) == 0 and full_blocks == num_blocks >= 4 * lanes * order.mix
        small = lanes <= min(LANES_OF_SMALL, num_blocks) and (
            limits.reads_of_cut == 1 or limits.blocks_cut(lanes) <= _MOST_SHARED * num_blocks
        )
        if even or small or limits.cuts_little(lanes, num_blocks):
            best = lanes
            is_mixed = expected_mix(best, order.mix, limits.typical) >= wanted
        elif num_blocks < 4 * lanes * order.mix:  # then more lanes are not even, and cut more
            break
    for lanes in LANE_COUNTS:
        if is_mixed:
            break
        if lanes > best and lanes <= order.length and limits.hold_rows(order, lanes):
            best = lanes
            is_mixed = expected_mix(best, order.mix, limits.typical) >= wanted
    return best


def choose_mixing(order: Order, limits: MixingLimits) -> tuple[int, int]:
    """Choose lanes and mix together: see the module's docstring.

    The smallest `mix` is taken that makes a good batch and opens `wanted_open` blocks, or the largest for which a round
    of groups takes a quarter of the memory (half of it, up to 16 blocks). A lane keeps at least two groups: the second
    one is decoded while the first one is delivered.

    Returns
    -------
    The number of lanes, and the blocks of a group.
    """
    order = replace(order, mix=1)
    lanes = choose_lanes(order, limits)
    wanted = _GOOD_MIX * perfect_mix(order, limits.typical)
    pieces = -(-order.num_blocks // lanes) + 1  # of a lane, with the blocks that its ends cut, at most
    most = -(-pieces // 2)
    mix = 1
    while mix < most and (expected_mix(lanes, mix, limits.typical) < wanted or lanes * mix < order.wanted_open):
        parts = 2 if lanes * (mix + 1) <= _FEW_BLOCKS else 4
        if not limits.hold(order, lanes, mix + 1, parts):
            break
        mix += 1
    return lanes, mix

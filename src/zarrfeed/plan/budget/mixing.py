"""How well a batch is mixed, and the lanes and the mix that are chosen where the user names neither.

What holds: the choice is a function of the layout and of the memory for batches alone. It depends neither on the world
size nor, while memory does not limit it, on the batch size: so 1 rank and 8 ranks read the same order, and 8 ranks with
batches of 32 the same global batches as 1 rank with batches of 256. `rank_lanes.py` says what becomes of it beyond 8
ranks. A perfect shuffle is the yardstick: a batch of
`TYPICAL_BATCH` samples is to draw from `_GOOD_MIX` of the blocks that such a batch of a perfect shuffle draws from, if
the memory has room for it.

Two parameters widen the mix. Each lane more cuts one more block in two, and both halves decode all of it. Each `mix`
more cuts none, but a lane's blocks still come in turn. So lanes are added as long as cuts are cheap, then `mix`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.order import Order, open_batches

#: Lane counts to choose from: many divisors, so that usual numbers of ranks and workers divide them.
LANE_COUNTS = (
    *(1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 72, 96, 120, 128, 144, 192, 240, 256, 288, 360, 384, 480, 512, 720),
)

#: Samples of the batch that is to be mixed well, whatever the batches of a rank are.
TYPICAL_BATCH = 64
#: Blocks that a batch draws from, as a part of what a perfect shuffle would draw from: with so many it is well mixed.
_GOOD_MIX = 0.9
#: Cuts of blocks by the ends of lanes may add so much to the reads of an epoch.
_MOST_CUTS = 0.1
#: Small arrays have so many lanes in any case, so that up to 8 ranks have a lane each;
_LANES_OF_SMALL = 8
#: but where blocks share chunks, cuts cost more, and may not add more than this.
_MOST_SHARED = 0.15
#: Visiting the groups of sources of a mixture several times may add so much to what is decoded, where memory does not
#: ask for more.
MOST_VISITS = 0.02
#: Of more blocks, those of one length are counted together. Sums of fewer stay as they are, bit by bit: lanes depend on
#: them.
_MANY_BLOCKS = 1 << 22
#: Up to so many open blocks, one round of lanes may take half of the memory.
_FEW_BLOCKS = 16


@dataclass(frozen=True)
class MixingLimits:
    """What lanes and mix have to fit in.

    Attributes
    ----------
    batch_size, max_open_batches
        Samples of a batch, and how many batches there is memory for.
    reads_of_cut
        Blocks that are decoded once more where the end of a lane cuts one: more than 1 where blocks share chunks.
    carried_rows
        Memory of each lane in addition, in samples.
    typical
        Samples of the batch that is to be mixed well; of a source, its share of them.
    """

    batch_size: int
    max_open_batches: int
    reads_of_cut: float = 1.0
    carried_rows: int = 0
    typical: int = TYPICAL_BATCH

    def hold(self, order: Order, parts: int) -> bool:
        """Return whether a round of lanes fits in one of `parts` of the memory, and what must be open in all of it."""
        round_rows = order.lanes * (order.mix * order.max_rows + self.carried_rows)
        round_fits = round_rows <= self.max_open_batches // parts * self.batch_size
        carried = -(-order.lanes * self.carried_rows // self.batch_size)
        return round_fits and open_batches(order, self.batch_size) + carried <= self.max_open_batches

    def cuts_little(self, order: Order, num_blocks: int) -> bool:
        """Return whether the ends of lanes add at most a tenth to the reads of so many blocks."""
        return self.blocks_cut(order.lanes) <= _MOST_CUTS * num_blocks

    def blocks_cut(self, lanes: int) -> float:
        """Return how many blocks are decoded once more, at most, because lanes end in blocks."""
        return (lanes - 1) * self.reads_of_cut


def choose_sources(order: MixedOrder, limits: MixingLimits, lanes: int | None, mix: int | None) -> MixedOrder:
    """Choose lanes and mix of each source of a mixture: what suits the source alone, in its share of the memory.

    Where that is not a lane for each of 8 ranks, there are more, as long as a quarter of the memory has room for the
    batches that their groups serve, or visiting groups several times adds little to what is decoded.
    """
    steps = max(1, limits.max_open_batches // 4 * limits.batch_size)
    wanted = list(order.sources)
    for source, alone in enumerate(order.orders):
        share = order.least_share(source)
        typical = max(1, round(share * limits.typical))
        of_source = replace(limits, max_open_batches=int(share * limits.max_open_batches), typical=typical)
        if lanes is not None:
            chosen = lanes, mix or 1
        elif mix is not None:
            chosen = choose_lanes(alone, of_source), mix
        else:
            chosen = choose_mixing(alone, of_source)
        wanted[source] = wanted[source]._replace(lanes=chosen[0], mix=chosen[1])
        for more in LANE_COUNTS if lanes is None else ():
            wider = [*wanted[:source], wanted[source]._replace(lanes=more), *wanted[source + 1 :]]
            visits = -(-order.with_sources(wider).open_steps_of(source) // steps)
            if more > min(_LANES_OF_SMALL, alone.num_blocks) or share * (visits - 1) > MOST_VISITS:
                break
            if more > wanted[source].lanes:
                wanted = wider
    return order.with_sources(wanted)


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

    The largest count of `LANE_COUNTS` is taken whose cuts add at most a tenth to the reads, or nothing at all; small
    arrays get up to 8 lanes in any case. One round of lanes takes at most half of the memory, so that the next one can
    be decoded meanwhile. Beyond 16 lanes it takes at most a quarter, and an eighth once a batch is mixed well: fresh
    memory is slow, and little is left to gain.

    Parameters
    ----------
    order
        The epoch order; its lanes do not count.
    limits
        The memory that there is, and what a lane costs.
    """
    wanted = _GOOD_MIX * perfect_mix(order, limits.typical)
    full_blocks, num_blocks = -(-order.length // order.max_rows), order.num_blocks
    best = 1
    for lanes in LANE_COUNTS:
        parts = 2 if lanes <= _FEW_BLOCKS else 4 if expected_mix(best, order.mix, limits.typical) < wanted else 8
        wider = replace(order, lanes=lanes)
        if lanes > order.length or not limits.hold(wider, parts):
            break
        even = order.length % (lanes * order.max_rows) == 0 and full_blocks == num_blocks >= 4 * lanes * order.mix
        cuts = limits.blocks_cut(lanes)
        small = lanes <= min(_LANES_OF_SMALL, num_blocks) and (
            limits.reads_of_cut == 1 or cuts <= _MOST_SHARED * num_blocks
        )
        if even or small or limits.cuts_little(wider, num_blocks):
            best = lanes
    return best


def choose_mixing(order: Order, limits: MixingLimits) -> tuple[int, int]:
    """Choose lanes and mix together: see the module's docstring.

    The smallest `mix` is taken that makes a good batch, or the largest for which a round of groups takes a quarter of
    the memory (half of it, up to 16 blocks). A lane keeps at least two groups: the second one is decoded while the
    first one is delivered.

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
    while mix < most and expected_mix(lanes, mix, limits.typical) < wanted:
        parts = 2 if lanes * (mix + 1) <= _FEW_BLOCKS else 4
        if not limits.hold(replace(order, lanes=lanes, mix=mix + 1), parts):
            break
        mix += 1
    return lanes, mix

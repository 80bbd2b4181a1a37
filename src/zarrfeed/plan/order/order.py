"""The order of an epoch, down to blocks: pure numpy, no I/O.

docs/design.md section 4 is the definition: all samples are laid end to end, this sequence is cut into lanes, the lanes
are dealt round robin, and a consumer takes every `stride`-th position. This module says which pieces of which blocks a
consumer needs and when; cpp/plan/row_order.cc permutes the rows inside of them, from the same keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.order.block_order import RowKeys, check_blocks, permuted, regular_table, strata_for
from zarrfeed.plan.order.groups import NEVER, Groups, SourceGroups, Strides, extra_steps, steps_of, visits_of
from zarrfeed.plan.samples.selection import Int64, Selection, block_of
from zarrfeed.spec.block_edges import Edges


@dataclass(frozen=True)
class Order:
    """What an epoch order depends on, except for the number of the epoch.

    Attributes
    ----------
    num_samples
        Samples of the array.
    block_rows
        Samples of a full block; the last one of the array may be shorter.
    shuffle
        Whether blocks are permuted; False: they keep their order.
    seed
        Key of the permutation of blocks, and of rows unless `row_seed` is given, in [0, 2**64).
    lanes
        L, at most `length`.
    mix
        Consecutive blocks of a lane whose rows are permuted together.
    shuffle_rows, row_seed
        The same for the rows inside of blocks. None: as `shuffle` and `seed` say.
    selection
        The samples that are read; the others have no position. None: all.
    first_block
        Without shuffling: the block at which the epoch order begins; the blocks before it come last.
    short_last
        Whether the last block of the array, which may be shorter, comes last in the epoch order in any case.
    strip
        Consecutive blocks of the array that stay together, in order, when blocks are permuted.
    edges
        The first sample of each block, and the number of samples at the end; there is a selection then. None: every
        block but the last one has `block_rows` samples.
    combs
        Strata of the rotated combs in which blocks are permuted. 0: they are permuted by sorted keys.
    """

    num_samples: int
    block_rows: int
    shuffle: bool
    seed: int
    lanes: int
    mix: int = 1
    shuffle_rows: bool | None = None
    row_seed: int | None = None
    selection: Selection | None = field(default=None, compare=False)
    first_block: int = 0
    short_last: bool = False
    strip: int = 1
    edges: Edges | None = field(default=None, compare=False)
    combs: int = 0

    def __post_init__(self) -> None:
        assert self.edges is None or self.selection is not None
        self.check_blocks(listed=type(self) is not Order)

    def check_blocks(self, *, listed: bool) -> None:
        """Raise ConfigError if there are more blocks than a plan may have whose groups are listed, or are not."""
        check_blocks(self.num_blocks, self.block_rows, listed=listed)

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders that lanes are of: this one; of a mixture, those of its sources."""
        return (self,)

    @property
    def permutes_rows(self) -> bool:
        """Whether rows are permuted inside of blocks, or of groups of them."""
        return self.shuffle if self.shuffle_rows is None else self.shuffle_rows

    @property
    def num_blocks(self) -> int:
        """Blocks that are read, a short one at the end included."""
        return self._blocks_in_array if self.selection is None else len(self.selection.held)

    @property
    def length(self) -> int:
        """n, the number of positions of the epoch order: the samples that are read."""
        return self.num_samples if self.selection is None else self.selection.length

    @property
    def max_rows(self) -> int:
        """Samples of a block that are read, at most."""
        return self.block_rows if self.selection is None else self.selection.max_rows

    @property
    def _blocks_in_array(self) -> int:
        return -(-self.num_samples // self.block_rows)

    def block_order(self, epoch: int) -> Int64:
        """Return the blocks in the order of an epoch, shape (num_blocks,)."""
        return self.blocks_at(self.held_indices(epoch))

    def blocks_at(self, held_indices: Int64) -> Int64:
        """Return blocks by their held indices."""
        return held_indices if self.selection is None else self.selection.held.at(held_indices)[0]

    def rows_at(self, held_indices: Int64) -> tuple[Int64, Int64]:
        """Return the first row of blocks, in the form that the engine takes, and how many rows they have."""
        if self.selection is None:
            first = held_indices * self.block_rows
            return first, np.minimum(self.block_rows, self.num_samples - first)
        _, first, rows = self.selection.held.at(held_indices)
        return first, rows

    def count_rows(self) -> list[tuple[int, int]]:
        """Return the lengths of blocks, each with the number of blocks that have it."""
        if self.selection is not None:
            lengths, counts = self.selection.held.count_rows()
            return list(zip(lengths.tolist(), counts.tolist(), strict=True))
        full, rest = divmod(self.num_samples, self.block_rows)
        return [(self.block_rows, full)] * bool(full) + [(rest, 1)] * bool(rest)

    def locate(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return for samples that are read the held index of their block, and which row of it they are."""
        block = block_of(samples, self.block_rows, self.edges)
        selection = self.selection
        if selection is None:
            return block, samples - block * self.block_rows
        held_index = selection.held.indices_of(block)
        _, first, _ = selection.held.at(held_index)
        if selection.samples is None:
            return held_index, (samples - first) // selection.step
        return held_index, selection.samples.rank(samples) - first

    def samples_in(self, held_indices: Int64, rows: Int64) -> Int64:
        """Return the samples that are some rows of blocks, given by held index: what `locate` takes apart."""
        selection = self.selection
        if selection is None:
            return held_indices * self.block_rows + rows
        _, first, _ = selection.held.at(held_indices)
        if selection.samples is None:
            return first + selection.step * rows
        return selection.samples.at(first + rows)

    def held_indices(self, epoch: int) -> Int64:
        """Return the held indices of blocks in the order of an epoch, shape (num_blocks,).

        Strips of several blocks are permuted as one.
        """
        self.check_blocks(listed=True)
        if self.shuffle and self.combs:
            return self.ordered_blocks(epoch).held_indices(0, self.num_blocks)
        held_indices = np.arange(self.num_blocks, dtype=np.int64)
        if self.shuffle:
            first = permuted(-(-self.num_blocks // self.strip), self.seed, epoch) * self.strip
            held_indices = (first[:, None] + np.arange(self.strip)).ravel()
            held_indices = held_indices[held_indices < self.num_blocks]
        elif self.first_block:
            held_indices = np.roll(held_indices, -self.first_block)
        if self.short_last:
            last = self.num_blocks - 1
            held_indices = np.append(held_indices[held_indices != last], last)
        return held_indices

    def next_held_indices(self, epoch: int) -> Int64:
        """Return, for each held index, that of the next block in the order of an epoch; the first follows the last."""
        held_indices = self.held_indices(epoch)
        following = np.empty_like(held_indices)
        following[held_indices] = np.roll(held_indices, -1)
        return following

    def new_combs(self, num_blocks: int) -> int:
        """Return `combs` of an epoch of so many blocks that is begun."""
        return strata_for(num_blocks) if type(self) is Order and self.shuffle and self.strip == 1 else 0

    def followers(self, epoch: int) -> Callable[[Int64], Int64]:
        """Return a function from held indices of blocks to those of the next blocks; it lists all if they are few."""
        if not self.combs:
            return self.next_held_indices(epoch).__getitem__
        blocks, end = self.ordered_blocks(epoch), self.num_blocks

        def follow(held_indices: Int64) -> Int64:
            numbers = (blocks.ordinals_of(held_indices) + 1) % end
            return np.array([blocks.held_indices(n, n + 1)[0] for n in numbers.tolist()], dtype=np.int64)

        return follow

    def row_keys(self, epoch: int) -> RowKeys:
        """Return what the order of the rows inside of blocks depends on, in the form that the engine takes."""
        selection = self.selection
        return {
            "seed": self.seed if self.row_seed is None else self.row_seed,
            "epoch": epoch,
            "shuffle": self.permutes_rows,
            "lanes": self.lanes,
            "length": self.length,
            "num_samples": self.num_samples,
            "sample_step": 1 if selection is None else selection.step,
            "selected": None if selection is None or selection.samples is None else selection.samples.table,
        }

    def table(self) -> core.BlockTable:
        """Return which blocks are read, in the form that the engine takes."""
        if self.selection is not None:
            return self.selection.held.table()
        return regular_table(self.num_samples, self.block_rows)

    def ordered_blocks(self, epoch: int) -> core.BlockOrder:
        """Return the blocks in the order of an epoch, in the form that the engine takes."""
        table = self.table()
        if not self.shuffle:
            return core.BlockOrder.natural(table, first=self.first_block, short_last=self.short_last)
        if self.combs:
            return core.BlockOrder.combs(table, seed=self.seed, epoch=epoch, strata=self.combs)
        return core.BlockOrder.listed(table, self.held_indices(epoch))

    def numbers(self, samples: Int64) -> Int64:
        """Return what users call samples: their index in the array; of patches, numbers that say where they begin."""
        return samples

    def patch_table(self) -> core.PatchTable | None:
        """Return where samples begin, if they are patches, in the form that the engine takes."""
        return None

    def plan(
        self,
        epoch: int,
        *,
        first: int = 0,
        stride: int = 1,
        steps: int | None = None,
        head: Int64 | None = None,
        tail: Int64 | None = None,
    ) -> EpochPlan:
        """Return the pieces of blocks that a consumer needs, in the order in which it needs them.

        Parameters
        ----------
        epoch
            Number of the epoch, in [0, 2**63).
        first, stride
            The consumer takes global positions first, first + stride, ...
        steps
            How many of them; all that there are, unless given.
        head, tail
            Positions that it takes before and after these, one by one. Position g >= n is g mod n, once more.
        """
        n, num_lanes = self.length, self.lanes
        available = max(0, -(-(n - first) // stride))
        steps = available if steps is None else min(steps, available)
        begin = 0 if head is None else len(head)
        # Positions outside of the stride, and the steps at which they are taken.
        extra, extra_step = extra_steps(head, tail, begin + steps)
        turn, extra_position = np.divmod(extra, n)

        # Lanes that have positions of this consumer: lane = first (mod gcd). With S | L those are L / S lanes.
        common = math.gcd(stride, num_lanes)
        lane = np.arange(first % common, num_lanes if steps else 0, common, dtype=np.int64)
        if len(extra):
            lane = np.union1d(lane, extra_position % num_lanes)
        groups = self.groups(epoch, lane)
        first_step, last_step = steps_of(groups, num_lanes, first, stride, steps)
        first_step = np.where(first_step > last_step, NEVER, first_step + begin)
        last_step = np.where(first_step == NEVER, -1, last_step + begin)

        # Groups that the extra positions need, those of each turn by themselves: their steps may be far apart.
        extra_group = groups.holding(self.in_sequence(extra_position))
        once = turn == 0
        np.minimum.at(first_step, extra_group[once], extra_step[once])
        np.maximum.at(last_step, extra_group[once], extra_step[once])
        visits = [(np.arange(len(groups)), np.zeros(len(groups), dtype=np.int64), first_step, last_step)]
        for again in np.unique(turn[~once]) if not once.all() else ():
            of_turn = turn == again
            group, earliest, latest = visits_of(extra_group[of_turn], extra_step[of_turn])
            visits.append((group, np.full(len(group), again), earliest, latest))
        group, group_turn, first_step, last_step = (np.concatenate(column) for column in zip(*visits, strict=True))

        used = np.flatnonzero(first_step <= last_step)
        used = used[np.argsort(first_step[used], kind="stable")]
        return EpochPlan.of(
            self,
            epoch,
            groups.take(group[used]),
            Strides(first, stride, begin, steps),
            extra=(extra, extra_step),
            turn=group_turn[used],
            first_step=first_step[used],
            last_step=last_step[used],
        )

    def groups(self, epoch: int, lane: Int64) -> Groups:
        """Return the groups of some lanes in an epoch; lanes ascend."""
        held_indices = self.held_indices(epoch)
        first_row, block_rows = self.rows_at(held_indices)
        begin, end = self._lane_begin(lane), self._lane_begin(lane + 1)
        return Groups.cut(held_indices, first_row, block_rows, lane, begin, end, self.mix)

    def in_sequence(self, positions: Int64) -> Int64:
        """Return where positions of the epoch order stand in the sequence that lanes are cut from."""
        return self._lane_begin(positions % self.lanes) + positions // self.lanes

    def _lane_begin(self, lane: Int64) -> Int64:
        quotient, longer = divmod(self.length, self.lanes)
        return lane * quotient + np.minimum(lane, longer)

    def open_steps(self, stride: int = 1) -> int:
        """Return an upper bound of the steps between the first and the last row of a group, both included.

        This is what has to be in memory at once: a group's rows are spread over that many consecutive samples.
        """
        return min(-(-self.mix * self.max_rows * self.lanes // stride), -(-self.length // stride))


_NONE: Int64 = np.zeros(0, dtype=np.int64)


def make_order(
    num_samples: int,
    block_rows: int,
    selection: Selection | None,
    *,
    shuffle: bool,
    seed: int,
    lanes: int | None,
    mix: int | None,
    edges: Edges | None = None,
) -> Order:
    """Return an order with `lanes` and `mix`; those that are None are 1 until `Schedule.make` chooses them.

    A `mix` above the number of blocks becomes that number.

    More lanes than samples become one lane a sample.
    """
    first = (lanes or 1) if shuffle else 1
    order = Order(
        num_samples,
        block_rows,
        shuffle=shuffle,
        seed=seed,
        lanes=first,
        mix=mix or 1,
        selection=selection,
        edges=edges,
    )
    return replace(order, lanes=min(order.lanes, order.length), mix=min(order.mix, order.num_blocks))


@dataclass(frozen=True)
class EpochPlan:
    """The pieces of blocks that one consumer reads in one epoch.

    At its steps begin ... begin + count - 1 the consumer takes the positions first, first + stride, ... At its other
    steps it takes the extra positions, which are listed one by one. An extra position beyond the end of the epoch order
    lies in a later turn of the order. A group is a run of positions of one lane; it has the segments
    `group_begin[i]:group_begin[i + 1]`, each a run of positions inside one (permuted) block, and serves one turn.
    Groups are sorted by the first step that they serve. A segment names its block by held index, by the first row, and
    by how many rows are read.
    """

    order: Order
    epoch: int
    first: int
    stride: int
    begin: int
    count: int
    steps: int
    extra_position: Int64
    extra_step: Int64
    group_begin: Int64
    group_lane: Int64
    group_offset: Int64
    group_number: Int64
    group_turn: Int64
    first_step: Int64
    last_step: Int64
    segment_held_index: Int64
    segment_first: Int64
    segment_rows: Int64
    segment_start: Int64
    segment_length: Int64
    run: int = 0
    period: int = 0
    sources: SourceGroups | None = None

    @classmethod
    def of(
        cls,
        order: Order,
        epoch: int,
        groups: Groups,
        strides: Strides,
        *,
        extra: tuple[Int64, Int64],
        turn: Int64,
        first_step: Int64,
        last_step: Int64,
        sources: SourceGroups | None = None,
    ) -> EpochPlan:
        """Return the plan of groups that are sorted by their first steps, with the positions of no stride."""
        by_position = np.argsort(extra[0], kind="stable")
        return cls(
            order=order,
            epoch=epoch,
            first=strides.first,
            stride=strides.stride,
            begin=strides.begin,
            count=strides.count,
            steps=strides.count + len(extra[0]),
            extra_position=extra[0][by_position],
            extra_step=extra[1][by_position],
            group_begin=groups.begin,
            group_lane=groups.lane,
            group_offset=groups.offset,
            group_number=groups.number,
            group_turn=turn,
            first_step=first_step,
            last_step=last_step,
            segment_held_index=groups.held_index,
            segment_first=groups.first_row,
            segment_rows=groups.block_rows,
            segment_start=groups.start,
            segment_length=groups.length,
            run=strides.run,
            period=strides.period,
            sources=sources,
        )

    @property
    def segment_block(self) -> Int64:
        """The block of every segment."""
        return self.order.blocks_at(self.segment_held_index)

    def listed(self) -> EpochPlan:
        """Return the plan with its groups, which it has."""
        return self

    def to_core(self, carry: core.CarryPlan | None = None) -> core.EpochPlan:
        """Return the plan in the form that the engine takes, with chunks that are carried from group to group."""
        order = self.order
        return core.EpochPlan(
            **order.row_keys(self.epoch),
            first=self.first,
            stride=self.stride,
            begin=self.begin,
            count=self.count,
            steps=self.steps,
            extra_position=self.extra_position,
            extra_step=self.extra_step,
            group_begin=self.group_begin,
            group_lane=self.group_lane,
            group_offset=self.group_offset,
            group_number=self.group_number,
            group_turn=self.group_turn,
            first_step=self.first_step,
            last_step=self.last_step,
            segment_block=self.segment_block,
            segment_first=self.segment_first,
            segment_rows=self.segment_rows,
            segment_start=self.segment_start,
            segment_length=self.segment_length,
            run=self.run,
            period=self.period,
            carry=carry,
            mixture=None if self.sources is None else self.sources.to_core(),
            patches=order.patch_table(),
        )


def open_batches(order: Order, batch_size: int, stride: int = 1) -> int:
    """Return an upper bound of the batches that must be open at once: those that `Order.open_steps` steps can touch."""
    return (order.open_steps(stride) - 1) // batch_size + 2

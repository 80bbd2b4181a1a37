"""The order of an epoch, down to blocks: pure numpy, no I/O.

docs/design/order.md, The epoch order, is the definition: all samples are laid end to end, this sequence is cut into
lanes, the lanes are dealt round robin, and a consumer takes every `stride`-th position. This module says which pieces
of which blocks a consumer needs and when; cpp/plan/row_order.cc permutes the rows inside of them, from the same keys.

The plain kind of order is here: blocks that are permuted one by one, or in strips. Other kinds derive from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.order.block_order import RowKeys, permuted
from zarrfeed.plan.order.groups import NEVER, Groups, SourceGroups, steps_of, visits_of
from zarrfeed.plan.order.order_rules import OrderRules
from zarrfeed.plan.order.order_state import OrderState
from zarrfeed.plan.order.portion import WHOLE, Portion, Strides
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.samples.block_edges import Edges


class SharedChunks(Protocol):
    """The chunks that neighbouring blocks share: `Overlap` of `plan/order/carry.py`."""

    @property
    def carried_bytes(self) -> int:
        """Decoded bytes that one lane carries, of all fields."""

    @property
    def reads_of_cut(self) -> float:
        """Blocks that are decoded once more where the end of a lane cuts a block."""

    def strip(self, order: Order) -> int:
        """Return the number of neighbouring blocks of an order that stay together."""


class Limits(Protocol):
    """Memory for batches, in which the lanes and the mix of an order are chosen: `MixingLimits`."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""

    @property
    def quarter_steps(self) -> int:
        """Samples of the batches that a quarter of the memory has room for."""

    def of_share(self, share: float) -> Limits:
        """Return the limits of a source that has this share of the samples."""

    def choose(self, order: Order, lanes: int | None, mix: int | None) -> tuple[int, int]:
        """Return lanes and mix of an order: those that are named, else those that suit the layout and the memory."""


class Room(Protocol):
    """The memory and the fields that an order is to suit: `ResourcePlanner`."""

    @property
    def fields(self) -> FieldSet:
        """The fields that are read."""

    @property
    def num_threads(self) -> int:
        """Decode threads of a reader without others."""

    def overlap(self, order: Order) -> SharedChunks | None:
        """Return the chunks that neighbouring blocks of an order share; None if they share none."""

    def limits(self, order: Order, overlap: SharedChunks | None = None) -> Limits:
        """Return the limits of memory for lanes and mix; with an `overlap`, chunks that blocks share are carried."""

    def carries(self, order: Order) -> bool:
        """Return whether memory has room for what the lanes of an order carry from block to block."""

    def bytes_for_batches(self, order: Order, *, spare: int) -> int:
        """Return the memory for batches, and for what is carried, beside so many spare batches."""


@dataclass(frozen=True)
class Order(OrderRules, unfolds=True):
    """The order of an epoch: which sample has which position. `OrderRules` has what it depends on."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders that have lanes: this one, or those of the sources of a mixture."""
        return (self,)

    @property
    def shuffled_orders(self) -> tuple[Order, ...]:
        """The orders of `orders` whose shuffle can be measured."""
        return self.orders if self.shuffle and self.permutes_rows else ()

    @property
    def keeps_neighbours(self) -> bool:
        """True if a lane goes on with the neighbouring block, mostly."""
        return not self.shuffle or any(one.strip > 1 for one in self.orders)

    @property
    def by_block(self) -> Order:
        """The order by whose blocks samples are found, counted and replaced: this one."""
        return self

    def pieces_of(self, plan: EpochPlan) -> Selection | None:
        """Return the samples that a consumer reads of each group of a plan; None: groups are pieces of blocks."""
        del plan
        return None

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> Order:
        """Return the order with the lanes and the mix that are named, or with those that suit layout and memory."""
        if not self.permutes_rows:
            return self
        overlap = room.overlap(self) if self.carries_chunks else None
        if overlap is not None:
            chosen = room.limits(self, overlap).choose(self, lanes, mix)
            wide = replace(self, lanes=chosen[0], mix=chosen[1])
            wide = replace(wide, strip=overlap.strip(wide))
            if room.carries(wide):
                return wide
        chosen = room.limits(self).choose(self, lanes, mix)
        return replace(self, lanes=chosen[0], mix=chosen[1])

    def at(self, state: OrderState) -> Order:
        """Return the order of a settled state's epoch."""
        assert state.lanes is not None
        settled: dict[str, Any] = {
            "lanes": state.lanes,
            "mix": self.mix if state.mix is None else state.mix,
            "strip": state.strip,
            "combs": state.combs,
            "first_block": state.first_block,
            "short_last": state.short_last,
        }
        return self if settled.items() <= vars(self).items() else replace(self, **settled)

    def block_order(self, epoch: int) -> Int64:
        """Return the blocks in the order of an epoch, shape (num_blocks,)."""
        return self.blocks_at(self.held_indices(epoch))

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
        """Return the keys of the order of the rows inside of blocks, in the form that the engine takes."""
        selection = self.reads
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

    def ordered_blocks(self, epoch: int) -> core.BlockOrder:
        """Return the blocks in the order of an epoch, in the form that the engine takes."""
        table = self.table()
        if not self.shuffle:
            return core.BlockOrder.natural(table, first=self.first_block, short_last=self.short_last)
        if self.combs:
            return core.BlockOrder.combs(table, seed=self.seed, epoch=epoch, strata=self.combs)
        return core.BlockOrder.listed(table, self.held_indices(epoch))

    def numbers(self, samples: Int64) -> Int64:
        """Return the users' numbers of samples: indices in the array; for patches, numbers that give their begins."""
        return samples

    def patch_table(self) -> core.PatchTable | None:
        """Return the begins of patches, in the form that the engine takes; None if samples are no patches."""
        return None

    def plan(self, epoch: int, portion: Portion = WHOLE) -> EpochPlan:
        """Return the pieces of blocks that a consumer needs in an epoch, in the order in which it needs them."""
        n, num_lanes = self.length, self.lanes
        strides, extra, extra_step = portion.settled(n)
        first, stride, steps = strides.first, strides.stride, strides.count
        turn, extra_position = np.divmod(extra, n)

        # Lanes that have positions of this consumer: lane = first (mod gcd). With S | L those are L / S lanes.
        common = math.gcd(stride, num_lanes)
        lane = np.arange(first % common, num_lanes if steps else 0, common, dtype=np.int64)
        if len(extra):
            lane = np.union1d(lane, extra_position % num_lanes)
        groups = self.groups(epoch, lane)
        first_step, last_step = self.steps_of(groups, strides)

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
        return EpochPlan(
            self,
            epoch,
            strides,
            extra,
            extra_step,
            groups.take(group[used]),
            group_turn[used],
            first_step[used],
            last_step[used],
        )

    def steps_of(self, groups: Groups, strides: Strides) -> tuple[Int64, Int64]:
        """Return the first and the last regular step that each group serves; `NEVER` and -1 for none."""
        assert not strides.run, "workers take strides of this kind of order"
        first_step, last_step = steps_of(groups, self.lanes, strides.first, strides.stride, strides.count)
        none = first_step > last_step
        return np.where(none, NEVER, first_step + strides.begin), np.where(none, -1, last_step + strides.begin)

    def groups(self, epoch: int, lane: Int64) -> Groups:
        """Return the groups of some lanes in an epoch; lanes ascend."""
        held_indices = self.held_indices(epoch)
        first_row, block_rows = self.rows_at(held_indices)
        begin, end = self._lane_begin(lane), self._lane_begin(lane + 1)
        return Groups.cut(held_indices, first_row, block_rows, lane, begin, end, self.mix)

    def in_sequence(self, positions: Int64) -> Int64:
        """Map positions of the epoch order to positions in the sequence that lanes are cut from."""
        return self._lane_begin(positions % self.lanes) + positions // self.lanes

    def _lane_begin(self, lane: Int64) -> Int64:
        quotient, longer = divmod(self.length, self.lanes)
        return lane * quotient + np.minimum(lane, longer)


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
    slabs: Slabs | None = None,
) -> Order:
    """Return an order with `lanes` and `mix`; those that are None are 1 until `Schedule.make` chooses them.

    A `mix` above the number of blocks becomes that number.

    More lanes than samples become one lane a sample.
    """
    order = Order(
        num_samples, block_rows, shuffle=shuffle, seed=seed, lanes=1, selection=selection, edges=edges, slabs=slabs
    )
    wanted = min((lanes or 1) if shuffle else 1, order.length), min(mix or 1, order.num_blocks)
    return order if wanted == (1, 1) else replace(order, lanes=wanted[0], mix=wanted[1])


@dataclass(frozen=True)
class ConsumerPlan:
    """The positions of one epoch that one consumer takes.

    Attributes
    ----------
    order, epoch
        The epoch order.
    strides
        The positions that the consumer takes by stride, and the steps at which it takes them.
    extra_position, extra_step
        The positions that it takes one by one, ascending, and its steps for them. A position beyond the end of the
        epoch order lies in a later turn of the order.
    """

    order: Order
    epoch: int
    strides: Strides
    extra_position: Int64
    extra_step: Int64

    @property
    def stride(self) -> int:
        """Distance in the epoch order between two positions of the consumer."""
        return self.strides.stride

    @property
    def steps(self) -> int:
        """Number of samples that the consumer delivers."""
        return self.strides.count + len(self.extra_position)


@dataclass(frozen=True)
class EpochPlan(ConsumerPlan):
    """The pieces of blocks that one consumer reads in one epoch.

    Attributes
    ----------
    groups
        The groups that it reads, as often as it reads them, by the first step that each serves.
    turn
        The turn of the order that each group serves.
    first_step, last_step
        The steps of the consumer that each group serves.
    sources
        The sources of the groups, in a mixture.
    """

    groups: Groups
    turn: Int64
    first_step: Int64
    last_step: Int64
    sources: SourceGroups | None = None

    @property
    def segment_block(self) -> Int64:
        """The block of every segment."""
        return self.order.blocks_at(self.groups.held_index)

    def listed(self) -> EpochPlan:
        """Return the plan with its groups, which it has."""
        return self

    def to_core(self, carry: core.CarryPlan | None = None) -> core.EpochPlan:
        """Return the plan in the form that the engine takes, with chunks that are carried from group to group."""
        order, groups = self.order, self.groups
        return core.EpochPlan(
            **order.row_keys(self.epoch),
            **dataclasses.asdict(self.strides),
            steps=self.steps,
            extra_position=self.extra_position,
            extra_step=self.extra_step,
            group_begin=groups.begin,
            group_lane=groups.lane,
            group_offset=groups.offset,
            group_number=groups.number,
            group_turn=self.turn,
            first_step=self.first_step,
            last_step=self.last_step,
            segment_block=self.segment_block,
            segment_first=groups.first_row,
            segment_rows=groups.block_rows,
            segment_start=groups.start,
            segment_length=groups.length,
            carry=carry,
            mixture=None if self.sources is None else self.sources.to_core(),
            patches=order.patch_table(),
        )

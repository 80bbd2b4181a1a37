"""What a consumer reads in a pass: its share of what is left of the epoch order, with memory and threads for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.budget.mixing import MixingLimits, choose_lanes, choose_mixing, choose_sources
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.carry import Overlap, carries
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.rank_lanes import FEW_RANKS, lanes_for_ranks
from zarrfeed.plan.order.unfolding import ReadPlan, unfold
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.schedule.resources import ResourcePlanner, Resources
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState, shortest_in
from zarrfeed.plan.shares.affinity import Dealing, Part, blocks_together, seed_of_node
from zarrfeed.plan.shares.partition import Consumer, Division, Even, RankInfo
from zarrfeed.plan.shares.runs import RunDivision
from zarrfeed.spec.field import FieldSet, sample_bytes

#: Without a batch size, samples are views of internal batches of about this size.
_INTERNAL_BATCH_BYTES = 4 << 20
_INTERNAL_BATCH_SAMPLES = 1024


@dataclass(frozen=True)
class Schedule:
    """The configuration of a dataset, as far as it decides what is read when.

    Attributes
    ----------
    fields
        Of a batch, and which one's chunks make the blocks.
    order
        The epoch order; its lanes are those for few ranks.
    options
        As the user said.
    dealt
        If samples are dealt to nodes: which part `order` is of.
    """

    fields: FieldSet
    order: Order
    options: ScheduleOptions
    dealt: Part | None = None

    @classmethod
    def make(cls, fields: FieldSet, order: Order, options: ScheduleOptions) -> Schedule:
        """Return a schedule with the lanes and the mix of the options, or with those that suit layout and memory."""
        schedule = cls(fields, order, options)
        if fields.are_objects or any(map(carries, fields.fields)):  # their plans are not unfolded
            order.check_blocks(listed=True)
        return replace(schedule, order=schedule.mixed(order, options.lanes, options.mix))

    def with_options(self, **changes: Any) -> Schedule:
        """Return a schedule with the same order, and some other options."""
        return replace(self, options=replace(self.options, **changes))

    def for_node(self, node: int, num_nodes: int) -> Schedule:
        """Return the schedule of one node of several, to which the samples are dealt.

        What of its order a state holds is the same on all nodes: lanes, mix and strip suit the part that needs most
        memory, and are no more than any part allows.

        Raises
        ------
        ConfigError
            If there are fewer samples than nodes, or consumers have runs of whole blocks.
        """
        made = self._of_nodes.get((node, num_nodes))
        if made is None:
            self._of_nodes.clear()
            made = self._of_nodes[node, num_nodes] = self._dealt_to(node, num_nodes)
        return made

    @cached_property
    def _of_nodes(self) -> dict[tuple[int, int], Schedule]:
        return {}

    def _dealt_to(self, node: int, num_nodes: int) -> Schedule:
        if self.options.whole_blocks:
            raise ConfigError("runs of whole blocks cannot be dealt to nodes")
        whole = self.order
        if isinstance(whole, MixedOrder | SweptOrder):
            shared = ("mixtures", "sources") if isinstance(whole, MixedOrder) else ("patches", "columns")
            raise ConfigError("affinity = 'node' is not for {}: all nodes share one order of {}".format(*shared))
        dealing = Dealing.of(whole, num_nodes, blocks_together(self.fields, whole, num_nodes))
        fewest_blocks, shortest = dealing.fewest_blocks, whole.length // num_nodes
        lanes = None if self.options.lanes is None else min(whole.lanes, shortest)
        mix = None if self.options.mix is None else min(whole.mix, fewest_blocks)
        hardest = replace(whole, selection=dealing.part(dealing.hardest), lanes=1, mix=mix or 1, strip=1)
        mixed = self.mixed(hardest, lanes, mix)
        order = replace(
            mixed,
            selection=dealing.part(node),
            seed=seed_of_node(whole.seed, node),
            lanes=min(mixed.lanes, shortest),
            mix=min(mixed.mix, fewest_blocks),
            strip=min(mixed.strip, fewest_blocks),
        )
        whole = replace(whole, mix=order.mix)
        part = Part(node, num_nodes, whole, dealing.longest, dealing.long_nodes, fewest_blocks)
        return replace(self, order=order, dealt=part)

    @cached_property
    def part(self) -> Part:
        """The part of the samples that is read; all of them, unless they are dealt to nodes."""
        return self.dealt or Part.only(self.order)

    @property
    def planner(self) -> ResourcePlanner:
        """The planner that shares memory and cores of a machine among readers."""
        return ResourcePlanner(self.fields, self.options, self.engine_batch_size)

    @property
    def engine_batch_size(self) -> int:
        """Samples of a batch of the engine: the same for all nodes."""
        if self.options.batch_size is not None and isinstance(self.order, MixedOrder | SweptOrder):
            return self.options.batch_size
        length = self.part.whole.length
        if self.options.batch_size is not None:
            return min(length, self.options.batch_size)
        bytes_of_sample = sum(sample_bytes(f) for f in self.fields.fields)
        fitting = int(np.clip(_INTERNAL_BATCH_BYTES // max(1, bytes_of_sample), 1, _INTERNAL_BATCH_SAMPLES))
        return min(length, fitting)

    def settle(self, state: EpochState, consumer: Consumer) -> EpochState:
        """Return a state in which nothing is left to be decided: what of the epoch order depends on who reads it.

        If rows keep their order, each consumer has a lane. If they are permuted, more ranks than lanes get a lane
        each, and many ranks divide the lanes unless the user named these. Where blocks keep their order and a tail is
        dropped, the epoch order begins at another block in each epoch, so that it is not always the same tail. An epoch
        order for runs of whole blocks has one lane, and ends with a short block.
        A saved run stays in the state if this consumer continues its division.

        Raises
        ------
        ConfigError
            If positions are used up, and the samples were dealt to another number of nodes.
        """
        order, part, even = self.order, self.part, self._even(consumer)
        if isinstance(order, MixedOrder):
            return self._settle_mixture(order, state, consumer)
        if state.lanes is not None:
            if state.nodes != part.num_nodes:
                raise ConfigError(
                    f"the epoch was begun with its samples dealt to {state.nodes} nodes, and cannot be continued with "
                    f"{part.num_nodes}: affinity needs the same number of nodes"
                )
            return state.for_division(self.division(state, consumer))
        if self.options.reads_runs(order, 1):
            return replace(state, lanes=1, short_last=consumer.stride > 1 and order.length % order.block_rows != 0)
        if not order.permutes_rows:
            lanes = consumer.stride
        elif self.fields.are_objects:
            lanes = order.lanes  # a rank reads none of its objects twice, whatever lane they lie in
        else:
            lanes = self._lanes_for(consumer.world_size)
        leaves_some = part.long_nodes > 0 or self.length(state, consumer) % consumer.num_receivers != 0
        turns = not order.shuffle and even == "drop" and leaves_some
        return replace(
            state,
            lanes=min(shortest_in(part), lanes),
            mix=order.mix,
            strip=order.strip,
            first_block=state.epoch % part.fewest_blocks if turns else 0,
            nodes=part.num_nodes,
            sweep=order.tiles.sweep if isinstance(order, SweptOrder) else None,
            combs=0 if self.fields.are_objects else order.new_combs(part.fewest_blocks),
        )

    def _lanes_for(self, ranks: int) -> int:
        """Return the lanes of an epoch whose rows are permuted, for a number of ranks: the same on all nodes."""
        order, whole = self.order, self.part.whole
        if self.options.lanes is not None:
            return ranks if ranks > max(order.lanes, FEW_RANKS) else order.lanes
        if isinstance(order, SweptOrder):  # more lanes decode more, as columns are cut for them
            return lanes_for_ranks(order.lanes, ranks)

        def suits(lanes: int) -> bool:
            overlap = Overlap.of(self.fields.fields, order.block_rows) if order.strip > 1 else None
            limits, wider = self.planner.limits(order_with(order.lanes), overlap), order_with(lanes)
            few_cuts = limits.cuts_little(wider, self.part.fewest_blocks)
            return few_cuts and limits.hold(wider, 2) and (fits(lanes) or not fits(order.lanes))

        def order_with(lanes: int) -> Order:
            return replace(whole, lanes=lanes, mix=order.mix, strip=order.strip)

        def fits(lanes: int) -> bool:  # if all ranks were on one machine
            rank_info = RankInfo(0, ranks, ranks)
            least = self.planner.memory(order_with(lanes), rank_info).least_budget
            return self.options.budget is None or least <= self.options.budget // ranks

        return lanes_for_ranks(order.lanes, ranks, suits)

    def _settle_mixture(self, order: MixedOrder, state: EpochState, consumer: Consumer) -> EpochState:
        batch = self._global_batch(consumer)
        if state.sources is None:
            sources = order.settled(consumer.world_size, are_chosen=self.options.lanes is None)
            state = replace(state, sources=sources, unit=batch if order.is_per_batch else 1)
        order.with_unit(state.unit).check_batch(batch, state.used)
        begun = replace(state, lanes=1, mix=1) if state.lanes is None else state
        return begun.for_division(self.division(begun, consumer))

    def _global_batch(self, consumer: Consumer) -> int:
        """Return the samples of a batch of all ranks."""
        return (self.options.batch_size or 1) * consumer.world_size

    def length(self, state: EpochState, consumer: Consumer) -> int:
        """Return the positions of the longest part of an epoch order: of all nodes, those of the part that has most."""
        if isinstance(self.order, SweptOrder):
            return self.order.epochs.length(state.epoch)
        if not isinstance(self.order, MixedOrder):
            return self.part.longest
        return self.order.with_unit(self._global_batch(consumer) if state.sources is None else state.unit).length

    def order_of(self, state: EpochState) -> Order:
        """Return the order of a settled state's epoch."""
        assert state.lanes is not None
        if isinstance(self.order, MixedOrder):
            assert state.sources is not None
            return self.order.with_sources(state.sources).with_unit(state.unit)
        order = self.order
        if isinstance(order, SweptOrder):
            assert state.sweep is not None
            order = order.epochs.with_sweep(state.sweep).at(state.epoch)
        mix = order.mix if state.mix is None else state.mix
        return replace(
            order,
            lanes=state.lanes,
            mix=mix,
            strip=state.strip,
            combs=state.combs,
            first_block=state.first_block,
            short_last=state.short_last,
        )

    def division(self, state: EpochState, consumer: Consumer) -> Division | RunDivision:
        """Return how what earlier runs left is shared out, in batches; in samples, where there is no batch size."""
        length, even = self.length(state, consumer) - state.progress.used, self._even(consumer)
        long_nodes = self.part.long_nodes if length else 0
        whole = isinstance(self.order, MixedOrder) and self.order.deals_batches(consumer.num_workers, state.sources)
        divide: Callable[..., Division | RunDivision] = partial(
            Division, even=even, long_nodes=long_nodes, whole_batches=whole, repeats_last=consumer.is_gathered
        )
        if self.options.reads_runs(self.order, state.lanes or 1):
            # Where earlier runs left gaps all over the epoch order, what is left of a block is no unit any more.
            block_rows = 1 if state.progress.cuts else self.order.block_rows
            divide = partial(RunDivision, block_rows=block_rows, turn=state.epoch)
        return divide(
            length=length - length % consumer.split_over if even == "drop" else length,
            world_size=consumer.world_size,
            num_workers=consumer.num_workers,
            batch_size=self.options.batch_size or 1,
            drop_last=self.options.drop_last and self.options.batch_size is not None,
        )

    def plan(self, state: EpochState, consumer: Consumer, resources: Resources | None = None) -> EpochPlan:
        """Return what `reading` does, with all groups."""
        return self.reading(state, consumer, resources).listed()

    def reading(self, state: EpochState, consumer: Consumer, resources: Resources | None = None) -> ReadPlan:
        """Return what a consumer reads in a pass that begins in a state that was settled for it.

        `resources` are those that it has. None: as many as it wants, for a plan that is looked at and not read.
        """
        division, progress = self.division(state, consumer), state.progress
        consumer, delivered = division.continued(consumer, state.batches)
        delivered += 0 if state.worker is None else state.worker.batches
        share = division.share(consumer, delivered * division.batch_size)
        # The share numbers the samples that earlier runs left. Convert its numbers to positions in the epoch order.
        regular, shift = progress.regular_from()
        in_head = min(share.count, max(0, -(-(regular - share.first) // share.stride)))
        head = progress.position(share.first + share.stride * np.arange(in_head, dtype=np.int64))
        order, left = self.order_of(state), division.length_on(consumer.node)
        if left:  # positions beyond what is left are repeated ones
            turn, number = np.divmod(share.tail, left)
            tail = progress.position(number) + turn * order.length
        else:
            tail = order.length + share.tail
        plan: Callable[..., ReadPlan] = partial(unfold, order)
        if isinstance(order, MixedOrder):
            most_steps = None if resources is None else resources.most_steps
            plan = partial(order.plan, run=share.run, period=share.period, most_steps=most_steps)
        return plan(
            state.epoch,
            first=share.first + share.stride * in_head + shift,
            stride=share.stride,
            steps=share.count - in_head,
            head=head,
            tail=tail,
        )

    def resources(self, order: Order, rank_info: RankInfo, consumer: Consumer) -> Resources:
        """Return the memory and threads that a consumer of an epoch order may use.

        Raises
        ------
        MemoryBudgetError
            If its share of the budget has no room for the batches that must be open at once.
        """
        return self.planner.resources(order, rank_info, consumer)

    def check_memory(self, rank_info: RankInfo, num_workers: int, state: EpochState) -> None:
        """Raise MemoryBudgetError if the budget is too small for a reader in each of `num_workers` workers a rank."""
        consumer = rank_info.consumer(num_workers=max(1, num_workers))
        self.resources(self.order_of(self.settle(state, consumer)), rank_info, consumer)

    def mixed(self, order: Order, lanes: int | None, mix: int | None) -> Order:
        """Return an order with the lanes and the mix that are given, or with those that suit layout and memory.

        They are chosen as if the plan of an epoch took nothing. Where that leaves too little memory for the plan, they
        are chosen again, from what the plan leaves.
        """
        planner = self.planner
        chosen = self._mixed(order, lanes, mix, planner)
        left = planner.reserving(chosen)
        if not left.reserved or left.has_room(chosen):
            return chosen
        return self._mixed(order, lanes, mix, left)

    def _mixed(self, order: Order, lanes: int | None, mix: int | None, planner: ResourcePlanner) -> Order:
        """Return an order with the lanes and the mix that are given, or with those that suit a planner's memory."""
        if isinstance(order, SweptOrder):
            return planner.columns(order, lanes)
        if not order.permutes_rows:
            return order
        if isinstance(order, MixedOrder):
            return self._mixed_sources(order, lanes, mix, planner)
        overlap = Overlap.of(self.fields.fields, self.fields.block_rows) if order.shuffle else None
        if overlap is not None:
            chosen = _choose(order, lanes, mix, planner.limits(order, overlap))
            chosen = replace(chosen, strip=overlap.strip(chosen))
            if planner.memory(chosen).carry_bytes:
                return chosen
        return _choose(order, lanes, mix, planner.limits(order))

    def _mixed_sources(self, order: MixedOrder, lanes: int | None, mix: int | None, planner: ResourcePlanner) -> Order:
        """Return the order of a mixture with lanes, mix and strips of its sources."""
        overlap = Overlap.of(self.fields.fields, self.fields.block_rows) if order.shuffle else None
        chosen = choose_sources(order, planner.limits(order, overlap), lanes, mix)
        if overlap is not None:
            strips = [overlap.strip(one) for one in chosen.orders]
            made = chosen.with_sources([one._replace(strip=n) for one, n in zip(chosen.sources, strips, strict=True)])
            if planner.memory(made).carry_bytes:
                return made
        return chosen if overlap is None else choose_sources(order, planner.limits(order), lanes, mix)

    def _even(self, consumer: Consumer) -> Even:
        return self.options.even or ("drop" if consumer.num_receivers * self.part.num_nodes > 1 else "off")


def _choose(order: Order, lanes: int | None, mix: int | None, limits: MixingLimits) -> Order:
    """Return an order with lanes and mix: those that are given, else those that suit the layout and the memory."""
    if lanes is not None:
        return replace(order, lanes=min(lanes, order.length))
    if mix is not None:
        return replace(order, lanes=choose_lanes(order, limits))
    lanes, mix = choose_mixing(order, limits)
    return replace(order, lanes=lanes, mix=mix)

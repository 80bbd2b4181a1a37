"""Memory, decode threads and open batches: the share of its machine that a reader may use.

The plan of an epoch keeps memory, which counts against the budget. Invariant: plans whose samples and blocks follow
rules keep nothing that grows with the samples. All other plans are counted: samples that are selected and follow no
rule, borders of segments, rows of joins that follow no rule, groups that are listed for windows, mixtures and patches,
and orders that are listed whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from zarrfeed.base.system import usable_cores
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import MemoryPlan, plan_memory
from zarrfeed.plan.budget.mixing import MOST_CUTS_OF_BOXES, MixingLimits
from zarrfeed.plan.order.carry import Overlap, carries, lanes_of
from zarrfeed.plan.order.order import Order, SharedChunks
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import Consumer, RankInfo
from zarrfeed.spec.fields.field import FieldSet

#: Chunks that neighbouring blocks share get the budget divided by this, or as much as they need.
_CARRY_DIVISOR = 64
#: Memory for chunks that columns or strips share is a multiple of such a share of the budget, so that most epochs have
#: the same.
_KEEP_DIVISOR = 64
#: Bytes of a sample in an order that is listed.
_BYTES_OF_SAMPLE = 8
#: Number of decode threads for which lanes and mix are chosen, whatever the machine and the reader have.
_ORDER_THREADS = 2
#: A rank that has its machine for itself.
ALONE = RankInfo()


@dataclass(frozen=True)
class Resources:
    """Memory, decode threads among it, and batches that are open or ready at once: all that one consumer may use.

    `short_of_memory` says whether threads or batches would be more if memory allowed it. `most_steps` is what a
    visit of a group of a mixture may serve.
    """

    memory: MemoryPlan
    max_open_batches: int
    short_of_memory: bool
    most_steps: int | None = None


class FieldFacts:
    """The facts that follow from fields alone, found once; and how budgets were divided for them.

    Attributes
    ----------
    plans
        Divisions of a budget, by all that they depend on beside fields and options: memory is planned once.
    """

    def __init__(self, fields: FieldSet) -> None:
        self._fields = fields
        self.plans: dict[tuple[int, ...], MemoryPlan] = {}

    def __reduce__(self) -> tuple[type[FieldFacts], tuple[FieldSet]]:
        return FieldFacts, (self._fields,)  # another process finds them anew

    @cached_property
    def needs(self) -> FieldNeeds:
        """The memory that the fields ask for."""
        return FieldNeeds.of(self._fields.fields)

    @cached_property
    def share_chunks(self) -> bool:
        """True if chunks of a field may serve several blocks."""
        return any(map(carries, self._fields.fields))

    @cached_property
    def num_listed(self) -> int:
        """The number of fields that have their whole order listed."""
        return len([f for f in self._fields.fields if f.lists_order])

    @cached_property
    def map_bytes(self) -> int:
        """Bytes of borders of segments, here and in the engine, and of rows of joins that follow no rule."""
        pads = [window.pad for window in self._fields.windows if window and window.pad]
        borders = {id(pad.borders): pad.borders.first.nbytes for pad in pads if pad.borders}
        found = [f.row_map.listed for f in self._fields.fields if f.row_map is not None]
        maps = {id(rows): rows.nbytes for rows in found if rows is not None}
        return 2 * sum(borders.values()) + sum(maps.values())

    def overlap(self, order: Order) -> Overlap | None:
        """Return the chunks that neighbouring blocks of an order share; None if they share nothing."""
        if not (self.share_chunks or self.num_listed):
            return None
        return Overlap.of(self._fields.fields, order.full_rows, order.slabs)


@dataclass(frozen=True)
class ResourcePlanner:
    """Shares the memory and the cores of a machine among the readers of a dataset.

    Attributes
    ----------
    fields, options
        The fields and the options of the `Schedule`.
    batch_size
        Samples of a batch of the engine.
    known
        Facts about the fields that were found by this planner and by those that were made from it.
    reserved
        Bytes for the plan of an epoch, where it is not counted for itself.
    """

    fields: FieldSet
    options: ScheduleOptions
    batch_size: int
    known: FieldFacts = field(repr=False, compare=False)
    reserved: int = 0

    @property
    def lists_plans(self) -> bool:
        """True if readers of the fields need the groups of a plan listed, whatever the order is."""
        return self.fields.are_objects or self.known.share_chunks

    def resources(self, order: Order, rank_info: RankInfo, consumer: Consumer) -> Resources:
        """Return the memory and threads that a consumer of an epoch order may use.

        Raises
        ------
        MemoryBudgetError
            If its share of the budget has no room for the batches that must be open at once.
        """
        memory = self.reserving(order).memory(order, rank_info, consumer)
        stride = self._stride(order, consumer)
        tasks_in_round = max(1, order.lanes // stride) * order.mix * self.fields.cells
        tasks_in_round *= order.chunks_of_block(self.fields.fields)
        of_round = memory.required_batches if self.fields.are_objects else order.wanted_batches(self.batch_size, stride)
        wanted = replace(memory, required_batches=of_round).wanted_open_batches(tasks_in_round=tasks_in_round)
        allowed = memory.max_open_batches(order, wanted=wanted)
        memory = self._with_cache(memory, order, consumer, memory.batch_room - allowed * memory.batch_bytes)
        most_steps = order.most_steps(allowed, self.batch_size)
        return Resources(memory, allowed, allowed < wanted or memory.lacks_threads, most_steps)

    def memory(self, order: Order, rank_info: RankInfo = ALONE, consumer: Consumer | None = None) -> MemoryPlan:
        """Divide a consumer's share of the budget, in an epoch order; by default, for a consumer without others."""
        consumer = consumer or rank_info.consumer()
        readers = rank_info.local_world_size * consumer.num_workers
        share = max(1, self.options.machine_budget // readers)
        stride = self._stride(order, consumer)
        threads = self._threads(rank_info, consumer)
        required = self._required_batches(order, stride)
        carried = self._carry_bytes(order, stride, share, self.options.num_threads or usable_cores())
        plan = self._divided(share, threads, required, carried, self.reserved)
        if self.options.budget is None and plan.ample_budget > share:  # nobody said that readers may not have more
            limit = plan.ample_budget if self.options.limit is None else max(self.options.limit, share)
            plan = self._divided(min(limit, plan.ample_budget), threads, required, carried, self.reserved)
        if carried and not plan.carry_bytes:  # so many threads hold too much: the order was chosen for few
            carried = self._carry_bytes(order, stride, share, _ORDER_THREADS)
            plan = self._divided(plan.budget, threads, required, carried, self.reserved)
        return plan if readers == 1 else replace(plan, readers=readers)

    def order_memory(self, order: Order, consumer: Consumer | None = None) -> MemoryPlan:
        """Divide the memory for which orders are chosen, for a consumer; by default, for one without others.

        It depends neither on the machine nor on `num_threads`: ranks on unlike machines must choose the same order, or
        samples are lost and come twice. Where the memory that is meant if none is named has no room for a single lane,
        this is the least that has.
        """
        budget, stride = self.options.order_budget, self._stride(order, consumer or ALONE.consumer())
        required = self._required_batches(order, stride)
        carried = self._carry_bytes(order, stride, budget, _ORDER_THREADS)
        plan = self._divided(budget, _ORDER_THREADS, required, carried, self.reserved)
        if self.options.budget is None and plan.least_budget > budget:
            plan = self._divided(plan.least_budget, _ORDER_THREADS, required, carried, self.reserved)
        return plan

    def _divided(self, budget: int, threads: int, batches: int, carry_bytes: int, reserved: int) -> MemoryPlan:
        """Divide a budget among threads and batches; a division is remembered."""
        key = self.batch_size, budget, threads, batches, carry_bytes, reserved
        plan = self.known.plans.get(key)
        if plan is None:
            plan = self.known.plans[key] = plan_memory(
                self.known.needs,
                batch_size=self.batch_size,
                num_threads=threads,
                budget=budget,
                min_open_batches=batches,
                coalesce=self.options.coalesce,
                carry_bytes=carry_bytes,
                plan_bytes=reserved,
            )
        return plan

    def reserving(self, order: Order) -> ResourcePlanner:
        """Return one that leaves memory for the plan of an epoch of this order."""
        return replace(self, reserved=plan_bytes(order, self.known))

    def suited(self, order: Order, lanes: int | None, mix: int | None) -> Order:
        """Return an order with the lanes and the mix that are named, or with those that suit layout and memory.

        They are chosen as if the plan of an epoch took nothing. Where that leaves too little memory for the plan, they
        are chosen again, from what the plan leaves.
        """
        chosen = order.suit(self, lanes, mix)
        left = self.reserving(chosen)
        return order.suit(left, lanes, mix) if left.reserved and not left.has_room(chosen) else chosen

    def has_room(self, order: Order) -> bool:
        """Return True if the memory for which orders are chosen has room for the batches that must be open at once."""
        memory = self.order_memory(order)
        return memory.required_batches <= memory.fitting_batches

    def suits_ranks(self, order: Order, part: Part, ranks: int, lanes: int) -> bool:
        """Return whether more lanes than an order has suit its ranks: they fit in memory, and cut few blocks.

        `part` is the part of all samples that the order is of, where nodes have orders of their own.
        """

        def order_with(lanes: int) -> Order:
            return replace(part.whole, lanes=lanes, mix=order.mix, strip=order.strip)

        def fits(lanes: int) -> bool:  # if all ranks were on one machine
            least = self.order_memory(order_with(lanes), RankInfo(0, ranks, ranks).consumer()).least_budget
            return self.options.budget is None or least <= self.options.budget // ranks

        overlap = self.known.overlap(order) if order.strip > 1 else None
        limits = self.limits(order_with(order.lanes), overlap)
        few_cuts = limits.cuts_little(lanes, part.fewest_blocks)
        return few_cuts and limits.hold(part.whole, lanes, order.mix, 2) and (fits(lanes) or not fits(order.lanes))

    # The facts that an order has to suit (`Room`)

    @property
    def num_threads(self) -> int:
        """Decode threads for which orders are chosen, on any machine."""
        return _ORDER_THREADS

    def overlap(self, order: Order) -> Overlap | None:
        """Return the chunks that neighbouring blocks of an order share; None if they share nothing."""
        return self.known.overlap(order)

    def carries(self, order: Order) -> bool:
        """Return whether memory has room for the chunks that the lanes of an order carry from block to block."""
        return self.order_memory(order).carry_bytes > 0

    def bytes_for_batches(self, order: Order, *, spare: int) -> int:
        """Return the memory for batches, and for carried chunks, beside some spare batches."""
        memory = self.order_memory(order)
        return memory.batch_room + memory.carry_bytes - spare * memory.batch_bytes

    def limits(self, order: Order, overlap: SharedChunks | None = None) -> MixingLimits:
        """Return the limits of memory for lanes and mix; with an `overlap`, chunks that blocks share are carried."""
        memory = self.order_memory(order)
        sample_bytes = memory.batch_bytes / self.batch_size
        limits = MixingLimits(self.batch_size, memory.fitting_batches)
        if self.fields.has_boxes:
            limits = replace(limits, most_cuts=MOST_CUTS_OF_BOXES)
        if overlap is None:
            return limits
        carried_rows = math.ceil(overlap.carried_bytes / sample_bytes)
        hands_rows_on = order.slabs is not None and order.slabs.carries_rows
        return replace(
            limits, reads_of_cut=overlap.reads_of_cut, carried_rows=carried_rows, hands_rows_on=hands_rows_on
        )

    def _threads(self, rank_info: RankInfo, consumer: Consumer) -> int:
        """Return the number of decode threads that a consumer starts."""
        return self.options.num_threads or max(1, usable_cores() // (rank_info.local_world_size * consumer.num_workers))

    def _carry_bytes(self, order: Order, stride: int, share: int, threads: int) -> int:
        """Return the memory that a consumer's lanes want for chunks that neighbouring blocks share."""
        if not (self.known.share_chunks or self.known.num_listed):
            return 0
        lanes = lanes_of(order, stride)
        wanted = order.carried_bytes(self.fields.fields, lanes, threads)
        if wanted is None:
            overlap = self.known.overlap(order) if order.keeps_neighbours else None
            if overlap is None:
                return 0
            wanted = overlap.carried_bytes * lanes
        # Groups of small chunks are admitted many at a time, and share more.
        return max(wanted, share // _CARRY_DIVISOR)

    def _with_cache(self, memory: MemoryPlan, order: Order, consumer: Consumer, left: int) -> MemoryPlan:
        """Return the plan with a cache for chunks that blocks share, in memory that nothing else takes.

        An order whose lanes carry nothing, since neighbouring blocks do not follow each other, has its chunks cached
        nevertheless.
        """
        fields, quantum = self.fields.fields, max(1, memory.budget // _KEEP_DIVISOR)
        if not order.caches_chunks or not self.known.share_chunks:
            return memory
        overlap = None
        if not any(f.patch is not None for f in fields):
            overlap = Overlap.of([f for f in fields if f.is_streamed], order.full_rows, order.slabs)
        if not memory.carry_bytes and overlap is not None:
            lanes = lanes_of(order, self._stride(order, consumer))
            carry_bytes = max(overlap.carried_bytes * lanes, memory.budget // _CARRY_DIVISOR)
            if 2 * carry_bytes > left:
                return memory
            memory, left = replace(memory, carry_bytes=carry_bytes), left - carry_bytes
        if not memory.carry_bytes:
            return memory
        # more than all of the chunks that blocks share is of no use
        shared = 2 * self.fields.chunk_bytes if overlap is None else overlap.carried_bytes * order.num_blocks
        keep_bytes = min(left, quantum + shared) // quantum * quantum
        every = self.fields.chunk_bytes
        if overlap and order.slabs is None and keep_bytes < every <= (memory.carry_bytes + keep_bytes) // 2:
            # both have room for each chunk then, so that none is decoded twice, however late threads are
            return replace(memory, carry_bytes=memory.carry_bytes + keep_bytes - every, keep_bytes=every)
        return replace(memory, keep_bytes=keep_bytes)

    def required_batches(self, order: Order, consumer: Consumer) -> int:
        """Return how many batches must be open at once: enough for the tail that workers share, and after resuming."""
        return self._required_batches(order, self._stride(order, consumer))

    def _required_batches(self, order: Order, stride: int) -> int:
        if self.fields.are_objects:
            return 1  # they are asked for in the order of the batches, whatever blocks they lie in
        return order.required_batches(self.batch_size, stride)

    def _stride(self, order: Order, consumer: Consumer) -> int:
        """Return the distance in the epoch order between two positions of a consumer."""
        runs = self.options.whole_blocks and self.options.reads_runs(order, order.lanes)
        return 1 if runs else consumer.stride


def plan_bytes(order: Order, known: FieldFacts) -> int:
    """Return the bytes that the plan of an epoch keeps in each process that reads it."""
    listed = known.num_listed * _BYTES_OF_SAMPLE * order.length
    return order.selected_bytes + listed + known.map_bytes + order.groups_bytes(are_shared=known.share_chunks)

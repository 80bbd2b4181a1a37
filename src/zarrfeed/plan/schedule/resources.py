"""Memory, decode threads and open batches: the share of its machine that a reader may use.

The plan of an epoch keeps memory, which counts against the budget. What holds: plans whose samples and blocks follow
rules keep nothing that grows with the samples. What is counted is the rest: samples that are selected and follow no
rule, borders of segments, rows of joins that follow no rule, groups that are listed for windows, mixtures and patches,
and orders that are listed whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from zarrfeed.base.system import usable_cores
from zarrfeed.plan.budget.memory import MemoryPlan, plan_memory
from zarrfeed.plan.budget.mixing import MOST_VISITS, MixingLimits
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.carry import Overlap, carries, keeps_neighbours, lanes_of
from zarrfeed.plan.order.order import Order, open_batches
from zarrfeed.plan.patches.columns import caches_chunks, carried_by_lanes, choose_columns, chunks_of_block
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.field_rows import row_map_of
from zarrfeed.plan.schedule.schedule_options import DEFAULT_BUDGET, ScheduleOptions
from zarrfeed.plan.shares.partition import Consumer, RankInfo
from zarrfeed.spec.field import FieldSet
from zarrfeed.spec.row_map import OneRow
from zarrfeed.spec.sparse import CsrField

#: Chunks that neighbouring blocks share get so much of the budget, or what they need.
_CARRY_DIVISOR = 64
#: Memory for chunks that columns share is a multiple of such a share of the budget, so that most epochs have the same.
_KEEP_DIVISOR = 64
#: Batches that are open at least where sources are mixed.
_FEWEST_OF_MIXTURE = 4
#: A group of a plan and its segment, in Python and for the engine, and the chunks that it shares.
_BYTES_OF_GROUP = 460
#: A group of a mixture's plan, or of one of patches, in Python and for the engine.
_BYTES_OF_VISIT = 230
#: A sample of an order that is listed.
_BYTES_OF_SAMPLE = 8
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


@dataclass(frozen=True)
class ResourcePlanner:
    """Shares the memory and the cores of a machine among the readers of a dataset.

    Attributes
    ----------
    fields, options
        As `Schedule` has them.
    batch_size
        Samples of a batch of the engine.
    reserved
        Bytes for the plan of an epoch, where it is not counted for itself.
    """

    fields: FieldSet
    options: ScheduleOptions
    batch_size: int
    reserved: int = 0

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
        tasks_in_round *= chunks_of_block(order, self.fields.fields)
        wanted = memory.wanted_open_batches(tasks_in_round=tasks_in_round)
        most_steps = None
        if isinstance(order, MixedOrder):
            steps = order.wanted_steps(stride, MOST_VISITS)
            open_at_once = replace(memory, required_batches=steps // self.batch_size + 2)
            wanted = open_at_once.wanted_open_batches(tasks_in_round=tasks_in_round)
        allowed = memory.max_open_batches(order, wanted=wanted)
        if isinstance(order, MixedOrder):
            most_steps = (allowed - 1) * self.batch_size
        if isinstance(order, SweptOrder) and memory.carry_bytes and caches_chunks(order):
            left, quantum = memory.batch_room - allowed * memory.batch_bytes, max(1, memory.budget // _KEEP_DIVISOR)
            memory = replace(memory, keep_bytes=left // quantum * quantum)
        return Resources(memory, allowed, allowed < wanted or memory.lacks_threads, most_steps)

    def memory(self, order: Order, rank_info: RankInfo = ALONE, consumer: Consumer | None = None) -> MemoryPlan:
        """Return how a consumer of an epoch order spends its share of the budget; by default, of one without others."""
        consumer = consumer or rank_info.consumer()
        readers = rank_info.local_world_size * consumer.num_workers
        share = max(1, (self.options.budget or DEFAULT_BUDGET) // readers)
        plan_with = partial(
            plan_memory,
            self.fields.fields,
            batch_size=self.batch_size,
            num_threads=self._threads(rank_info, consumer),
            min_open_batches=self.required_batches(order, consumer),
            coalesce=self.options.coalesce,
            carry_bytes=self._carry_bytes(order, consumer, share),
            plan_bytes=self.reserved,
        )
        plan = plan_with(budget=share)
        if self.options.budget is None:  # nobody said that the readers together may not have more
            enough = max(share, plan.ample_budget)
            plan = plan_with(budget=enough if self.options.limit is None else min(self.options.limit, enough))
        return replace(plan, readers=readers)

    def reserving(self, order: Order) -> ResourcePlanner:
        """Return one that leaves memory for the plan of an epoch of this order."""
        return replace(self, reserved=plan_bytes(order, self.fields))

    def has_room(self, order: Order) -> bool:
        """Whether a reader without others has memory for the batches of an epoch order that must be open at once."""
        memory = self.memory(order)
        return memory.required_batches <= memory.fitting_batches

    def limits(self, order: Order, overlap: Overlap | None = None) -> MixingLimits:
        """Return what the memory allows for lanes and mix; with an `overlap`, chunks that blocks share are carried."""
        memory = self.memory(order)
        sample_bytes = memory.batch_bytes / self.batch_size
        limits = MixingLimits(self.batch_size, memory.fitting_batches)
        if overlap is None:
            return limits
        carried_rows = math.ceil(overlap.carried_bytes / sample_bytes)
        return replace(limits, reads_of_cut=overlap.reads_of_cut, carried_rows=carried_rows)

    def columns(self, order: SweptOrder, lanes: int | None) -> SweptOrder:
        """Return the order of patches with the columns and the lanes that suit layout and memory."""
        threads = self._threads(ALONE, ALONE.consumer())
        return choose_columns(order, self.fields.fields, self.memory(order), threads, lanes)

    def _threads(self, rank_info: RankInfo, consumer: Consumer) -> int:
        """Return how many decode threads a consumer starts."""
        return self.options.num_threads or max(1, usable_cores() // (rank_info.local_world_size * consumer.num_workers))

    def _carry_bytes(self, order: Order, consumer: Consumer, share: int) -> int:
        """Return the memory that a consumer's lanes want for chunks that neighbouring blocks share."""
        if isinstance(order, SweptOrder):
            lanes = lanes_of(order, self._stride(order, consumer))
            threads = self.options.num_threads or usable_cores()
            return max(carried_by_lanes(order, self.fields.fields, lanes, threads), share // _CARRY_DIVISOR)
        overlap = Overlap.of(self.fields.fields, order.block_rows) if keeps_neighbours(order) else None
        if overlap is None:
            return 0
        # Groups of small chunks are admitted many at a time, and share more.
        return max(overlap.carried_bytes * lanes_of(order, self._stride(order, consumer)), share // _CARRY_DIVISOR)

    def required_batches(self, order: Order, consumer: Consumer) -> int:
        """Return how many batches must be open at once: enough for the tail that workers share, and after resuming."""
        if self.fields.are_objects:
            return 1  # they are asked for in the order of the batches, whatever blocks they lie in
        if isinstance(order, MixedOrder):
            return _FEWEST_OF_MIXTURE  # groups whose steps are further apart are visited several times
        return open_batches(order, self.batch_size, self._stride(order, consumer))

    def _stride(self, order: Order, consumer: Consumer) -> int:
        """Return how far apart in the epoch order the positions of a consumer are."""
        return 1 if self.options.reads_runs(order, order.lanes) else consumer.stride


def plan_bytes(order: Order, fields: FieldSet) -> int:
    """Return what the plan of an epoch of an order keeps in each process that reads it."""
    total = 0 if order.selection is None else order.selection.nbytes
    borders = {id(w.pad.borders): w.pad.borders.first.nbytes for w in fields.windows if w and w.pad and w.pad.borders}
    total += 2 * sum(borders.values())  # here, and in the engine
    if type(order) is Order and any(map(carries, fields.fields)):
        total += _BYTES_OF_GROUP * order.num_blocks
    elif isinstance(order, MixedOrder):  # sources are read as often as the weights say
        total += _BYTES_OF_VISIT * order.num_blocks * order.length // max(1, sum(order.lengths))
    elif isinstance(order, SweptOrder):
        total += _BYTES_OF_VISIT * order.num_blocks
    maps = [rows.rows for rows in map(row_map_of, fields.fields) if rows is not None and not isinstance(rows, OneRow)]
    total += sum({id(rows): rows.nbytes for rows in maps if not isinstance(rows, range)}.values())
    listed = fields.are_objects + sum(isinstance(f, CsrField) for f in fields.fields)
    return total + listed * _BYTES_OF_SAMPLE * order.length

"""The reading of a consumer in a pass: its share of the positions that are left, with memory and threads for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.system import usable_cores
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.order_state import Readers
from zarrfeed.plan.order.remembered import Remembered
from zarrfeed.plan.order.unfolding import ReadPlan, unfold
from zarrfeed.plan.schedule.node_order import order_of_node
from zarrfeed.plan.schedule.resources import FieldFacts, ResourcePlanner, Resources
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import Consumer, Division, Even, RankInfo
from zarrfeed.plan.shares.runs import RunDivision
from zarrfeed.spec.fields.field import FieldSet


@dataclass(frozen=True)
class Schedule:
    """The configuration of a dataset that decides the order, the batches and the resources of its reading.

    Attributes
    ----------
    fields
        The fields of a batch; they know whose chunks make the blocks.
    order
        The epoch order; its lanes are those for few ranks.
    options
        The options, as the user gives them.
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
        if schedule.planner.lists_plans:
            order.check_blocks(listed=True)
        suited = schedule.planner.suited(order, options.lanes, options.mix)
        if suited is order:
            return schedule
        made = replace(schedule, order=suited)
        vars(made)["planner"] = replace(schedule.planner, batch_size=made.engine_batch_size)  # which knows the fields
        return made

    def with_options(self, **changes: Any) -> Schedule:
        """Return a schedule with the same order, and some other options."""
        return replace(self, options=replace(self.options, **changes))

    def for_node(self, node: int, num_nodes: int) -> Schedule:
        """Return the schedule of one node of several, to which the samples are dealt.

        Raises
        ------
        ConfigError
            If there are fewer samples than nodes, or consumers have runs of whole blocks.
        """
        return self._of_nodes.get((node, num_nodes), lambda: self._dealt_to(node, num_nodes))

    def _dealt_to(self, node: int, num_nodes: int) -> Schedule:
        order, part = order_of_node(self.order, self.planner, node, num_nodes)
        return replace(self, order=order, dealt=part)

    @cached_property
    def _of_nodes(self) -> Remembered[Schedule]:
        return Remembered()

    @cached_property
    def _orders(self) -> Remembered[Order]:
        return Remembered()

    @cached_property
    def _resources(self) -> Remembered[tuple[Order, Resources]]:
        return Remembered()  # by the identity of an order, which is referred to here

    @cached_property
    def part(self) -> Part:
        """The part of the samples that is read; all of them, unless they are dealt to nodes."""
        return self.dealt or Part.only(self.order)

    @cached_property
    def planner(self) -> ResourcePlanner:
        """The planner that shares memory and cores of a machine among readers."""
        return ResourcePlanner(self.fields, self.options, self.engine_batch_size, FieldFacts(self.fields))

    @cached_property
    def engine_batch_size(self) -> int:
        """Samples of a batch of the engine: the same for all nodes."""
        return self.options.engine_batch_size(self.part.whole, self.fields)

    def settle(self, state: EpochState, consumer: Consumer) -> EpochState:
        """Return a state in which nothing is left to be decided: what of the epoch order depends on who reads it.

        The order settles itself. A saved run stays in the state if this consumer continues its division.

        Raises
        ------
        ConfigError
            If positions are used up, and the samples were dealt to another number of nodes, or the batches do not go on
            with those that were used.
        """
        nodes = self.part.num_nodes
        if state.lanes is not None and state.nodes != nodes:
            raise ConfigError(
                f"the epoch was begun with its samples dealt to {state.nodes} nodes, and cannot be continued with "
                f"{nodes}: affinity needs the same number of nodes"
            )
        settled = self.order.settle(state, self._readers(state, consumer))
        if settled.nodes != nodes:
            settled = replace(settled, nodes=nodes)
        return settled if settled.run is None else settled.for_division(self.division(settled, consumer))

    def _readers(self, state: EpochState, consumer: Consumer) -> Readers:
        """Describe the readers of an epoch, as far as its order may depend on them."""
        part = self.part
        drops = self._even(consumer) == "drop"
        return Readers(
            ranks=consumer.world_size,
            stride=consumer.stride,
            batch=self._global_batch(consumer),
            shortest=part.shortest,
            fewest_blocks=part.fewest_blocks,
            drop_some=drops and (part.long_nodes > 0 or self.length(state, consumer) % consumer.num_receivers != 0),
            read_runs=self.options.whole_blocks and self.options.reads_runs(self.order, 1),
            are_objects=self.fields.are_objects,
            name_lanes=self.options.lanes is not None,
            suits=partial(self.planner.suits_ranks, self.order, part, consumer.world_size),
        )

    def _global_batch(self, consumer: Consumer) -> int:
        """Return the samples of a batch of all ranks."""
        return (self.options.batch_size or 1) * consumer.world_size

    def length(self, state: EpochState, consumer: Consumer) -> int:
        """Return the positions of an epoch order; with several nodes, of the longest part."""
        return self.part.epoch_length(state, self._global_batch(consumer))

    def order_of(self, state: EpochState) -> Order:
        """Return the order of a settled state's epoch; one state always has the same object."""
        return self._orders.get(state.key, lambda: self.order.at(state))

    def division(self, state: EpochState, consumer: Consumer) -> Division | RunDivision:
        """Return the division of the positions that are left, in batches; in samples, without a batch size."""
        length, even = self.length(state, consumer) - state.progress.used, self._even(consumer)
        long_nodes = self.part.long_nodes if length else 0
        size = self.options.batch_size
        if even == "drop":
            length -= length % consumer.split_over
        drop_last = self.options.drop_last and size is not None
        ranks, workers = consumer.world_size, consumer.num_workers
        if self.options.whole_blocks and self.options.reads_runs(self.order, state.lanes or 1):
            # If earlier runs left gaps all over the epoch order, the rest of a block is no longer a unit.
            block_rows = 1 if state.progress.cuts else self.order.block_rows
            return RunDivision(
                length, ranks, workers, size or 1, drop_last=drop_last, block_rows=block_rows, turn=state.epoch
            )
        return Division(
            length,
            ranks,
            workers,
            size or 1,
            even=even,
            drop_last=drop_last,
            long_nodes=long_nodes,
            whole_batches=self.order.deals_batches(workers, state),
            repeats_last=consumer.is_gathered,
        )

    def plan(self, state: EpochState, consumer: Consumer, resources: Resources | None = None) -> EpochPlan:
        """Return the plan of `reading`, with all groups."""
        return self.reading(state, consumer, resources).listed()

    def reading(
        self,
        state: EpochState,
        consumer: Consumer,
        resources: Resources | None = None,
        division: Division | RunDivision | None = None,
    ) -> ReadPlan:
        """Return the plan of a consumer in a pass that begins in a state that was settled for it.

        `resources` are the consumer's. None: as many as it wants, for a plan that is looked at and not read. `division`
        is that of the pass, where it is known.
        """
        division = division or self.division(state, consumer)
        consumer, delivered = division.continued(consumer, state.batches)
        delivered += 0 if state.worker is None else state.worker.batches
        share = division.share(consumer, delivered * division.batch_size)
        order, left = self.order_of(state), division.length_on(consumer.node)
        most_steps = None if resources is None else resources.most_steps
        return unfold(order, state.epoch, share.portion(state.progress, left, order.length, most_steps))

    def resources(self, order: Order, rank_info: RankInfo, consumer: Consumer) -> Resources:
        """Return the memory and threads that a consumer of an epoch order may use.

        Raises
        ------
        MemoryBudgetError
            If its share of the budget has no room for the batches that must be open at once.
        """
        key = id(order), rank_info, consumer, usable_cores()
        return self._resources.get(key, lambda: (order, self.planner.resources(order, rank_info, consumer)))[1]

    def check_memory(self, rank_info: RankInfo, num_workers: int, state: EpochState) -> None:
        """Raise MemoryBudgetError if the budget is too small for a reader in each of `num_workers` workers a rank."""
        consumer = rank_info.consumer(num_workers=max(1, num_workers))
        self.resources(self.order_of(self.settle(state, consumer)), rank_info, consumer)

    def _even(self, consumer: Consumer) -> Even:
        return self.options.even or ("drop" if consumer.num_receivers * self.part.num_nodes > 1 else "off")

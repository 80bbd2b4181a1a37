"""Advise, for a shuffle that hardly shuffles, options that would mix it: a warning, and a row of `explain()`.

Invariant: each option that is named was tried: the figures beside it are those of the dataset that has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from zarrfeed.base.errors import ConfigError, MemoryBudgetError, ZarrfeedError
from zarrfeed.base.redaction import without_secrets
from zarrfeed.metadata.description.alternatives import Alternatives
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import GOOD_SHARE, NEIGHBOURS, ShuffleMeasure, measure_shuffle
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.report.field_reads import reads_of_fields, sharing_memory

#: Nobody is warned of fewer samples: epochs are so short that they differ however samples are mixed.
_FEW_SAMPLES = 64 * NEIGHBOURS
#: Factors of the present budget that are tried.
_FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
_MIB, _GIB = 1 << 20, 1 << 30
#: Decodes of a chunk that are told, and the most that an option may cost which is advised.
_TOLD_DECODES, _MOST_DECODES = 1.2, 8.0
#: Decodes are counted in plans of so many blocks at most, as it takes time for each.
_MOST_BLOCKS = 1 << 16
#: Blocks of an order that is tried, at most, as their rows are listed.
_MOST_TRIED = 1 << 20

#: Returns the schedules of a dataset with other options; None: it has no options.
FindAlternatives = Callable[[], Alternatives | None]


def no_alternatives() -> None:
    """Return None: there are no other options."""


@dataclass(frozen=True)
class Remedy:
    """An option with which the shuffle is not poor any more.

    Attributes
    ----------
    option
        The option as a user names it.
    measure
        The quality of the shuffle with it.
    decodes
        Number of times that a chunk is decoded in an epoch with it.
    """

    option: str
    measure: ShuffleMeasure
    decodes: float = 1.0

    @property
    def figures(self) -> str:
        """The quality of the shuffle, and the decodes where they are many."""
        again = f"; each chunk decoded {self.decodes:.1f} times" if self.decodes > _TOLD_DECODES else ""
        return f"({self.measure.share:.0%}, {self.measure.correlation:.2f}{again})"


def page_of(remedies: Sequence[Remedy]) -> str:
    """Return options in words, with their figures; "" without any."""
    told = [f"{one.option} would do {one.figures}" for one in remedies[:1]]
    told += [f"so would {one.option} {one.figures}" for one in remedies[1:]]
    return ", and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)


def find_remedies(schedule: Schedule, rank_info: RankInfo, find: FindAlternatives) -> list[Remedy]:
    """Return options with which a schedule's order is mixed well enough, each by itself.

    These are the least memory, the fewest lanes, the longest blocks, and the longest chunks that would do; lanes with
    more memory where neither does alone.
    """
    alternatives = None if schedule.options.whole_blocks else find()
    return [] if alternatives is None else _Search(schedule, rank_info, alternatives).remedies()


@dataclass(frozen=True)
class _Search:
    """The search for options that mix an order.

    Attributes
    ----------
    schedule
        The schedule of the order.
    rank_info
        The rank that reads it.
    alternatives
        The schedules with other options.
    wants_good
        True if the order is to draw from as many stretches as a good one; False: it is not to be poor.
    """

    schedule: Schedule
    rank_info: RankInfo
    alternatives: Alternatives
    wants_good: bool = False

    def remedies(self) -> list[Remedy]:
        found = [*self.memory(), *self._lanes()]
        return [*(found or self._memory_and_lanes()), *self._block(), *self._chunks()]

    @property
    def _budgets(self) -> list[int]:
        return [-(-int(self.schedule.options.order_budget * factor) // _MIB) * _MIB for factor in _FACTORS]

    @property
    def _wider(self) -> list[int]:
        """Numbers of lanes that cut more blocks in two."""
        return self.schedule.order.wider_lanes(LANE_COUNTS)

    @property
    def _named_block(self) -> Any:
        """The block that has to be named beside lanes, without which blocks are whole chunks. None: they are."""
        slabs, named = self.schedule.order.slabs, self.alternatives.planning.mixing.block
        return None if slabs is None and named == "chunk" else named if slabs is None else slabs.rows

    def memory(self) -> Iterator[Remedy]:
        found = self._least(self._budgets, lambda budget: self.alternatives.with_options(budget=budget))
        if found is not None:
            yield self._remedy(_memory_of(found), self.alternatives.with_options(budget=found))

    def _lanes(self) -> Iterator[Remedy]:
        for lanes in self._wider:
            made = self._made(partial(self._with_lanes, lanes))
            if made is None:  # there is no memory for more of them
                return
            if self._is_mixed(made):
                yield self._remedy(self._mixing(lanes), made)
                return

    def _memory_and_lanes(self) -> Iterator[Remedy]:
        most = self._budgets[-1]
        lanes = self._least(self._wider, lambda lanes: self._with_lanes(lanes, most))
        if lanes is not None:
            budget = self._least(self._budgets, lambda budget: self._with_lanes(lanes, budget))
            assert budget is not None
            yield self._remedy(f"{_memory_of(budget)} with {self._mixing(lanes)}", self._with_lanes(lanes, budget))

    def _block(self) -> Iterator[Remedy]:
        """Find slabs, where the user named other blocks; else slabs that decode more than those that were chosen."""
        rows = self.schedule.order.full_rows
        chosen = self.alternatives.planning.mixing.block in (None, "auto")
        blocks: list[Any] = self._shorter(rows) if chosen else ["auto"]
        block = self._least(blocks, lambda block: self.alternatives.with_options(block=block))
        if block is not None:
            made = self._remedy(f'mixing={{"block": {_quoted(block)}}}', self.alternatives.with_options(block=block))
            if made.decodes <= _MOST_DECODES:
                yield made

    def _chunks(self) -> Iterator[Remedy]:
        rows = self.schedule.part.whole.block_rows
        found = self._least(self._shorter(rows), self.alternatives.with_chunks)
        if found is not None:
            made = self.alternatives.with_chunks(found)
            assert made is not None
            yield self._remedy(f"chunks of `zarrfeed pack --sample-chunk {found}`", made)

    def _shorter(self, rows: int) -> list[int]:
        """Return halves of the rows of a block, down to the shortest whose blocks are quickly listed."""
        least = -(-self.schedule.order.num_samples // _MOST_TRIED)
        return [rows >> halves for halves in range(1, rows.bit_length()) if rows >> halves >= least]

    def _with_lanes(self, lanes: int, budget: int | None = None) -> Schedule:
        return self.alternatives.with_options(budget=budget, lanes=lanes, block=self._named_block)

    def _mixing(self, lanes: int) -> str:
        block = self._named_block
        return f'mixing={{"lanes": {lanes}' + ("" if block is None else f', "block": {_quoted(block)}') + "}"

    def _least(self, numbers: Sequence[Any], make: Callable[[Any], Schedule | None]) -> Any:
        """Return the first option with which, as with all behind it, the order is mixed well; None if none does."""

        def does(number: Any) -> bool:
            made = self._made(lambda: make(number))
            return made is not None and self._is_mixed(made)

        if not numbers or not does(numbers[-1]):
            return None
        low, high = 0, len(numbers) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if does(numbers[middle]) else (middle + 1, high)
        return numbers[high]

    def _made(self, make: Callable[[], Schedule | None]) -> Schedule | None:
        """Return a schedule that memory has room for; None if there is no such one."""
        with suppress(ZarrfeedError):
            made = make()
            if made is not None:
                made.check_memory(self.rank_info, 0, EpochState(0))
                return made
        return None

    def _is_mixed(self, made: Schedule) -> bool:
        measure = _measured(made, self.rank_info)
        return measure is not None and (_mixes_well(measure) if self.wants_good else not measure.is_poor)

    def _remedy(self, option: str, made: Schedule) -> Remedy:
        measure = _measured(made, self.rank_info)
        assert measure is not None
        return Remedy(option, measure, _decodes(made, self.rank_info))


def _mixes_well(measure: ShuffleMeasure) -> bool:
    return measure.share >= GOOD_SHARE and not measure.is_poor


def _memory_of(budget: int) -> str:
    whole = budget % _GIB == 0
    return f'memory_budget="{budget // _GIB}GiB"' if whole else f'memory_budget="{-(-budget // _MIB)}MiB"'


def _quoted(block: str | int) -> str:
    return f'"{block}"' if isinstance(block, str) else str(block)


def _decodes(schedule: Schedule, rank_info: RankInfo) -> float:
    """Return the decodes of a chunk in an epoch, of the array whose chunks are decoded most often; 1.0: not counted."""
    consumer = rank_info.consumer()
    state = schedule.settle(EpochState(0), consumer)
    order = schedule.order_of(state)
    if order.num_blocks > _MOST_BLOCKS:
        return 1.0
    resources = schedule.resources(order, rank_info, consumer)
    plan = schedule.plan(state, consumer, resources)
    sharing = sharing_memory(resources.memory, schedule.engine_batch_size, resources.max_open_batches)
    reads = reads_of_fields(schedule.fields.fields, plan, sharing, None)
    return max(one.amplification(plan.stride) for one in reads.values())


def warn_of_shuffle(schedule: Schedule, rank_info: RankInfo, find: FindAlternatives) -> None:
    """Warn, on rank 0, if an order hardly shuffles and options would mix it better.

    Nobody is warned of epochs of few samples, or of lanes and `mix` that he named.
    """
    order, chosen = schedule.order, schedule.options.lanes is None and schedule.options.mix is None
    if rank_info.rank != 0 or not chosen or not order.shuffled_orders:
        return
    if schedule.fields.are_objects or order.length < _FEW_SAMPLES:
        return
    found = _measured(schedule, rank_info)
    remedy = remedy_of(schedule, rank_info, found, find)
    if not remedy:
        return
    warnings.warn(  # of this line, so that it is shown once
        without_secrets(f"this order hardly shuffles: {found}. {remedy}; docs/tasks/shuffling.md says more"),
        stacklevel=1,
    )


def _measured(schedule: Schedule, rank_info: RankInfo) -> ShuffleMeasure | None:
    """Measure the shuffle of the first epoch's order; None if no such order fits the memory."""
    consumer = rank_info.consumer()
    try:
        order = schedule.order_of(schedule.settle(EpochState(0), consumer))
        schedule.resources(order, rank_info, consumer)
    except (ConfigError, MemoryBudgetError):
        return None
    return measure_shuffle(order)


def remedy_of(schedule: Schedule, rank_info: RankInfo, measure: ShuffleMeasure | None, find: FindAlternatives) -> str:
    """Return options that would mix an order that is poorly shuffled, in words; "" for other orders."""
    if measure is None or not measure.is_poor or schedule.fields.are_objects:
        return ""
    return page_of(find_remedies(schedule, rank_info, find))


def memory_of_good(
    schedule: Schedule, rank_info: RankInfo, measure: ShuffleMeasure | None, find: FindAlternatives
) -> str:
    """Return the memory that would mix an order well, in words, where the user named neither memory nor lanes.

    Orders are chosen for 1 GiB then, however much the machine has. "" if they are mixed well, or no memory would do.
    """
    options = schedule.options
    is_chosen = options.budget is None and options.lanes is None and options.mix is None
    if measure is None or _mixes_well(measure) or not is_chosen or options.whole_blocks or schedule.fields.are_objects:
        return ""
    alternatives = find()
    if alternatives is None:
        return ""
    return page_of(list(_Search(schedule, rank_info, alternatives, wants_good=True).memory()))

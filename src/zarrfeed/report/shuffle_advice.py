"""Advise, for a shuffle that hardly shuffles, options that would mix it: a warning, and a row of `explain()`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from zarrfeed.base.errors import ConfigError, MemoryBudgetError
from zarrfeed.base.redaction import without_secrets
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import NEIGHBOURS, ShuffleMeasure, measure_shuffle
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo

#: Nobody is warned of fewer samples: epochs are so short that they differ however samples are mixed.
_FEW_SAMPLES = 64 * NEIGHBOURS
#: Factors of the present budget that are tried.
_FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class ShuffleRemedy:
    """Options with which the shuffle is not poor any more.

    Attributes
    ----------
    budget
        Bytes for all readers of a machine.
    lanes
        The number of lanes, for `mixing`. None: the number that the planner chooses.
    measure
        The quality of the shuffle with these options.
    shorter
        Samples of a chunk with which the shuffle would be good in today's memory, and its quality. None: no length is
        known.
    """

    budget: int
    lanes: int | None
    measure: ShuffleMeasure
    shorter: tuple[int, ShuffleMeasure] | None = None

    @property
    def page(self) -> str:
        """The options that would do, with the figures."""
        packed = ""
        if self.shorter is not None:
            rows, measure = self.shorter
            packed = f", and so would chunks of `zarrfeed pack --sample-chunk {rows}` {_figures(measure)}"
        return f"{self} would do {_figures(self.measure)}{packed}"

    def __str__(self) -> str:
        whole = self.budget % _GIB == 0
        size = f"{self.budget // _GIB}GiB" if whole else f"{-(-self.budget // _MIB)}MiB"
        lanes = "" if self.lanes is None else f' with mixing={{"lanes": {self.lanes}}}'
        return f'memory_budget="{size}"{lanes}'


def _figures(measure: ShuffleMeasure) -> str:
    return f"({measure.share:.0%}, {measure.correlation:.2f})"


def find_remedy(schedule: Schedule, rank_info: RankInfo) -> ShuffleRemedy | None:
    """Return the least memory that mixes a schedule's order well enough, or else lanes, with the memory for these.

    Beside these, the longest chunks that would do in the memory that there is. None where neither memory nor lanes do:
    there are no more blocks to mix.
    """
    found = _find_options(schedule, rank_info)
    return None if found is None else replace(found, shorter=_find_shorter(schedule, rank_info))


def _find_options(schedule: Schedule, rank_info: RankInfo) -> ShuffleRemedy | None:
    now, order = schedule.options.order_budget, schedule.part.whole
    budgets = [-(-int(now * factor) // _MIB) * _MIB for factor in _FACTORS]
    found = _least(budgets, lambda budget: _with(schedule, order, budget=budget), rank_info)
    if found is not None:
        return ShuffleRemedy(found[0], None, found[1])
    # each lane more cuts one more block in two
    wider = schedule.order.wider_lanes(LANE_COUNTS)
    found = _least(wider, lambda lanes: _with(schedule, order, budget=budgets[-1], lanes=lanes), rank_info)
    if found is None:
        return None
    lanes = found[0]
    found = _least([now, *budgets], lambda budget: _with(schedule, order, budget=budget, lanes=lanes), rank_info)
    return None if found is None else ShuffleRemedy(found[0], lanes, found[1])


def _find_shorter(schedule: Schedule, rank_info: RankInfo) -> tuple[int, ShuffleMeasure] | None:
    """Return the most samples of a chunk that mix the order well enough: today's number, halved again and again."""
    order = schedule.part.whole
    if order.selection is not None or order.orders != (order,) or schedule.planner.known.share_chunks:
        return None  # chunks of windows, stores and patches would have to be described anew
    shorter = [order.block_rows >> halves for halves in range(1, order.block_rows.bit_length())]
    return _least(shorter, lambda rows: _with(schedule, replace(order, block_rows=rows, slabs=None)), rank_info)


def _least(
    numbers: Sequence[int], make: Callable[[int], Schedule], rank_info: RankInfo
) -> tuple[int, ShuffleMeasure] | None:
    """Return the first number with which, as with all behind it, the schedule shuffles well; None if none does."""

    def tried(number: int) -> tuple[int, ShuffleMeasure] | None:
        measure = _measured(make(number), rank_info)
        return None if measure is None or measure.is_poor else (number, measure)

    found = tried(numbers[-1]) if numbers else None
    low, high = 0, len(numbers) - 1
    while found is not None and low < high:
        middle = (low + high) // 2
        better = tried(numbers[middle])
        low, high = (low, middle) if better is not None else (middle + 1, high)
        found = better or found
    return found


def _with(schedule: Schedule, order: Order, **options: int) -> Schedule:
    """Return the schedule of another order of the samples, with some options; lanes that these do not name suit it."""
    made = replace(schedule, dealt=None).with_options(**{"lanes": None, **options})
    return replace(made, order=made.planner.suited(order.unmixed(), made.options.lanes, None))


def warn_of_shuffle(schedule: Schedule, rank_info: RankInfo) -> None:
    """Warn, on rank 0, if an order hardly shuffles and options would mix it better.

    Nobody is warned of epochs of few samples, or of lanes and `mix` that he named.
    """
    order, chosen = schedule.order, schedule.options.lanes is None and schedule.options.mix is None
    if rank_info.rank != 0 or not chosen or not order.shuffled_orders:
        return
    if schedule.fields.are_objects or order.length < _FEW_SAMPLES:
        return
    found = _measured(schedule, rank_info)
    if found is None or not found.is_poor:
        return
    remedy = find_remedy(schedule, rank_info)
    if remedy is None:
        return
    warnings.warn(  # of this line, so that it is shown once
        without_secrets(f"this order hardly shuffles: {found}. {remedy.page}; docs/tasks/shuffling.md says more"),
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


def remedy_of(schedule: Schedule, rank_info: RankInfo, measure: ShuffleMeasure | None) -> ShuffleRemedy | None:
    """Return options that would mix an order that is poorly shuffled; None for other orders."""
    if measure is None or not measure.is_poor or schedule.fields.are_objects:
        return None
    return find_remedy(schedule, rank_info)

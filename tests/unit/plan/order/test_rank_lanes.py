"""Beyond 8 ranks the ranks divide the lanes, so that one rank decodes each chunk."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed import ZarrIterableDataset, mix
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.mixture.source_lanes import SourceState
from zarrfeed.plan.order.order import make_order
from zarrfeed.plan.order.rank_lanes import lanes_for_ranks, nearest_multiple, ranks_of_chunk
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.spec.fields.field import FieldSet, IndexField

MOST_RANKS = 1024


def schedule_of(
    samples: int, rows: int, *, lanes: int | None = None, budget: int | None = None, batch_size: int = 16
) -> Schedule:
    order = make_order(samples, rows, None, shuffle=True, seed=1, lanes=lanes, mix=None)
    fields = FieldSet((IndexField(samples),), (None,), None, rows)
    return Schedule.make(fields, order, ScheduleOptions(lanes=lanes, batch_size=batch_size, budget=budget))


def settled_lanes(schedule: Schedule, ranks: int, num_workers: int = 1) -> int:
    states = {schedule.settle(EpochState(0), RankInfo(r, ranks).consumer(0, num_workers)) for r in {0, ranks - 1}}
    (state,) = states  # all ranks find the same
    assert state.lanes is not None
    return state.lanes


@pytest.mark.parametrize("suits", [True, False])
def test_the_ranks_divide_the_lanes_in_every_world(suits: bool) -> None:
    for lanes in (1, 2, 8, 12, 64, 96, 360, 512, 720):
        for ranks in range(1, MOST_RANKS + 1):
            found = lanes_for_ranks(lanes, ranks, lambda _: suits)
            if ranks <= 8 or lanes % ranks == 0:
                assert found == lanes
                continue
            assert ranks_of_chunk(ranks, found) == 1
            assert found == ranks or lanes / 2 < found <= (2 * lanes if suits else lanes)
            assert lanes_for_ranks(lanes, ranks) <= max(lanes, ranks)


@given(st.integers(1, MOST_RANKS), st.integers(1, 8), st.sampled_from([(1, 40_000), (7, 5000), (64, 400)]))
@examples(60)
def test_ranks_share_an_epoch_exactly_and_each_chunk_is_read_once_but_for_cuts(
    ranks: int, num_workers: int, layout: tuple[int, int]
) -> None:
    rows, blocks = layout
    schedule = schedule_of(rows * blocks - rows // 2, rows)
    state = schedule.settle(EpochState(3), RankInfo(0, ranks).consumer(0, num_workers))
    order, length = schedule.order_of(state), schedule.order.length
    assert (
        order.lanes == settled_lanes(schedule, ranks, num_workers) == settled_lanes(schedule, ranks)
    )  # for any workers
    if ranks <= 8:
        assert order.lanes == schedule.order.lanes
    used, reads = 0, 0
    asked = range(0, ranks, max(1, ranks // 12))
    for rank in asked:
        plan = schedule.plan(state, RankInfo(rank, ranks).consumer())
        used += plan.steps
        reads += len(plan.groups.held_index)
        assert plan.steps == length // ranks
    assert len(asked) * (length // ranks) == used
    cuts = math.ceil(order.lanes / ranks) if ranks > 8 else blocks  # one more for each end of a lane
    assert reads <= len(asked) * (math.ceil(blocks / ranks) + cuts + 1)


@pytest.mark.parametrize("ranks", [11, 32, 100])
def test_all_ranks_together_have_each_sample_once_and_each_block_in_one_rank_but_for_cuts(ranks: int) -> None:
    rows, blocks = 6, 8000
    schedule = schedule_of(rows * blocks, rows).with_options(even="off")
    of_rank = np.zeros((blocks,), dtype=int)
    taken = np.zeros(rows * blocks, dtype=int)
    for rank in range(ranks):
        consumer = RankInfo(rank, ranks).consumer()
        plan = schedule.plan(schedule.settle(EpochState(0), consumer), consumer)
        of_rank += np.bincount(np.unique(plan.segment_block), minlength=blocks)
        taken[plan.strides.first + plan.stride * np.arange(plan.steps)] += 1
    assert (taken == 1).all()
    lanes = settled_lanes(schedule, ranks)
    assert lanes != schedule.order.lanes
    assert of_rank.min() == 1
    assert of_rank.sum() <= blocks + lanes


def test_lanes_that_the_user_named_stay_and_those_of_a_state_do() -> None:
    named, chosen = schedule_of(40_000, 1, lanes=96), schedule_of(40_000, 1)
    assert [settled_lanes(named, ranks) for ranks in (8, 64, 96, 100)] == [96, 96, 96, 100]
    state = chosen.settle(EpochState(0), RankInfo(0, 8).consumer())
    assert chosen.settle(state, RankInfo(0, 64).consumer()).lanes == state.lanes == 720
    assert settled_lanes(chosen, 64) == 768


def test_a_small_budget_rounds_down_and_needs_no_more_than_before() -> None:
    fewer = 0
    for kib in range(4, 120, 3):
        schedule = schedule_of(400_000, 64, budget=kib << 10)
        few = schedule.order.lanes
        for ranks in (9, 11, 20, 50):
            lanes = settled_lanes(schedule, ranks)
            assert lanes == few or lanes % ranks == 0
            fewer += lanes < few
            rank_info = RankInfo(0, ranks, ranks)
            least = [
                schedule.planner.memory(replace(schedule.order, lanes=one), rank_info).least_budget
                for one in (few, lanes)
            ]
            assert lanes == ranks or least[1] <= max(least[0], (kib << 10) // ranks)
    assert fewer


def test_sources_of_a_mixture_have_lanes_that_the_ranks_divide_where_ranks_have_whole_columns() -> None:
    data = mix([np.arange(30_000), np.arange(8000)], weights=[3, 1])
    schedule = ZarrIterableDataset(data, batch_size=16, shuffle=True).session.schedule
    order = schedule.order
    assert isinstance(order, MixedOrder)
    for ranks in (8, 9, 12, 24, 48):
        sources = SourceState.of(schedule.settle(EpochState(0), RankInfo(0, ranks).consumer())).sources
        for one, few in zip(sources, order.sources, strict=True):
            assert (one.mix, one.strip) == (few.mix, few.strip)
            if ranks in (12, 24):
                assert one.lanes % ranks == 0
            elif ranks <= few.lanes:
                assert one.lanes == few.lanes


def test_the_nearest_multiple_is_near() -> None:
    for lanes in range(1, 200):
        for ranks in range(1, 70):
            found = nearest_multiple(lanes, ranks)
            assert found % ranks == 0 < found
            assert abs(found - lanes) <= ranks / 2 or found == ranks

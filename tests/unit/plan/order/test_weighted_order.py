"""`WeightedOrder`: one order an epoch, that of the samples that the epoch draws; what states say and check of it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.budget.mixing import MixingLimits
from zarrfeed.plan.order.order import Order, make_order
from zarrfeed.plan.order.order_state import OrderState, Readers
from zarrfeed.plan.order.unfolding import unfold
from zarrfeed.plan.order.weighted_order import WeightedOrder
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Selection

WEIGHTS = np.r_[np.full(400, 1.0), np.full(100, 0.0), np.full(40, 30.0)]
READERS = Readers(ranks=1, stride=1, batch=8, shortest=900, fewest_blocks=1)


def make(weights: Any = WEIGHTS, n: int = 900, *, shuffle: bool = True, seed: int = 3, **order: Any) -> WeightedOrder:
    plain = make_order(len(weights), 20, None, shuffle=shuffle, seed=seed, **{"lanes": 4, "mix": 2} | order)
    return WeightedOrder.of(plain, ExpectedCounts.of(np.asarray(weights), n))


def listed(order: Order, epoch: int) -> list[int]:
    samples: list[int] = core.sample_order(unfold(order, epoch).to_core()).tolist()
    assert samples == core.sample_order(order.plan(epoch).to_core()).tolist()
    return samples


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_has_its_own_samples_and_all_have_one_length(shuffle: bool) -> None:
    order = make(shuffle=shuffle)
    seen = []
    for epoch in range(4):
        of_epoch = order.of_epoch(epoch)
        samples = listed(of_epoch, epoch)
        counts = np.bincount(samples, minlength=len(WEIGHTS))
        assert len(samples) == of_epoch.length == order.length == 900
        assert not counts[WEIGHTS == 0].any()
        assert counts[counts > 0].tolist() == of_epoch.blocks.counts(epoch)[of_epoch.blocks.counts(epoch) > 0].tolist()
        assert (np.abs(counts - 900 * WEIGHTS / WEIGHTS.sum()) < 1).all()
        assert shuffle or samples == sorted(samples)
        seen.append(tuple(counts.tolist()))
    assert len(set(seen)) == 4


def test_samples_depend_on_weights_seed_and_epoch_and_not_on_lanes_or_mix() -> None:
    first = sorted(listed(make(), 0))
    assert sorted(listed(make(lanes=7, mix=1), 0)) == first
    assert sorted(listed(make(seed=4), 0)) != first
    assert sorted(listed(make(WEIGHTS + 1e-3), 0)) != first


def test_samples_without_a_weight_are_not_selected_and_their_blocks_are_never_read() -> None:
    order = make()
    assert order.num_selected == 440
    assert not np.isin(order.reads.blocks, [20, 21, 22, 23, 24]).any()
    plain = make_order(540, 20, Selection.of_range(range(0, 540, 3), 20), shuffle=True, seed=3, lanes=4, mix=1)
    some = WeightedOrder.of(plain, ExpectedCounts.of(WEIGHTS[::3], 90))
    assert some.selection is not None
    assert some.selection.listed().tolist() == [one for one in range(0, 540, 3) if WEIGHTS[one]]


def test_a_frequent_sample_comes_in_several_stretches_of_an_epoch() -> None:
    weights = np.ones(4000)
    weights[::500] = 40.0
    plain = make_order(4000, 20, None, shuffle=True, seed=3, lanes=4, mix=1)
    order = WeightedOrder.of(plain, ExpectedCounts.of(weights, 4000))
    samples = np.array(listed(order, 0))
    visits = np.bincount(order.reads.blocks)[::25]
    assert visits.min() >= 5
    for sample in range(0, 4000, 500):
        stretches = np.unique(np.flatnonzero(samples == sample) // 400)
        assert len(stretches) >= 3


def test_states_are_settled_by_the_blocks_of_their_epoch() -> None:
    order = make(np.r_[np.ones(480), 0.01 * np.ones(60)], 30, shuffle=False)
    counts = {order.of_epoch(epoch).num_blocks for epoch in range(40)}
    assert len(counts) > 1
    for epoch in range(40):
        of_epoch = order.of_epoch(epoch)
        state = order.settle(OrderState(epoch), replace(READERS, shortest=30, drop_some=True))
        assert state.first_block == epoch % of_epoch.num_blocks
        order.check_state(state, shortest=30, fewest_blocks=1)
        settled = order.at(state)
        assert isinstance(settled, WeightedOrder)
        assert settled.epoch == epoch
        assert len(listed(settled, epoch)) == 30
        with pytest.raises(ValueError, match="first_block"):
            order.check_state(replace(state, first_block=of_epoch.num_blocks), shortest=30, fewest_blocks=100)
    assert order.settle(state, READERS) is state


def test_an_epoch_is_read_by_its_own_order() -> None:
    order = make()
    with pytest.raises(AssertionError):
        order.plan(1).to_core()
    assert order.of_epoch(0) is order
    assert order.typical_epoch(7) == 7


def test_strips_are_no_longer_than_the_epoch_has_blocks() -> None:
    order = replace(make(np.ones(400), 2), strip=10)
    assert order.of_epoch(1).strip <= order.of_epoch(1).num_blocks


def test_the_description_names_the_weights_and_the_length() -> None:
    described = [make().describe(), make(n=901).describe(), make(WEIGHTS * 2).describe(), make(1 + WEIGHTS).describe()]
    assert described[0]["weights"] != described[1]["weights"]
    assert described[0] == described[2] != described[3]
    assert "weights" not in make_order(10, 2, None, shuffle=True, seed=0, lanes=1, mix=1).describe()


def test_orders_are_pickled_without_what_they_drew() -> None:
    order = make().of_epoch(5)
    copy = pickle.loads(pickle.dumps(order))
    assert len(pickle.dumps(copy)) < 8 * 540 + 3000
    assert listed(copy, 5) == listed(order, 5)


def test_orders_of_other_seeds_and_blocks_that_are_copied_from_one_draw_anew() -> None:
    order = make(np.ones(540), 400)
    for changes in ({"seed": 9}, {"block_rows": 7}, {"shuffle": False}):
        changed = replace(order, **changes)
        fresh = WeightedOrder.of(
            make_order(540, changed.block_rows, None, shuffle=changed.shuffle, seed=changed.seed, lanes=4, mix=2),
            order.expected,
        )
        assert changed.reads.listed().tolist() == fresh.reads.listed().tolist()
    assert order.reads.listed().tolist() == make(np.ones(540), 400).reads.listed().tolist()


def test_nodes_with_parts_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="not for weighted samples"):
        make().check_dealt()


@dataclass(frozen=True)
class Memory:
    """Memory for so many samples, where nothing else is to be chosen: a `Room`."""

    samples: int

    def overlap(self, order: Order) -> None:
        del order

    def limits(self, order: Order, overlap: Any = None) -> MixingLimits:
        del order, overlap
        return MixingLimits(8, self.samples // 8)


def test_blocks_have_few_visits_if_memory_opens_many_of_them() -> None:
    weights = np.ones(20_000)
    weights[::40] = 40.0
    plain = make_order(20_000, 10, None, shuffle=True, seed=3, lanes=1, mix=1)
    order = WeightedOrder.of(plain, ExpectedCounts.of(weights, 20_000))
    of_all, visits = {}, {}
    for samples in (4000, 400_000):
        made = order.suit(Memory(samples), None, None)  # type: ignore[arg-type]
        assert isinstance(made, WeightedOrder)
        visits[samples], of_all[samples] = made.num_blocks / 2000, made
    assert visits[4000] > 1.5
    assert visits[400_000] <= 1.1
    assert of_all[4000].repeats is None
    assert of_all[400_000].lanes * of_all[400_000].mix >= 256
    state = of_all[400_000].settle(OrderState(0), READERS)
    assert of_all[4000].at(state) == of_all[400_000].at(state), "the visits are those of the state"
    earlier = replace(state, own=None)  # as states were without them
    assert of_all[400_000].at(earlier) == of_all[4000].at(earlier)
    assert sorted(listed(of_all[4000], 0)) == sorted(listed(of_all[400_000], 0)), "visits change no counts"
    assert of_all[400_000].unmixed() == replace(order, lanes=1, mix=1)
    few = WeightedOrder.of(plain, ExpectedCounts.of(np.r_[np.ones(19_000), np.full(1000, 0.5)], 20_000))
    suited = few.suit(Memory(400_000), None, None)  # type: ignore[arg-type]
    assert isinstance(suited, WeightedOrder)
    assert suited.repeats is None, "where no sample comes often, each block has one visit anyway"

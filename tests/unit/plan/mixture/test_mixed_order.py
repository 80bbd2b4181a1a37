"""`MixedOrder` against its definition: step by step, from the mixture and from the orders of the sources alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.support.examples import tries
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.mixture.source_lanes import SourceLanes
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.samples.selection import Int64, Selection


def make(
    lengths: list[int],
    weights: tuple[int, ...],
    *,
    sources: list[tuple[int, int]] | None = None,
    block_rows: int = 5,
    shuffle: bool = True,
    seed: int = 3,
    unit: int = 1,
    chosen: Int64 | None = None,
    **blend: object,
) -> MixedOrder:
    """Return the order of sources of these lengths, with (lanes, mix) for each."""
    first = np.concatenate(([0], np.cumsum(lengths)))
    num_samples = int(first[-1])
    edges = np.unique(np.concatenate([np.arange(b, e, block_rows) for b, e in pairwise(first.tolist())]))
    edges = np.append(edges, num_samples)
    samples = np.arange(num_samples) if chosen is None else chosen
    selection = Selection.of_samples(samples, block_rows, edges)
    plain = Order(num_samples, block_rows, shuffle=shuffle, seed=seed, lanes=1, selection=selection, edges=edges)
    order = MixedOrder.of(plain, Blend(tuple(first.tolist()), weights, **blend), lanes=None, mix=None)  # type: ignore[arg-type]
    if unit != 1:
        order = order.with_unit(unit)
    wanted = sources or [(3, 1)] * len(weights)
    return order.with_sources([SourceLanes(lanes, mix, 1) for lanes, mix in wanted])


def definition(order: MixedOrder, epoch: int) -> Int64:
    """Return the samples of an epoch, one step after another."""
    steps = order.begin_of(epoch) + np.arange(order.length)
    source, position = order.mixture.at(steps // order.unit)
    position = position * order.unit + steps % order.unit
    orders: dict[tuple[int, int], Int64] = {}
    made = []
    for s, p in zip(source.tolist(), position.tolist(), strict=True):
        one, in_pass = divmod(p, order.lengths[s])
        if (s, one) not in orders:
            orders[s, one] = core.sample_order(order.orders[s].plan(one).to_core())
        made.append(orders[s, one][in_pass])
    return np.array(made)


def listed(plan: EpochPlan) -> Int64:
    found: Int64 = core.sample_order(plan.to_core())
    return found


CASES = [
    make([70, 40, 23], (7, 2, 1)),
    make([70, 40, 23], (7, 2, 1), stop="all"),
    make([300, 4], (1, 1), stop="longest", sources=[(8, 2), (1, 1)]),
    make([50, 60, 70, 80], (1, 1, 1, 1), sources=[(24, 1), (6, 3), (1, 4), (5, 1)], stop=777),
    make([1, 2, 3], (5, 1, 1), stop=200, sources=[(1, 1), (2, 1), (3, 1)]),
    make([64, 33], (3, 1), shuffle=False, sources=[(1, 1), (1, 1)], stop=250),
    make([90, 50], (2, 1), changes=((100, (1, 3)), (400, (0, 1))), stop=300),
    make([90, 50, 40], (2, 1, 0), changes=((77, (1, 3, 2)),), stop=130),
    make([40], (1,), stop="all", sources=[(4, 2)]),
    make([90, 50, 31], (5, 3, 1), unit=8, batching="per_batch", stop="all"),
    make([90, 50, 31], (5, 3, 1), unit=12, batching="per_batch"),
    make([90, 50], (5, 3), unit=16, batching="per_batch", stop=333, changes=((40, (1, 1)),)),
    make([100, 80], (2, 1), chosen=np.flatnonzero(np.random.default_rng(0).random(180) < 0.4), stop="longest"),
    make([100, 80], (2, 1), chosen=np.arange(3, 180, 7), stop=100),
]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_is_what_the_definition_says(number: int, epoch: int) -> None:
    order = CASES[number]
    np.testing.assert_array_equal(listed(order.plan(epoch)), definition(order, epoch))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_consumer_reads_its_stride(number: int) -> None:
    order, random = CASES[number], np.random.default_rng(number)
    for _ in range(tries(4, 12)):
        epoch, stride = int(random.integers(3)), int(random.choice([1, 2, 3, 5, 7, 8, 24, 48]))
        first, whole = int(random.integers(stride * 3)), definition(order, epoch)
        most = int(random.integers(2, 60))
        for plan in (
            order.plan(epoch, Portion(first=first, stride=stride)),
            order.plan(epoch, Portion(first=first, stride=stride, most_steps=most)),
        ):
            np.testing.assert_array_equal(listed(plan), whole[first::stride])
            assert (np.diff(plan.first_step) >= 0).all()
        assert ((plan.last_step - plan.first_step) < most).all()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_positions_of_no_stride_are_taken_one_by_one(number: int) -> None:
    order, random = CASES[number], np.random.default_rng(number)
    for _ in range(tries(3, 6)):
        epoch, stride, n = int(random.integers(3)), int(random.choice([1, 2, 5, 24])), order.length
        head = np.sort(random.choice(n, min(n, 9), replace=False))
        tail = random.integers(0, 3 * n, 7)
        steps = n // 3 // stride
        most = [None, 11][int(random.integers(2))]
        plan = order.plan(epoch, Portion(first=2, stride=stride, steps=steps, head=head, tail=tail, most_steps=most))
        whole = definition(order, epoch)
        expected = np.concatenate([whole[head], whole[2::stride][:steps], whole[tail % n]])
        np.testing.assert_array_equal(listed(plan), expected)


def test_runs_of_positions_are_taken_whole() -> None:
    """What DataLoader workers read where batches have one source: whole batches of the rank, every K-th one."""
    order = CASES[9]
    whole, ranks, batch, workers = definition(order, 1), 2, 4, 3
    for rank in range(ranks):
        for worker in range(workers):
            period = workers * ranks * batch
            rounds = order.length // period
            plan = order.plan(
                1, Portion(rank + worker * ranks * batch, ranks, rounds * batch, run=batch, period=period, most_steps=9)
            )
            taken = whole[: rounds * period].reshape(rounds, workers, batch, ranks)[:, worker, :, rank]
            np.testing.assert_array_equal(listed(plan), taken.ravel())


@pytest.mark.parametrize("number", [5, 1, 6])
def test_runs_of_positions_are_taken_whole_of_several_columns(number: int) -> None:
    """Workers take whole batches of sources in order. Steps of a block do not ascend then: each column has its own."""
    order = CASES[number]
    for ranks, batch, workers in ((1, 7, 2), (2, 4, 3), (5, 1, 2), (8, 3, 2)):
        whole, period = definition(order, 1), workers * ranks * batch
        rounds = order.length // period
        for rank in range(ranks):
            for worker in range(workers):
                first, steps = rank + worker * ranks * batch, rounds * batch
                plan = order.plan(
                    1, Portion(first=first, stride=ranks, steps=steps, run=batch, period=period, most_steps=11)
                )
                taken = whole[: rounds * period].reshape(rounds, workers, batch, ranks)[:, worker, :, rank]
                np.testing.assert_array_equal(listed(plan), taken.ravel())


def test_lanes_without_shuffling_do_not_depend_on_who_reads() -> None:
    in_order = CASES[5]
    assert {in_order.settled(ranks, are_chosen=True) for ranks in (1, 2, 8, 24, 100)} == {in_order.sources}
    named = in_order.with_sources([SourceLanes(24, 1, 1)] * 2)
    assert [one.lanes for one in named.settled(5, are_chosen=False)] == [24, 24]
    assert (in_order.is_in_order(), named.is_in_order(), CASES[0].is_in_order()) == (True, False, False)


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("stride", [1, 2, 5, 24])
def test_the_bound_on_open_steps_holds(number: int, stride: int) -> None:
    order = CASES[number]
    for epoch in (0, 2):
        for first in range(min(stride, 3)):
            plan = order.plan(epoch, Portion(first=first, stride=stride))
            if len(plan.first_step):
                assert (plan.last_step - plan.first_step + 1).max() <= order.open_steps(stride)


def test_epochs_go_on_where_the_ones_before_stopped() -> None:
    order = make([70, 40, 23], (7, 2, 1))
    read = np.concatenate([definition(order, epoch) for epoch in range(12)])
    for source, (begin, n) in enumerate(zip(order.blend.first, order.lengths, strict=False)):
        counts = np.bincount(read[(read >= begin) & (read < begin + n)] - begin, minlength=n)
        assert counts.max() - counts.min() <= 2  # columns of a pass are a little ahead of others
        end = order.source_ends(12 * order.length)[source]
        assert counts.sum() == end.taken


def test_passes_and_sources_have_orders_of_their_own() -> None:
    order = make([60, 60], (1, 1))
    first, second = order.orders
    orders = [listed(one.plan(p)) - begin for one, begin in ((first, 0), (second, 60)) for p in (0, 1)]
    for i, one in enumerate(orders):
        assert sorted(one) == list(range(60))
        assert all((one != other).any() for other in orders[:i])


def test_blocks_of_sources_that_are_alike_come_in_orders_of_their_own() -> None:
    """Rows differ by the number of their block; the blocks themselves by the key of their source alone."""
    order = make([60, 60, 60], (1, 1, 1), sources=[(1, 1)] * 3)
    blocks = [[int(held_index) for held_index in one.held_indices(0)] for one in order.orders]
    assert all(sorted(one) == list(range(12)) for one in blocks)
    assert len({tuple(one) for one in blocks}) == 3


def test_weights_of_whole_batches_change_with_the_first_batch_at_their_step_or_later() -> None:
    blend = Blend((0, 500, 1000), (1, 0), ((101, (0, 1)), (208, (1, 0))), batching="per_batch")
    taken = blend.mixture(3, unit=8).at(np.arange(40))[0]
    assert taken.tolist() == [0] * 13 + [1] * 13 + [0] * 14  # samples 104 and 208 begin the batches 13 and 26


def test_a_rank_of_whole_columns_decodes_blocks_that_no_other_rank_does() -> None:
    order = make([4000, 2000, 900], (7, 2, 1), sources=[(24, 1), (24, 1), (8, 1)], stop=5000)
    for ranks in (2, 4, 8):
        pieces = 0
        for rank in range(ranks):
            plan = order.plan(0, Portion(first=rank, stride=ranks))
            pieces += len(plan.groups.held_index)
        alone = len(order.plan(0).groups.held_index)
        assert pieces == alone


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_block_after_a_block_is_of_the_same_source(number: int) -> None:
    """What replaces a bad sample comes from there; a walk from block to block comes to each block of the source."""
    order = CASES[number]
    following = order.next_held_indices(2)
    first_sample = order.samples_in(np.arange(order.num_blocks), np.zeros(order.num_blocks, np.int64))
    source = np.searchsorted(order.blend.first, first_sample, side="right") - 1
    for one in range(order.blend.num_sources):
        of_source = np.flatnonzero(source == one)
        walk = [int(of_source[0])]
        while (held_index := int(following[walk[-1]])) != walk[0] and len(walk) <= order.num_blocks:
            walk.append(held_index)
        assert sorted(walk) == of_source.tolist()


def test_batches_of_one_source_are_that() -> None:
    order = CASES[10]
    source = np.searchsorted(order.blend.first, definition(order, 2), side="right")
    batches = source.reshape(-1, order.unit)
    assert (batches == batches[:, :1]).all()
    assert len(np.unique(batches)) == 3


def test_no_source_repeats_a_sample_where_the_first_one_ends_the_epoch() -> None:
    for order in (CASES[0], CASES[10]):
        read = definition(order, 0)
        assert len(np.unique(read)) == len(read)


def test_a_source_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="source 1 of the mixture has no sample left"):
        make([10, 5, 5], (1, 1, 1), chosen=np.array([0, 1, 16]))


def test_a_source_shorter_than_a_batch_is_refused_where_none_may_repeat() -> None:
    order = make([90, 50, 31], (5, 3, 1), unit=32, batching="per_batch")
    with pytest.raises(ConfigError, match="source 2 of the mixture has 31 samples, fewer than the 32 of a batch"):
        _ = order.length
    assert replace(order, blend=replace(order.blend, stop=64)).length == 64

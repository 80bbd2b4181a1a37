"""The order of docs/design/order.md, as properties that must hold for every layout and every consumer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed import _core
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.samples.selection import Int64, make_selection

SETTINGS = examples(150)


@st.composite
def orders(draw: st.DrawFn, *, shuffle: bool | None = None) -> Order:
    num_samples = draw(st.integers(1, 400))
    return Order(
        num_samples=num_samples,
        block_rows=draw(st.integers(1, num_samples)),
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
        seed=draw(st.integers(0, 2**64 - 1)),
        lanes=draw(st.integers(1, min(24, num_samples))),
        mix=draw(st.integers(1, 4)),
    )


def sample_order(order: Order, epoch: int = 0, **consumer: Any) -> Int64:
    result: Int64 = _core.sample_order(order.plan(epoch, Portion(**consumer)).to_core())
    return result


@SETTINGS
@given(orders(), st.integers(0, 2**63 - 1))
def test_every_sample_stands_in_the_order_exactly_once(order: Order, epoch: int) -> None:
    assert np.array_equal(np.sort(sample_order(order, epoch)), np.arange(order.num_samples))


@SETTINGS
@given(orders(), st.integers(1, 9))
def test_strides_partition_the_order(order: Order, stride: int) -> None:
    whole = sample_order(order, 3)
    for first in range(stride):
        assert np.array_equal(sample_order(order, 3, first=first, stride=stride), whole[first::stride])


@SETTINGS
@given(orders(), st.data())
def test_positions_before_and_behind_the_stride_are_taken_one_by_one(order: Order, data: st.DataObject) -> None:
    whole = sample_order(order, 1)
    n = order.length
    first, stride = data.draw(st.integers(0, n)), data.draw(st.integers(1, 7))
    steps = data.draw(st.integers(0, n))
    regular = np.arange(first, n, stride)[:steps]
    others = np.setdiff1d(np.arange(n), regular)
    drawn = data.draw(st.lists(st.sampled_from(others.tolist()), unique=True)) if len(others) else []
    cut = data.draw(st.integers(0, len(drawn)))
    again = data.draw(st.lists(st.integers(n, 3 * n - 1), unique=True, max_size=20))  # later turns of the order
    head, tail = np.array(drawn[:cut], dtype=np.int64), np.array(drawn[cut:] + again, dtype=np.int64)
    mine = sample_order(order, 1, first=first, stride=stride, steps=steps, head=head, tail=tail)
    assert np.array_equal(mine, whole[np.concatenate([head, regular, tail]) % n])


@SETTINGS
@given(orders(), st.data())
def test_a_selection_of_blocks_is_an_order_of_its_samples_only(order: Order, data: st.DataObject) -> None:
    all_blocks = -(-order.num_samples // order.block_rows)
    chosen = data.draw(st.lists(st.integers(0, all_blocks - 1), min_size=1, unique=True))
    selection = make_selection(None, chosen, num_samples=order.num_samples, block_rows=order.block_rows)
    few = replace(order, selection=selection, lanes=1)
    few = replace(few, lanes=data.draw(st.integers(1, min(8, few.length))))
    expected = np.flatnonzero(np.isin(np.arange(order.num_samples) // order.block_rows, chosen))
    assert few.length == len(expected)
    assert np.array_equal(np.sort(sample_order(few)), expected)


def test_samples_are_located_in_their_blocks_and_found_there_again() -> None:
    for chosen in (None, slice(3, 90, 4), [1, 2, 5, 33, 34, 60, 61, 95]):
        selection = None if chosen is None else make_selection(chosen, None, num_samples=97, block_rows=8)
        order = Order(97, 8, shuffle=False, seed=0, lanes=1, selection=selection)
        samples = np.arange(97)[slice(None) if chosen is None else chosen]
        held_indices, rows = order.locate(samples)
        blocks = samples // 8
        assert held_indices.tolist() == np.searchsorted(np.unique(blocks), blocks).tolist(), chosen
        assert rows.tolist() == [int((blocks[:i] == block).sum()) for i, block in enumerate(blocks)], chosen
        assert order.samples_in(held_indices, rows).tolist() == samples.tolist(), chosen


def test_without_shuffling_the_order_can_begin_at_any_block() -> None:
    order = Order(num_samples=10, block_rows=4, shuffle=False, seed=0, lanes=1, first_block=2)
    assert sample_order(order).tolist() == [8, 9, 0, 1, 2, 3, 4, 5, 6, 7]


def test_blocks_and_rows_can_be_shuffled_apart_and_with_seeds_of_their_own() -> None:
    whole = Order(num_samples=200, block_rows=10, shuffle=True, seed=1, lanes=1)
    only_blocks = sample_order(replace(whole, shuffle_rows=False)).reshape(-1, 10)
    assert np.array_equal(only_blocks[:, 0] // 10, whole.block_order(0))
    assert np.all(np.diff(only_blocks) == 1)
    only_rows = sample_order(replace(whole, shuffle=False, shuffle_rows=True)).reshape(-1, 10)
    assert np.array_equal(np.sort(only_rows), np.arange(200).reshape(-1, 10))
    assert not np.array_equal(only_rows, np.sort(only_rows))
    reseeded = sample_order(replace(whole, row_seed=2)).reshape(-1, 10)
    assert np.array_equal(reseeded // 10, sample_order(whole).reshape(-1, 10) // 10)
    assert not np.array_equal(reseeded, sample_order(whole).reshape(-1, 10))
    assert np.array_equal(sample_order(replace(whole, row_seed=1)), sample_order(whole))


@SETTINGS
@given(orders(), st.data())
def test_a_consumer_can_begin_and_end_anywhere(order: Order, data: st.DataObject) -> None:
    whole = sample_order(order, 1)
    first = data.draw(st.integers(0, order.num_samples))
    stride = data.draw(st.integers(1, 7))
    steps = data.draw(st.integers(0, order.num_samples))
    mine = sample_order(order, 1, first=first, stride=stride, steps=steps)
    assert np.array_equal(mine, whole[first::stride][:steps])


@SETTINGS
@given(orders(shuffle=True))
def test_each_lane_walks_through_its_piece_of_the_order_group_by_group(order: Order) -> None:
    whole = sample_order(order)
    position = np.argsort(order.block_order(0))  # block -> its index in the order
    for lane in range(order.lanes):
        ordinals = position[whole[lane :: order.lanes] // order.block_rows]
        groups = (ordinals - ordinals.min()) // order.mix
        assert np.all(np.diff(groups) >= 0), "a group is used up before the next one begins"
        assert np.array_equal(np.unique(ordinals), np.arange(ordinals.min(), ordinals.max() + 1))


@SETTINGS
@given(orders(), st.integers(1, 5))
def test_groups_declare_the_steps_that_they_serve_exactly(order: Order, stride: int) -> None:
    plan = order.plan(0, Portion(first=stride - 1, stride=stride))
    samples = _core.sample_order(plan.to_core())
    step_of = {int(sample): step for step, sample in enumerate(samples)}
    assert np.all(np.diff(plan.first_step) >= 0)
    if order.mix == 1:  # one segment a group: its rows are the block's, and all of them if the lane is not cut
        blocks = samples // order.block_rows
        for group in range(len(plan.first_step)):
            segment = plan.groups.begin[group]
            if plan.groups.length[segment] == order.block_rows:
                steps = [step_of[int(s)] for s in samples[blocks == plan.segment_block[segment]]]
                assert (min(steps), max(steps)) == (plan.first_step[group], plan.last_step[group])


@SETTINGS
@given(orders(), st.integers(1, 5), st.integers(1, 64))
def test_the_bound_on_open_steps_covers_what_a_plan_needs(order: Order, stride: int, batch_size: int) -> None:
    plan = order.plan(0, Portion(stride=stride))
    needed = _core.required_open_batches(plan.to_core(), batch_size)
    assert needed <= (order.open_steps(stride) - 1) // batch_size + 2


@SETTINGS
@given(orders(shuffle=False).filter(lambda o: o.mix == 1), st.integers(1, 6))
def test_without_shuffling_every_consumer_reads_one_contiguous_piece(order: Order, stride: int) -> None:
    order = Order(order.num_samples, order.block_rows, shuffle=False, seed=0, lanes=stride)
    pieces = [sample_order(order, first=v, stride=stride) for v in range(stride)]
    assert np.array_equal(np.concatenate(pieces), np.arange(order.num_samples))


def test_epochs_and_seeds_give_different_orders_and_the_same_ones_again() -> None:
    order = Order(num_samples=1000, block_rows=16, shuffle=True, seed=5, lanes=8)
    other_seed = Order(num_samples=1000, block_rows=16, shuffle=True, seed=6, lanes=8)
    assert np.array_equal(sample_order(order, 2), sample_order(order, 2))
    assert not np.array_equal(sample_order(order, 2), sample_order(order, 3))
    assert not np.array_equal(sample_order(order, 2), sample_order(other_seed, 2))
    assert not np.array_equal(order.block_order(2), order.block_order(3))


def parts_of_the_order(seed: int, epoch: int) -> dict[str, list[int]]:
    """Return what each generator makes alone: blocks, rows inside of blocks that keep their order, and mixed groups."""
    rows = Order(1000, 16, shuffle=False, shuffle_rows=True, seed=seed, lanes=8)
    return {
        "blocks": replace(rows, shuffle=True).block_order(epoch).tolist(),
        "rows": sample_order(rows, epoch).tolist(),
        "groups": sample_order(replace(rows, lanes=1, mix=63, block_rows=1, num_samples=63), epoch).tolist(),
    }


def differing_parts(one: tuple[int, int], other: tuple[int, int]) -> set[str]:
    first, second = parts_of_the_order(*one), parts_of_the_order(*other)
    return {name for name in first if first[name] != second[name]}


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    """Each part of the order by itself: in a whole order, one part that is right would hide another that is wrong."""
    assert differing_parts((3, 5), (3, 5)) == set()
    for one, other in (((3, 5), (5, 3)), ((4, 4), (5, 3)), ((0, 0), (7, 7)), ((2, 6), (3, 4)), ((0, 1), (1, 0))):
        assert differing_parts(one, other) == {"blocks", "rows", "groups"}, (one, other)


@pytest.mark.parametrize("bit", [*range(0, 64, 8), 63])
def test_every_bit_of_seed_and_epoch_counts(bit: int) -> None:
    """Epochs 256 apart differ, and so do those that differ in any other byte alone."""
    assert differing_parts((3, 5), (3 ^ 1 << bit, 5)) == {"blocks", "rows", "groups"}
    if bit < 63:
        assert differing_parts((3, 5), (3, 5 ^ 1 << bit)) == {"blocks", "rows", "groups"}


def test_the_order_stays_what_it_was() -> None:
    """A change of these numbers breaks every run that resumes, so it must be meant."""
    order = Order(num_samples=23, block_rows=4, shuffle=True, seed=42, lanes=3, mix=2)
    assert order.block_order(7).tolist() == PINNED_BLOCKS
    assert sample_order(order, 7).tolist() == PINNED_ORDER


def test_an_order_of_several_groups_a_lane_stays_what_it_was() -> None:
    order = Order(num_samples=96, block_rows=4, shuffle=True, seed=42, lanes=2, mix=3)
    assert sample_order(order, 7).tolist() == PINNED_GROUPS


def test_every_group_of_every_lane_has_a_permutation_of_its_own() -> None:
    lanes, mix, rows, groups = 2, 3, 4, 16
    order = Order(num_samples=lanes * groups * mix * rows, block_rows=rows, shuffle=True, seed=3, lanes=lanes, mix=mix)

    def by_group(samples: Int64) -> list[list[int]]:
        in_lanes = np.concatenate([samples[lane::lanes] for lane in range(lanes)])
        listed: list[list[int]] = in_lanes.reshape(lanes * groups, mix * rows).tolist()
        return listed

    # a group of one block is that block: so lie the rows before those of a group are permuted together
    before, after = by_group(sample_order(replace(order, mix=1), 5)), by_group(sample_order(order, 5))
    assert [sorted(group) for group in before] == [sorted(group) for group in after]
    permutations = {tuple(own.index(s) for s in group) for own, group in zip(before, after, strict=True)}
    assert len(permutations) == lanes * groups


PINNED_BLOCKS = [4, 5, 2, 0, 1, 3]
PINNED_ORDER = [17, 0, 14, 20, 2, 12, 18, 9, 15, 19, 8, 4, 22, 10, 6, 21, 3, 13, 16, 1, 7, 11, 5]
# fmt: off
PINNED_GROUPS = [
    71, 90, 27, 8, 82, 11, 83, 10, 24, 9, 25, 88, 70, 38, 81, 91, 68, 39, 26, 36, 69, 37, 80, 89,
    29, 74, 28, 2, 33, 86, 34, 3, 30, 75, 32, 0, 59, 87, 56, 1, 57, 72, 31, 85, 58, 73, 35, 84,
    40, 64, 51, 93, 48, 92, 44, 67, 47, 66, 41, 6, 49, 94, 50, 7, 45, 5, 43, 4, 42, 65, 46, 95,
    61, 55, 20, 53, 17, 15, 19, 52, 62, 79, 16, 54, 63, 78, 18, 14, 22, 76, 60, 12, 23, 77, 21, 13,
]
# fmt: on


def test_rows_inside_of_a_block_are_uniformly_permuted() -> None:
    """Each of the 24 orders of a 4-row block turns up about equally often: chi-square over blocks, fixed seed."""
    order = Order(num_samples=4 * 24_000, block_rows=4, shuffle=True, seed=1, lanes=1)
    rows = (sample_order(order) % 4).reshape(-1, 4)
    _, counts = np.unique(rows @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_blocks_are_uniformly_permuted() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(6000):
        key = tuple(Order(3, 1, shuffle=True, seed=9, lanes=1).block_order(epoch).tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert sum((c - 1000) ** 2 / 1000 for c in counts.values()) < 20.5  # 5 degrees of freedom, p = 0.001


def test_mixing_spreads_the_rows_of_a_block_over_its_group() -> None:
    plain = sample_order(Order(1024, 16, shuffle=True, seed=0, lanes=1, mix=1)) // 16
    mixed = sample_order(Order(1024, 16, shuffle=True, seed=0, lanes=1, mix=8)) // 16
    assert len(np.unique(plain[:64])) == 4
    assert len(np.unique(mixed[:64])) == 8
    assert len(np.unique(mixed[:128])) == 8, "a group is used up before the next one begins"


def test_the_engine_refuses_a_plan_that_understates_its_steps() -> None:
    """Rows behind the declared last step would be written to batches that are not open."""
    plan = Order(100, 10, shuffle=True, seed=0, lanes=2).plan(0)
    plan = replace(plan, last_step=plan.last_step - 1)
    with pytest.raises(ValueError, match="outside of what it declares"):
        _core.sample_order(plan.to_core())

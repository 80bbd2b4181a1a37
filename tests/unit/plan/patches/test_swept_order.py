"""The epoch order of patches: whole runs, each sample once, for any number of ranks and workers."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.patches.test_sweep import blocks
from tests.unit.plan.patches.test_tiling import tilings
from zarrfeed.base.native import core
from zarrfeed.plan.order.block_order import permuted
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.patches.sweep import Sweep, TileBlocks, blocks_of
from zarrfeed.plan.patches.swept_order import PatchOrder, SweptOrder
from zarrfeed.plan.patches.tiling import Tiling
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.plan.shares.partition import Consumer, Division

SETTINGS = examples(100)


def sample_order(order: SweptOrder, epoch: int, **consumer: Any) -> Int64:
    """Return the samples that a consumer takes, step by step, as the engine lists them."""
    found: Int64 = core.sample_order(order.plan(epoch, Portion(**consumer)).to_core())
    return found


@st.composite
def orders(draw: st.DrawFn, *, shuffle: bool | None = None) -> SweptOrder:
    tiles = draw(blocks())
    return SweptOrder.of(
        tiles,
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
        seed=draw(st.integers(0, 2**64 - 1)),
        lanes=draw(st.integers(1, min(24, tiles.num_samples))),
    )


@SETTINGS
@given(orders(shuffle=True), st.integers(0, 2**63 - 1))
def test_runs_stay_together_and_begin_at_a_random_layer(order: SweptOrder, epoch: int) -> None:
    held_indices = order.held_indices(epoch)
    assert np.array_equal(np.sort(held_indices), np.arange(order.num_blocks))
    assert np.array_equal(held_indices, order.held_indices(epoch))
    tiles = order.tiles
    assert isinstance(tiles, TileBlocks)
    runs = np.split(held_indices, np.flatnonzero(np.diff(tiles.run[held_indices])) + 1)
    assert len(runs) == tiles.run[-1] + 1
    assert np.array_equal([tiles.run[run[0]] for run in runs], permuted(len(runs), order.seed, epoch))
    for run in runs:
        layers = tiles.begin[run, tiles.sweep.axis]
        first = key_of(0x726F74617465, order.seed, epoch, int(tiles.run[run[0]])) * len(run) >> 64
        assert (layers - layers.min()).tolist() == np.roll(np.arange(len(run)), -first).tolist()


@SETTINGS
@given(orders(shuffle=False), st.integers(0, 9))
def test_without_shuffling_all_keep_their_order(order: SweptOrder, epoch: int) -> None:
    assert np.array_equal(order.held_indices(epoch), np.arange(order.num_blocks))
    assert np.array_equal(sample_order(replace(order, lanes=1), epoch), np.arange(order.num_samples))
    begun = replace(order, first_block=order.num_blocks // 2)
    assert begun.held_indices(epoch)[0] == order.num_blocks // 2


@SETTINGS
@given(orders(), st.integers(0, 99), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.data())
def test_ranks_and_workers_take_each_sample_once_also_after_a_resume(
    order: SweptOrder, epoch: int, world_size: int, num_workers: int, batch_size: int, data: st.DataObject
) -> None:
    n = order.num_samples
    whole = sample_order(order, epoch)
    assert np.array_equal(np.sort(whole), np.arange(n))
    used = data.draw(st.integers(0, n))
    division = Division(n - used, world_size, num_workers, batch_size, "off", drop_last=False)
    taken = [whole[:used]]
    for rank in range(world_size):
        for worker in range(num_workers):
            share = division.share(Consumer(rank, world_size, worker, num_workers))
            mine = sample_order(
                order, epoch, first=used + share.first, stride=share.stride, steps=share.count, tail=used + share.tail
            )
            positions = np.concatenate([share.first + share.stride * np.arange(share.count), share.tail])
            assert np.array_equal(mine, whole[used + positions])
            taken.append(mine)
    assert np.array_equal(np.sort(np.concatenate(taken)), np.arange(n))


@SETTINGS
@given(orders(shuffle=True), st.integers(0, 9))
def test_a_group_is_one_block(order: SweptOrder, epoch: int) -> None:
    plan = order.plan(epoch)
    assert (np.diff(plan.groups.begin) == 1).all()
    of_lane = [plan.groups.held_index[plan.groups.lane == lane] for lane in range(order.lanes)]
    pieces = np.concatenate(of_lane)
    # lanes cut the sequence of blocks: put together, they have each block in turn, those that are cut twice or more
    assert np.array_equal(pieces[np.flatnonzero(np.diff(pieces, prepend=-1))], order.held_indices(epoch))


def test_lanes_do_not_march_in_lockstep() -> None:
    tiles = blocks_of(Tiling(np.array([[640, 640]]), (10, 10)).at(0, phase=False), Sweep(0, (1, 4)))
    held_indices = SweptOrder.of(tiles, shuffle=True, seed=1, lanes=16).held_indices(0).reshape(16, 64)
    layers = held_indices % 64
    assert len(np.unique(layers[:, 0])) > 8
    assert (np.diff(layers, axis=1) % 64 == 1).all()


def test_a_selection_of_samples_leaves_out_blocks_and_columns() -> None:
    tiles = blocks_of(Tiling(np.array([[60, 80]]), (10, 10)).at(0, phase=False), Sweep(0, (1, 4)))
    order = SweptOrder.of(tiles, shuffle=True, seed=1, lanes=1)
    chosen = np.flatnonzero(tiles.starts(np.arange(48))[1][:, 0] >= 30)
    chosen = chosen[chosen % 3 == 0]
    few = replace(order, selection=Selection.of_samples(chosen, order.block_rows, order.edges))
    assert np.array_equal(np.sort(sample_order(few, 0)), chosen)
    held_indices = few.held_indices(5)
    assert np.array_equal(np.sort(held_indices), np.arange(few.num_blocks))
    assert few.num_blocks == 6
    assert len(np.flatnonzero(np.diff(tiles.run[few.blocks_at(held_indices)]))) == 1


def test_one_order_is_pinned() -> None:
    tiles = blocks_of(Tiling(np.array([[40, 30], [20, 20]]), (10, 10)).at(0, phase=False), Sweep(0, (1, 2)))
    order = SweptOrder.of(tiles, shuffle=True, seed=3, lanes=2)
    assert order.held_indices(5).tolist() == [3, 0, 1, 2, 9, 8, 6, 7, 4, 5]
    assert sample_order(order, 5).tolist() == [3, 9, 0, 8, 1, 11, 2, 10, 14, 5, 15, 4, 13, 7, 12, 6]


@SETTINGS
@given(tilings(), st.integers(1, 4), st.booleans(), st.integers(1, 40), st.data())
def test_the_orders_of_epochs_have_their_tiles_and_the_same_lanes(
    tiling: Tiling, width: int, phase: bool, lanes: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, tiling.num_dimensions - 1))
    sweep = Sweep(axis, tuple(1 if d == axis else width for d in range(tiling.num_dimensions)))
    orders = PatchOrder(tiling, sweep, seed=5, lanes=lanes, phase=phase)
    for epoch in (0, 1, 7):
        order = orders.at(epoch)
        grid = tiling.at(epoch, phase=phase)
        assert np.array_equal(order.tiles.grid.origin, grid.origin)
        assert orders.shortest <= order.length == orders.length(epoch) == grid.num_tiles <= orders.longest
        assert order.lanes == min(lanes, orders.shortest)
        assert np.array_equal(np.sort(sample_order(order, epoch)), np.arange(order.length))


def test_the_orders_of_two_epochs_are_cached() -> None:
    orders = PatchOrder(Tiling(np.array([[90, 80]]), (10, 7), seed=1), Sweep(0, (1, 3)), lanes=4)
    first, second = orders.at(0), orders.at(1)
    assert orders.at(0) is first
    assert orders.at(1) is second
    third = orders.at(2)
    assert orders.at(2) is third
    assert orders.at(1) is second
    assert orders.at(0) is not first
    assert np.array_equal(orders.at(0).tiles.first, first.tiles.first)
    copied = pickle.loads(pickle.dumps(orders))
    assert len(pickle.dumps(orders)) < 2000
    assert np.array_equal(sample_order(copied.at(1), 1), sample_order(second, 1))
    assert len(copied._orders) == 1


def test_tiles_that_do_not_change_are_made_once() -> None:
    for tiling, phase in (
        (Tiling(np.array([[90, 80]]), (10, 7), sampling="grid"), True),
        (Tiling(np.array([[90, 80]]), (10, 7)), False),
        (Tiling(np.array([[90, 80]]), (1, 1)), True),
    ):
        orders = PatchOrder(tiling, Sweep(0, (1, 3)), lanes=4, phase=phase)
        assert orders.at(0) is orders.at(5)
        assert not np.array_equal(sample_order(orders.at(0), 0), sample_order(orders.at(0), 5))
        assert orders.longest == orders.shortest == orders.length(3)


def test_tiles_of_one_epoch_do_not_serve_another() -> None:
    orders = PatchOrder(Tiling(np.array([[90, 80]]), (10, 7), seed=1), Sweep(0, (1, 3)), lanes=4)
    with pytest.raises(AssertionError):
        orders.at(0).held_indices(1)

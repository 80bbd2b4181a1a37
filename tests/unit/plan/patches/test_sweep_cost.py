"""The formula against the count, and the count against sets of chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.patches.test_footprint import footprints, items_of
from tests.unit.plan.patches.test_swept_order import orders, sample_order
from zarrfeed.plan.patches.decode_count import count_decodes
from zarrfeed.plan.patches.footprint import Footprints, footprint_of
from zarrfeed.plan.patches.sweep import Sweep, TileBlocks, blocks_of
from zarrfeed.plan.patches.sweep_cost import amplification
from zarrfeed.plan.patches.swept_order import PatchOrder, SweptOrder
from zarrfeed.plan.patches.tiling import TileGrid, Tiling

SETTINGS = examples(60)

Cells = set[tuple[int, ...]]


def cells_of(grid: TileGrid, array: Footprints, volume: int, index: Iterable[int]) -> Cells:
    """Return the chunks that a tile touches, item by item."""
    along, of = [], footprint_of(array, grid)
    for d, number in enumerate(index):
        along.append(sorted({int(x) // of.chunk[d] for x in items_of(grid, of, volume, d, number)}))
    return {(volume, *cell) for cell in itertools.product(*along)}


def cells_of_samples(order: SweptOrder, array: Footprints, samples: Iterable[int]) -> Cells:
    found: Cells = set()
    assert isinstance(order.tiles, TileBlocks)
    for sample in samples:
        volume, index = order.tiles.tiles(np.array([sample]))
        found |= cells_of(order.tiles.grid, array, int(volume[0]), index[0].tolist())
    return found


def naive_decodes(order: SweptOrder, epoch: int, array: Footprints, stride: int) -> int:
    """Count what all consumers decode, from the position of each sample: lane, block, chunks."""
    decodes = 0
    for first in range(min(stride, order.length)):
        samples = sample_order(order, epoch, first=first, stride=stride)
        positions = first + stride * np.arange(len(samples))
        block = np.searchsorted(order.tiles.first, samples, side="right")
        for lane in range(order.lanes):
            before: Cells = set()
            column_before: list[int] = []
            mine = np.flatnonzero(positions % order.lanes == lane)
            for of_block in np.split(mine, np.flatnonzero(np.diff(block[mine])) + 1):
                if not len(of_block):
                    continue  # a lane of which the consumer has nothing
                cells = cells_of_samples(order, array, samples[of_block].tolist())
                tiles, number = order.tiles, block[of_block[0]] - 1
                assert isinstance(tiles, TileBlocks)
                across = np.delete(tiles.begin[number], tiles.sweep.axis)
                column = [int(tiles.volume[number]), *across.tolist()]
                decodes += len(cells - before) if column == column_before else len(cells)
                before, column_before = cells, column
    return decodes


def grid_as_tiling(grid: TileGrid) -> Tiling:
    """Return a tiling with the extents and the sizes of a grid, and its periodic dimensions."""
    border: Any = tuple("wrap" if one else "pad" for one in grid.wraps)
    return Tiling(grid.extents, tuple(grid.size.tolist()), border=border)


@SETTINGS
@given(orders(), st.integers(0, 3), st.integers(1, 4), st.data())
def test_decodes_are_counted_group_by_group(order: SweptOrder, epoch: int, stride: int, data: st.DataObject) -> None:
    grid = order.tiles.grid
    chunks = tuple(data.draw(st.integers(1, 9)) for _ in grid.size)
    arrays: list[Footprints] = [chunks, data.draw(footprints(grid_as_tiling(grid)))]
    expected = [naive_decodes(order, epoch, array, stride) for array in arrays]
    assert count_decodes(order, epoch, arrays, stride=stride) == expected


def test_consumers_that_share_no_lane_decode_no_more() -> None:
    orders_ = PatchOrder(Tiling(np.array([[300, 280]]), (20, 20), seed=1), Sweep(0, (1, 4)), lanes=12)
    order, chunk = orders_.at(0), (32, 24)
    once = count_decodes(order, 0, [chunk])
    for stride in (2, 3, 4, 6, 12):
        assert count_decodes(order, 0, [chunk], stride=stride) == once
    assert count_decodes(order, 0, [chunk], stride=5)[0] > 2 * once[0]


@SETTINGS
@given(orders(), st.data())
def test_without_cuts_the_formula_is_what_all_rotations_decode_on_average(
    order: SweptOrder, data: st.DataObject
) -> None:
    tiles, grid = order.tiles, order.tiles.grid
    assert isinstance(tiles, TileBlocks)
    axis = tiles.sweep.axis
    chunk: Footprints = [data.draw(st.integers(1, 9)) for _ in grid.size]
    if data.draw(st.booleans()):
        chunk = data.draw(footprints(grid_as_tiling(grid), gaps=False))
    if grid.wraps[axis]:
        return  # two layers may share chunks at both of their sides, which the formula does not count
    of_block = [cells_of_samples(order, chunk, range(b, e)) for b, e in itertools.pairwise(tiles.first.tolist())]
    expected = float(sum(map(len, of_block)))
    # in order, runs of a column follow each other; shuffled, each is by itself, and begins at any layer
    of_run = np.split(np.arange(len(tiles)), np.flatnonzero(np.diff(tiles.run)) + 1)
    if order.shuffle:
        for run in of_run:
            kept = [len(of_block[a] & of_block[b]) for a, b in zip(run, np.roll(run, 1), strict=True)]
            expected -= sum(kept) * (1 - 1 / len(run))
    else:
        for a, b in itertools.pairwise(range(len(tiles))):
            if tiles.begin[b, axis]:
                expected -= len(of_block[a] & of_block[b])
    num_chunks = footprint_of(chunk, grid).shape.prod(axis=1).sum()
    assert amplification(grid, chunk, tiles.sweep, 1, shuffle=order.shuffle) == pytest.approx(expected / num_chunks)


CUBE, TIME = [[1500] * 3], [[700, 721, 1440]]
VOLUMES = np.random.default_rng(0).integers(96, 500, (60, 3)).tolist()


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(
    ("extents", "chunk", "size", "sweep", "options"),
    [
        ([[2048] * 3], (128,) * 3, (64,) * 3, Sweep(0, (1, 9, 9)), {}),
        (CUBE, (64,) * 3, (64,) * 3, Sweep(1, (8, 1, 8)), {}),
        (CUBE, (64,) * 3, (128,) * 3, Sweep(2, (4, 4, 1)), {}),
        (CUBE, (100,) * 3, (64,) * 3, Sweep(0, (1, 6, 5)), {"border": "drop"}),
        (
            CUBE,
            (100,) * 3,
            (64,) * 3,
            Sweep(0, (1, 6, 5)),
            {"border": "shift", "sampling": "grid", "stride": (48,) * 3},
        ),
        (TIME, (1, 721, 1440), (1, 256, 256), Sweep(1, (1, 1, 7)), {}),
        (TIME, (1, 721, 1440), (4, 128, 128), Sweep(1, (1, 1, 13)), {"border": ("pad", "pad", "wrap")}),
        (TIME, (24, 512, 512), (1, 256, 256), Sweep(0, (1, 4, 7), layers=24), {}),
        (TIME, (24, 512, 512), (1, 256, 256), Sweep(2, (24, 4, 1), (24, 1, 1)), {}),
        (TIME, (24, 512, 512), (4, 128, 128), Sweep(0, (1, 7, 13)), {}),
        (VOLUMES, (64,) * 3, (64,) * 3, Sweep(0, (1, 3, 3)), {}),
    ],
)
def test_the_formula_is_what_is_counted(
    extents: list[list[int]],
    chunk: tuple[int, ...],
    size: tuple[int, ...],
    sweep: Sweep,
    options: dict[str, Any],
    lanes: int,
) -> None:
    tiling = Tiling(np.array(extents), size, seed=1, **options)
    num_chunks = (-(-tiling.extents // np.array(chunk))).prod(axis=1).sum()
    counted, expected = [], []
    for epoch in range(4):
        order = PatchOrder(tiling, sweep, seed=epoch, lanes=lanes).at(epoch)
        counted.append(count_decodes(order, epoch, [chunk])[0] / num_chunks)
        expected.append(amplification(order.tiles.grid, chunk, sweep, lanes))
    assert np.mean(expected) == pytest.approx(np.mean(counted), rel=0.05)


def test_a_periodic_column_begins_anywhere_at_the_same_cost() -> None:
    tiling = Tiling(np.array([[60, 40]]), (5, 8), border=("wrap", "pad"), seed=1)
    sweep, chunk = Sweep(0, (1, 9)), (4, 40)
    counted, expected = [], []
    for epoch in range(20):
        order = PatchOrder(tiling, sweep, lanes=1).at(epoch)
        counted += count_decodes(order, epoch, [chunk])
        expected.append(15 * amplification(order.tiles.grid, chunk, sweep, 1))
    # a column of one run decodes the chunk in which it begins and ends twice, unless it begins with a chunk
    assert set(counted) == {15, 16}
    assert np.mean(expected) == pytest.approx(np.mean(counted), abs=0.25)
    assert min(expected) > 15.5


def test_cuts_by_lanes_are_in_the_formula() -> None:
    tiling, sweep, chunk = Tiling(np.array([[130] * 3]), (8,) * 3, seed=1), Sweep(0, (1, 3, 4)), (16,) * 3
    for lanes in (1, 24):
        counted, expected = 0, 0.0
        for epoch in range(30):
            order = PatchOrder(tiling, sweep, lanes=lanes).at(epoch)
            counted += count_decodes(order, epoch, [chunk])[0]
            expected += 9**3 * amplification(order.tiles.grid, chunk, sweep, lanes)
        assert expected == pytest.approx(counted, rel=0.01)


def test_some_volumes_stand_for_many() -> None:
    extents = np.random.default_rng(1).integers(96, 500, (300, 3))
    order = PatchOrder(Tiling(extents, (64,) * 3, seed=1), Sweep(0, (1, 4, 4)), lanes=8).at(0)
    num_chunks = (-(-extents // 64)).prod(axis=1).sum()
    counted = count_decodes(order, 0, [(64,) * 3])[0] / num_chunks
    assert amplification(order.tiles.grid, (64,) * 3, order.tiles.sweep, 8) == pytest.approx(counted, rel=0.03)


def test_a_volume_in_one_chunk_is_decoded_once_a_lane() -> None:
    grid = Tiling(np.array([[50, 50]]), (10, 10), sampling="grid").at(0)
    order = SweptOrder.of(blocks_of(grid, Sweep(0, (1, 5))), shuffle=True, seed=1, lanes=1)
    assert count_decodes(order, 0, [(64, 64)]) == [1]
    assert amplification(grid, (64, 64), Sweep(0, (1, 5)), 1) == 1

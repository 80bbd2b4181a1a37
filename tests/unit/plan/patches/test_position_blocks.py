"""Blocks of patches at listed voxels: each patch in one block, blocks of one layer of a column, none too large."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.base.native import core
from zarrfeed.plan.patches.decode_count import count_decodes, touched_chunks
from zarrfeed.plan.patches.listed_order import ListedOrder
from zarrfeed.plan.patches.position_blocks import Cells, ListedPositions, PositionBlocks
from zarrfeed.plan.patches.sweep import Sweep

SETTINGS = examples(100)


@st.composite
def cut(draw: st.DrawFn) -> tuple[ListedPositions, Cells, Sweep]:
    """Return patches, some of them equal, with their cells and columns of these."""
    dimensions, volumes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    wraps = tuple(draw(st.booleans()) for _ in range(dimensions))
    size = tuple(draw(st.integers(1, 5)) for _ in range(dimensions))
    extents = np.array([[draw(st.integers(5, 25)) for _ in range(dimensions)] for _ in range(volumes)])
    chunk = tuple(draw(st.integers(1, 12)) for _ in range(dimensions))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    volume = rng.integers(0, volumes, draw(st.integers(1, 60)))
    low = np.where(wraps, 0, 1 - np.array(size))
    start = rng.integers(low, np.ceil(extents[volume] * draw(st.floats(0.05, 1))).astype(int))
    source = ListedPositions(volume, start)
    axis = draw(st.integers(0, dimensions - 1))
    width = tuple(1 if d == axis else draw(st.integers(1, 5)) for d in range(dimensions))
    return source, Cells.of(source, extents, size, wraps, chunk), Sweep(axis, width, layers=draw(st.integers(1, 4)))


@SETTINGS
@given(cut())
def test_blocks_partition_the_patches_and_are_layers_of_columns(made: tuple[ListedPositions, Cells, Sweep]) -> None:
    source, cells, sweep = made
    blocks = PositionBlocks.of(cells, sweep, source.volume, source.start)
    given_, sorted_ = (sorted(zip(one.volume.tolist(), one.start.tolist(), strict=True)) for one in (source, blocks))
    assert given_ == sorted_
    rows = np.diff(blocks.first)
    assert blocks.first[0] == 0
    assert blocks.first[-1] == len(source.volume)
    assert (rows >= 1).all()
    assert rows.max() <= cells.max_rows(sweep)
    step, count = np.array(cells.tiling.step), cells.tiling.most_tiles
    seen: dict[tuple[int, ...], list[int]] = {}
    for number, (begin, end) in enumerate(itertools.pairwise(blocks.first.tolist())):
        volume, start = blocks.starts(np.arange(begin, end))
        assert len(np.unique(volume)) == 1
        index = np.clip(start // step, 0, count[volume] - 1)
        layers = np.unique(index[:, sweep.axis] * step[sweep.axis] // cells.chunk[sweep.axis])
        assert len(layers) == 1
        layer = int(layers[0])
        across = np.delete(np.arange(len(step)), sweep.axis)
        assert (np.ptp(index, axis=0) < sweep.width)[across].all()
        seen.setdefault((int(volume[0]), int(blocks.run[number])), []).append(layer)
        for d in range(len(step)):  # no patch touches a voxel that the tile of its cell does not have
            tile = cells.tiling.at(0).starts_along(int(volume[0]), d, index[:, d])
            assert (start[:, d] >= tile)[start[:, d] >= 0].all()
            end = 99 if cells.wraps[d] else cells.tiling.extents[volume, d]
            reach = np.minimum(start[:, d] + cells.size[d], end)
            assert (reach <= tile + cells.tiling.size[d]).all()
    for of_run in seen.values():
        assert of_run == sorted(of_run)
    assert (np.diff(blocks.run) >= 0).all()


def order(source: ListedPositions, side: int, chunk: int, size: int, width: int, *, lanes: int = 1) -> ListedOrder:
    extents = np.full((1, 3), side)
    cells = Cells.of(source, extents, (size,) * 3, (False,) * 3, (chunk,) * 3)
    return ListedOrder(
        cells.tiling,
        Sweep(0, (1, width, width)),
        lanes=lanes,
        positions=source,
        cells=cells,
        sampling="positions",
        border=("pad",) * 3,
    )


def test_many_patches_at_one_position_are_cut_into_blocks_that_decode_their_chunks_once() -> None:
    start = np.concatenate([np.full((5000, 3), 30), np.random.default_rng(0).integers(0, 200, (50, 3))])
    made = order(ListedPositions(np.zeros(len(start), dtype=np.int64), start), 256, 64, 32, 4)
    one = made.at(0)
    assert one.tiles.max_rows < 5000
    assert len(one.tiles) > 5
    of_all = np.unique(start // 64, axis=0)
    assert len(of_all) <= touched_chunks(one, (64,) * 3)
    # a run that begins in the middle of a layer comes back to its chunks at the end
    assert count_decodes(one, 0, [(64,) * 3])[0] <= 1.5 * touched_chunks(one, (64,) * 3)


def test_a_few_patches_of_a_huge_volume_cost_no_memory_for_the_others() -> None:
    start = np.random.default_rng(0).integers(0, 2**40, (100, 3))
    source = ListedPositions(np.zeros(100, dtype=np.int64), start)
    made = order(source, 2**40, 2**21, 64, 1).at(0)
    assert len(made.tiles) == 100
    assert np.array_equal(np.sort(made.tiles.starts(np.arange(100))[1], axis=0), np.sort(start, axis=0))


def test_columns_share_what_patches_one_by_one_would_decode_again() -> None:
    start = np.random.default_rng(0).integers(0, 1024 - 64, (20_000, 3))
    made = order(ListedPositions(np.zeros(len(start), dtype=np.int64), start), 1024, 128, 64, 16, lanes=2).at(0)
    (decodes,) = count_decodes(made, 0, [(128,) * 3])
    chunks = touched_chunks(made, (128,) * 3)
    one_by_one = 20_000 * (1 + 63 / 128) ** 3
    assert chunks == 8**3
    assert chunks < decodes < 2.5 * chunks < one_by_one / 20
    (of_half,) = count_decodes(made, 0, [(128,) * 3], samples=10_000)
    assert abs(2 * of_half - decodes) < 0.25 * decodes


def test_orders_are_pickled_without_what_follows_from_them() -> None:
    source = ListedPositions(np.zeros(9, dtype=np.int64), np.arange(27).reshape(9, 3))
    made = order(source, 40, 8, 4, 2)
    again = pickle.loads(pickle.dumps(made))
    for epoch in range(2):
        lines = [core.sample_order(one.at(epoch).plan(epoch).to_core()) for one in (made, again)]
        assert np.array_equal(lines[0], lines[1])
        assert sorted(made.at(epoch).numbers(lines[0])) == sorted(made.at(epoch).numbers(np.arange(9)))
    assert made.longest == made.shortest == made.length(3) == 9

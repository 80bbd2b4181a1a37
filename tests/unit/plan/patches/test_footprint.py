"""The chunks that patches touch of an array that has other voxels than their grid: against its items, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.patches.test_tiling import tilings
from zarrfeed.plan.patches.footprint import Footprint, footprint_of, steps_of_whole_chunks
from zarrfeed.plan.patches.tiling import TileGrid, Tiling
from zarrfeed.plan.samples.selection import Int64

SETTINGS = examples(100)


@st.composite
def footprints(draw: st.DrawFn, tiling: Tiling, *, gaps: bool = True) -> Footprint:
    """Return what patches have of a level, or with a context; without `gaps` no less than the same extent."""
    dimensions = range(tiling.num_dimensions)
    scale, origin, size, shift, pads = ([0] * tiling.num_dimensions for _ in range(5))
    extents = tiling.extents.copy()
    for d in dimensions:
        wraps = tiling.border[d] == "wrap"
        common = int(np.gcd.reduce(extents[:, d]))
        scale[d] = draw(st.sampled_from([s for s in range(1, 6) if not wraps or common % s == 0]))
        origin[d] = draw(st.integers(-scale[d], scale[d]))
        inside = -(-tiling.size[d] // scale[d])
        size[d] = draw(st.just(inside) | st.integers(1 if gaps else inside, inside + 9))
        shift[d] = -((size[d] - inside) // 2)
        pads[d] = draw(st.booleans())
        rounded = draw(st.integers(0, scale[d] - 1))
        extents[:, d] = np.maximum(1, (extents[:, d] + rounded) // scale[d])
    chunk = tuple(draw(st.integers(1, 9)) for _ in dimensions)
    return Footprint(chunk, tuple(size), extents, tuple(scale), tuple(origin), tuple(shift), tuple(map(bool, pads)))


def items_of(grid: TileGrid, of: Footprint, volume: int, dimension: int, tile: int) -> Int64:
    """Return the items of a tile along a dimension that lie in the array, one by one."""
    d, extent = dimension, int(of.extents[volume, dimension])
    (start,) = grid.starts_along(volume, d, np.array([tile])).tolist()
    items = (start - of.origin[d]) // of.scale[d] + of.shift[d] + np.arange(of.size[d])
    if grid.wraps[d]:
        items = items % extent
    elif not of.pads[d]:
        items = np.clip(items, 0, extent - 1)
    inside: Int64 = np.unique(items[(items >= 0) & (items < extent)])
    return inside


@SETTINGS
@given(st.data(), st.integers(0, 9))
def test_patches_touch_the_chunks_of_their_items(data: st.DataObject, epoch: int) -> None:
    tiling = data.draw(tilings(grid=data.draw(st.booleans())))
    of, grid = data.draw(footprints(tiling)), tiling.at(epoch)
    for volume, d in itertools.product(range(tiling.num_volumes), range(tiling.num_dimensions)):
        chunks = of.num_chunks(volume, d)
        for tile in range(int(grid.count[volume, d])):
            start = grid.starts_along(volume, d, np.array([tile]))
            low, high = of.chunks(grid, np.array([volume]), d, start)
            found = {int(c) % chunks for c in range(int(low[0]), int(high[0]) + 1)}
            assert found == {int(item) // of.chunk[d] for item in items_of(grid, of, volume, d, tile)}


def test_without_a_level_the_items_are_the_voxels() -> None:
    tiling = Tiling(np.array([[40, 30]]), (8, 5), border=("pad", "wrap"))
    of = footprint_of((6, 7), tiling)
    assert (of.size, of.scale, of.shift) == ((8, 5), (1, 1), (0, 0))
    assert of.shape.tolist() == [[7, 5]]
    assert footprint_of(of, tiling) is of


def test_patches_of_a_cell_have_the_items_of_all_that_may_begin_in_it() -> None:
    of = Footprint((4,), (6,), np.array([[30]]), (4,), (-1,), (-1,), (True,))
    begins = [(s + 1) // 4 - 1 for s in range(100)]
    for cell in range(1, 20):
        most = max(begins[s + cell - 1] + 6 - begins[s] for s in range(80))
        assert of.of_cells((cell,)).size == (most,)


@pytest.mark.parametrize(
    ("size", "scale", "origin", "ends", "steps"),
    [(4, 4, 0, True, 4), (4, 4, -64, True, 4), (4, 4, -4, False, 4), (5, 4, 0, False, 4), (16, 1, 0, True, 1)],
)
def test_tiles_end_with_chunks(size: int, scale: int, origin: int, ends: bool, steps: int) -> None:
    of = Footprint((16,), (size,), np.array([[64]]), (scale,), (origin,), (0,), (True,))
    assert of.ends_with_chunks(16, 0) is ends
    assert steps_of_whole_chunks([of], 16, 0) == steps


def crops_along(
    grid: TileGrid, of: Footprint, volume: int, dimension: int, tiles: range, *, whole: bool
) -> dict[int, int]:
    """Return for each chunk along a dimension how many items of it are kept for some tiles."""
    needed: Any = np.unique(np.concatenate([items_of(grid, of, volume, dimension, tile) for tile in tiles]))
    chunk, extent = of.chunk[dimension], int(of.extents[volume, dimension])
    parts = {int(i): needed[needed // chunk == i] for i in np.unique(needed // chunk)}
    if whole:
        return {i: min(chunk, extent - i * chunk) for i in parts}
    return {i: int(part.max() - part.min()) + 1 for i, part in parts.items()}

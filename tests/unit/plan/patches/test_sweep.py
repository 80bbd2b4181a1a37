"""`blocks_of` against tiles that are listed one by one."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.patches.test_tiling import tilings
from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.patches.sweep import Sweep, TileBlocks, blocks_of, cut_edges
from zarrfeed.plan.patches.tiling import Tiling

SETTINGS = examples(150)


@st.composite
def blocks(draw: st.DrawFn) -> TileBlocks:
    tiling = draw(tilings(grid=draw(st.booleans())))
    axis = draw(st.integers(0, tiling.num_dimensions - 1))
    unit = [1 if d == axis else draw(st.integers(1, 3)) for d in range(tiling.num_dimensions)]
    width = [1 if d == axis else unit[d] * draw(st.integers(1, 4)) for d in range(tiling.num_dimensions)]
    layers = draw(st.none() | st.integers(1, 4))
    return blocks_of(tiling.at(draw(st.integers(0, 9))), Sweep(axis, tuple(width), tuple(unit), layers))


def listed(made: TileBlocks) -> list[tuple[int, ...]]:
    """Return (volume, *index) of each sample: block by block, each in C order."""
    tiles = []
    for volume, begin, count in zip(made.volume.tolist(), made.begin.tolist(), made.count.tolist(), strict=True):
        ranges = [range(b, b + c) for b, c in zip(begin, count, strict=True)]
        tiles += [(volume, *index) for index in itertools.product(*ranges)]
    return tiles


@SETTINGS
@given(blocks())
def test_blocks_partition_the_tiles(made: TileBlocks) -> None:
    expected = [
        (volume, *index)
        for volume, count in enumerate(made.grid.count.tolist())
        for index in itertools.product(*map(range, count))
    ]
    assert sorted(listed(made)) == expected
    assert made.num_samples == made.grid.num_tiles == len(expected)
    assert made.first[0] == 0
    assert np.array_equal(np.diff(made.first), made.count.prod(axis=1))
    assert made.max_rows == made.count.prod(axis=1).max()


@SETTINGS
@given(blocks())
def test_samples_are_numbered_block_by_block_in_c_order(made: TileBlocks) -> None:
    volume, index = made.tiles(np.arange(made.num_samples))
    assert [(v, *i) for v, i in zip(volume.tolist(), index.tolist(), strict=True)] == listed(made)
    assert np.array_equal(made.samples(volume, index), np.arange(made.num_samples))
    shuffled = np.random.default_rng(0).permutation(made.num_samples)
    again, start = made.starts(shuffled)
    assert np.array_equal(again, volume[shuffled])
    assert np.array_equal(start, made.grid.starts(volume, index)[shuffled])


@SETTINGS
@given(blocks())
def test_runs_are_the_layers_of_a_column_in_order(made: TileBlocks) -> None:
    axis, width, layers = made.sweep.axis, np.array(made.sweep.width), made.sweep.layers
    assert np.array_equal(np.unique(made.run), np.arange(made.run[-1] + 1))
    assert (np.diff(made.run) >= 0).all()
    across = np.arange(len(width)) != axis
    for run in range(int(made.run[-1]) + 1):
        of_run = np.flatnonzero(made.run == run)
        volume = made.volume[of_run[0]]
        assert (made.volume[of_run] == volume).all()
        begin, count = int(made.begin[of_run[0], axis]), int(made.grid.count[volume, axis])
        assert begin % (layers or count) == 0
        assert made.begin[of_run, axis].tolist() == list(range(begin, min(count, begin + (layers or count))))
        assert (made.count[of_run, axis] == 1).all()
        for column in (made.begin, made.count):
            assert (column[of_run][:, across] == column[of_run[0], across]).all()
        assert (made.count[of_run] <= width).all()
        assert (made.begin[of_run][:, across] % np.array(made.sweep.units)[across] == 0).all()


def test_columns_are_nearly_equal() -> None:
    grid = Tiling(np.array([[8, 33 * 4, 50]]), (8, 4, 1)).at(0, phase=False)
    made = blocks_of(grid, Sweep(2, (1, 32, 1)))
    assert sorted(set(made.count[:, 1].tolist())) == [16, 17]
    made = blocks_of(grid, Sweep(1, (1, 1, 24), (1, 1, 12)))
    assert made.count[::33, 2].tolist() == [12, 24, 14]  # cut at multiples of 12
    assert made.begin[::33, 2].tolist() == [0, 12, 36]


def test_the_parts_of_a_dimension_are_those_of_the_blocks() -> None:
    for count, width, unit in ((33, 32, 1), (50, 24, 12), (7, 9, 3), (1, 4, 2), (12, 1, 1)):
        grid = Tiling(np.array([[5, count]]), (5, 1)).at(0, phase=False)
        made = blocks_of(grid, Sweep(0, (1, width), (1, unit)))
        assert cut_edges(count, width, unit).tolist() == [*made.begin[:, 1].tolist(), count]


def test_ten_million_tiles_take_no_memory_each() -> None:
    grid = Tiling(np.array([[13_824] * 3]), (64, 64, 64), seed=1).at(0)
    tracemalloc.start()
    made = blocks_of(grid, Sweep(0, (1, 14, 14)))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.num_samples > 10_000_000
    assert len(made) < 60_000
    assert most < 1000 * len(made)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"axis": 2}, "axis = 2, must be at most 1"),
        ({"axis": -1}, "axis = -1, must be at least 0"),
        ({"axis": "z"}, "axis = 'z', must be an integer"),
        ({"width": (1, 0)}, "width = 0, must be at least 1"),
        ({"width": (2, 4)}, r"width = \(2, 4\), must be 1 along the sweep axis, 0"),
        ({"width": (1, 2.5)}, "width = 2.5, must be an integer"),
        ({"unit": (1, 3)}, "width = 4, must be a multiple of the unit, 3"),
        ({"unit": (1, 0)}, "unit = 0, must be at least 1"),
        ({"layers": 0}, "layers = 0, must be at least 1"),
        ({"layers": 2.0}, "layers = 2.0, must be an integer"),
        ({"unit": (1,)}, r"unit = \(1,\), must have one integer for each of 2"),
    ],
)
def test_bad_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"axis": 0, "width": (1, 4)}
    Sweep(**good)
    with pytest.raises(ConfigError, match=message):
        Sweep(**{**good, **wrong})


def test_a_sweep_has_the_dimensions_of_the_tiles() -> None:
    grid = Tiling(np.array([[20, 20]]), (4, 4)).at(0)
    with pytest.raises(ConfigError, match=r"width = \(1, 1, 1\), must have one integer for each of 2 dimensions"):
        blocks_of(grid, Sweep(0, (1, 1, 1)))


def test_more_blocks_than_can_be_planned_are_refused_before_they_are_made() -> None:
    grid = Tiling(np.array([[2**40, 8]]), (8, 8)).at(0, phase=False)
    with pytest.raises(ConfigError, match=r"must be at most 16777216 blocks: .* take wider columns"):
        blocks_of(grid, Sweep(0, (1, 1)))

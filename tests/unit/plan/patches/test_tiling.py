"""`Tiling` against voxels that are counted one by one, and its starts against the uniform distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples, tries
from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.keyed_random import below, key_of, keys_of
from zarrfeed.plan.patches.tiling import BORDERS, TileGrid, Tiling
from zarrfeed.plan.samples.selection import Int64

SETTINGS = examples(150)


@st.composite
def tilings(draw: st.DrawFn, borders: tuple[str, ...] = BORDERS, *, grid: bool = False) -> Tiling:
    dimensions = draw(st.integers(1, 3))
    volumes = draw(st.integers(1, 3))
    extents = np.array([[draw(st.integers(1, 14)) for _ in range(dimensions)] for _ in range(volumes)], dtype=np.int64)
    border = tuple(draw(st.sampled_from(borders)) for _ in range(dimensions))
    most = [11 if one == "pad" else int(extent) for one, extent in zip(border, extents.min(axis=0), strict=True)]
    size = tuple(draw(st.integers(1, one)) for one in most)
    stride = tuple(draw(st.integers(1, one)) for one in size) if grid and draw(st.booleans()) else None
    return Tiling(
        extents,
        size,
        sampling="grid" if grid else "tiles",
        border=border,  # type: ignore[arg-type]
        stride=stride,
        seed=draw(st.integers(0, 2**64 - 1)),
    )


def voxels_of(grid: TileGrid, volume: int) -> list[list[Int64]]:
    """Return for each dimension the voxels of each tile, those outside included."""
    return [[start + np.arange(grid.size[d]) for start in grid.starts_along(volume, d)] for d in range(len(grid.size))]


def times_covered(grid: TileGrid, volume: int) -> Int64:
    """Return how many tiles each voxel of a volume lies in: one tile after another."""
    extents = grid.extents[volume]
    covered = np.zeros(extents, dtype=np.int64)
    for tile in itertools.product(*voxels_of(grid, volume)):
        inside = [
            x % n if wraps else x[(x >= 0) & (x < n)]
            for x, n, wraps in zip(tile, extents.tolist(), grid.wraps, strict=True)
        ]
        np.add.at(covered, np.ix_(*inside), 1)
    return covered


@SETTINGS
@given(tilings(("pad",)), st.integers(0, 2**63 - 1))
def test_padded_tiles_cover_each_voxel_exactly_once(tiling: Tiling, epoch: int) -> None:
    grid = tiling.at(epoch)
    for volume in range(tiling.num_volumes):
        assert (times_covered(grid, volume) == 1).all()
        for d, size in enumerate(tiling.size):
            starts = grid.starts_along(volume, d)
            assert (starts > -size).all()
            assert (starts < tiling.extents[volume, d]).all()


@SETTINGS
@given(tilings(("drop",)), st.integers(0, 99))
def test_dropped_tiles_leave_no_volume_and_lie_apart(tiling: Tiling, epoch: int) -> None:
    grid = tiling.at(epoch)
    assert (grid.count >= 1).all()
    for volume in range(tiling.num_volumes):
        assert times_covered(grid, volume).max() == 1
        for d, size in enumerate(tiling.size):
            starts = grid.starts_along(volume, d)
            assert starts[0] >= 0
            assert starts[-1] + size <= tiling.extents[volume, d]
            # another tile would not fit at either end, but in volumes where one tile alone has room
            assert starts[0] < size
            assert starts[-1] + 2 * size > tiling.extents[volume, d]


@SETTINGS
@given(tilings(("shift",)), st.integers(0, 99))
def test_shifted_tiles_lie_inside_and_cover_all(tiling: Tiling, epoch: int) -> None:
    grid = tiling.at(epoch)
    for volume in range(tiling.num_volumes):
        for d, size in enumerate(tiling.size):
            extent = int(tiling.extents[volume, d])
            starts = grid.starts_along(volume, d)
            assert starts.min() >= 0
            assert starts.max() + size <= extent
            times = np.bincount(np.concatenate([s + np.arange(size) for s in starts]), minlength=extent)
            assert times.min() >= 1
            assert times.max() <= (2 if extent >= 2 * size else 3)


@SETTINGS
@given(tilings(("wrap",)), st.integers(0, 99))
def test_wrapped_tiles_cover_all_and_exactly_once_if_patches_divide_the_extent(tiling: Tiling, epoch: int) -> None:
    grid = tiling.at(epoch)
    for volume in range(tiling.num_volumes):
        divides = all(tiling.extents[volume] % tiling.size == 0)
        covered = times_covered(grid, volume)
        assert covered.min() >= 1
        assert covered.max() <= (1 if divides else 2**tiling.num_dimensions)


@SETTINGS
@given(tilings(grid=True), st.integers(0, 99))
def test_a_grid_begins_at_zero_and_is_the_same_in_each_epoch(tiling: Tiling, epoch: int) -> None:
    grid, again = tiling.at(epoch), tiling.at(epoch + 1)
    assert np.array_equal(grid.count, again.count)
    assert np.array_equal(grid.origin, again.origin)
    assert (grid.origin == 0).all()
    for volume in range(tiling.num_volumes):
        for d, (size, step, border) in enumerate(zip(tiling.size, tiling.step, tiling.border, strict=True)):
            extent, starts = int(tiling.extents[volume, d]), grid.starts_along(volume, d)
            regular = step * np.arange(len(starts))
            expected = np.minimum(regular, extent - size) if border == "shift" else regular
            assert np.array_equal(starts, expected)
            if border == "drop":
                assert starts[-1] + size <= extent < starts[-1] + step + size
            elif border == "wrap":
                assert regular[-1] < extent <= regular[-1] + step
            else:
                assert starts[-1] + size >= extent
                assert len(starts) == 1 or regular[-2] + size < extent  # no more than it takes


def test_without_phase_tiles_begin_at_zero() -> None:
    tiling = Tiling(np.array([[100, 90]]), (7, 1), border=("pad", "wrap"), seed=5)
    assert (tiling.at(3).origin != 0).any()
    assert (tiling.at(3, phase=False).origin == 0).all()
    assert tiling.at(3, phase=False).count.tolist() == [[15, 90]]


@SETTINGS
@given(tilings(), st.integers(0, 2**63 - 1))
def test_the_length_of_an_epoch_lies_between_the_shortest_and_the_longest(tiling: Tiling, epoch: int) -> None:
    assert tiling.shortest <= tiling.length(epoch) <= tiling.longest
    assert tiling.shortest <= tiling.typical().num_tiles <= tiling.longest
    assert tiling.length(epoch) == tiling.at(epoch).num_tiles


def test_the_shortest_and_the_longest_epoch_occur() -> None:
    for border in BORDERS:
        tiling = Tiling(np.array([[13, 9], [6, 20]]), (4, 5), border=border, seed=1)
        lengths = {tiling.length(epoch) for epoch in range(1000)}
        assert min(lengths) == tiling.shortest
        assert max(lengths) == tiling.longest


@pytest.mark.parametrize(
    ("border", "extent", "size"), [("pad", 40, 7), ("pad", 3, 8), ("drop", 40, 7), ("drop", 10, 7), ("wrap", 12, 5)]
)
def test_starts_are_uniform_over_epochs(border: Any, extent: int, size: int) -> None:
    tiling = Tiling(np.array([[extent, extent], [extent, extent]]), (size, size), border=border, seed=9)
    epochs = tries(600, 2000)
    times = np.zeros((2, 2, 2 * extent + size), dtype=np.int64)
    for epoch in range(epochs):
        grid = tiling.at(epoch)
        for volume, d in itertools.product(range(2), range(2)):
            starts = grid.starts_along(volume, d)
            times[volume, d, (starts % extent if border == "wrap" else starts + size)] += 1
    possible = {"pad": extent + size - 1, "drop": extent - size + 1, "wrap": extent}[border]
    for found in times.reshape(4, -1):
        seen = found[found > 0]
        assert len(seen) == possible
        share = {"pad": 1 / size, "drop": 1 / min(size, possible), "wrap": -(-extent // size) / extent}[border]
        # each start is binomial by itself; starts of one epoch hang together, so each is held to six deviations
        assert (np.abs(seen - epochs * share) < 6 * np.sqrt(epochs * share * (1 - share)) + 1).all()


def test_phases_are_independent_and_uniform_by_chi_square() -> None:
    size = 6
    tiling = Tiling(np.full((2, 2), 60), (size, size), seed=4)
    phases = np.array([-tiling.at(epoch).origin for epoch in range(3600)]).reshape(-1, 4)
    for column in phases.T:
        counts = np.bincount(column, minlength=size)
        assert ((counts - 600) ** 2 / 600).sum() < 25  # 5 degrees of freedom: p = 0.0001
    for a, b in itertools.combinations(range(4), 2):
        counts = np.bincount(phases[:, a] * size + phases[:, b], minlength=size * size)
        assert ((counts - 100) ** 2 / 100).sum() < 80  # 35 degrees of freedom: p < 0.0001


def test_shifted_tiles_are_likelier_at_the_ends() -> None:
    tiling = Tiling(np.array([[20]]), (5,), border="shift", seed=2)
    starts = np.concatenate([tiling.at(epoch).starts_along(0, 0) for epoch in range(2000)])
    times = np.bincount(starts, minlength=16)
    assert times[0] == times.max() or times[15] == times.max()
    assert times[0] > 4 * times[7]
    assert times[15] > 3 * times[7]


def test_the_seed_the_epoch_and_the_volume_draw_phases() -> None:
    extents = np.full((3, 2), 1000)
    origin = Tiling(extents, (500, 500), seed=1).at(0).origin
    assert len(np.unique(origin)) == 6
    assert not np.array_equal(Tiling(extents, (500, 500), seed=2).at(0).origin, origin)
    assert not np.array_equal(Tiling(extents, (500, 500), seed=1).at(1).origin, origin)
    assert np.array_equal(Tiling(extents, (500, 500), seed=1).at(0).origin, origin)


def test_one_epoch_is_pinned() -> None:
    grid = Tiling(np.array([[100, 200], [50, 60]]), (16, 32), border=("pad", "wrap"), seed=7).at(3)
    assert grid.origin.tolist() == [[-5, 189], [-9, 51]]
    for volume, origin in enumerate(grid.origin.tolist()):
        drawn = [
            key_of(0x7068617365, 7, 3, volume, d) * phases >> 64 for d, phases in ((0, 16), (1, [200, 60][volume]))
        ]
        assert origin == [-drawn[0], drawn[1]]


@SETTINGS
@given(st.lists(st.integers(0, 2**64 - 1), max_size=4), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_keys_of_arrays_are_keys_of_each_of_their_words(words: list[int], last: list[int]) -> None:
    found = keys_of(*words, np.array(last, dtype=np.int64))
    assert found.tolist() == [key_of(*words, one) for one in last]


@SETTINGS
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63 - 1))
def test_bounded_numbers_are_the_high_word_of_the_product(word: int, bound: int) -> None:
    assert below(np.array([word], dtype=np.uint64), np.array([bound])).tolist() == [word * bound >> 64]


GOOD: dict[str, Any] = {"extents": np.array([[20, 30]]), "size": (4, 5)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"extents": np.array([20, 30])}, r"shape \(2,\) and dtype int64, must have integers of shape"),
        ({"extents": np.array([[20.0, 30.0]])}, "dtype float64"),
        ({"extents": np.zeros((0, 2), dtype=np.int64)}, "at least 1 volume"),
        ({"extents": np.ones((1, 5), dtype=np.int64), "size": (1,) * 5}, "1 to 4 dimensions"),
        ({"extents": np.array([[20, 0]])}, r"dimension of 0, must be in \[1, "),
        ({"extents": np.array([[20, 2**50]])}, "must be in"),
        ({"size": (4,)}, r"size = \(4,\), must have one integer for each of 2 dimensions"),
        ({"size": 4}, "size = 4, must have one integer for each"),
        ({"size": "ab"}, "must have one integer for each"),
        ({"size": (4, 0)}, "size = 0, must be at least 1"),
        ({"size": (4, 2.5)}, "size = 2.5, must be an integer"),
        ({"sampling": "tile"}, "sampling = 'tile', must be one of 'tiles', 'grid'"),
        ({"sampling": None}, "must be one of"),
        ({"border": "mirror"}, "border = 'mirror', must be one of 'pad', 'wrap', 'drop', 'shift'"),
        ({"border": ("pad",)}, "must be one word, or one for each of 2"),
        ({"border": ("pad", "reflect")}, "border = 'reflect', must be one of"),
        ({"border": 3}, "border = 3, must be one word"),
        ({"stride": (2, 2)}, 'with sampling = "tiles", must be None'),
        ({"sampling": "grid", "stride": (2,)}, "stride = .* must have one integer for each"),
        ({"sampling": "grid", "stride": (2, 0)}, "stride = 0, must be at least 1"),
        ({"sampling": "grid", "stride": (2, 6)}, "stride = 6 in dimension 1, must be at most the patch's size, 5"),
        ({"seed": -1}, "seed = -1, must be at least 0"),
        ({"seed": 2**64}, "seed = .* must be at most"),
        ({"seed": 1.0}, "seed = 1.0, must be an integer"),
        (
            {"extents": np.array([[20, 30], [9, 4]]), "border": "drop"},
            r'size = 5 in dimension 1, must be at most 4, the extent of volume 1, where border = "drop"',
        ),
        ({"size": (21, 5), "border": "shift"}, "must be at most 20"),
        ({"size": (21, 5), "border": ("wrap", "pad")}, "must be at most 20"),
        ({"extents": np.full((1, 3), 2**21), "size": (1, 1, 1)}, "must be less than"),
    ],
)
def test_bad_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    Tiling(**GOOD)
    with pytest.raises(ConfigError, match=message):
        Tiling(**{**GOOD, **wrong})


def test_a_patch_may_be_larger_than_its_volume_with_padding() -> None:
    tiling = Tiling(np.array([[3]]), (8,), border="pad", seed=1)
    counts = {int(tiling.at(epoch).count[0, 0]) for epoch in range(200)}
    assert counts == {1, 2}

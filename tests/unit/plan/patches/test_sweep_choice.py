"""The choice of axis, width and lanes: what it decodes and keeps is what it says, with any memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.patches.test_footprint import crops_along, footprints
from tests.unit.plan.patches.test_sweep_cost import cells_of_samples
from tests.unit.plan.patches.test_tiling import tilings
from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.block_order import MOST_BLOCKS
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS
from zarrfeed.plan.patches.decode_count import count_decodes
from zarrfeed.plan.patches.footprint import Footprint, footprint_of
from zarrfeed.plan.patches.sweep import GOOD_AMPLIFICATION, Sweep, SweepChoice, TileBlocks
from zarrfeed.plan.patches.sweep_choice import PatchField, carried_bytes, choose_sweep
from zarrfeed.plan.patches.swept_order import PatchOrder, SweptOrder
from zarrfeed.plan.patches.tiling import Tiling

SETTINGS = examples(60)

MIB = 1 << 20
CUBE = np.full((1, 3), 2048)
#: Of a year, the hours that are no multiple of lanes or chunks.
HOURS = np.array([[8761, 721, 1440]])


def field(chunk: tuple[int, ...], size: tuple[int, ...], item: int = 1) -> PatchField:
    return PatchField(chunk, int(np.prod(chunk)) * item, int(np.prod(size)) * item)


def choose(tiling: Tiling, *fields: PatchField, memory: int = 819 * MIB, **options: Any) -> SweepChoice:
    return choose_sweep(tiling, fields, memory=memory, **{"num_threads": 2, **options})


#: One item for each voxel, the one before it; the first item stands for the one before itself, too.
REPEATED = PatchField(
    (1, 1),
    10**6,
    1,
    Footprint((1, 1), (1, 1), np.array([[2, 2]]), scale=(1, 1), origin=(0, 1), shift=(0, 0), pads=(False, False)),
)

CASES: dict[str, tuple[np.ndarray[Any, Any], tuple[int, ...], tuple[int, ...], int]] = {
    "c128 p64 uint8": (CUBE, (128,) * 3, (64,) * 3, 1),
    "c128 p64 float32": (CUBE, (128,) * 3, (64,) * 3, 4),
    "c64 p64 uint8": (CUBE, (64,) * 3, (64,) * 3, 1),
    "c64 p64 float32": (CUBE, (64,) * 3, (64,) * 3, 4),
    "c64 p128 uint8": (CUBE, (64,) * 3, (128,) * 3, 1),
    "hours": (HOURS[:, :], (1, 721, 1440), (1, 256, 256), 4),
    "hours of 4": (HOURS, (1, 721, 1440), (4, 128, 128), 4),
    "days": (HOURS, (24, 512, 512), (1, 256, 256), 4),
    "days of 4": (HOURS, (24, 512, 512), (4, 128, 128), 4),
}


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_chosen_fits_and_decodes_what_it_says(case: str, crops: bool) -> None:
    extents, chunk, size, item = CASES[case]
    if case.startswith(("hours", "days")):
        extents = extents // [8, 1, 1]
    tiling = Tiling(extents, size, seed=3)
    chosen = choose(tiling, field(chunk, size, item), crops=crops)
    assert chosen.fits
    assert chosen.total_bytes <= 819 * MIB
    assert chosen.lanes in LANE_COUNTS
    num_chunks = (-(-extents // np.array(chunk))).prod(axis=1).sum()
    orders = PatchOrder(tiling, chosen.sweep, seed=1, lanes=chosen.lanes)
    counted = [count_decodes(orders.at(e), e, [chunk])[0] / num_chunks for e in range(2)]
    assert chosen.amplification == pytest.approx(np.mean(counted), rel=0.05)


@pytest.mark.parametrize(
    ("case", "lanes", "whole", "cropped"),
    [  # decodes a chunk, where lanes carry whole chunks, and where they crop them
        ("c128 p64 uint8", 8, 1.70, 1.56),
        ("c128 p64 float32", 4, 2.11, 1.85),
        ("c64 p64 uint8", 8, 1.24, 1.22),
        ("c64 p128 uint8", 8, 1.30, 1.30),
        ("hours", 4, 1.01, 1.01),
        ("hours of 4", 4, 1.01, 1.01),
        ("days", 4, 1.02, 1.02),
        ("days of 4", 4, 1.70, 1.04),
    ],
)
def test_volumes_of_studies_are_decoded_seldom(case: str, lanes: int, whole: float, cropped: float) -> None:
    extents, chunk, size, item = CASES[case]
    tiling = Tiling(extents, size)
    for crops, most in ((False, whole), (True, cropped)):
        assert choose(tiling, field(chunk, size, item), lanes=lanes, crops=crops).amplification <= most


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Tiling, list[PatchField]]:
    tiling = draw(tilings(grid=draw(st.booleans())))
    fields = []
    for _ in range(draw(st.integers(1, 2))):
        chunk, footprint = tuple(draw(st.integers(1, 9)) for _ in tiling.size), None
        if draw(st.booleans()):
            footprint = draw(footprints(tiling))
            chunk = footprint.chunk
        of = field(chunk, tiling.size if footprint is None else footprint.size, draw(st.integers(1, 4)))
        fields.append(replace(of, footprint=footprint))
    return tiling, fields


@examples(200)
@given(layouts(), st.integers(0, 9), st.integers(0, 4000), st.integers(0, 9))
def test_no_epoch_needs_more_memory_than_is_said(
    layout: tuple[Tiling, list[PatchField]], seed: int, memory: int, epoch: int
) -> None:
    tiling, fields = layout
    chosen = choose(tiling, *fields, memory=memory, num_threads=1 + seed % 3)
    order = PatchOrder(tiling, chosen.sweep, seed=seed, lanes=chosen.lanes).at(epoch)
    tiles = order.tiles
    assert tiles.max_rows <= chosen.block_tiles
    blocks = 2 * tiles.max_rows * sum(one.sample_bytes for one in fields)
    assert blocks + chosen.carried_bytes <= chosen.bytes_of_lane
    assert chosen.fits == (chosen.total_bytes <= memory)
    for run in np.split(np.arange(len(tiles)), np.flatnonzero(np.diff(tiles.run)) + 1):
        cells = [
            [cells_of_samples(order, one.array, range(*tiles.first[b : b + 2].tolist())) for one in fields] for b in run
        ]
        if len(cells) == 1:
            continue
        # each layer hands chunks to the next one, the last one to the first
        handed = [
            [a & b for a, b in zip(one, following, strict=True)]
            for one, following in zip(cells, [*cells[1:], cells[0]], strict=True)
        ]
        sizes = [one.cell_bytes for one in fields]
        for before, after in itertools.pairwise([*handed, handed[0]]):
            held = sum(size * len(a | b) for size, a, b in zip(sizes, before, after, strict=True))
            assert sum(size * len(a) for size, a in zip(sizes, before, strict=True)) <= chosen.carried_bytes
            assert chosen.lanes * chosen.bytes_of_lane + held - chosen.carried_bytes <= chosen.total_bytes


def crops_of_block(order: SweptOrder, field: PatchField, block: int) -> dict[tuple[int, ...], float]:
    """Return what is kept of each chunk that a block of tiles touches, in bytes, voxel by voxel."""
    tiles, grid = order.tiles, order.tiles.grid
    assert isinstance(tiles, TileBlocks)
    volume, begin, count = int(tiles.volume[block]), tiles.begin[block], tiles.count[block]
    along = []
    for d in range(len(begin)):
        of_block = range(begin[d], begin[d] + count[d])
        array, whole = footprint_of(field.array, grid), d == tiles.sweep.axis
        along.append(crops_along(grid, array, volume, d, of_block, whole=whole))
    voxel_bytes = field.cell_bytes / math.prod(field.chunk)
    return {
        (volume, *(i for i, _ in cell)): min(field.cell_bytes, 17 / 16 * voxel_bytes * math.prod(n for _, n in cell))
        for cell in itertools.product(*(one.items() for one in along))
    }


@examples(200)
@example((Tiling(np.array([[8, 2]]), (4, 1), border="wrap", seed=0), [field((2, 2), (1, 1))]), 0, 12, 0)
@example((Tiling(np.array([[8, 2]]), (4, 1), border=("wrap", "pad"), seed=0), [field((2, 2), (1, 1))]), 0, 0, 0)
@example((Tiling(np.array([[12, 2]]), (4, 1), border="wrap", seed=0), [field((6, 2), (1, 1))]), 0, 12, 0)
@example((Tiling(np.array([[2, 2]]), (1, 1), seed=0), [REPEATED, field((3, 2), (1, 1), 10**6)]), 0, 0, 0)
@given(layouts(), st.integers(0, 9), st.integers(0, 4000), st.integers(0, 9))
def test_no_epoch_keeps_larger_crops_than_is_said(
    layout: tuple[Tiling, list[PatchField]], seed: int, memory: int, epoch: int
) -> None:
    tiling, fields = layout
    chosen = choose(tiling, *fields, memory=memory, num_threads=1 + seed % 3, crops=True)
    of_lane, beside = carried_bytes(tiling, fields, chosen.sweep, crops=True)
    assert chosen.carried_bytes in (of_lane, of_lane - 1)  # rounded up and down
    order = PatchOrder(tiling, chosen.sweep, seed=seed, lanes=chosen.lanes).at(epoch)
    tiles = order.tiles
    for run in np.split(np.arange(len(tiles)), np.flatnonzero(np.diff(tiles.run)) + 1):
        kept = [[crops_of_block(order, one, b) for one in fields] for b in run]
        if len(kept) == 1:
            continue
        handed = []
        for one, following in zip(kept, [*kept[1:], kept[0]], strict=True):
            handed.append([{c: n for c, n in a.items() if c in b} for a, b in zip(one, following, strict=True)])
            for a, b in zip(one, following, strict=True):
                assert all(a[c] == b[c] for c in a if c in b)  # one crop serves all layers
        for before, after in itertools.pairwise([*handed, handed[0]]):
            assert sum(sum(a.values()) for a in before) <= of_lane
            assert sum(sum((a | b).values()) for a, b in zip(before, after, strict=True)) <= of_lane + beside


@pytest.mark.parametrize(
    ("size", "chunk", "border", "carried", "beside"),
    [
        (6, 10, "pad", 1, 1),  # a tile may begin in the chunk that it was handed, and end in the next one
        (25, 10, "pad", 1, 1),
        (1, 10, "pad", 1, 0),  # no tile lies in two chunks
        (10, 1, "pad", 0, 0),  # no chunk lies in two tiles
        (1, 1, "pad", 0, 0),
        (20, 10, "shift", 3, 3),  # the last tile may lie where the one before it does
        (20, 10, "wrap", 4, 4),  # and lie across the border, with a short chunk before it
    ],
)
def test_a_lane_carries_layers_of_chunks(size: int, chunk: int, border: Any, carried: int, beside: int) -> None:
    tiling = Tiling(np.array([[105]]), (size,), border=border, seed=1)
    chosen = choose(tiling, PatchField((chunk,), 1000, 1), lanes=3, num_threads=2)
    assert chosen.carried_bytes == 1000 * carried
    assert chosen.bytes_of_lane == 2 + 1000 * carried
    assert chosen.total_bytes == 3 * chosen.bytes_of_lane + 2 * 1000 * beside


@SETTINGS
@given(layouts(), st.integers(1, 12))
def test_more_memory_decodes_no_more(layout: tuple[Tiling, list[PatchField]], lanes: int) -> None:
    tiling, fields = layout
    found = [choose(tiling, *fields, memory=memory, lanes=lanes) for memory in (0, 300, 1000, 5000, 10**6)]
    for less, more in itertools.pairwise([one for one in found if one.fits]):
        assert more.amplification <= 1.006 * less.amplification
    assert found[-1].fits
    assert {one.lanes for one in found} == {min(lanes, tiling.shortest)}


@SETTINGS
@given(layouts(), st.integers(1, 8))
def test_the_good_memory_is_enough_for_a_good_amplification(
    layout: tuple[Tiling, list[PatchField]], lanes: int
) -> None:
    tiling, fields = layout
    good = choose(tiling, *fields, memory=0, lanes=lanes).good_bytes
    if good is None:
        assert choose(tiling, *fields, memory=10**9, lanes=lanes).amplification > GOOD_AMPLIFICATION
        return
    assert choose(tiling, *fields, memory=good, lanes=lanes).amplification <= 1.006 * GOOD_AMPLIFICATION
    less = choose(tiling, *fields, memory=good - 1, lanes=lanes)
    assert not less.fits or less.amplification > GOOD_AMPLIFICATION


def test_without_memory_columns_have_one_tile_and_there_is_one_lane() -> None:
    tiling = Tiling(CUBE, (64,) * 3)
    for memory in (0, 1, MIB):
        chosen = choose(tiling, field((128,) * 3, (64,) * 3), memory=memory)
        assert chosen.sweep.width == (1, 1, 1)
        assert chosen.lanes == 1
        assert not chosen.fits
    some = [choose(tiling, field((128,) * 3, (64,) * 3), memory=m * MIB) for m in (24, 64, 128, 256, 512)]
    assert all(one.fits for one in some)
    assert [one.lanes for one in some] == sorted(one.lanes for one in some)


def test_the_choice_depends_on_no_seed() -> None:
    chosen = {
        choose(
            Tiling(np.array([[700, 600, 500], [300, 200, 900]]), (64, 48, 32), seed=s), field((80,) * 3, (64, 48, 32))
        )
        for s in range(5)
    }
    assert len(chosen) == 1


def test_lanes_that_the_user_names_are_kept() -> None:
    tiling, one = Tiling(CUBE, (64,) * 3), field((128,) * 3, (64,) * 3)
    for lanes in (1, 3, 100):
        assert choose(tiling, one, lanes=lanes).lanes == lanes
    assert choose(Tiling(np.array([[3, 4]]), (3, 2)), field((9, 9), (3, 2)), lanes=100).lanes == 2


def test_more_lanes_are_taken_only_where_they_cost_little() -> None:
    tiling, one = Tiling(CUBE, (64,) * 3), field((128,) * 3, (64,) * 3, 4)
    chosen = choose(tiling, one)
    assert chosen.lanes < 8  # with 8 lanes, columns are so narrow that much is decoded twice
    assert choose(tiling, one, lanes=8).amplification > 1.2 * choose(tiling, one, lanes=4).amplification
    ample = choose(tiling, one, memory=64 << 30)
    assert ample.lanes >= 8
    best = {lanes: choose(tiling, one, memory=64 << 30, lanes=lanes).amplification for lanes in LANE_COUNTS[:11]}
    more = LANE_COUNTS[LANE_COUNTS.index(ample.lanes) + 1]
    assert best[ample.lanes] <= 1.1 * best[8] < best[more]


def test_no_more_lanes_are_chosen_than_a_batch_has_samples() -> None:
    chosen = choose(Tiling(np.array([[100_000, 64, 64]]), (1, 32, 32)), field((1, 64, 64), (1, 32, 32)))
    assert chosen.lanes == 64


def test_runs_end_with_chunks_where_tiles_do() -> None:
    chosen = choose(Tiling(HOURS, (1, 256, 256)), field((24, 512, 512), (1, 256, 256), 4), lanes=4)
    assert chosen.sweep.axis == 0
    assert chosen.sweep.layers == 24
    two = choose(
        Tiling(HOURS, (1, 256, 256)),
        field((24, 512, 512), (1, 256, 256)),
        field((16, 721, 1440), (1, 256, 256)),
        memory=4 << 30,
        lanes=4,
    )
    assert (two.sweep.layers or two.sweep.width[0]) % 48 == 0
    alone = choose(Tiling(HOURS, (1, 256, 256)), field((24, 512, 512), (1, 256, 256), 4), lanes=1, shuffle=False)
    assert alone.sweep.layers is None


def test_parts_of_the_other_dimensions_end_with_chunks_where_tiles_do() -> None:
    tiling = Tiling(np.array([[8761, 64, 4096]]), (1, 64, 64))
    chosen = choose(tiling, field((24, 64, 64), (1, 64, 64), 4), memory=100 * MIB, lanes=8)
    assert chosen.sweep.axis == 2
    assert chosen.sweep.units[0] == 24
    assert chosen.sweep.width[0] % 24 == 0


def test_long_columns_are_cut_into_runs_that_cost_little() -> None:
    tiling = Tiling(np.array([[1_000_000, 64, 64]]), (16, 16, 16))
    chosen = choose(tiling, field((64,) * 3, (16,) * 3), lanes=4)
    assert chosen.sweep.axis == 0
    assert chosen.sweep.layers is not None
    whole = replace(chosen.sweep, layers=None)
    runs = len(np.unique(PatchOrder(tiling, chosen.sweep).at(0).tiles.run))
    assert runs > 50
    assert len(np.unique(PatchOrder(tiling, whole).at(0).tiles.run)) == 1
    assert chosen.amplification < 1.02


def test_there_are_no_more_blocks_than_can_be_planned() -> None:
    tiling = Tiling(np.array([[40_000_000, 16]]), (1, 4))
    chosen = choose(tiling, field((1, 16), (1, 4)))
    assert len(PatchOrder(tiling, chosen.sweep).at(0).tiles) < MOST_BLOCKS


def test_shuffling_costs_the_chunks_that_are_decoded_again() -> None:
    tiling, one = Tiling(CUBE, (64,) * 3, seed=1), field((128,) * 3, (64,) * 3)
    shuffled, in_order = choose(tiling, one, lanes=1), choose(tiling, one, lanes=1, shuffle=False)
    assert in_order.sweep == shuffled.sweep
    assert in_order.amplification < shuffled.amplification < in_order.amplification * 17 / 16


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": -1}, "memory = -1, must be at least 0"),
        ({"memory": 1.5}, "memory = 1.5, must be an integer"),
        ({"num_threads": 0}, "num_threads = 0, must be at least 1"),
        ({"num_threads": None}, "num_threads = None, must be an integer"),
        ({"lanes": 0}, "lanes = 0, must be at least 1"),
        ({"fields": []}, "fields is empty, must have at least one"),
        ({"fields": [PatchField((8,), 8, 8)]}, r"chunk = \(8,\), must have one integer for each of 2 dimensions"),
        ({"fields": [PatchField((8, 0), 8, 8)]}, "chunk = 0, must be at least 1"),
        ({"fields": [PatchField((8, 8), 0, 8)]}, "cell_bytes = 0, must be at least 1"),
        ({"fields": [PatchField((8, 8), 8, 0)]}, "sample_bytes = 0, must be at least 1"),
    ],
)
def test_bad_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"fields": [PatchField((8, 8), 64, 16)], "memory": 100, "num_threads": 1}
    tiling = Tiling(np.array([[20, 20]]), (4, 4))
    assert isinstance(choose_sweep(tiling, **good).sweep, Sweep)
    with pytest.raises(ConfigError, match=message):
        choose_sweep(tiling, **{**good, **wrong})

"""The rows of a slab on layouts whose decodes were counted by hand, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import zarr

import zarrfeed
from zarrfeed.plan.blocks.decoded_bytes import Grain
from zarrfeed.plan.blocks.slab_cost import CHEAP_DECODES, LEAST_BYTES, MOST_DECODES, SlabCost

KIB, MIB = 1 << 10, 1 << 20


def cost(
    row_kib: float, rows: int, block: int, *others: tuple[float, int, int], window: Sequence[int] = ()
) -> SlabCost:
    """Return the cost of an array with rows of some KiB and Blosc blocks of so many bytes, and of other arrays."""
    n = rows * 8
    arrays = {
        str(number): zarr.create_array({}, shape=(n, round(kib * 256)), chunks=(of, round(kib * 256)), dtype="f4")
        for number, (kib, of, _) in enumerate([(row_kib, rows, block), *others])
    }
    data = zarrfeed.open(arrays)
    fields = (data.window(tuple(window)) if window else data).resolved.fields
    return SlabCost(fields, 0, tuple(Grain(one, True) for one in (block, *(of for _, _, of in others))))


def exact(row: int, rows: int, block: int, slab: int) -> float:
    total = 0
    for begin in range(0, rows, slab):
        end = min(rows, begin + slab)
        total += sum(min(block, row * rows - b * block) for b in range(begin * row // block, -(-end * row // block)))
    return total / (row * rows)


@pytest.mark.parametrize(
    ("row_kib", "rows", "block"),
    [
        (4055.625, 24, 512 * KIB),
        (4055.625, 24, 256 * KIB),
        (256, 24, 512 * KIB),
        (1024, 365, MIB),
        (384, 365, 512 * KIB),
    ],
)
def test_decodes_are_those_of_each_block_that_a_slab_touches(row_kib: float, rows: int, block: int) -> None:
    counted = cost(row_kib, rows, block)
    for slab in range(1, 7):
        assert counted.decodes(slab) == pytest.approx(exact(round(row_kib * KIB), rows, block, slab))


def test_the_fewest_rows_that_cost_little_and_have_a_mebibyte_are_taken() -> None:
    assert cost(4055.625, 24, 512 * KIB).cheap_rows() == 1  # 1.12 decodes
    assert cost(256, 24, 512 * KIB).cheap_rows() == 4  # 2 rows cost as little, and have half a MiB
    assert cost(384, 365, 512 * KIB).cheap_rows() == 4
    assert cost(1024, 365, MIB).cheap_rows() == 1
    assert cost(64, 16, 512 * KIB).cheap_rows() is None  # a slab of a MiB is the whole chunk
    assert cost(1024, 24, 0).cheap_rows() is None  # the chunk is decoded whole
    assert cost(256, 24, 512 * KIB).least_rows * 256 * KIB == LEAST_BYTES


def test_an_array_that_cannot_be_cut_bounds_the_slabs_by_its_chunks() -> None:
    alone, beside = cost(1024, 24, 256 * KIB), cost(1024, 24, 256 * KIB, (1024, 4, 0))
    assert alone.cheap_rows() == 1
    assert beside.cheap_rows() == 4
    assert beside.decodes(1) == pytest.approx((1 + 4) / 2)
    assert cost(1024, 24, 256 * KIB, (1024, 24, 0)).cheap_rows() is None
    assert cost(1024, 24, 256 * KIB, (1, 24, 0)).cheap_rows() == 1  # whose bytes hardly count


def test_windows_take_longer_slabs_and_shorter_ones_only_up_to_two_decodes() -> None:
    pairs = cost(4055.625, 24, 512 * KIB, window=(0, 1))
    assert pairs.cheap_rows() is None  # 12 rows are cheap to decode, and each slab would read all of the chunk
    assert pairs.decodes(12) <= CHEAP_DECODES < pairs.decodes(8)
    shorter = pairs.shorter_than(24)
    assert shorter[0] == 12
    assert shorter == sorted(shorter, reverse=True)
    assert pairs.decodes(min(shorter)) <= MOST_DECODES < pairs.decodes(min(shorter) - 1)
    decodes = [pairs.decodes(rows) for rows in shorter]
    assert decodes == sorted(decodes)
    assert cost(4055.625, 24, 512 * KIB, window=range(6)).cheap_rows() is None


def test_rows_that_lanes_hand_on_are_decoded_once_for_a_strip() -> None:
    alone = cost(4055.625, 24, 512 * KIB)
    for window, cheap in (((0, 1), 2), (range(6), 4)):
        apart = cost(4055.625, 24, 512 * KIB, window=window)
        strips = replace(apart, strip_of=lambda _: 16)
        for rows in (1, 2, 4, 8):
            once, of_each = alone.decodes(rows), apart.decodes(rows)
            assert strips.decodes(rows) == pytest.approx(once + (of_each - once) / 16)
        assert strips.cheap_rows() == cheap
        assert replace(apart, strip_of=lambda _: 1).decodes(2) == apart.decodes(2)
    whole = replace(cost(4055.625, 24, 0, window=(0, 1)), strip_of=lambda _: 100)
    assert whole.decodes(2) == pytest.approx(1.0, rel=0.15)  # a chunk that cannot be cut is handed on whole


def test_years_of_two_lengths_are_counted_together() -> None:
    years = [
        zarr.create_array({}, shape=(days, 1 << 18), chunks=(days, 1 << 18), dtype="f4") for days in (365, 366, 365)
    ]
    fields = zarrfeed.concat([zarrfeed.open(year) for year in years]).resolved.fields
    assert [layout.spec.rows_per_chunk for layout in fields[0].layouts] == [365, 366]
    both = SlabCost(fields, 0, (Grain(MIB, True), Grain(MIB, True)))
    assert both.cheap_rows() == 1
    assert both.decodes(1) == 1
    assert both.least_rows == 1
    one_whole = SlabCost(fields, 0, (Grain(MIB, True), Grain()))
    assert one_whole.decodes(183) == pytest.approx((365 + 2 * 366) / 731)
    assert one_whole.cheap_rows() is None


def test_lengths_of_many_rows_are_not_tried_one_by_one() -> None:
    counted = cost(1, 100_000, 128 * KIB)
    assert counted.cheap_rows() == 1024
    odd = cost(1000 / 1024, 99_991, 128 * KIB)  # no length ends where grains do, nor where chunks do
    rows = odd.cheap_rows()
    assert rows is not None
    assert 1000 < rows < 1200
    assert odd.decodes(rows) <= CHEAP_DECODES

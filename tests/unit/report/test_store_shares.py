"""Which part of the samples each store has: in the figures, and on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ZarrIterableDataset
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.report.store_shares import StoreShares

LENGTHS = [7, 1, 30, 12]


def shares(lengths: list[int], select: object = None) -> StoreShares:
    first = np.concatenate(([0], np.cumsum(lengths)))
    choice = SampleChoice.all_of(int(first[-1]))
    if select is not None:
        choice = choice.select(select)  # type: ignore[arg-type]
    return StoreShares.of(StoreTable([f"s{number}" for number in range(len(lengths))], first), choice)


@pytest.mark.parametrize(
    "select", [None, slice(5, 40), slice(3, None, 4), slice(None, None, 49), [8, 0, 49, 9, 30], [7]]
)
def test_samples_are_counted_in_the_store_that_has_them(select: object) -> None:
    store = np.repeat(np.arange(4), LENGTHS)
    expected = np.bincount(store if select is None else store[select], minlength=4)  # type: ignore[call-overload]
    assert shares(LENGTHS, select).selected.tolist() == expected.tolist()
    assert shares(LENGTHS, select).lengths.tolist() == LENGTHS


def test_a_few_stores_are_listed_and_of_many_the_first_and_the_last_by_size() -> None:
    assert shares([3, 1], slice(1, None)).rows() == [
        ("stores", "in 2 stores of 1 to 3 samples"),
        ("", "s0: 2 of 3 samples, 66.7 %"),
        ("", "s1: 1 samples, 33.3 %"),
    ]
    assert shares([5] * 1000, slice(10, 4000)).rows() == [
        ("stores", "in 1000 stores of 5 samples"),
        ("", "each as s2: 5 samples, 0.125 %"),
        ("", "202 stores have no sample that is read, such as s0"),
    ]
    assert shares([5, 3, 2, 4, 9, 1, 6], slice(1, None)).rows() == [
        ("stores", "in 7 stores of 1 to 9 samples"),
        ("", "most samples: s4: 9 samples, 31 %"),
        ("", "fewest samples: s5: 1 samples, 3.45 %"),
    ]


def test_explain_shows_stores_their_layouts_and_what_was_left_out_of_each(tmp_path: Path) -> None:
    for number, rows in enumerate((9, 20)):
        options = {"chunks": (3 + number, 2), "shards": (6 + 2 * number, 2)}
        zarr.create_array(tmp_path / f"{number}.zarr", data=np.ones((rows, 2)), **options)  # type: ignore[arg-type]
    parts = [zarrfeed.open(tmp_path / f"{number}.zarr").window((-2, 0)) for number in range(2)]
    explained = ZarrIterableDataset(zarrfeed.concat(parts), batch_size=4).explain()
    assert explained.stores is not None
    assert explained.stores.selected.tolist() == [7, 18]
    page = str(explained)
    assert "29 in the array, 25 selected" in page
    assert "4 of 29 samples left out: their windows reach beyond the ends of the array\n" in page
    assert f"{tmp_path}/1.zarr: 18 of 20 samples, 72 %" in page
    assert "which store it in 2 ways (chunks of 3 to 4 samples); this is the first" in page
    assert f"{3 + 5} chunks stored in {2 + 3} shards: amplification 1.00" in page
    alike = ZarrIterableDataset(zarrfeed.open([tmp_path / "1.zarr"] * 3)).explain()
    assert alike.fields[0].shards == 9
    assert str(alike).count("in 3 stores of 20 samples") == 1
    assert ZarrIterableDataset(tmp_path / "1.zarr").explain().stores is None

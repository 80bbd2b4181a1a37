"""The page of `explain()` leads with a verdict, and names a remedy where a figure is poor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.codecs import BloscCodec

import zarrfeed


def first_line(dataset: zarrfeed.ZarrIterableDataset) -> str:
    return str(dataset.explain()).splitlines()[0]


def test_the_first_line_is_a_verdict(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", shape=(6400, 10), chunks=(16, 10), dtype="f4")
    line = first_line(zarrfeed.ZarrIterableDataset(tmp_path / "x", batch_size=16, shuffle=True))
    assert line.startswith("verdict ")
    for part in ("as well as a perfect shuffle", "decodes each chunk 1.", "takes ", "nothing in its plan limits it"):
        assert part in line, line
    in_order = first_line(zarrfeed.ZarrIterableDataset(tmp_path / "x", batch_size=16))
    assert "keeps an order" in in_order
    assert "decodes each chunk 1.00 times" in in_order
    patches = zarrfeed.open(tmp_path / "x").patch({0: 32, 1: 5})
    dataset = zarrfeed.ZarrIterableDataset(patches, batch_size=4, shuffle=True)
    explained = dataset.explain()
    share = min(1.0, explained.chunks_per_batch / explained.ideal_chunks_per_batch)
    assert f"columns of patches, {share:.0%} of the layers that a perfect shuffle draws from" in first_line(dataset)


def test_chunks_that_are_decoded_again_name_a_remedy(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w")
    group.create_array("x", shape=(4000, 300), chunks=(40, 300), dtype="f4")
    group.create_array("y", shape=(4000, 300), chunks=(57, 300), dtype="f4")
    dataset = zarrfeed.ZarrIterableDataset(tmp_path / "g", batch_size=16, shuffle=True, memory_budget="20MiB")
    explained = dataset.explain()
    worst = max(explained.fields, key=lambda f: f.repeats)
    assert worst.amplification > 1.1
    assert worst.remedy
    page = str(explained)
    assert worst.remedy in page
    assert f"decodes each chunk of {worst.name} {worst.repeats:.2f} times" in page.splitlines()[0]
    assert "limited by chunks that are decoded again" in page.splitlines()[0]


def test_slabs_that_decode_a_little_again_need_no_remedy_and_others_name_one(tmp_path: Path) -> None:
    codec = BloscCodec(cname="zstd", clevel=1)  # blocks about as long as a row
    array = zarr.create_array(tmp_path / "x", shape=(4000, 8200), chunks=(20, 8200), dtype="f4", compressors=codec)
    array[:20] = 1
    for rows, is_fine in ((9, True), (2, False)):
        mixing = {"block": rows, "lanes": 1}
        explained = zarrfeed.ZarrIterableDataset(tmp_path / "x", batch_size=16, shuffle=True, mixing=mixing).explain()
        (field,) = explained.fields
        assert field.reads_slabs
        assert field.amplification > 1
        assert (field.remedy == "") == is_fine == (not field.is_amplified), field.amplification
        assert ("limited by chunks that are decoded again" in str(explained)) == (not is_fine)
        assert is_fine or "longer slabs" in field.remedy


@pytest.mark.parametrize(
    ("offsets", "shown"),
    [
        (range(1000), "rows at +0 to +999 (1000 rows)"),
        (range(0, 990, 10), "rows at +0 to +980 in steps of 10 (99 rows)"),
        ((-3, *range(20), 40), "rows at -3, +0 to +19 (20 rows), +40"),
        ((0, 1, 2), "rows at +0, +1, +2"),
        ((5, zarrfeed.lead(1, 9), *range(12)), "rows at +5, +1 to +9 (drawn), +0 to +11 (12 rows)"),
    ],
)
def test_many_offsets_are_shown_as_a_range(tmp_path: Path, offsets: Any, shown: str) -> None:
    zarr.create_array(tmp_path / "x", shape=(5000,), chunks=(100,), dtype="f4")
    data = zarrfeed.open(tmp_path / "x").window(offsets)
    assert f"windows: {shown}" in str(zarrfeed.ZarrIterableDataset(data, batch_size=4).explain())

"""How datasets, pages and loaders show themselves: in a terminal and in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import Explanation, Stats, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.page import as_html, as_text

N = 24


@pytest.fixture
def store(tmp_path: Path) -> Path:
    group = zarr.create_group(tmp_path / "g <b>&'\"")
    group.create_array("a<script>alert(1)", data=np.zeros((N, 3), "f4"), chunks=(4, 3))
    group.create_array("b", data=np.zeros(N, "i8"), chunks=(6,))
    return tmp_path / "g <b>&'\""


def table(text: str) -> dict[str, str]:
    """Return names and texts of a table; fails if it is not well formed, or holds anything but cells of text."""
    root = ET.fromstring(text.replace("<br>", "\n"))
    assert {element.tag for element in root.iter()} <= {"table", "caption", "tbody", "tr", "th", "td"}
    assert all(set(element.attrib) <= {"style", "scope"} for element in root.iter())
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    caption = root.find("caption")
    assert caption is not None
    return {"": caption.text or "", **dict(rows)}


def test_stats_and_explanation_show_their_page(store: Path) -> None:
    """What `dataset.stats()` prints as the last line of a cell, or at the prompt."""
    with ZarrIterableDataset(store, batch_size=5, shuffle=True) as dataset:
        list(dataset)
        for page in (dataset.stats(), dataset.explain()):
            assert repr(page) == str(page)
            assert repr(page).count("\n") > 8
    assert "delivered   24 samples in 5 batches" in repr(dataset.stats())
    access = ZarrDataset(store)
    access[[1, 2]]
    assert "delivered   2 samples in 1 batches" in repr(access.stats())


def test_pages_are_tables_in_a_notebook_with_all_that_the_text_has(store: Path) -> None:
    with ZarrIterableDataset(store, batch_size=5, shuffle=True) as dataset:
        list(dataset)
        pages: tuple[Stats, Explanation] = (dataset.stats(), dataset.explain())
    for page in pages:
        cells = table(page._repr_html_())
        assert cells[""] == type(page).__name__
        words = " ".join(cells.values()).split()
        assert [word for word in str(page).split() if word not in words + " ".join(cells).split()] == []


def test_names_of_a_store_are_escaped_in_a_notebook(store: Path) -> None:
    dataset = ZarrIterableDataset(store, batch_size=5)
    for text in (dataset._repr_html_(), dataset.explain()._repr_html_(), ZarrDataset(store)._repr_html_()):
        assert "<script" not in text
        assert "<b>" not in text
        assert "samples['a<script>alert(1)']" in table(text)


def test_control_characters_do_not_reach_a_notebook() -> None:
    assert table(as_html("a\x1b[2J", [("x\0", "y\x07"), ("", "z")])) == {"": "a\\x1b[2J", "x\\x00": "y\\x07\nz"}


def test_datasets_are_tables_of_their_fields(store: Path) -> None:
    dataset = ZarrIterableDataset(
        zarrfeed.open(store, np.zeros((N, 2))).window((0, 1)), batch_size=5, shuffle=True, seed=3, mixing={"lanes": 2}
    )
    cells = table(dataset._repr_html_())
    assert cells[""] == "ZarrIterableDataset"
    assert cells["samples"].startswith("23 of 24\n1 of 24 samples left out: ")
    assert cells["samples['b']"].startswith("int64 of shape (2,)\nrows at +0, +1\n")
    assert cells["samples['b']"].endswith("b, (24,) in read chunks of (6,)")
    assert cells["targets"] == "float64 of shape (2,)\nin memory"
    assert cells["batches"] == "of 5 samples"
    assert cells["order"] == "shuffled, seed 3, 2 lanes"
    cells = table(ZarrIterableDataset(store)._repr_html_())
    assert (cells["samples"], cells["batches"], cells["order"]) == ("24", "single samples", "in order, 1 lane")
    cells = table(ZarrDataset(zarrfeed.open(store).select(slice(0, 7)))._repr_html_())
    assert (cells[""], cells["samples"]) == ("ZarrDataset", "7 of 24")


def test_a_closed_dataset_shows_itself(store: Path) -> None:
    with ZarrIterableDataset(store, batch_size=5) as dataset:
        before = dataset._repr_html_(), repr(dataset)
    assert (dataset._repr_html_(), repr(dataset)) == before


def test_loaders_and_datasets_have_a_repr_of_one_line(store: Path) -> None:
    dataset = ZarrIterableDataset(store, batch_size=5)
    assert repr(ZarrDataLoader(dataset, num_workers=2)) == f"ZarrDataLoader({dataset!r}, num_workers=2)"
    assert repr(dataset).startswith("ZarrIterableDataset(24 samples of {")
    assert repr(ZarrDataset(store)).startswith("ZarrDataset(24 samples of {")
    assert "\n" not in repr(dataset)


def test_text_is_aligned_below_the_longest_name() -> None:
    assert as_text([("a", "1"), ("", "2")]) == "a           1\n            2"
    assert as_text([("a" * 20, "1"), ("b", "2")]) == f"{'a' * 20}  1\nb{' ' * 21}2"

"""A shuffle that hardly shuffles says so, with the options that would mix it; others say nothing."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed

N = 6000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    zarr.create_array(tmp_path / "x", shape=(N, 4000), chunks=(375, 4000), dtype="f4")
    return tmp_path / "x"


def made(data: Any, **options: Any) -> tuple[zarrfeed.ZarrIterableDataset, list[str]]:
    """Make a dataset, and return the warnings of its construction."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dataset = zarrfeed.ZarrIterableDataset(data, batch_size=16, **{"shuffle": True, **options})
    return dataset, [str(one.message) for one in seen]


def options_in(text: str) -> dict[str, Any]:
    """Return the options that a warning names, as a user would copy them."""
    (found,) = re.findall(r"(memory_budget=.*?) would do", text)
    return dict(eval(f"dict({found.replace(' with ', ', ')})"))


def test_a_poor_shuffle_warns_and_what_it_names_mixes(path: Path) -> None:
    data = zarrfeed.open(path).window((-1, 0, 4))
    dataset, (text,) = made(data)
    explained = dataset.explain()
    assert explained.shuffling is not None
    assert explained.shuffling.is_poor
    assert "hardly shuffles" in text
    assert f"{explained.shuffling.share:.0%}" in text
    assert f"{explained.shuffling.correlation:.2f}" in text
    page = str(explained)
    assert "limited by its shuffle" in page.splitlines()[0]
    assert f"remedy: {explained.remedy}" in page
    better, seen = made(data, **options_in(text))
    assert not seen
    measured = better.explain().shuffling
    assert measured is not None
    assert not measured.is_poor
    assert not better.explain().remedy


def test_memory_that_mixes_is_named(path: Path) -> None:
    """Blocks of 6 MB: 20 MB have room for two of them."""
    _, (text,) = made(path, memory_budget="30MiB", num_threads=1)
    options = options_in(text)
    assert set(options) == {"memory_budget"}
    dataset, seen = made(path, **options, num_threads=1)
    assert not seen
    measured = dataset.explain().shuffling
    assert measured is not None
    assert not measured.is_poor


def test_shorter_chunks_that_are_named_mix_no_better(path: Path, tmp_path: Path) -> None:
    dataset, (text,) = made(path, memory_budget="30MiB", num_threads=1)
    (rows,) = re.findall(r"so would chunks of `zarrfeed pack --sample-chunk (\d+)`", text)
    assert f"--sample-chunk {rows}" in dataset.explain().remedy
    zarrfeed.pack(path, tmp_path / "packed", sample_chunk=int(rows))
    packed, seen = made(tmp_path / "packed", memory_budget="30MiB", num_threads=1)
    assert not seen
    measured = packed.explain().shuffling
    assert measured is not None
    assert not measured.is_poor


def test_windows_are_told_of_chunks_that_were_not_tried(path: Path) -> None:
    _, (text,) = made(zarrfeed.open(path).window((-1, 0, 4)))
    assert "--sample-chunk" not in text


def test_what_cannot_be_mixed_better_or_was_asked_for_does_not_warn(path: Path, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "one", shape=(N, 10), chunks=(N, 10), dtype="f4")
    few = zarrfeed.open(path).select(slice(0, 4000)).window((-1, 0, 4))
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "one block": (tmp_path / "one", {}),
        "few samples": (few, {}),
        "in order": (zarrfeed.open(path).window((-1, 0, 4)), {"shuffle": False}),
        "lanes that were named": (zarrfeed.open(path).window((-1, 0, 4)), {"mixing": {"lanes": 1}}),
        "another rank": (zarrfeed.open(path).window((-1, 0, 4)), {"rank": 1, "world_size": 2}),
        "in memory": (np.zeros((N, 3), "f4"), {}),
        "well mixed": (path, {}),
    }
    for name, (data, options) in cases.items():
        _, seen = made(data, **options)
        assert not seen, name

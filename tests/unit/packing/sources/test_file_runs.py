"""Names and ends of files, as arrays of each part of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError
from zarrfeed.packing.sources.file_runs import arrays_of_runs, manifest_of, nested_runs, runs_in
from zarrfeed.packing.sources.source import Runs

RUNS = Runs(("a", "b", "c"), np.array([3, 3, 8]), np.array([3, 3, 8]))


def listed(made: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in made.items()}


def test_ends_count_from_the_first_sample_of_a_part() -> None:
    assert listed(arrays_of_runs(RUNS, 0, 8, None)) == {
        "file_names": ["a", "b", "c"],
        "file_ends": [3, 3, 8],
        "segment_ends": [3, 8],
    }
    assert listed(arrays_of_runs(RUNS, 2, 6, None)) == {
        "file_names": ["a", "b", "c"],
        "file_ends": [1, 1, 4],
        "segment_ends": [1, 4],
    }
    assert listed(arrays_of_runs(RUNS, 5, 8, None)) == {"file_names": ["c"], "file_ends": [3], "segment_ends": [3]}


def test_shuffled_samples_have_the_number_of_their_file() -> None:
    made = arrays_of_runs(RUNS, 0, 4, np.array([7, 0, 2, 3]))
    assert listed(made) == {"file_names": ["a", "b", "c"], "file_numbers": [2, 0, 0, 2]}


@pytest.mark.parametrize("inline", [True, False])
def test_what_is_kept_is_read_again(inline: bool) -> None:
    made = arrays_of_runs(RUNS, 0, 8, None)
    attributes: Any = {"zarrfeed_pack": manifest_of(made, inline=inline)}
    node: Any
    if inline:
        node = zarr.create_array({}, shape=(8,), dtype="i4", chunks=(8,), attributes=attributes)
    else:
        node = zarr.create_group({}, attributes=attributes)
        for name, values in made.items():
            array = node.create_array(
                f"meta/{name}", shape=values.shape, dtype="string" if values.dtype == object else values.dtype
            )
            array[...] = values
    found = runs_in(node)
    assert found is not None
    assert found.segment_ends is not None
    assert (found.names, found.ends.tolist(), found.segment_ends.tolist()) == (RUNS.names, [3, 3, 8], [3, 8])
    assert runs_in(zarr.create_group({})) is None


def test_runs_of_packed_stores_are_those_of_their_files() -> None:
    stores = Runs(("x.zarr", "y.zarr"), np.array([8, 10]))
    found = nested_runs(stores, [RUNS, None])
    assert (found.names, found.ends.tolist()) == (("x.zarr/a", "x.zarr/b", "x.zarr/c", "y.zarr"), [3, 3, 8, 10])
    assert found.segment_ends is not None
    assert found.segment_ends.tolist() == [3, 8, 10]
    assert nested_runs(stores, [None, None]) is stores


def test_a_store_that_lacks_the_ends_that_it_names_is_refused(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr", attributes={"zarrfeed_pack": {"segment_ends": "meta/segment_ends"}})
    group.create_array("x", data=np.arange(4))
    with pytest.raises(ConfigError, match=r"x\.zarr: names 'meta/segment_ends' as the ends of its segments, and lacks"):
        zarrfeed.open(tmp_path / "x.zarr")


def test_what_is_appended_to_a_packed_store_is_a_segment_of_its_own(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((10 + number, 2), number + 1, "f4"))
    zarrfeed.pack(tmp_path, tmp_path / "x.zarr", sample_chunk=3, shard=None)
    with zarrfeed.Appender(tmp_path / "x.zarr") as appender:
        appender.append({"data": np.full((7, 2), 9, "f4")})
    for options in ({}, {"refresh": "epoch"}):
        data = zarrfeed.open(tmp_path / "x.zarr", **options)  # type: ignore[arg-type]
        count = len(data)
        assert count >= 33, options
        windows = data.window(range(4))
        assert len(windows) == count - 4 * 3, options
        batch = next(iter(zarrfeed.ZarrIterableDataset(windows, batch_size=len(windows))))["data"].numpy()
        assert (batch == batch[:, :1, :1]).all(), options

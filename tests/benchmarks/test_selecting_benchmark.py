"""The benchmark of chosen items delivers every sample, finds items that are others, and knows the least to decode."""

from __future__ import annotations

import doctest
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from benchmarks.suites import selecting
from benchmarks.suites.selecting import Scale, main, write_case, wrong_samples

_SCALE = Scale(5, (6, 20, 40))


def test_all_samples_are_delivered_and_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--cases", "region", "--codecs", "lz4", "--repeats", "2", "--peers", "xbatcher"]
    assert main([*options, "--data", str(tmp_path), "--out", str(tmp_path / "results")]) == 0
    assert capfd.readouterr().out.count("8 samples; 1.00 of the least bytes decoded") == 2
    document = json.loads((tmp_path / "results" / "selecting.json").read_bytes())
    assert list(document["rates"]) == ["region, all levels a chunk, lz4", "region, a level a chunk, lz4"]
    for sides in document["rates"].values():
        assert all(len(rates) == 2 and min(rates) > 0 for rates in sides.values())
    assert doctest.testmod(selecting).attempted > 0
    assert doctest.testmod(selecting).failed == 0


@pytest.mark.parametrize("chunks", ["all", "one"])
def test_other_items_and_other_samples_are_found(tmp_path: Path, chunks: str) -> None:
    case = write_case(tmp_path, "levels", chunks, "zstd", _SCALE)
    with closing(case.dataset()) as dataset:
        batches: list[Any] = list(dataset)
    assert wrong_samples(iter(batches), case) == ""
    samples, index = batches[0]
    assert "has other items" in wrong_samples(iter([({"z": samples["z"].roll(1, 1)}, index)]), case)
    assert "has other items" in wrong_samples(iter([(samples, index + 1)]), case)
    assert "came" in wrong_samples(iter(batches[1:]), case)
    stored = [np.asarray(zarr.open_array(path / "z", mode="r")[:]) for path in (case.path, case.chosen_path)]
    assert np.array_equal(stored[0][(slice(None), *case.index)], stored[1])


def test_the_least_to_decode_is_that_of_blocks_with_a_chosen_item(tmp_path: Path) -> None:
    case = write_case(tmp_path, "levels", "one", "lz4", _SCALE)
    assert case.least_bytes() == 5 * 2 * 20 * 40 * 4  # chunks of one level are chosen or not
    whole = write_case(tmp_path / "whole", "region", "one", "lz4", _SCALE)
    assert whole.least_bytes() == 5 * 6 * 20 * 40 * 4  # one block for each chunk

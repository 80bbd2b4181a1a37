"""The benchmark of files delivers every sample of each kind, times all sides, and finds values that are others."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import zarrfeed
from benchmarks.suites.files import KINDS, Case, main, wrong_samples
from zarrfeed import ConfigError, _core
from zarrfeed.spec.fields.field import StoredField


def test_all_samples_of_every_kind_are_delivered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--checksum-only", "--data", str(tmp_path)]) == 0
    said = capfd.readouterr().out
    assert said.count(" samples; the files have ") == len(KINDS) == said.count("\n")


def test_all_sides_are_timed(tmp_path: Path) -> None:
    options = ["--cases", "years,npy", "--peers", "reader-0w,reader-order,xbatcher", "--repeats", "2", "--rows", "9"]
    assert main([*options, "--data", str(tmp_path), "--out", str(tmp_path / "results")]) == 0
    turns = json.loads((tmp_path / "results" / "files.json").read_bytes())["turns"]
    assert list(turns) == ["years", "npy"]
    for sides in turns.values():
        assert {"zarrfeed", "ceiling", "reader-0w", "reader-order"} <= set(sides)
        for measured in sides.values():
            assert len(measured) == 2
            assert all(turn["rate"] > 0 for turn in measured)


def test_other_values_and_other_samples_are_found(tmp_path: Path) -> None:
    case = Case(tmp_path, KINDS["years"], "small")
    with closing(case.dataset()) as dataset:
        batches: list[Any] = list(dataset)
    assert wrong_samples(iter(batches), case) == ""
    samples, index = batches[0]
    assert "has other values" in wrong_samples(iter([({"x": samples["x"].roll(1, 1)}, index)]), case)
    assert "has other values" in wrong_samples(iter([(samples, (index + 1) % case.num_samples)]), case)
    assert "came" in wrong_samples(iter(batches[1:]), case)


def test_the_ceiling_is_that_of_each_file_alone(tmp_path: Path) -> None:
    case = Case(tmp_path, KINDS["years"], "small")
    assert len(list(case.ceiling())) == case.shape.files
    (joined,) = zarrfeed.open(case.paths, variables=["x"]).resolved.fields
    assert isinstance(joined, StoredField)
    with pytest.raises(ConfigError, match="lies in several stores, must lie in one"):
        _core.measure_ceiling(joined.to_core(), num_threads=1, window_chunks=4, scatter=True)

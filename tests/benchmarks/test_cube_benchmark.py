"""The benchmark of gaps, missing values and sample dimensions compares values first, and prints a row for each case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.suites.cube import CASES, SCALES, described, expected, main, write, wrong_values


def test_each_case_is_compared_and_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1", "--out", str(tmp_path)]) == 0
    assert "pairs without gaps" in capfd.readouterr().out
    assert list(json.loads((tmp_path / "cube.json").read_bytes())["cpu_s"]) == list(CASES)


def test_other_values_and_another_number_of_samples_are_found(tmp_path: Path) -> None:
    values = write(tmp_path, SCALES["small"])
    data = described(tmp_path, "fill_nan")
    assert wrong_values(data, expected(values + 1, "fill_nan")) == "t"
    assert wrong_values(data, expected(values, "pairs across gaps")) == "240 samples of 237"

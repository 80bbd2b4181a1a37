"""benchmarks/suites/look_ahead.py at its small size: every side reads each sample once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.suites import look_ahead
from benchmarks.suites.look_ahead import Row, read, table_of


def test_every_side_reads_each_sample_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layouts", "A", "--scale", "small", "--batches", "4", "--workers", "0", "--repeats", "1"]
    assert look_ahead.main([*options, "--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "look_ahead.json").read_text())["rows"]
    assert [row["side"] for row in rows] == ["plain", "4 ahead"]
    assert "to plain" in capsys.readouterr().out


def test_a_sample_that_comes_twice_ends_the_run() -> None:
    once, twice = torch.arange(4), torch.tensor([0, 1, 2, 2])
    assert read([(once, once)], 4) == once.nbytes
    with pytest.raises(AssertionError, match="came twice"):
        read([(once, twice)], 4)


def test_ratios_are_of_one_round() -> None:
    rates = {"plain": (1.0, 2.0, 10.0), "4 ahead": (3.0, 6.0, 10.0)}
    rows = [Row("A", 0, side, i, rate) for side, several in rates.items() for i, rate in enumerate(several)]
    assert [line[-1] for line in table_of(rows)] == ["1.00", "3.00"]

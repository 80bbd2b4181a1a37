"""benchmarks/suites/workers.py at its small size: every side reads whole epochs, ratios are of one round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.suites import workers
from benchmarks.suites.workers import Row, table_of

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_every_side_reads_whole_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layouts", "A", "--scale", "small", "--batches", "16", "--workers", "1", "--repeats", "2"]
    assert workers.main([*options, "--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "workers.json").read_text())["rows"]
    assert [row["side"] for row in rows] == 2 * ["0", "1", "numbers, 1"]
    assert "us a batch" in capsys.readouterr().out


def test_ratios_are_of_one_round() -> None:
    """Rates of 10 and 20 without workers, 5 and 10 with one: half in each round."""
    rates = {"0": (10.0, 20.0), "1": (5.0, 10.0)}
    rows = [Row("A", 64, side, i, 1.0, rate) for side, both in rates.items() for i, rate in enumerate(both)]
    assert [line[-1] for line in table_of(rows)] == ["1.00", "0.50"]

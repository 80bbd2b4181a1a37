"""benchmarks/suites/checkpoint.py: every side loads what was saved, or the run stops; ratios are of one round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.suites import checkpoint
from benchmarks.suites.checkpoint import RAW, Bench, Row, main


def test_every_side_loads_what_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "2", "--rounds", "1", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "what was loaded is what was saved" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "checkpoint.json").read_text())["rows"]
    assert {(row["place"], row["way"]) for row in rows} == {(p, w) for p in ("disk", "S3") for w in ("save", "load")}
    assert all(row["wall_s"] > 0 for row in rows)


def test_a_side_that_loads_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Bench._load

    def load_changed(bench: Bench, url: str) -> Any:
        state = load(bench, url)
        state["layer.3"] = torch.zeros_like(state["layer.3"])
        return state

    monkeypatch.setattr(Bench, "_load", load_changed)
    assert main(["--size", "2", "--checksum-only", "--data", str(tmp_path)]) == checkpoint.WRONG


def test_ratios_are_medians_of_the_ratios_in_a_round() -> None:
    rows = [Row("S3", "save", RAW, turn, 10**9, wall, 0.5) for turn, wall in enumerate((1.0, 2.0, 4.0))]
    rows += [Row("S3", "save", "zarrfeed", turn, 10**9, wall, 0.5) for turn, wall in enumerate((2.0, 2.0, 5.0))]
    raw, ours = checkpoint._table(rows)
    assert (raw[5], raw[6]) == ("1.00", "0.80")
    assert ours[5] == "0.80"

"""The benchmark of plans of many blocks, at its small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.suites import huge_plans


@pytest.mark.parametrize("kind", huge_plans.KINDS)
def test_each_kind_of_blocks_is_read_and_resumed(kind: str) -> None:
    """The last figure of 10^5 chunks would be 100 MiB if each of them had a number or two in a plan."""
    made = huge_plans.measure(kind, 100_000)
    assert made["lanes"] > 1
    assert made["kind"] == kind
    assert made["first_mib"] < 100


def test_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert huge_plans.main(["--chunks", "2e4", "--kinds", "step", "--out", str(tmp_path)]) == 0
    (one,) = json.loads((tmp_path / "huge_plans.json").read_text())
    assert one["chunks"] == 20_000
    assert "first batch s" in capsys.readouterr().out

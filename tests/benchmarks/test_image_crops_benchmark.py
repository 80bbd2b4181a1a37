"""The benchmark of random-resized crops: its crops are those of Pillow, and it reports processor seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites.image_crops import main


def test_our_side_reports_cpu_seconds_of_right_crops(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--scale", "small", "--sides", "zarrfeed", "--repeats", "1", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "zarrfeed: the crops of Pillow" in out
    assert "CPU ms an image" in out
    assert (tmp_path / "image_crops.json").exists()

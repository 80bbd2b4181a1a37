"""The benchmark of transcoded chunks compares every epoch of every side with the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites.transcode import main


def test_every_side_delivers_the_data(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1", "--directory", str(tmp_path), "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "every epoch of every side: the values that were written" in out
    assert "HDF5 deflate + shuffle, transcoded" in out
    assert (tmp_path / "transcode.json").exists()

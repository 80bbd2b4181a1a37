"""The benchmark of weighted samples: what it delivers is checked, and wrong counts are found."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from benchmarks.suites import weights
from benchmarks.suites.weights import main


def test_weighted_samples_are_measured_beside_the_plain_epoch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--repeats", "1", "--least-s", "0", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert out.count("every sample as often as it should come") == 4
    assert "WeightedRandomSampler over ZarrDataset" in out
    assert "weights: a chunk is decoded" in out
    assert (tmp_path / "weights.json").exists()
    tried = doctest.testmod(weights)
    assert (tried.attempted > 0, tried.failed) == (True, 0)

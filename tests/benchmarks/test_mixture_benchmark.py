"""The benchmark of mixtures: what it delivers is checked, and what is wrong with a mixture is found."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.suites import mixtures
from benchmarks.suites.mixtures import Scale, Written, main, numbers_of, write, wrong_mixture


def test_a_mixture_is_measured_beside_its_sources(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1", "--least-s", "0", "--ranks", "1,2", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "mixture: every share, every pass" in out
    assert "weighted rate of the sources" in out
    assert "sources alone: a chunk is decoded" in out
    assert "mixture, ranks: 2: a chunk is decoded" in out
    assert (tmp_path / "mixtures.json").exists()
    assert doctest.testmod(mixtures).attempted > 0
    assert doctest.testmod(mixtures).failed == 0


def test_samples_that_were_not_written_are_found(tmp_path: Path) -> None:
    written = write(tmp_path, Scale((16, 24, 8), (2, 4)))
    first = torch.zeros(1, 2, 4, dtype=torch.uint8)
    assert numbers_of([first], written) == [-1]
    assert wrong_mixture([-1, 3], written) == "1 samples of 2 were never written"
    assert wrong_mixture([], written) != ""


def test_wrong_shares_and_repetitions_are_found() -> None:
    written = Written([], (700, 200, 100), [0] * 1000)
    rng = np.random.default_rng(0)
    kinds = np.tile([0, 0, 1, 0, 0, 2, 0, 0, 1, 0], 100)
    orders = [rng.permutation(length) + first for length, first in ((700, 0), (200, 700), (100, 900))]
    epoch_order = np.empty(1000, dtype=np.int64)
    for one, order in enumerate(orders):
        epoch_order[kinds == one] = order
    assert wrong_mixture(epoch_order.tolist(), written) == ""
    assert "samples from its share" in wrong_mixture(np.sort(epoch_order).tolist(), written)
    assert wrong_mixture(np.sort(epoch_order).tolist(), written, at_any_prefix=False) == ""
    assert "samples from its share" in wrong_mixture(np.sort(epoch_order)[:900].tolist(), written, at_any_prefix=False)
    epoch_order[kinds == 0] = np.repeat(orders[0][:350], 2)
    assert wrong_mixture(epoch_order.tolist(), written).startswith(
        "source 0 has 350 samples that came more or less than"
    )

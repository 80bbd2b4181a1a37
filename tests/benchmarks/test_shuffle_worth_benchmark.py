"""The benchmark of what a shuffle is worth: orders have the same samples, and what it measures is the model's error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.suites.shuffle_worth import ORDERS, Data, main, make_fields


def test_a_table_and_a_picture_are_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--years", "2", "--epochs", "2", "--seeds", "2", "--evaluations", "3", "--out", str(tmp_path)]
    assert main(options) == 0
    assert "year after year" in capfd.readouterr().out
    found = json.loads((tmp_path / "shuffle-worth.json").read_bytes())
    assert found["steps"][-1] == 2 * (2 * 365 * 4 // 5 // 16)
    for runs in found["errors"].values():
        assert [len(run) for run in runs] == [6, 6]
        assert runs[0][-1] < runs[0][0]  # it learns
        assert runs[0] != runs[1]
    assert (tmp_path / "shuffle-worth.svg").read_text().startswith("<?xml")


def test_orders_have_other_samples_than_the_training_fields(tmp_path: Path) -> None:
    data = Data.write(tmp_path, 2)
    known = {field.tobytes() for field in data.train.numpy()}
    for name, batches in ORDERS.items():
        epochs = [torch.cat(list(batches(data, 0, epoch))).numpy() for epoch in (0, 1)]
        for fields in epochs:
            seen = [field.tobytes() for field in fields]
            assert len(set(seen)) == len(seen) == len(data.train) // 16 * 16, name
            assert known.issuperset(seen), name
        assert not np.array_equal(epochs[0], epochs[1]), name


def test_validation_days_are_training_days(tmp_path: Path) -> None:
    fields, data = make_fields(2), Data.write(tmp_path, 2)
    assert len(data.held_out) + len(data.train) == len(fields)
    assert np.array_equal(data.held_out.numpy(), fields[::5])

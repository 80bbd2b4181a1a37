"""Samples that wait for their unit: in order, each once, as the arrays that came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.storage.append.append_rows import RowBuffer, check_rows, load_rows, rows_of, save_rows


def test_samples_leave_in_the_order_in_which_they_came() -> None:
    buffer, random, came, left = RowBuffer(), np.random.default_rng(1), 0, list[int]()
    for _ in range(50):
        size = int(random.integers(0, 6))
        buffer.add({"x": np.arange(came, came + size)})
        came += size
        if random.random() < 0.2:
            buffer.own()
        taken = int(random.integers(0, buffer.length + 1))
        if taken:
            rows = buffer.take(taken)
            if random.random() < 0.3:
                buffer.put_back(rows)
            else:
                left += rows["x"].tolist()
    left += buffer.all()["x"].tolist() if buffer.length else []
    assert left == list(range(came))


def test_rows_of_a_file_are_those_that_were_saved(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x": np.zeros((0, 2), "<f4"), "y": np.zeros(0, "M8[s]")}
    rows = rows_of({"x": np.arange(6, dtype=">f4").reshape(3, 2), "y": np.arange(3).astype("M8[s]")})
    check_rows(rows, arrays)
    save_rows(tmp_path / "r.npz", rows)
    loaded = load_rows(tmp_path / "r.npz", arrays)
    assert loaded is not None
    assert loaded.keys() == rows.keys()
    assert all(np.array_equal(loaded[name], rows[name]) for name in rows)
    assert load_rows(tmp_path / "r.npz", {"x": arrays["x"]}) is None, "of other arrays"
    assert load_rows(tmp_path / "none.npz", arrays) is None


def test_rows_of_another_dtype_or_shape_are_refused() -> None:
    for values in (np.zeros((3, 2), "f8"), np.zeros((3, 3), "f4"), np.zeros(3, "f4")):
        with pytest.raises(ConfigError, match="the store has"):
            check_rows({"x": values}, {"x": np.zeros((0, 2), "f4")})

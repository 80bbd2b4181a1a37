"""The benchmark of a cold disk: each side reads all bytes, and files are dropped from the page cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.suites import cold
from zarrfeed import ZarrIterableDataset


def test_a_run_times_each_side_in_each_turn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--scale", "small", "--repeats", "2", "--data", str(tmp_path / "stores"), "--out", str(tmp_path)]
    assert cold.main(options) == 0
    rows = json.loads((tmp_path / "cold.json").read_text())["rows"]
    sides = ["cat", "ranges", "shuffled", "ordered", "warm"]
    assert [(row["layout"], row["side"]) for row in rows] == [(name, side) for name in "AE" for side in sides * 2]
    assert all(row["gb_per_s"] > 0 for row in rows)
    out = capfd.readouterr().out
    assert "stored GB/s" in out
    assert "to ranges" in out


def test_ranges_are_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shard"
    file.write_bytes(b"x" * 1001)
    read: list[tuple[int, int]] = []
    right = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        got = right(descriptor, count, offset)
        read.append((offset, len(got)))
        return got

    monkeypatch.setattr(os, "pread", pread)
    cold.read_ranges([file], 100)
    assert sorted(read) == [*((begin, 100) for begin in range(0, 1000, 100)), (1000, 1)]


def test_a_side_that_does_not_deliver_all_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZarrIterableDataset, "__iter__", lambda _: iter([[1, 2]]))
    with pytest.raises(AssertionError, match="shuffled: 2 samples of"):
        cold.main(["--scale", "small", "--layouts", "A", "--data", str(tmp_path), "--out", str(tmp_path)])


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cat ended with status 1"):
        cold.cat([tmp_path / "nothing"])

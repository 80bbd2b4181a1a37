"""The benchmark of sparse matrices: our side delivers every element, and another matrix is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites import sparse


def test_our_side_delivers_every_element(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert sparse.main(["--repeats", "1", "--epochs", "1", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "zarrfeed: the sums of the matrix" in out
    assert "rows/s" in out
    assert (tmp_path / "sparse.json").exists()


def test_another_matrix_is_found(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    right = sparse.write
    monkeypatch.setattr(sparse, "write", lambda *arguments: {**right(*arguments), "products": 0.0})
    assert sparse.main(["--checksum-only", "--layouts", "plain"]) == sparse.WRONG
    assert "plain, zarrfeed: " in capfd.readouterr().out

"""The packing benchmark: every side that is installed writes the source again, and a wrong store is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from benchmarks.suites import packing


def test_our_side_and_a_peer_write_the_source_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packing.SCALES, "small", 1280)
    assert packing.main(["--sides", "zarrfeed,dask", "--repeats", "1", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "1.00 times zarrfeed" in told
    assert "dask" in told
    assert (tmp_path / "packing.json").exists()


def test_another_store_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def turn(_: str, source: Path, out: Path) -> float:
        stored = zarr.open_array(source, mode="r")
        zarr.create_array(out, data=np.asarray(stored[...])[::-1].copy())
        return 1.0

    monkeypatch.setitem(packing.SCALES, "small", 256)
    monkeypatch.setattr(packing, "turn", turn)
    assert packing.main(["--sides", "zarrfeed"]) == packing.WRONG
    assert "zarrfeed: WRONG" in capsys.readouterr().out

"""The benchmark of many stores: its sides deliver every sample, and others are found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.suites.stores import SIDES, Scale, Task, main, open_many, write, write_small_stores, wrong_samples


def test_our_sides_deliver_every_sample(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--sides", "zarrfeed-stores,zarrfeed-one", "--repeats", "1", "--served", "3", "--out", str(tmp_path)]
    assert main(options) == 0
    out = capfd.readouterr().out
    assert "zarrfeed-stores: every sample once" in out
    assert "200 stores of one chunk: opened in" in out
    assert "3 stores of one chunk, of a web server: opened in" in out
    assert (tmp_path / "stores.json").exists()


def test_samples_that_lack_or_differ_are_found(tmp_path: Path) -> None:
    written = write(tmp_path, Scale(3, 8, (2, 4), 1))
    with SIDES["zarrfeed-stores"](Task(tmp_path, 1)) as batches:
        assert wrong_samples(batches, written) == ""
    assert wrong_samples([torch.zeros(3, 2, 4, dtype=torch.uint8)], written) == (
        f"{written.total()} samples of {written.total()} are missing, 3 are others"
    )
    assert wrong_samples([], Counter()) == ""


def test_a_small_store_that_lacks_its_chunk_is_found(tmp_path: Path) -> None:
    paths = write_small_stores(tmp_path, 5)
    assert open_many(paths).is_whole
    (paths[3] / "c" / "0").unlink()
    assert not open_many(paths).is_whole

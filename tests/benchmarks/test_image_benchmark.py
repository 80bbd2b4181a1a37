"""The benchmark of images: its sides deliver every image, and others are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.suites.images import Task, main, write, wrong_images


def test_our_sides_deliver_every_image(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--scale", "small", "--sides", "zarrfeed,zarrfeed-objects", "--repeats", "1", "--out", str(tmp_path)]
    assert main(options) == 0
    out = capfd.readouterr().out
    assert "zarrfeed-objects: every image once" in out
    assert "images/s" in out
    assert (tmp_path / "images.json").exists()


def test_images_that_lack_or_differ_are_found(tmp_path: Path) -> None:
    write(tmp_path, 4, (16, 16))
    task = Task(tmp_path, (16, 16), 1)
    blank = torch.zeros(3, 3, 16, 16, dtype=torch.uint8)
    assert wrong_images([blank], task) == "4 images of 4 are missing, 3 are others"

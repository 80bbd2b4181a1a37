"""The image packing benchmark: our side keeps each image, once; a side that loses one or changes a label is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites import packing_images
from benchmarks.suites.packing_images_probe import Task, digest, items_of_folder


def test_our_side_has_every_image_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packing_images.SCALES, "small", (120, 20, 224))
    asked = ["--sides", "zarrfeed", "--checksum-only", "--out", str(tmp_path)]
    assert packing_images.main(asked) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines() if "every image once" in line] == ["kept", "resized"]
    assert (tmp_path / "packing_images.json").exists()


def test_a_side_that_skips_an_image_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn(verb: str, _: str, task: Task) -> tuple[float, float] | tuple[int, str]:
        Path(task.out).mkdir(exist_ok=True)
        found = list(items_of_folder(task.source, task.size))[1:]
        return (1.0, 1.0) if verb == "pack" else digest(found)

    monkeypatch.setitem(packing_images.SCALES, "small", (110, 10, 224))
    monkeypatch.setattr(packing_images, "turn", turn)
    assert packing_images.main(["--sides", "zarrfeed", "--cases", "kept"]) == packing_images.WRONG
    assert "zarrfeed: WRONG, it has 109 images" in capsys.readouterr().out


def test_the_digest_tells_keys_labels_and_bytes_and_no_order() -> None:
    items = [("a/0.jpg", 0, b"x"), ("b/1.jpg", 1, b"y")]
    assert digest(items) == digest(reversed(items))
    for other in (("a/0.jpg", 0, b"z"), ("a/0.jpg", 1, b"x"), ("a/2.jpg", 0, b"x")):
        assert digest([other, items[1]]) != digest(items)

"""The pictures of docs/ are those that the command draws today, and small."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("matplotlib")

FOLDER = ROOT / "docs" / "pictures"


def texts(path: Path) -> list[str]:
    """Return what a picture says: titles, axes, the numbers of lanes and chunks. Other matplotlibs draw other paths."""
    return re.findall(r"<text[^>]*>(.*?)</text>", path.read_text())


def test_pictures_are_up_to_date(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "dev" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.draw(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in FOLDER.iterdir())
    for name in drawn:
        assert len(texts(tmp_path / name)) > 10
        assert texts(tmp_path / name) == texts(FOLDER / name), "draw them anew: python dev/pictures.py"


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_pictures_are_small_and_load_nothing(path: Path) -> None:
    assert path.suffix == ".svg"
    assert path.stat().st_size < 100_000
    assert not re.search(r"url\((?!#)|href=\"(?!#|data:)", path.read_text())
    shown = [page for page in (ROOT / "docs").rglob("*.md") if f"pictures/{path.name}" in page.read_text()]
    assert shown, f"no page shows {path.name}"

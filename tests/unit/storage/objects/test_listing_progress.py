"""How far a listing is: who is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import zarrfeed
from zarrfeed.objects import list_objects


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        (tmp_path / f"{i}").touch()
    return tmp_path


def test_nothing_is_shown_unless_somebody_looks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (None, False):
        list_objects(folder, progress=progress)
    assert capsys.readouterr() == ("", "")


def test_it_is_shown_to_whoever_asks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # else a long path makes rich shorten the line
    list_objects(folder, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 objects listed" in " ".join(err.split())


def test_without_rich_there_is_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "rich" else find(name, *of))
    list_objects(folder, progress=True)
    assert capsys.readouterr().err == f"{folder}: 3 objects listed\n"


@pytest.mark.parametrize("progress", [1, "yes", 0])
def test_it_is_true_false_or_none(folder: Path, progress: Any) -> None:
    with pytest.raises(zarrfeed.ConfigError, match="progress = "):
        list_objects(folder, progress=progress)

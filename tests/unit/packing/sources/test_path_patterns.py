"""Patterns and braces in paths: what they stand for, and that nothing that is missing is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfeed import ConfigError
from zarrfeed.base.errors import StoreReadError, UnsupportedError
from zarrfeed.packing.sources.path_patterns import expanded, without_braces
from zarrfeed.packing.sources.source import SourceOptions


def names_of(folder: Path, pattern: str) -> list[str]:
    """Return what a pattern below a folder stands for, relative to it."""
    return [os.path.relpath(one, folder) for one in expanded(f"{folder}/{pattern}", SourceOptions())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("10.tar", "2.tar", "B.tar", "a.tar", "x/1.tar", "x/y/2.tar", "[1].tar", "{0..1}.tar", ".hidden.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.tar", ["10.tar", "2.tar", "B.tar", "[1].tar", "a.tar", "{0..1}.tar"]),
        ("?.tar", ["2.tar", "B.tar", "a.tar"]),
        ("**/*2.tar", ["2.tar", "x/y/2.tar"]),
        ("[1].tar", ["[1].tar"]),
        ("{0..1}.tar", ["{0..1}.tar"]),
        ("{a,2,10}.tar", ["a.tar", "2.tar", "10.tar"]),
        ("x{,/y}/*.tar", ["x/1.tar", "x/y/2.tar"]),
        ("x/../a.tar", ["a.tar"]),
    ],
)
def test_what_patterns_stand_for(pattern: str, names: list[str], folder: Path) -> None:
    assert names_of(folder, pattern) == names


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("a", ["a"]),
        ("a{8..11}", ["a8", "a9", "a10", "a11"]),
        ("a{08..10}b", ["a08b", "a09b", "a10b"]),
        ("{000..002}", ["000", "001", "002"]),
        ("{0..0}", ["0"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("{a}{}{b..c}", ["{a}{}{b..c}"]),
        ("a}{", ["a}{"]),
    ],
)
def test_what_braces_stand_for(text: str, texts: list[str]) -> None:
    assert without_braces(text) == texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a,{1..2}}", "braces in braces"),
        ("{2..1}", "must rise"),
        ("{0..99999999999}", "must rise, by less than"),
        ("{0..9999}{0..9999}", "stands for more than"),
    ],
)
def test_braces_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        without_braces(text)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a.tra", r"a\.tra: does not exist; did you mean 'a\.tar'"),
        ("x/z/2.tar", r"x/z/2\.tar: does not exist, .*/x/z is missing"),
        ("{1..3}.tar", r"/1\.tar: does not exist"),
        ("{2,3}.tar", r"/3\.tar: does not exist"),
        ("*.jpg", r"/\*\.jpg: nothing matches this pattern"),
        ("{a,b}*.tar", r"/b\*\.tar: nothing matches this pattern"),
    ],
)
def test_what_is_missing_is_named(pattern: str, message: str, folder: Path) -> None:
    with pytest.raises(StoreReadError, match=message):
        names_of(folder, pattern)


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").symlink_to(tmp_path / "b.tar")
    with pytest.raises(StoreReadError, match=r"a\.tar: is a link to a file that is missing"):
        names_of(tmp_path, "a.tar")


def test_relative_paths_and_file_urls_become_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert expanded("a.tar", SourceOptions()) == [f"{folder}/a.tar"]
    assert expanded("x/*.tar", SourceOptions()) == [f"{folder}/x/1.tar"]
    assert expanded(f"file://{folder}/a.tar", SourceOptions()) == [f"{folder}/a.tar"]
    with pytest.raises(ConfigError, match="is on another host"):
        expanded("file://host/a.tar", SourceOptions())


def test_urls_stay_and_their_patterns_are_listed() -> None:
    assert expanded("s3://bucket/a.zarr", SourceOptions()) == ["s3://bucket/a.zarr"]
    with pytest.raises(UnsupportedError, match="a web server does not list its files"):
        expanded("https://host/*.zarr", SourceOptions())


def test_without_patterns_a_path_is_a_path(folder: Path) -> None:
    with pytest.raises(StoreReadError, match=r"\*\.tar: does not exist"):
        expanded(f"{folder}/*.tar", SourceOptions(), patterns=False)

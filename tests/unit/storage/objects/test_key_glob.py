"""Patterns of keys mean the same as patterns of paths."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

import zarrfeed
from zarrfeed.storage.objects.key_glob import KeyGlob

FILES = (
    "a.jpg", "b.JPG", ".hidden", "a/1.jpg", "a/1.jpeg", "a/b/2.jpg", "a/b/c/3.jpg", "a/[x].png", "a/x.png", "a+b/y.png",
    "a/b c/ü.jpg", "b/1.jpg", "b/a-1", "b/a]1", "b/!1", "b/^1", "b/\\d",
)  # fmt: skip
PATTERNS = (
    "*", "**", "*.jpg", "**/*.jpg", "a/*", "a/**", "a/**/*.jp*g", "**/b/*", "*/*/*", "a/?.jpg", "a/[0-9].jpg",
    "a/[[]x].png", "a+b/*", "**/?.png", "b/a[]-]1", "b/[!a]1", "b/[!!]1", "b/[^a]1", "b/\\d", "a/1.jpg", "a/**/b/**/*",
    "a/[!1].*", "nothing/*", "**/**/*.jpg", "a/b c/*", "b/[1-", "b/[^!]1",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("globs")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_matches_what_glob_finds(folder: Path, pattern: str) -> None:
    found = glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)  # noqa: PTH207 (the oracle)
    expected = {name for name in found if (folder / name).is_file()}
    one = KeyGlob.of(pattern)
    assert {name for name in FILES if one.matches(name)} == expected
    assert all(name.startswith(f"{one.prefix}/" if one.prefix else "") for name in expected)


def test_the_prefix_is_made_of_whole_folders() -> None:
    assert [KeyGlob.of(one).prefix for one in ("a/b/*.x", "a/b*/c", "*", "a/b/c", "a/**")] == [
        "a/b",
        "a",
        "",
        "a/b",
        "a",
    ]


@pytest.mark.parametrize("pattern", ["", "/a", "a/", "a//b", "a**", "a/**.jpg", "[z-a]", 3, None, b"*"])
def test_patterns_that_mean_nothing_are_refused(pattern: object) -> None:
    with pytest.raises(zarrfeed.ConfigError, match="glob = "):
        KeyGlob.of(pattern)

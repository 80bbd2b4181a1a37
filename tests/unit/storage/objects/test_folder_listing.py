"""The files below a folder, in the order of their keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfeed.storage.objects.list_objects import list_folder


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * len(name))


def test_the_order_is_that_of_the_bytes_of_keys(tmp_path: Path) -> None:
    make(
        tmp_path, "b/a", "b-a", "b.a", "b0", "b/a-b", "b/a.b/c", "B", "ü", "日", "\U0001f600", "é/x", "a/b/c/d", "a/b.c"
    )
    found = list(list_folder(tmp_path))
    files = [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()]
    assert [key for key, _ in found] == sorted(files, key=str.encode)
    assert all(size == len(key) for key, size in found)


def test_one_folder_alone(tmp_path: Path) -> None:
    make(tmp_path, "a/b/1", "a/b/2", "a/c", "b")
    assert [key for key, _ in list_folder(tmp_path, "a/b")] == ["a/b/1", "a/b/2"]
    assert list(list_folder(tmp_path, "a/nothing")) == []


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    make(tmp_path, "data/1", "far/2")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "data" / "file").symlink_to(tmp_path / "far" / "2")
    (tmp_path / "data" / "lost").symlink_to(tmp_path / "nowhere")
    assert [key for key, _ in list_folder(tmp_path / "data")] == ["1", "far/2", "file"]


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a")
    os.mkfifo(tmp_path / "pipe")
    assert [key for key, _ in list_folder(tmp_path)] == ["a"]


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff")).touch()
    assert [key for key, _ in list_folder(tmp_path)] == ["\udcff"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(PermissionError):
        list(list_folder(tmp_path))

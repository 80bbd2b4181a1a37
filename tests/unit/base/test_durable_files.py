"""The order in which content and names get to the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.forgetful import ForgetfulDisk
from zarrfeed.base.durable_files import make_folder, replace_whole, sync_folder, sync_tree


def test_what_was_replaced_is_the_former_content_or_the_new_one_whole(tmp_path: Path) -> None:
    kept = set()
    for seed in range(20):
        root = tmp_path / f"{seed}"
        root.mkdir()
        disk = ForgetfulDisk(root, seed, 0.5)
        with disk.watched():
            make_folder(root / "a" / "b")
            replace_whole(root / "a" / "b" / "x", b"old")
            sync_folder(root / "a" / "b")
            disk.promise = b"old"
            replace_whole(root / "a" / "b" / "x", b"new")
            disk.promise = b"old"
            sync_folder(root / "a" / "b")
            disk.promise = b"new"
        disk.end()
        for image in disk.images:
            found = image.tree.get("a/b/x")
            assert found in {None: (None, b"old"), b"old": (b"old", b"new"), b"new": (b"new",)}[image.promise]
            kept.add(found)
    assert kept == {None, b"old", b"new"}, "every moment was tried"


def test_a_tree_that_was_synced_stays(tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path, 1, 0.0)
    with disk.watched():
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "deep").mkdir()
        (tmp_path / "tree" / "deep" / "x").write_bytes(b"1")
        (tmp_path / "tree" / "link").symlink_to("nothing")
        sync_tree(tmp_path / "tree")
        (tmp_path / "tree").rename(tmp_path / "other")
        sync_folder(tmp_path)
    for _ in range(20):
        disk.end()
    assert all(image.tree == {"other": None, "other/deep": None, "other/deep/x": b"1"} for image in disk.images)


def test_a_file_system_that_cannot_sync_folders_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        def fail(_: int) -> None:
            raise OSError(number, "refused")

        monkeypatch.setattr(os, "fsync", fail)

    for number in (errno.EINVAL, errno.ENOTSUP):
        refuse(number)
        sync_folder(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="refused"):
        sync_folder(tmp_path)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_whole(tmp_path / "x", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]

"""Folders of checkpoints: what lies in them itself, and removals of single objects by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.storage.checkpoint.checkpoint_folder import Listing, open_folder


def test_a_listing_names_what_lies_in_the_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "deeper").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    os.utime(tmp_path / "b", (1000, 1000))
    found = open_folder(tmp_path).listing()
    assert [(one.name, one.size_bytes) for one in found.entries] == [("a", 0), ("b", 5)]
    assert found.entries[1].modified == 1000
    assert found.folders == ("inner",)


@pytest.mark.parametrize("location", ["{}/none", "file://{}/none"])
def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path, location: str) -> None:
    folder = open_folder(location.format(tmp_path))
    assert folder.listing() == Listing()
    folder.remove(["a"])
    folder.remove_if_empty()


def test_objects_are_removed_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(b"1")
    folder = open_folder(f"file://{tmp_path}").folder("run")
    folder.remove(["a", "never"])
    folder.remove_if_empty()
    assert [one.name for one in folder.listing().entries] == ["b"]
    folder.remove(["b"])
    folder.remove_if_empty()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/a", "a\\b", "a\0b"])
def test_names_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = open_folder(tmp_path / "run")
    (tmp_path / "a").write_bytes(b"1")
    for act in (folder.object_location, folder.folder, lambda name: folder.remove([name])):
        with pytest.raises(ConfigError, match="is not the name of an object in a folder"):
            act(name)
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("location", "options", "error", "match"),
    [
        ("", None, ConfigError, "must be a path or a URL"),
        (3, None, ConfigError, "must be a path or a URL"),
        (b"run", None, ConfigError, "must be a path or a URL"),
        ("run", {"region": "x"}, ConfigError, "storage_options are for object stores"),
        ("file://elsewhere/run", None, ConfigError, "is on another host"),
        ("http://127.0.0.1/run", None, ConfigError, "a web server cannot list a folder"),
        ("ftp://127.0.0.1/run", None, UnsupportedError, "ftp:// is not supported"),
        ("s3://bucket/run", {"regoin": "x"}, ConfigError, "regoin"),
    ],
)
def test_what_can_be_no_folder_is_refused(
    location: object, options: dict[str, str] | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        open_folder(location, storage_options=options)  # type: ignore[arg-type]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(StoreReadError, match="cannot be listed: Not a directory"):
        open_folder(tmp_path / "a").listing()

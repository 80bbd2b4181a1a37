"""Which objects a source has: folders, stores of obstore, file systems of fsspec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

import zarrfeed
from zarrfeed.objects import list_objects

OBJECTS = {"b/ü.txt": b"22", "a": b"1", "b/empty": b"", "c/d/e.npy": b"333"}
EXPECTED = [("a", 1), ("b/empty", 0), ("b/ü.txt", 2), ("c/d/e.npy", 3)]


def write(folder: Path) -> None:
    for key, data in OBJECTS.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)


def test_a_folder(tmp_path: Path) -> None:
    write(tmp_path)
    assert [(one.key, one.size) for one in list_objects(tmp_path)] == EXPECTED
    assert list_objects(f"file://{tmp_path}") == list_objects(str(tmp_path))


def test_a_store_of_obstore() -> None:
    store = MemoryStore()
    for key, data in OBJECTS.items():
        obstore.put(store, key, data)
    assert [(one.key, one.size) for one in list_objects(store)] == EXPECTED


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    write(tmp_path)
    found = list_objects(fsspec.get_mapper(f"file://{tmp_path}"))
    assert [(one.key, one.size) for one in found] == EXPECTED


def test_a_filter_sees_key_and_size() -> None:
    store = MemoryStore()
    for key, data in OBJECTS.items():
        obstore.put(store, key, data)
    assert [one.key for one in list_objects(store, filter=lambda one: one.size > 1)] == ["b/ü.txt", "c/d/e.npy"]


def test_a_pattern_and_folders_before_it(tmp_path: Path) -> None:
    write(tmp_path)
    for source in (tmp_path, fsspec.get_mapper(f"file://{tmp_path}"), LocalStore(tmp_path)):
        assert [one.key for one in list_objects(source, glob="b/*")] == ["b/empty", "b/ü.txt"]
        assert [one.key for one in list_objects(source, glob="**/*.npy")] == ["c/d/e.npy"]
        assert len(list_objects(source, glob="nothing/*")) == 0
        assert [one.key for one in list_objects(source, prefix="b/e")] == ["b/empty"]
        assert [one.key for one in list_objects(source, prefix="c")] == ["c/d/e.npy"]


def test_a_local_store_of_obstore(tmp_path: Path) -> None:
    write(tmp_path)
    assert [(one.key, one.size) for one in list_objects(LocalStore(tmp_path))] == EXPECTED


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(zarrfeed.StoreReadError, match="nowhere: does not exist"):
        list_objects(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "*.jpg"},
        {"listing_file": 3},
        {"refresh": 1},
        {"glob": ""},
        {"prefix": "/a"},
        {"prefix": 1},
        {"retries": -1},
        {"timeout": 0},
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=f"{next(iter(options))} = "):
        list_objects(tmp_path, **options)


@pytest.mark.parametrize("requests", [0, -1, 1.5, True, 2000])
def test_the_number_of_requests_is_checked(tmp_path: Path, requests: int) -> None:
    with pytest.raises(zarrfeed.ConfigError, match="requests = "):
        list_objects(tmp_path, requests=requests)

"""Which objects a source has: folders, stores of obstore, file systems of fsspec."""

from __future__ import annotations

from pathlib import Path

import fsspec
import obstore
import pytest
from obstore.store import MemoryStore

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


@pytest.mark.parametrize("requests", [0, -1, 1.5, True, 2000])
def test_the_number_of_requests_is_checked(tmp_path: Path, requests: int) -> None:
    with pytest.raises(zarrfeed.ConfigError, match="requests = "):
        list_objects(tmp_path, requests=requests)

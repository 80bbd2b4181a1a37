"""Where objects are that a user names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from obstore.store import MemoryStore
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from zarrfeed import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.objects.object_source import ObjectSource

ACCESS = StoreAccess()


@pytest.mark.parametrize("spelled", [str, lambda p: p, lambda p: f"file://{p}", lambda p: f"{p}/"])
def test_a_folder(tmp_path: Path, spelled: Callable[[Path], Any]) -> None:
    source = ObjectSource.of(spelled(tmp_path), ACCESS)
    assert source.is_local
    assert isinstance(source.store, LocalStore)
    assert source.named("a/b") == f"{tmp_path}/a/b"


def test_a_url_is_asked_for_nothing() -> None:
    access = StoreAccess(storage_options={"skip_signature": True, "region": "us-east-1"})
    source = ObjectSource.of("s3://bucket/train/", access)
    assert source.name == "s3://bucket/train"
    assert isinstance(source.store, ObjectStore)
    assert not source.is_local


def test_stores_of_obstore_and_of_fsspec() -> None:
    assert isinstance(ObjectSource.of(MemoryStore(), ACCESS).store, ObjectStore)
    mapper = fsspec.get_mapper("memory://objects")
    assert isinstance(ObjectSource.of(mapper, ACCESS).store, FsspecStore)


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("/nowhere/at/all", StoreReadError, "does not exist"),
        (__file__, StoreReadError, "is no folder"),
        ("", ConfigError, "must be a URL or the path"),
        (7, ConfigError, "got a int, must be a URL"),
        ({"a": b"b"}, ConfigError, "got a dict"),
        ("ftp://host/path", UnsupportedError, "ftp:// is not supported"),
        ("s3://user:secret@bucket/key", ConfigError, "has a user"),
    ],
)
def test_what_is_refused(source: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        ObjectSource.of(source, ACCESS)
    assert "secret" not in str(caught.value).replace("secrets", "")


def test_storage_options_are_for_urls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage_options are for URLs"):
        ObjectSource.of(tmp_path, StoreAccess(storage_options={"anon": True}))
    with pytest.raises(ConfigError, match="storage_options are for URLs"):
        ObjectSource.of(MemoryStore(), StoreAccess(storage_options={"anon": True}))

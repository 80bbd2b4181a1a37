"""Which stores surely hold the same objects: a wrong yes would be a batch of another store's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import HTTPStore
from obstore.store import MemoryStore as ObstoreMemory
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.same_store import is_same_store
from zarrfeed.storage.access.urls import make_store


def test_stores_that_hold_the_same_objects_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    objects: dict[str, Any] = {}
    client, files = ObstoreMemory(), AsyncFileSystemWrapper(MemoryFileSystem(), asynchronous=True)
    wrapper: Any = WrapperStore(MemoryStore())
    same: dict[str, tuple[Any, Any]] = {
        "paths": (LocalStore("a.zarr"), LocalStore(tmp_path / "a.zarr", read_only=True)),
        "zip files": (ZipStore("a.zip"), ZipStore(tmp_path / "a.zip")),
        "one dict": (MemoryStore(objects), MemoryStore(objects)),
        "one client": (ObjectStore(client), ObjectStore(client)),
        "one client, read": (ReadStore(client), ReadStore(client)),
        "one file system": (FsspecStore(files, path="/a"), FsspecStore(files, path="/a")),
        "the store itself": (wrapper, wrapper),
        **{
            url: (make_store(url, StoreAccess()), make_store(url, StoreAccess()))
            for url in ("http://127.0.0.1:9/a.zarr", "s3://bucket/a.zarr", "gs://bucket/a.zarr")
        },
    }
    assert [name for name, (one, other) in same.items() if not is_same_store(one, other)] == []


def test_stores_that_may_hold_other_objects_are_not_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(LocalStore):
        """Does with bytes whatever it likes."""

    inner, files = MemoryStore(), AsyncFileSystemWrapper(MemoryFileSystem(), asynchronous=True)
    client = ObstoreMemory()
    url = "s3://bucket/a.zarr"
    refusing = make_store(url, StoreAccess(storage_options={"forbidden_is_missing": True}))
    before = make_store(url, StoreAccess())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    after = make_store(url, StoreAccess())
    assert before.store == after.store  # says obstore, though they ask different servers
    content = ReadStore(client)
    content.keeps_encoding = True
    other: dict[str, tuple[Any, Any]] = {
        "paths": (LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")),
        "zip files": (ZipStore(tmp_path / "a"), ZipStore(tmp_path / "b")),
        "dicts with equal objects": (MemoryStore(), MemoryStore()),
        "classes": (LocalStore(tmp_path / "a"), Own(tmp_path / "a")),
        "a class of the user's": (Own(tmp_path / "a"), Own(tmp_path / "a")),
        "wrappers of one store": (WrapperStore(inner), WrapperStore(inner)),
        "logging stores": (LoggingStore(inner), LoggingStore(inner)),
        "clients": (ObjectStore(ObstoreMemory()), ObjectStore(ObstoreMemory())),
        "client and reader": (ObjectStore(client), ReadStore(client)),
        "content encodings": (ReadStore(client), content),
        "clients of the user's": (
            ObjectStore(HTTPStore.from_url("http://a/b")),
            ObjectStore(HTTPStore.from_url("http://a/c")),
        ),
        "folders of a file system": (FsspecStore(files, path="/a"), FsspecStore(files, path="/b")),
        "what a file system's errors mean": (
            FsspecStore(files, path="/a"),
            FsspecStore(files, path="/a", allowed_exceptions=(OSError,)),
        ),
        "URLs": (make_store(url, StoreAccess()), make_store("s3://bucket/b.zarr", StoreAccess())),
        "options": (after, make_store(url, StoreAccess(storage_options={"region": "elsewhere"}))),
        "what a refusal means": (before, refusing),
        "environments": (before, after),
    }
    assert [name for name, (one, another) in other.items() if is_same_store(one, another)] == []

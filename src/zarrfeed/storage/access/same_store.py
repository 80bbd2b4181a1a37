"""Tell whether two stores of zarr-python surely hold the same objects.

Invariant: stores that may differ in what they return are never called the same, so that nobody reads the chunks of
one store in place of those of another. Stores that are the same may be called different; that costs time alone. The
equality of the stores themselves does not hold this: zarr-python calls two wrappers equal if they wrap equal stores,
whatever they do to the bytes; two memory stores, if they have equal objects at the moment; and obstore two clients of
S3, although the environment sent each to another server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.urls import UrlStore
from zarrfeed.storage.access.zarr_internals import memory_of
from zarrfeed.storage.files.table_store import TableStore


def is_same_store(one: Store, other: Store) -> bool:
    """Return whether two stores surely hold the same objects under the same keys.

    >>> is_same_store(LocalStore("a.zarr"), LocalStore("a.zarr"))
    True
    >>> is_same_store(MemoryStore(), MemoryStore())
    False
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    same = _SAME.get(kind)  # a subclass, or another kind, may have ways of its own, also if it inherits an equality
    return same is not None and same(one, other)


def _same_files(one: Any, other: Any) -> bool:
    return Path(one.root).absolute() == Path(other.root).absolute()


def _same_zip(one: Any, other: Any) -> bool:
    return Path(one.path).absolute() == Path(other.path).absolute()


def _same_data_file(one: Any, other: Any) -> bool:
    return bool(one == other)


def _same_memory(one: Any, other: Any) -> bool:
    return memory_of(one) is memory_of(other)


def _same_file_system(one: Any, other: Any) -> bool:
    return one.fs is other.fs and (one.path, one.allowed_exceptions) == (other.path, other.allowed_exceptions)


def _same_client(one: Any, other: Any) -> bool:
    return one.store is other.store and _refusals_of(one) == _refusals_of(other)


def _same_url(one: UrlStore, other: UrlStore) -> bool:
    return (
        (one.url, one.environment) == (other.url, other.environment)
        and one.store == other.store
        and _refusals_of(one) == _refusals_of(other)
    )


def _refusals_of(store: Any) -> tuple[bool, bool]:
    return getattr(store, "forbidden_is_missing", False), getattr(store, "keeps_encoding", False)


_SAME: dict[type, Callable[[Any, Any], bool]] = {
    LocalStore: _same_files,
    ZipStore: _same_zip,
    MemoryStore: _same_memory,
    TableStore: _same_data_file,
    FsspecStore: _same_file_system,
    ObjectStore: _same_client,
    ReadStore: _same_client,
    UrlStore: _same_url,
}

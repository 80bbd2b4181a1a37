"""Stores that the user made: of zarr-python, of obstore, and mappers of fsspec."""

from __future__ import annotations

import sys
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore

from zarrfeed.base.redaction import remember
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.files.manifests import is_manifest_store, open_manifests


def is_mapper(source: object) -> bool:
    """Return whether this is a mapper of fsspec: a store, though it is a Mapping, too."""
    if "fsspec" not in sys.modules:
        return False
    from fsspec.mapping import FSMap

    return isinstance(source, FSMap)


def as_store(source: Any) -> Store | None:
    """Return the store that this is, or that is made of it; None if it is no store."""
    if type(source) is ObjectStore:
        return ReadStore(source.store)
    if is_manifest_store(source):
        return open_manifests(source)
    if isinstance(source, Store):
        return source
    if type(source).__module__.startswith("obstore."):
        remember(getattr(source, "config", None))
        return ReadStore(source)
    if not is_mapper(source):
        return None
    remember(source.fs.storage_options)
    return FsspecStore.from_mapper(source, read_only=True)

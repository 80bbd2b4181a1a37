"""The source of objects that are read as they are: a bucket, a prefix in it, a web server, or a folder."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.given_stores import as_store, is_mapper
from zarrfeed.storage.access.key_urls import check_key, is_url
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.urls import make_store
from zarrfeed.storage.objects.listing import Listing

_S = TypeVar("_S")


@dataclass(frozen=True)
class ObjectSource:
    """A store of objects.

    Attributes
    ----------
    name
        Name in messages: a URL or a path, without a slash at its end, and without credentials.
    store
        A `LocalStore` of a folder, an `ObjectStore` (of obstore) or an `FsspecStore`. Keys are below its root.
    """

    name: str
    store: Store = field(repr=False)

    @classmethod
    def of(cls, source: Any, access: StoreAccess) -> ObjectSource:
        """Return the source of objects that the user names, without asking a server for anything.

        Parameters
        ----------
        source
            A URL (s3://, gs://, az://, http://, https://, file://), the path of a folder, a store of obstore, or a
            mapper of fsspec.
        access
            Options for stores of URLs.

        Raises
        ------
        ConfigError
            If it is none of these, or cannot be opened so.
        StoreReadError
            If there is no such folder.
        UnsupportedError
            If the URL has a scheme that is not read.
        """
        if isinstance(source, str | os.PathLike):
            return _of_path(os.fspath(source), access)
        if access.storage_options:
            raise ConfigError("storage_options are for URLs such as s3://bucket/prefix")
        store = _as_they_are(as_store(source))
        if isinstance(store, ObjectStore | LocalStore | FsspecStore):
            return cls(printable(store if is_mapper(source) else source).rstrip("/"), store)
        raise ConfigError(
            f"got a {type(source).__name__}, must be a URL, the path of a folder, a store of obstore or a mapper of "
            "fsspec (fsspec.get_mapper(...))"
        )

    @property
    def is_local(self) -> bool:
        """True if it is a folder."""
        return type(self.store) is LocalStore

    def check_keys(self, listing: Listing) -> None:
        """Refuse keys that the store's client refuses, or takes for others. Raises ConfigError, as `check_key`."""
        if not isinstance(self.store, FsspecStore):  # their clients take keys as they are
            for one in listing:
                check_key(f"the key {one.key!r}", one.key)

    def named(self, key: str) -> str:
        """Return the name of an object in messages."""
        return printable(f"{self.name}/{key}")


def _as_they_are(store: _S) -> _S:
    """Return a store that hands out objects as they are stored, with their Content-Encoding: sizes are those listed."""
    if isinstance(store, ReadStore):
        store.keeps_encoding = True
    return store


def _of_path(source: str, access: StoreAccess) -> ObjectSource:
    if is_url(source):
        store = make_store(source, access)
        return ObjectSource(store.url, _as_they_are(store))
    if access.storage_options:
        raise ConfigError("storage_options are for URLs such as s3://bucket/prefix")
    if not source.strip():
        raise ConfigError(f"got {source!r}, must be a URL or the path of a folder")
    folder = local_path(source).expanduser().absolute()
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise StoreReadError(errno.ENOTDIR if folder.exists() else errno.ENOENT, f"{printable(folder)}: {what}")
    return ObjectSource(printable(folder), LocalStore(folder, read_only=True))

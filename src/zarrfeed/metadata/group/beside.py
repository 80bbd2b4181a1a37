"""Arrays and groups that lie beside an array, in the group that it is in: where they lie, and how they are opened.

Invariant: nothing is listed, and one name is one request. So stores that cannot be listed are served, too.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import zarr
from zarr.api.asynchronous import open as open_async
from zarr.storage import LocalStore

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError, printable
from zarrfeed.metadata.array.open import open_source
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import KeyUrl, url_of
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.urls import UrlStore, wrap_node


@dataclass(frozen=True, eq=False)
class StoredPath:
    """A path in a store."""

    store: Any = field(repr=False)
    path: str = ""

    def __str__(self) -> str:
        return printable(f"{self.store}/{self.path}").removeprefix("file://")


#: The location of an array beside another one.
Beside: TypeAlias = str | Path | StoredPath


def sibling(array: zarr.Array[Any], name: str) -> Beside | None:
    """Return the place of an array of a name beside another one; None if that one is the root of its store."""
    store, path = array.store_path.store, array.store_path.path
    if path:
        folder, slash, _ = path.rpartition("/")
        return StoredPath(store, f"{folder}{slash}{name}")
    if type(store) is LocalStore:
        return Path(store.root).parent / name
    if isinstance(store, UrlStore) and store.url.rpartition("/")[0].count("/") > 1:
        beside = url_of(store.url.rpartition("/")[0], name)
        with suppress(ConfigError):  # a name that no key has
            return str(KeyUrl.of(beside))
    return None


def open_beside(beside: Beside, access: StoreAccess) -> Any:
    """Open the array or the group at a location beside an array.

    Raises
    ------
    StoreReadError
        If it is not there, or cannot be read. And as in `open_source`.
    UnsupportedError
        If a file has an array there that is not read in place.
    """
    if not isinstance(beside, StoredPath):
        return open_source(beside, access)
    try:
        opened = access.ask(lambda: open_async(store=beside.store, path=beside.path, mode="r"), str(beside))
    except ZarrfeedError:
        raise
    except FileNotFoundError as error:
        raise StoreReadError(errno.ENOENT, f"{beside}: no Zarr array is there") from error
    except Exception as error:  # what stores and zarr-python's parsers raise is of any class
        raise StoreReadError(errno_of(error), f"{beside}: cannot be opened: {reason_of(error)}") from error
    return wrap_node(opened)

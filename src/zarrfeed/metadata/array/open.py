"""The user's array or group -> an open one: paths, URLs, stores of zarr-python, of obstore, fsspec's mappers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.api.asynchronous import open as open_async
from zarr.storage import LocalStore

from zarrfeed.base.errors import ConfigError, DecodeError, StoreReadError, ZarrfeedError, printable
from zarrfeed.metadata.array.array import open_at_url, open_node
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import checked
from zarrfeed.storage.access.far_chunks import FarChunks
from zarrfeed.storage.access.given_stores import as_store
from zarrfeed.storage.access.group_members import checked_members, members_of, read_members
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.open_errors import open_error
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.urls import wrap_node
from zarrfeed.storage.files.open_file import are_references
from zarrfeed.storage.files.table_store import TableStore

_DEFAULT_ACCESS = StoreAccess()


def open_source(source: Any, access: StoreAccess = _DEFAULT_ACCESS) -> Any:
    """Open the array or the group at a path, at a URL, or at the root of a store; return anything else as it is.

    Raises
    ------
    ConfigError
        If there is nothing that zarr-python can read, or `storage_options` cannot work.
    StoreReadError
        If there is nothing, or it cannot be read, or the store does not answer in time.
    UnsupportedError
        If the URL has a scheme that is not read.
    """
    if is_url(source):
        return open_at_url(str(source), access)
    if isinstance(source, str | Path):
        return open_node(source, access.zarr_format, access)
    store = as_store(source)
    if isinstance(store, TableStore) and store.far_reader is None:
        store.far_reader = FarChunks(access)
    return checked(source) if store is None else open_store(store, access)


def check_storage_options(access: StoreAccess, *sources: Any) -> None:
    """Raise ConfigError if there are storage options, and no source is a URL, or refers to some, which they are for."""
    if access.storage_options and not any(is_url(one) or _has_references(one) for one in sources):
        raise ConfigError("storage_options are for URLs such as s3://bucket/key, and none of the sources is one")


def _has_references(source: Any) -> bool:
    path = Path(source) if isinstance(source, str | Path) else None
    return path is not None and path.exists() and are_references(path)


def members_of_group(group: zarr.Group, access: StoreAccess) -> dict[str, zarr.Array[Any] | zarr.Group]:
    """Return the arrays and the groups in a group, by name and in the order of their names."""
    if type(group.store) is LocalStore:
        return members_of(group)
    return checked_members(access.ask(lambda: read_members(group), str(group.store_path)))


def open_store(store: Store, access: StoreAccess) -> zarr.Array[Any] | zarr.Group:
    """Open the array or the group at the root of a store, for reading.

    Raises
    ------
    StoreReadError
        If there is none, or it cannot be read.
    """
    name = printable(store)
    try:
        return wrap_node(access.ask(lambda: open_async(store=store, mode="r", zarr_format=access.zarr_format), name))
    except DecodeError as error:
        raise StoreReadError(errno.EIO, f"{name}: {error}") from error
    except ZarrfeedError:
        raise
    except FileNotFoundError as error:
        raise StoreReadError(error.errno or 2, f"{name}: no Zarr array is at the root of this store") from error
    except OSError as error:
        raise StoreReadError(errno_of(error), f"{name}: cannot be read: {reason_of(error)}") from error
    except Exception as error:  # what stores and zarr-python's parsers raise is of any class
        raise open_error(name, error) from error

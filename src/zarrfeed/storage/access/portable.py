"""Stores, arrays and descriptions of samples as bytes, which an executor's tasks open again elsewhere.

Invariant: only what has a path or a URL that another process can open goes to one. Arrays and stores that exist in
this process alone are refused, so that no task carries data. Local directories travel as absolute paths.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore, MemoryStore

from zarrfeed.base.errors import ConfigError
from zarrfeed.spec.fields.field import HostRows
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.local_files import local_path

_REMEDY = "executor: {} is in the memory of this process, and other processes cannot open it: give a path or a URL"


def to_bytes(value: object) -> bytes:
    """Pickle a value, so that `from_bytes` makes an equal one in another process.

    Raises
    ------
    ConfigError
        If it has arrays or stores in memory, or what cannot be pickled.
    """
    content = io.BytesIO()
    try:
        _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(value)
    except ConfigError:
        raise
    except Exception as error:  # of any class: a store is anybody's code
        raise ConfigError(
            f"executor: a {type(value).__name__} cannot be sent to other processes ({error}): give a path or a URL"
        ) from error
    return content.getvalue()


def from_bytes(content: bytes) -> Any:
    """Return the value that `to_bytes` pickled."""
    return pickle.loads(content)


def as_location(source: Any) -> Any:
    """Return the location of a store: an absolute path, a URL, or else the source itself."""
    if isinstance(source, str | Path):
        return source if is_url(source) else str(local_path(source).absolute())
    store = source.store if isinstance(source, zarr.Array | zarr.Group) else source
    if type(store) is not LocalStore:
        return source
    path = source.path if isinstance(source, zarr.Array | zarr.Group) else ""
    return str((Path(store.root) / path).absolute())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, MemoryStore):
            raise ConfigError(_REMEDY.format(f"a {type(obj).__name__}"))
        if isinstance(obj, HostRows) and obj.source is None:
            raise ConfigError(_REMEDY.format("an array"))
        if type(obj) is LocalStore and not Path(obj.root).is_absolute():
            return _local_store, (str(Path(obj.root).absolute()), obj.read_only)
        return NotImplemented


def _local_store(root: str, read_only: bool) -> LocalStore:
    return LocalStore(root, read_only=read_only)

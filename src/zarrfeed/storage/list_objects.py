"""`list_objects`: which objects there are below a URL, in a bucket or in a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zarr.storage import FsspecStore, LocalStore, ObjectStore

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.validate import check_int
from zarrfeed.spec.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access import StoreAccess
from zarrfeed.storage.errors import errno_of, reason_of
from zarrfeed.storage.listing import Listing, StoredObject
from zarrfeed.storage.object_source import ObjectSource

_PAGE = 1000


def list_objects(
    source: Any,
    *,
    glob: str | None = None,
    filter: Callable[[StoredObject], bool] | None = None,
    requests: int = 16,
    listing_file: str | Path | None = None,
    refresh: bool = False,
    progress: bool | None = False,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Listing:
    """Return which objects a source has, in the order of their keys."""
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options)
    return list_source(
        ObjectSource.of(source, access),
        access,
        glob=glob,
        filter=filter,
        requests=requests,
        listing_file=listing_file,
        refresh=refresh,
        progress=progress,
    )


def list_source(
    source: ObjectSource,
    access: StoreAccess,
    *,
    glob: str | None = None,
    filter: Callable[[StoredObject], bool] | None = None,
    requests: int = 16,
    listing_file: str | Path | None = None,
    refresh: bool = False,
    progress: bool | None = False,
) -> Listing:
    """Return which objects a source has; the options are those of `list_objects`."""
    del glob, listing_file, refresh, progress
    check_int("requests", requests, 1, 1024)
    store = source.store
    try:
        if isinstance(store, LocalStore):
            found = dict(_of_folder(Path(store.root)))
        elif isinstance(store, ObjectStore):
            found = _of_obstore(store, source, access)
        else:
            assert isinstance(store, FsspecStore)
            found = _of_fsspec(store, source, access)
    except StoreReadError:
        raise
    except Exception as error:  # of any class: a store is anybody's code
        raise StoreReadError(errno_of(error), f"{source.name}: cannot be listed: {reason_of(error)}") from error
    keys = sorted(found, key=lambda key: key.encode("utf-8", "surrogateescape"))
    kept = ((key, found[key]) for key in keys)
    if filter is not None:
        kept = ((key, size) for key, size in kept if filter(StoredObject(key, size)))
    return Listing.of(kept)


def _of_folder(root: Path) -> Iterator[tuple[str, int]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(f"{folder}{entry.name}/")
                elif entry.is_file():
                    yield f"{folder}{entry.name}", entry.stat().st_size


def _of_obstore(store: ObjectStore[Any], source: ObjectSource, access: StoreAccess) -> dict[str, int]:
    import obstore

    found: dict[str, int] = {}
    pages: Any = obstore.list(store.store, chunk_size=_PAGE)
    while True:
        try:
            page = access.ask(pages.__anext__, source.name)
        except StopAsyncIteration:
            return found
        for meta in page:
            found[meta["path"]] = int(meta["size"])


def _of_fsspec(store: FsspecStore, source: ObjectSource, access: StoreAccess) -> dict[str, int]:
    find = store.fs._find  # noqa: SLF001 (fsspec documents it as the coroutine of `find`)
    files = access.ask(lambda: find(store.path, detail=True), source.name)
    if not files:
        raise StoreReadError(errno.ENOENT, f"{source.name}: no object is there")
    start = len(store.path.rstrip("/")) + 1
    return {name[start:]: -1 if meta.get("size") is None else int(meta["size"]) for name, meta in files.items()}

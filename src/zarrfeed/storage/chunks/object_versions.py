"""The version of each stored object of an array, which the node cache must know before it serves stored bytes.

A version is whatever changes when the object is written again: ETag, time of the last change and size, as one listing
or one HEAD request for each object tells them; or the id of an Icechunk snapshot. Versions are read when the array is
opened. So a dataset reads the objects that were there when it was opened, or, where these are not cached, what is there
now.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.access.retry import reading
from zarrfeed.storage.access.store_errors import errno_of, is_transient, reason_of, says_no_permission
from zarrfeed.storage.access.zarr_internals import sync, unwrapped
from zarrfeed.storage.objects.object_source import ObjectSource

#: Most objects of a server that has no listing: each of them costs a HEAD request when the array is opened.
_MOST_HEADS = 1_000_000
_HEADS_AT_ONCE = 32
#: Without an ETag, two changes in one second look alike. An object that changed so recently has no version yet.
_UNSETTLED_S = 2.0

#: Configuration of obstore's stores: what names the bucket, and another server than the provider's own.
_BUCKETS = ("bucket", "bucket_name", "container", "container_name")
_SERVERS = ("endpoint", "endpoint_url", "base_url", "account_name")
_DECLARE = "declare a version: cache_version="
_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}


def name_store(store: Store) -> tuple[str, str] | None:
    """Return a name of the bucket or the server, without credentials, and the path of the store in it.

    None for stores that have no name, or that gain nothing from a cache: in memory, in a local directory, in a file.
    """
    while isinstance(store, WrapperStore):
        store = unwrapped(store)
    if _is_icechunk(store):
        return "icechunk", ""  # the id of a snapshot is unique on its own
    if isinstance(store, FsspecStore):
        protocol = store.fs.protocol
        name = protocol if isinstance(protocol, str) else protocol[0]
        server = _bare_url(str(getattr(store.fs, "endpoint_url", "") or ""))
        host, path = "", store.path
        if "://" in path:  # as fsspec's file systems of web servers have it
            host, _, path = path.partition("://")[2].partition("/")
            if "?" in path:
                return None
        return f"{name}://{host.rpartition('@')[2]}" + (f" at {server}" if server else ""), path.strip("/")
    if not isinstance(store, ObjectStore):
        return None
    inner: Any = store.store
    kind = type(inner).__name__
    if kind == "HTTPStore":
        parts = urlsplit(inner.url)
        server, path = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/")
        # An escaped slash is part of a name, which a key of the cache cannot say.
        return (f"{server}/{path}", "") if "%2f" in path.lower() else (server, unquote(path))
    if kind not in _SCHEMES:
        return None
    config = {key.removeprefix("aws_").removeprefix("azure_storage_").removeprefix("google_"): value
              for key, value in inner.config.items()}  # fmt: skip
    bucket = next((config[key] for key in _BUCKETS if config.get(key)), "")
    server = next((_bare_url(config[key]) for key in _SERVERS if config.get(key)), "")
    return f"{_SCHEMES[kind]}://{bucket}" + (f" at {server}" if server else ""), str(inner.prefix or "").strip("/")


@dataclass(frozen=True)
class FoundVersions:
    """The versions of an array's objects.

    Attributes
    ----------
    versions
        The versions by key below the array; None: no object has one.
    why
        Why some objects, or all, have none; else empty.
    sizes
        Stored bytes of each object that has a version; None: the store does not tell them.
    """

    versions: core.ObjectVersions | None = None
    why: str = ""
    sizes: npt.NDArray[np.int64] | None = None


def find_versions(store: Store, prefix: str, spec: ArraySpec | None, access: StoreAccess) -> FoundVersions:
    """Return the versions of the objects below a prefix by their keys there.

    `spec` is the array whose objects they are; without it, a web server cannot be asked, as it has no listing.

    Raises
    ------
    StoreReadError
        If the store cannot be asked.
    """
    while isinstance(store, WrapperStore):
        store = unwrapped(store)
    if _is_icechunk(store):
        session: Any = store.session  # type: ignore[attr-defined]
        if not session.read_only:
            return FoundVersions(why="a session of Icechunk that can be written has no version")
        return FoundVersions(core.ObjectVersions(f"snapshot {session.snapshot_id}"))
    if not isinstance(store, ObjectStore):
        return FoundVersions(why=f"a {type(store).__name__} does not tell versions of objects; {_DECLARE}")
    try:
        found = _listed(store, prefix, access)
        if found is None and spec is None:
            return FoundVersions(why=f"the server has no listing that tells versions, or not for you; {_DECLARE}")
        if found is None:
            assert spec is not None
            keys = list(itertools.islice(object_keys(spec), _MOST_HEADS + 1))
            if len(keys) > _MOST_HEADS:
                return FoundVersions(why=f"more than {_MOST_HEADS} objects would each cost a HEAD request; {_DECLARE}")
            found = sync(_heads(store, prefix, keys, access))
    except StoreReadError:
        raise
    except Exception as error:  # of any class
        raise StoreReadError(errno_of(error), reason_of(error)) from error
    known = [one for one in found if one.version]
    why = (
        f"{len(found) - len(known)} of {len(found)} objects have no version: the server tells neither an ETag nor "
        f"when they changed, or they changed less than {_UNSETTLED_S:g} s ago; {_DECLARE}"
    )
    why = why if len(known) < len(found) else ""
    if why and not known:
        return FoundVersions(why=why)
    sizes = [one.size for one in known if one.key.rpartition("/")[2] not in METADATA_NAMES]
    versions = core.ObjectVersions([(one.key, one.version) for one in known])
    return FoundVersions(versions, why, np.array(sizes, np.int64))


@dataclass(frozen=True)
class ObjectVersion:
    """The version of an object in a store: its size in bytes, and a mark that changes when it is written again."""

    size: int
    version: str


async def look_up(source: ObjectSource, key: str, policy: Faults) -> ObjectVersion | None:
    """Return the version of an object that is there now; None if the store tells none.

    Raises
    ------
    StoreReadError
        If the store does not answer in time, or after retries. And whatever it raises.
    """
    if isinstance(source.store, LocalStore):
        status = (Path(source.store.root) / key).stat()
        return ObjectVersion(status.st_size, f"{status.st_ino} {status.st_mtime_ns}")
    if not isinstance(source.store, ObjectStore):
        return None
    import obstore

    inner = source.store.store
    meta: Any = await reading(policy, lambda: obstore.head_async(inner, key), is_far=True)
    tag, changed = meta.get("e_tag") or meta.get("version"), meta["last_modified"]
    return ObjectVersion(int(meta["size"]), f"{tag or ''} {changed}")


def object_keys(spec: ArraySpec) -> Iterator[str]:
    """Yield the keys below its array of all chunks, or of all shards where there are some."""
    count = spec.num_key_axes
    grid = [range(-(-n // s)) for n, s in zip(spec.shape[:count], spec.shard_shape[:count], strict=True)]
    for index in itertools.product(*grid):
        parts = [spec.key_prefix] * bool(spec.key_prefix) + [str(i) for i in index]
        yield spec.key_separator.join(parts)


def _is_icechunk(store: Store) -> bool:
    return type(store).__module__.partition(".")[0] == "icechunk"


def _bare_url(url: str) -> str:
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path.rstrip("/") if parts.netloc else url.rpartition("@")[2]


def _version_of(meta: Any) -> str:
    """Return the version that the metadata of an object tell; empty if they tell none."""
    changed: datetime | None = meta["last_modified"]
    tag = meta.get("e_tag") or meta.get("version")
    seconds = changed.astimezone(UTC).timestamp() if changed is not None else 0.0
    if not tag and (seconds <= 0 or time.time() - seconds < _UNSETTLED_S):
        return ""
    return f"{tag or ''} {meta.get('version') or ''} {seconds:.6f} {meta['size']}"


class _Object(NamedTuple):
    key: str
    version: str
    size: int


def _object_of(key: str, meta: Any) -> _Object:
    return _Object(key, _version_of(meta), int(meta["size"]))


def _listed(store: ObjectStore[Any], prefix: str, access: StoreAccess) -> list[_Object] | None:
    """Return the objects below a prefix by one listing; None if the server has none, or not for everybody."""
    import obstore

    if type(store.store).__name__ == "HTTPStore":
        return None

    def read() -> list[_Object]:
        pages = obstore.list(store.store, prefix=prefix or None, chunk_size=1000)
        return [_object_of(meta["path"].removeprefix(prefix), meta) for page in pages for meta in page]

    attempt = 0
    while True:
        try:
            return read()
        except Exception as error:
            if says_no_permission(error):
                return None
            if attempt >= access.policy.retries or not is_transient(error):
                raise
            time.sleep(core.pause_after(attempt))
            attempt += 1


async def _heads(store: ObjectStore[Any], prefix: str, keys: list[str], access: StoreAccess) -> list[_Object]:
    import obstore

    waiting = iter(keys)
    found: list[_Object] = []

    async def head(key: str) -> None:
        for attempt in itertools.count():
            try:
                found.append(_object_of(key, await obstore.head_async(store.store, prefix + key)))
            except FileNotFoundError:
                return  # a missing chunk: the fill value
            except Exception as error:
                if says_no_permission(error) and getattr(store, "forbidden_is_missing", False):
                    return
                if attempt >= access.policy.retries or not is_transient(error):
                    raise
                await asyncio.sleep(core.pause_after(attempt))
            else:
                return

    async def work() -> None:
        for key in waiting:
            await head(key)

    await asyncio.gather(*(work() for _ in range(_HEADS_AT_ONCE)))
    return found

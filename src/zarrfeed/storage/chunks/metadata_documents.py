"""The metadata documents of an array as they are now, and what tells without reading them that they did not change.

Invariant: a document counts as unchanged only if its file, or its ETag, is the one that was read before. A file that
was written in the last seconds is read again each time, since two writes within a tick of the clock look alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import LocalStore, WrapperStore, ZipStore

from zarrfeed.storage.access.content_encoding import decoded, encoding_of
from zarrfeed.storage.access.local_files import check_metadata_file
from zarrfeed.storage.access.read_store import ReadStore, is_plain
from zarrfeed.storage.access.zarr_internals import open_store, unwrapped
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.files.table_store import TableStore

#: The bytes of each document, by the order of the keys; None if there is none.
Documents: TypeAlias = "tuple[bytes | None, ...]"

#: Seconds after which a file that was written again surely has another time.
_SETTLED_S = 2.0


class Seen(NamedTuple):
    """Documents that were read, None where they are those that were read before; and what they are known by again.

    `mark` is None where nothing tells them from others.
    """

    documents: Documents | None
    mark: Hashable


@dataclass(frozen=True)
class DocumentLocation:
    """The location of the metadata documents of one array.

    Attributes
    ----------
    keys
        Names of the documents, below the array: the first one describes it.
    root
        Directory of the array in a local store; "" for others.
    source
        Store of the document, if it is no local file.
    """

    keys: tuple[str, ...]
    root: str = ""
    source: StoreSource | None = None

    @classmethod
    def of(cls, array: str | StoreSource, keys: tuple[str, ...]) -> DocumentLocation | None:
        """Return the documents of an array; None if they cannot change, or its store has none of them."""
        if isinstance(array, str):
            return cls(keys, array)
        if not array.metadata_key or _is_fixed(array.store):
            return None
        if type(array.store) is LocalStore:
            return cls(keys, str(Path(array.store.root) / array.prefix))
        return cls(keys, source=array)

    @property
    def identity(self) -> Hashable:
        """Tells the array from others, as long as its store exists."""
        return self.root if self.source is None else (id(self.source.store), self.source.prefix)

    def read_files(self, mark: Hashable = None) -> Seen:
        """Read the documents of an array in a local store, unless their files are those of a mark.

        Raises
        ------
        ConfigError
            If one is no regular file, or too large.
        OSError
            If one cannot be read.
        """
        found = [_status(f"{self.root}/{key}") for key in self.keys]
        now = tuple(one and (one.st_mtime_ns, one.st_ctime_ns, one.st_size, one.st_ino) for one in found)
        if mark is not None and now == mark:
            return Seen(None, mark)
        documents = tuple(
            one and _content(f"{self.root}/{key}", one) for key, one in zip(self.keys, found, strict=True)
        )
        last = max((max(one.st_mtime, one.st_ctime) for one in found if one is not None), default=0.0)
        return Seen(documents, now if time.time() - last > _SETTLED_S else None)

    async def ask(self, mark: Hashable = None) -> Seen:
        """Ask the store for the documents, unless their ETags are those of a mark; on zarr-python's event loop.

        Raises
        ------
        Exception
            Whatever the store raises.
        """
        assert self.source is not None
        source = self.source.reopened() if self.source.is_forked else self.source
        store = source.store
        if is_plain(store):
            return await self._ask_objects(store, mark)
        await (source.open() if self.source.is_forked else open_store(store))
        found = [await store.get(source.prefix + key, cpu.buffer_prototype) for key in self.keys]
        return Seen(tuple(None if one is None else one.to_bytes() for one in found), None)

    async def _ask_objects(self, read_store: Any, mark: Hashable) -> Seen:
        """Ask an object store, at first by conditional requests, which bring no bytes of what did not change."""
        import obstore

        assert self.source is not None
        store = read_store.store
        paths = [self.source.prefix + key for key in self.keys]
        if isinstance(mark, tuple) and all([await _is_same(store, *one) for one in zip(paths, mark, strict=True)]):
            return Seen(None, mark)
        documents: list[bytes | None] = []
        tags: list[str | None] = []
        for path in paths:
            try:
                answer = await obstore.get_async(store, path)
            except Exception as error:
                # The first document was there: if it is refused now, that says nothing of the array.
                may_be_refused = path != paths[0] and isinstance(read_store, ReadStore)
                if not isinstance(error, FileNotFoundError) and not (
                    may_be_refused and await read_store.is_absent(path, error)
                ):
                    raise
                documents.append(None)
                tags.append(None)
                continue
            documents.append(decoded(await answer.bytes_async(), encoding_of(answer)))
            tags.append(answer.meta["e_tag"])
        return Seen(tuple(documents), tuple(tags) if all(tags) else None)


async def _is_same(store: Any, path: str, tag: str) -> bool:
    """Return whether an object has the ETag that it had."""
    import obstore
    from obstore.exceptions import NotModifiedError

    try:
        answer = await obstore.get_async(store, path, options={"if_none_match": tag})
    except NotModifiedError:
        return True
    except FileNotFoundError:
        return False
    return answer.meta["e_tag"] == tag  # a server that does not know such requests


def _is_fixed(store: Store) -> bool:
    """Return whether what a store holds stays as it was opened: a zip file, or a snapshot of Icechunk."""
    while isinstance(store, WrapperStore):
        store = unwrapped(store)
    return isinstance(store, TableStore | ZipStore) or type(store).__module__.partition(".")[0] == "icechunk"


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 (one of up to thousands)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _content(path: str, status: os.stat_result) -> bytes | None:
    check_metadata_file(path, status.st_mode, status.st_size)
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None

"""Objects of object stores, and files of folders, read by calls that block the thread and not Python.

A request of obstore's that blocks costs half of what one costs that an event loop awaits, and it releases the GIL. So
threads read through this where it can be used. What cannot be told here, such as errors, is left to the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.storage import LocalStore

from zarrfeed.base.errors import printable
from zarrfeed.storage.access.far_chunks import BlockingFarChunks, FarChunks
from zarrfeed.storage.access.local_files import read_chunk_file
from zarrfeed.storage.access.read_store import BlockingObjectReads, is_plain
from zarrfeed.storage.access.request_limiter import RequestLimiter
from zarrfeed.storage.access.store_errors import array_is_gone, is_transient
from zarrfeed.storage.chunks.chunk_keys import misplaced_listed
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource
from zarrfeed.storage.files.table_store import TableStore

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Files that are read at once: at first, and where more are faster, as on network file systems.
_FIRST_FILES, MOST_FILES = 4, 64


class Blocking(Protocol):
    """Reads objects, one a call.

    Attributes
    ----------
    limiter
        The limiter at which reads wait for their turn.
    """

    limiter: RequestLimiter

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of an object, or None if there is none. As in `BlockingReads.get`."""


def blocking_reads(source: StoreSource) -> Blocking | None:
    """Return the reader of a source's objects by calls that block; None where the event loop has to read them."""
    if isinstance(source, PartedSource):
        is_cached = any(one.cached is not None for one in source.sources)  # the node cache is read on the loop
        kinds = BlockingReads, BlockingTableReads
        is_served = not is_cached and any(all(map(kind.serves, source.sources)) for kind in kinds)
        return BlockingParts(source) if is_served else None
    if BlockingReads.serves(source):
        return BlockingReads(source)
    if BlockingTableReads.serves(source):
        return BlockingTableReads(source)
    if type(source.store) is LocalStore and source.decoder is None and not source.metadata_key:
        return BlockingFiles(Path(source.store.root), source.prefix)
    return None


class BlockingFiles:
    """Reads files that are objects of their own. The engine itself reads those of arrays.

    Parameters
    ----------
    root, prefix
        The folder, and what stands before all keys.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        self.limiter = RequestLimiter(MOST_FILES, is_transient, _FIRST_FILES)
        self._root = root
        self._prefix = prefix

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of a file, or None if there is none. As in `BlockingReads.get`."""
        part = None if end is None else RangeByteRequest(begin, end)
        return read_chunk_file(self._root, self._prefix + key, part or (SuffixByteRequest(-begin) if begin else None))


class BlockingTableReads:
    """Reads the chunks of an array in files behind URLs, by their table.

    Parameters
    ----------
    source
        The location of the chunks; `serves(source)` is true.
    """

    def __init__(self, source: StoreSource) -> None:
        assert source.limiter is not None
        assert isinstance(source.store, TableStore)
        assert isinstance(source.store.far_reader, FarChunks)
        self.limiter: RequestLimiter = source.limiter
        self._store = source.store
        self._prefix = source.prefix
        self._reader = BlockingFarChunks(source.store.far_reader.access)

    @staticmethod
    def serves(source: StoreSource) -> bool:
        """Return whether chunks lie in objects that are read by blocking calls, and the engine decodes them."""
        store, path = source.store, source.prefix.rstrip("/")
        if type(store) is not TableStore or not source.is_far or source.decoder is not None:
            return False
        reader = store.far_reader
        if type(reader) is not FarChunks or store.is_by_library(path):
            return False
        return BlockingFarChunks.serves(reader, store.table(path).far_files)

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of a file or a chunk, or None if it was never written. As in `BlockingReads.get`."""
        byte_range = None if end is None else RangeByteRequest(begin, end)
        found = self._store.read_now(self._prefix + key, byte_range, self._reader)
        return None if found is None else np.frombuffer(found, np.uint8)


class BlockingParts:
    """Reads the objects of an array whose rows lie in several object stores.

    Parameters
    ----------
    source
        The location of the chunks; one of the classes for stores serves each part.
    """

    def __init__(self, source: PartedSource) -> None:
        assert source.limiter is not None
        self.limiter: RequestLimiter = source.limiter
        self._source = source
        self._reads: dict[int, Blocking] = {}

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of an object, or None if there is none. As in `BlockingReads.get`."""
        number, below = self._source.find(key)
        reads = self._reads.get(number)
        if reads is None:
            made = blocking_reads(self._source.sources[number])
            assert made is not None
            reads = self._reads[number] = made
        return reads.get(below, begin, end)


class BlockingReads:
    """Reads the objects of one array.

    Parameters
    ----------
    source
        The location of the chunks; `serves(source)` is true.
    """

    def __init__(self, source: StoreSource) -> None:
        assert source.limiter is not None
        self.limiter: RequestLimiter = source.limiter
        self._source = source
        self._store: Any = source.store.store  # type: ignore[attr-defined]
        keeps_encoding = bool(getattr(source.store, "keeps_encoding", False))
        self._objects = BlockingObjectReads(self._store, keeps_encoding=keeps_encoding)
        self._prefix = source.prefix
        self._metadata_key = source.metadata_key
        self._chunk_keys = source.chunk_keys
        self._checking = threading.Lock()

    @staticmethod
    def serves(source: StoreSource) -> bool:
        """Return whether chunks come from an object store as it is, and the engine decodes them.

        A class that wraps or extends the store may do anything. A provider of credentials may be a coroutine, which
        only an event loop can run.
        """
        store = source.store
        return (
            is_plain(store) and source.decoder is None and getattr(store.store, "credential_provider", None) is None  # type: ignore[attr-defined]
        )

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of an object below the array, or None if the array lacks the object.

        Parameters
        ----------
        key
            Key of the object below the array.
        begin, end
            The range, as a slice has it: (0, None) is the whole object, (-n, None) are its last n bytes.

        Raises
        ------
        FileNotFoundError
            If the array is gone. And whatever obstore raises.
        """
        if end is not None and end <= begin:  # stores disagree about what a request for zero bytes returns
            return np.empty(0, np.uint8)
        path = self._prefix + key
        try:
            found = self._objects.read_now(path, (begin, end))
        except Exception as error:
            if not self._source.takes_for_missing(error):
                raise
            self._check_array_exists()
            self._check_any_is_stored()
            return None
        return np.frombuffer(found, np.uint8)

    def _check_array_exists(self) -> None:
        """Tell a chunk that was never written from all chunks of an array that was deleted."""
        import obstore

        if not self._metadata_key:
            return
        path = self._prefix + self._metadata_key
        try:
            obstore.head(self._store, path)
        except FileNotFoundError as error:
            raise array_is_gone(path) from error

    def _check_any_is_stored(self) -> None:
        """Tell, once, a chunk that was never written from chunks that all lie elsewhere; who asks meanwhile waits."""
        import obstore

        def listed(folder: str) -> Iterator[str]:
            for some in obstore.list(self._store, prefix=self._prefix + folder):
                yield from (str(one["path"]).removeprefix(self._prefix) for one in some)

        with self._checking:
            keys = self._chunk_keys
            other = "" if keys is None else misplaced_listed(listed, keys)
            if keys is not None and other:
                raise keys.misplaced(printable(self._prefix.rstrip("/")) or "the array", other)
            self._chunk_keys = None

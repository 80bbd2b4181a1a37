"""The location of an array's chunks in a store that only Python can read, and the requests to such a store.

Invariant: a store is asked for no more at once than its limiter allows (`request_limiter.py`); a store that was opened
by the process that this one was forked from is opened anew, or refused.
"""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.buffer import Buffer
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.base.native import core
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.spec.arrays.array import StoreLocation
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import ArrayCache
from zarrfeed.storage.access.local_files import read_chunk_file
from zarrfeed.storage.access.request_limiter import RequestLimiter, shared_limiter
from zarrfeed.storage.access.same_store import is_same_store
from zarrfeed.storage.access.store_errors import array_is_gone, errno_of, is_transient, reason_of, says_no_permission
from zarrfeed.storage.access.zarr_internals import open_store, unwrapped, with_store
from zarrfeed.storage.access.zip_stores import zip_table
from zarrfeed.storage.chunks.chunk_keys import ChunkKeys, keys_of, misplaced_key
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder, make_decoder
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.table_store import TableStore

#: Timeout of a store's first answer in a forked process, where its client may be dead without knowing it.
_FORKED_TIMEOUT_S = 30.0
#: Enough to hide 20 ms from an event loop that does nothing but ask, at 50000 requests a second.
_MAX_REQUESTS = 1024
#: Most requests where each request may open a connection. Behind 100 ms so many objects of 340 KiB are 0.85 GB/s. Each
#: request that waits has a thread, and twice as many made nothing faster.
_MAX_CONNECTIONS = 256
#: Until it is known how many pay: a small web server has room for six connections in its queue.
_FIRST_REQUESTS, _FIRST_CONNECTIONS = 32, 2


@dataclass(frozen=True)
class StoreSource:
    """The location of the chunks of one array in a store that Python reads.

    Attributes
    ----------
    store
        Any `zarr.abc.store.Store`. Pickling the source pickles the store.
    prefix
        The beginning of the keys of this array: empty, or its path and a slash.
    metadata_key
        Exists below `prefix` as long as the array does; empty if the store has none.
    decoder
        Decodes the chunks; None if the engine does.
    cached
        The name of the array in the node cache; None: there is no cache.
    owner
        The process that the store was opened in.
    chunk_keys
        The keys that its objects have; None where nobody asks whether there are any.
    table
        The chunks in local files, from which the engine can read them. None if it cannot.
    """

    store: Store = field(repr=False)
    prefix: str
    metadata_key: str
    decoder: ChunkDecoder | None = None
    cached: ArrayCache | None = field(default=None, compare=False)
    owner: OwnerProcess = field(default_factory=OwnerProcess, compare=False)
    chunk_keys: ChunkKeys | None = field(default=None, compare=False)
    table: ChunkTable | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("limiter", "_misses", "far_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, owner=OwnerProcess())

    @property
    def is_forked(self) -> bool:
        """True if the store was opened by a process that this one was forked from."""
        return not self.owner.is_here

    def reads_as(self, other: StoreLocation) -> bool:
        """Return whether this surely reads the same chunks, in the same way, as another source."""
        return (
            type(self) is type(other)
            and isinstance(other, StoreSource)
            and (self.prefix, self.metadata_key) == (other.prefix, other.metadata_key)
            and (self.cached is other.cached or self.cached == other.cached)
            and _signature(self.decoder) == _signature(other.decoder)
            and is_same_store(self.store, other.store)
        )

    def engine_cache(self) -> core.CachedArray | None:
        """Return the engine's name of the array in the node cache; None without one.

        None also where Python decodes the chunks, which then reads through the cache itself (`cached_reads.py`), unless
        they are transcoded.
        """
        if self.cached is None or (self.decoder is not None and not self.cached.form):
            return None
        return self.cached.to_core()

    @property
    def cache_trouble(self) -> str:
        """Why the node cache does not do all that it could for this array; empty if it does, or if there is none."""
        if self.cached is None:
            return ""
        return self.cached.trouble()

    @property
    def max_requests(self) -> int:
        """Return the most requests that the store is asked at once, where memory allows more."""
        return _MAX_CONNECTIONS if self.is_far else _MAX_REQUESTS

    @property
    def file_format(self) -> str:
        """Return the format of the file that the array lies in; "" if it lies in a store of Zarr."""
        return self.store.format_of(self.prefix.rstrip("/")) if isinstance(self.store, TableStore) else ""

    @property
    def chunk_tables(self) -> tuple[core.ChunkTable, ...]:
        """The table of the chunks in files, for the engine; empty where Python reads them."""
        if self.table is None or self.decoder is not None:
            return ()
        if self.cached is not None and self.cached.versions is not None and not self.cached.form:
            return ()  # its bytes are those of the cache
        return () if self.table.unfiltered else (self.table.core,)

    @property
    def range_tables(self) -> tuple[core.ChunkTable, ...]:
        """The table of the chunks in files of which Python reads byte ranges; empty where it reads chunks."""
        table = self.far_table
        return () if table is None else (table.core,)

    @property
    def ranges_bytes(self) -> int:
        """Return the bytes of all chunks of `range_tables`."""
        table = self.far_table
        return 0 if table is None else table.stored_bytes

    @cached_property
    def far_table(self) -> ChunkTable | None:
        """The table of chunks that lie in far files, where the engine decodes them; None where it does not."""
        store, path = self.store, self.prefix.rstrip("/")
        if type(store) is not TableStore or self.decoder is not None or store.is_by_library(path):
            return None
        return None if store.is_local(path) or store.table(path).unfiltered else store.table(path)

    @property
    def max_stored_bytes(self) -> int:
        """Return the most bytes of a stored chunk; 0 where the engine decodes it, which knows."""
        return 0 if self.decoder is None else self.decoder.most_stored_bytes

    @property
    def is_far(self) -> bool:
        """True if each request may open a connection."""
        store = self.store
        while isinstance(store, WrapperStore):
            store = unwrapped(store)
        if isinstance(store, TableStore):
            return not store.is_local(self.prefix.rstrip("/"))
        return isinstance(store, ObjectStore | FsspecStore)

    def takes_for_missing(self, error: Exception) -> bool:
        """Return whether an error of obstore says that the array lacks a chunk.

        Chunks that the server refuses count as missing if the user says so, and only as long as the array's own
        document can be read: credentials that are no longer valid make no fill values.
        """
        if isinstance(error, FileNotFoundError):
            return True
        return says_no_permission(error) and bool(getattr(self.store, "forbidden_is_missing", False))

    @cached_property
    def limiter(self) -> RequestLimiter | None:
        """The limiter at which requests wait for their turn; None where they need not wait."""
        kinds = (LocalStore, MemoryStore, TableStore, ZipStore)
        near = type(self.store) in kinds and not self.is_far  # a subclass may do anything
        first = _FIRST_CONNECTIONS if self.is_far else _FIRST_REQUESTS
        return None if near else shared_limiter(self.store, self.max_requests, is_transient, first)

    def reopened(self) -> StoreSource:
        """Open it anew for a forked process; it stays known as forked, since not all stores can be opened anew."""
        if isinstance(self.store, TableStore) and self.is_far:
            raise ConfigError(_NOT_AFTER_FORK.format(self.store))
        return replace(self, store=_reopened(self.store))

    async def open(self) -> None:
        """Make the store ready; in a forked process, see whether it lives."""
        await open_store(self.store)
        if not self.is_forked:
            return
        try:
            await asyncio.wait_for(self.store.exists(self.prefix + self.metadata_key), _FORKED_TIMEOUT_S)
        except TimeoutError:
            raise ConfigError(_NOT_AFTER_FORK.format(printable(self.store))) from None

    async def get(
        self, key: str, byte_range: ByteRequest | None = None, *, at_once: bool = False
    ) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of a stored object, or a part of them, or None if the array lacks it.

        The request waits for its turn where too many requests at once would hurt, unless it is made `at_once`.

        Raises
        ------
        FileNotFoundError
            If the array is gone. And whatever the store raises.
        """
        if at_once or self.limiter is None:
            return await self._get(key, byte_range)
        return await self.limiter.run(partial(self._get, key, byte_range))

    async def _get(self, key: str, byte_range: ByteRequest | None) -> npt.NDArray[np.uint8] | None:
        if type(self.store) is LocalStore:
            # In one go, since to change threads takes as long as to read a small chunk.
            most = None if self.decoder is None else self.decoder.most_stored_bytes
            found = await asyncio.to_thread(read_chunk_file, Path(self.store.root), self.prefix + key, byte_range, most)
        else:
            data: Buffer | None = await self.store.get(self.prefix + key, cpu.buffer_prototype, byte_range)
            found = None if data is None else np.ascontiguousarray(data.as_numpy_array()).reshape(-1).view(np.uint8)
        if found is not None:
            return found
        if self.metadata_key and not await self.store.exists(self.prefix + self.metadata_key):
            raise array_is_gone(self.prefix + self.metadata_key)
        if self.chunk_keys is not None and not self._misses.is_harmless:
            await self._check_any_is_stored(self.chunk_keys)
        return None

    async def _check_any_is_stored(self, keys: ChunkKeys) -> None:
        """Tell, once, a chunk that was never written from chunks that all lie elsewhere; who asks meanwhile waits."""
        async with self._misses:
            if self._misses.is_harmless:
                return
            other = await misplaced_key(self.store, self.prefix, keys)
            if other:
                raise keys.misplaced(printable(self.prefix.rstrip("/")) or "the array", other)
            self._misses.is_harmless = True

    @cached_property
    def _misses(self) -> _Misses:
        return _Misses()


def _signature(decoder: ChunkDecoder | None) -> str:
    return "" if decoder is None else decoder.signature


class _Misses(asyncio.Lock):
    """The lock of a check: that objects which are not there were never written."""

    is_harmless = False


@dataclass(frozen=True)
class Location:
    """The location of an array: a local directory with its metadata file, or a store that Python reads."""

    root: str = ""
    metadata_key: str = ""
    source: StoreSource | None = None


_NOT_AFTER_FORK = (
    "{}: does not work in a process that was forked from the one that opened it; start worker processes by 'spawn' or "
    "'forkserver' (multiprocessing_context of the DataLoader), or use none"
)


def _reopened(store: Store) -> Store:
    """Return a store for a forked child: handles that parent and child would share are opened anew."""
    if isinstance(store, ObjectStore):
        # Its runtime has threads, and these exist in the parent only: a request would wait for ever.
        raise ConfigError(_NOT_AFTER_FORK.format(printable(store)))
    if isinstance(store, WrapperStore):
        inner = _reopened(unwrapped(store))
        return store if inner is unwrapped(store) else with_store(store, inner)
    # A zip file is one descriptor with one position, and connections of fsspec live on the parent's event loop.
    if isinstance(store, ZipStore | FsspecStore):
        try:
            again: Store = pickle.loads(pickle.dumps(store))
        except Exception as error:
            raise StoreReadError(
                errno_of(error), f"{printable(store)}: cannot be opened anew after a fork: {reason_of(error)}"
            ) from error
        return again
    return store


def locate_array(
    array: zarr.Array[Any],
    metadata_key: str,
    name: str,
    *,
    native: bool,
    in_shards: bool,
    access: StoreAccess | None = None,
) -> Location:
    """Locate an array: a directory for the engine, or a store for Python, which decodes where it has to.

    Raises
    ------
    StoreReadError
        If the store cannot be asked for the array's metadata.
    UnsupportedError
        As in `make_decoder`.
    """
    store, path = array.store_path.store, array.store_path.path
    if native and type(store) is LocalStore:  # a subclass may have ways of its own
        return Location(root=str((Path(store.root) / path).absolute()), metadata_key=metadata_key)
    prefix = f"{path}/" if path else ""
    table = _table_of(store, path, array)
    has_metadata = False
    try:  # consolidated metadata may be all there is, or all that may be read
        has_metadata = (access or StoreAccess()).ask(lambda: store.exists(prefix + metadata_key), name)
    except Exception as error:
        if not says_no_permission(error.__cause__ or error):
            if isinstance(error, StoreReadError):
                raise
            what = f"{name}: the store cannot be asked for {metadata_key}: {reason_of(error)}"
            raise StoreReadError(errno_of(error), what) from error
    if not has_metadata and getattr(store, "forbidden_is_missing", False):
        raise ConfigError(
            f"{name}: forbidden_is_missing needs the array's own {metadata_key}, which cannot be read: without it, "
            "chunks that were never written cannot be told from credentials that are no longer valid"
        )
    decoder = None if native else make_decoder(array, name, in_shards=in_shards)
    source = StoreSource(store, prefix, metadata_key if has_metadata else "", decoder, table=table)
    return Location(source=source)


def _table_of(store: Store, path: str, array: zarr.Array[Any]) -> ChunkTable | None:
    """Return where the chunks of an array lie in local files; None unless its store says it. Damage is refused now."""
    if isinstance(store, TableStore):
        return store.table(path) if not store.is_by_library(path) and store.is_local(path) else None
    if type(store) is not ZipStore or not store.read_only:
        return None
    names = keys_of(array)
    return None if names is None else zip_table(store, path, names)

"""`TableStore`: a file of another format, or references to parts of files, as a store of zarr-python.

Metadata documents are in memory: those of Zarr v2 that are made when a file is opened, or those that references bring
along. A chunk is read at the offset that the array's `ChunkTable` has. Invariant: nothing is read from a file that has
changed since it was opened; an array that cannot be read as Zarr is not listed, and is refused, with the reason, only
if it is asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numcodecs import get_codec
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.dtype import ZDType, parse_dtype

from zarrfeed.base.at_once import result_at_once
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.base.json_attributes import Float32
from zarrfeed.storage.files.chunk_names import ChunkNames
from zarrfeed.storage.files.chunk_table import WHOLE, ChunkTable, Extent
from zarrfeed.storage.files.data_file import AnyFile, FarFile
from zarrfeed.storage.files.file_codecs import FileCodec  # noqa: F401 - registers the codecs that documents name

#: Before the number of a file in its table: the name of a file among the objects of an array, for the engine.
_FILE = "@"
#: The documents of a node in Zarr v2; an array has the first one, a group the second.
_ARRAY, _GROUP, _ATTRIBUTES = ".zarray", ".zgroup", ".zattrs"
#: Key of a document that has the dtype of records whose members have axes, which zarr-python takes for bytes.
_MEMBERS = "zarrfeed_members"
#: Key of a document that has the names of the attributes that are float32 in the file.
_FLOAT32 = "zarrfeed_float32"
#: The end of a refusal of what another reader reads.
PACK = "; `zarrfeed pack` writes it as Zarr"


#: Kinds of items that Zarr has, too, and the bytes that one has at most.
_MOST_ITEM_BYTES = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16, "S": 2**24}


def plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype as Zarr has it: without what a library knows about it, and without gaps between members.

    Raises
    ------
    UnsupportedError
        If Zarr has no items like these; says what they are.
    """
    if dtype.names and all(member.base.names is None for member, *_ in dtype.fields.values()):  # type: ignore[union-attr]
        members = [(name, dtype[name]) for name in dtype.names]
        return np.dtype([(name, plain_dtype(one.base), one.shape) for name, one in members])
    if dtype.itemsize > _MOST_ITEM_BYTES.get(dtype.kind, 0):
        raise UnsupportedError(f"its items are {_not_plain(dtype)}")
    plain: np.dtype[Any] = np.dtype(dtype.str)
    return plain


def _not_plain(dtype: np.dtype[Any]) -> str:
    """Return what items are that Zarr does not have, and what to do."""
    if dtype.kind in "UmM":
        return f"{dtype}{PACK}"
    if dtype.kind != "O":
        return f"{dtype}, which have no place in Zarr: write them as numbers, bytes or text"
    told: Mapping[str, Any] = dtype.metadata or {}
    if "ref" in told:
        return "references: give the datasets that they lead to"
    if np.dtype(told.get("vlen")).itemsize == 1:
        return f"bytes of any length{PACK}"
    return "lists of any length: pad them to one length, or write their items and the ends of the lists as two arrays"


def array_document(
    shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any], fill: Any = 0, codecs: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the document of Zarr v2 of an array.

    Parameters
    ----------
    shape, chunks, dtype
        The shape of the array and of its chunks, which are in C order; and its dtype.
    fill
        The value of items that were never written.
    codecs
        Configurations of numcodecs, in the order in which they encode.
    """
    described = _zarr_dtype(dtype)
    has_axes = any(dtype[name].shape for name in dtype.names or ())
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": [max(1, n) for n in chunks],
        "dtype": described.to_json(zarr_format=2)["name"],
        "order": "C",
        "fill_value": described.to_json_scalar(described.cast_scalar(np.asarray(fill, dtype)[()]), zarr_format=2),
        "filters": list(codecs[:-1]) or None,
        "compressor": codecs[-1] if codecs else None,
        "dimension_separator": ".",
        **({_MEMBERS: dtype.descr} if has_axes else {}),
    }


@lru_cache(maxsize=64)
def _zarr_dtype(dtype: np.dtype[Any]) -> ZDType[Any, Any]:
    return parse_dtype(dtype, zarr_format=2)


def text_document(shape: Sequence[int], chunks: Sequence[int], fill: str) -> dict[str, Any]:
    """Return the document of Zarr v2 of an array of text of any length, as `array_document`."""
    document = array_document(shape, chunks, np.dtype("S1"), codecs=[{"id": "vlen-utf8"}])
    return {**document, "dtype": "|O", "fill_value": fill}


class ReadTable(Protocol):
    """Finds the chunks of an array: a function that can be pickled."""

    def __call__(self, file: Any, path: str, /) -> ChunkTable:
        """Return the table of the array at a path in the file of the store."""


class FarReader(Protocol):
    """Reads chunks that lie in object stores; can be pickled."""

    def check(self, url: str) -> None:
        """Raise ConfigError or UnsupportedError if objects at such a URL cannot be read."""

    async def read(self, key: str, file: FarFile, extent: Extent) -> bytes:
        """Return the bytes of the chunk with a key, which lie in an object."""


class ReadValues(Protocol):
    """Decodes a chunk of an array with the library of the format: a function that can be pickled."""

    def __call__(self, file: AnyFile, path: str, index: Sequence[int]) -> bytes | None:
        """Return the bytes of a chunk as the array's document says; None if it was never written."""


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class TableStore(Store):
    """The arrays of one file, or of several that references name. Reads only.

    Parameters
    ----------
    file
        The file as it is when its metadata are read. None: they come from no file.
    file_format
        The name of the format in messages.
    read_table
        Finds the chunks of an array, when the first of them is needed.
    name
        The name of the store in messages; "": the path of the file.
    is_zarr
        True if the metadata documents were written as Zarr, so that xarray's rule for the fill value of v2 holds.
    read_values
        Decodes chunks of arrays that are added with `by_library`.

    Attributes
    ----------
    refused
        Paths of the arrays that cannot be read -> why.
    far_reader
        Reads chunks in object stores. None: there are none that can be read.
    lists_decoded
        True if there are tables of the arrays that `read_values` decodes, too.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(
        self,
        file: AnyFile | None,
        file_format: str,
        read_table: ReadTable,
        name: str = "",
        *,
        is_zarr: bool = False,
        read_values: ReadValues | None = None,
    ) -> None:
        super().__init__(read_only=True)
        self.file, self.file_format, self.is_zarr = file, file_format, is_zarr
        self.refused: dict[str, str] = {}
        self.far_reader: FarReader | None = None
        self.lists_decoded = False
        self._name = name or str(file or "")
        self._read_table, self._read_values = read_table, read_values
        self._documents: dict[str, bytes] = {}
        self._members: dict[str, dict[str, None]] = {}  # of each group, by its path
        self._arrays: dict[str, ChunkNames] = {}
        self._by_library: set[str] = set()
        self._tables: dict[str, ChunkTable] = {}

    def add_group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Add a group; the group that it lies in was added before."""
        self._members[path] = {}
        self._add(path, _GROUP, {"zarr_format": 2}, attributes)

    def add_groups_above(self, path: str) -> None:
        """Add the groups that a path lies in, without attributes, unless they were added before."""
        names = path.split("/")[:-1]
        for end in range(1, len(names) + 1):
            group = "/".join(names[:end])
            if group not in self._members:
                self.add_group(group, {})

    def add_array(
        self, path: str, document: Mapping[str, Any], attributes: Mapping[str, Any], *, by_library: bool = False
    ) -> None:
        """Add an array with its document of Zarr v2; the group that it lies in was added before.

        `by_library` says that `read_values` decodes its chunks, and that it has no table.
        """
        names = ChunkNames.of_document(document)
        assert names is not None
        self._arrays[path] = names
        if by_library:
            self._by_library.add(path)
        in_float32 = [name for name, value in attributes.items() if isinstance(value, Float32)]
        self._add(path, _ARRAY, {**document, **({_FLOAT32: in_float32} if in_float32 else {})}, attributes)

    def _add(self, path: str, name: str, document: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        prefix = f"{path}/" if path else ""
        self._documents[prefix + name] = json.dumps(document).encode()
        self._documents[prefix + _ATTRIBUTES] = json.dumps(attributes).encode()
        if path:
            group, _, member = path.rpartition("/")
            self._members[group][member] = None

    def add_document(self, key: str, content: bytes, names: ChunkNames | None, *, by_library: bool = False) -> None:
        """Add a document as it is, that of an array with the keys of its chunks; its groups need none before."""
        self._documents[key] = content
        node = key.rpartition("/")[0]
        if names is not None:
            self._arrays[node] = names
            if by_library:
                self._by_library.add(node)
        while node:
            group, _, member = node.rpartition("/")
            self._members.setdefault(group, {})[member] = None
            node = group

    @property
    def documents(self) -> Mapping[str, bytes]:
        """The documents of all nodes, by their keys."""
        return self._documents

    @property
    def array_paths(self) -> Sequence[str]:
        """The paths of the arrays that can be read."""
        return list(self._arrays)

    def check_readable(self, path: str) -> None:
        """Raise UnsupportedError, with the reason, if there is an array at a path that cannot be read."""
        if path in self.refused:
            raise UnsupportedError(f"{self}/{path}".rstrip("/") + f": {self.refused[path]}")

    def refused_in(self, group: str) -> list[str]:
        """Return the paths of the arrays in a group that cannot be read."""
        return [path for path in self.refused if path.rpartition("/")[0] == group]

    def record_of(self, path: str) -> np.dtype[Any] | None:
        """Return the dtype of records with members that have axes of their own; None for other arrays."""
        members = parse_json(self._documents[f"{path}/{_ARRAY}".lstrip("/")]).get(_MEMBERS)
        return members and np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in members])

    def attributes_in_float32(self, path: str) -> dict[str, Float32]:
        """Return the attributes of an array that are float32 in the file."""
        prefix = f"{path}/".lstrip("/")
        names = parse_json(self._documents[prefix + _ARRAY]).get(_FLOAT32, [])
        return {name: Float32(parse_json(self._documents[prefix + _ATTRIBUTES])[name]) for name in names}

    def is_by_library(self, path: str) -> bool:
        """Return whether the library of the format decodes the chunks of an array, which has no table then."""
        return path in self._by_library

    def table(self, path: str) -> ChunkTable:
        """Return where the chunks of the array at a path lie.

        Raises
        ------
        StoreReadError
            If the file is damaged, or has changed since it was opened.
        """
        if path not in self._tables:
            self._check()
            self._tables[path] = self._read_table(self.file, path)
        return self._tables[path]

    def is_local(self, path: str) -> bool:
        """Return whether all chunks of the array at a path lie in local files.

        Raises
        ------
        ConfigError, UnsupportedError
            If chunks lie where they cannot be read; says where.
        """
        far = [] if path in self._by_library else self.table(path).far_files
        for file in far:
            if self.far_reader is None:
                raise UnsupportedError(f"{self}/{path}: its chunks lie in {file}, must lie in local files")
            self.far_reader.check(file.url)
        return not far

    def _check(self) -> None:
        if self.file is not None:
            self.file.check()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object, or a byte range of it; None if there is none, as in `zarr.abc.store.Store`."""
        found = self._documents.get(key)
        if found is not None:
            self._check()
        else:
            self.check_readable(key.rpartition("/")[0])
            found = await self._read_object(key, byte_range, self.far_reader, asyncio.to_thread)
            byte_range = None
        return None if found is None else prototype.buffer.from_bytes(_part_of(found, byte_range))

    def format_of(self, path: str) -> str:
        """Return the format of the file, and what decodes the chunks of an array in it unless their codecs do."""
        return f"{self.file_format}, decoded by its library" if path in self._by_library else self.file_format

    def read_now(self, key: str, byte_range: ByteRequest | None, far_reader: FarReader) -> bytes | None:
        """Return an object, as `get`, by calls that block the thread. `far_reader` waits for nothing."""
        found: bytes | None = result_at_once(self._read_object(key, byte_range, far_reader, _at_once))
        return found

    async def _read_object(
        self, key: str, byte_range: ByteRequest | None, far_reader: FarReader | None, run: Callable[..., Awaitable[Any]]
    ) -> bytes | None:
        """Return a byte range of a chunk, or of a file that chunks lie in; None if there is no such chunk."""
        path, _, name = key.rpartition("/")
        if not name.startswith(_FILE):
            found = await self._read_chunk(key, far_reader, run)
            return None if found is None else _part_of(found, byte_range)
        table = await self._table_of(path, run)
        if byte_range is None:
            return await self._read_extent(table, key, Extent(0, WHOLE, int(name[1:])), far_reader, run)
        assert isinstance(byte_range, RangeByteRequest)
        extent = Extent(byte_range.start, byte_range.end - byte_range.start, int(name[1:]))
        return await self._read_extent(table, key, extent, far_reader, run)

    async def _read_chunk(self, key: str, far_reader: FarReader | None, run: Callable[..., Awaitable[Any]]) -> Any:
        """Return a chunk, or None; `run` calls functions that read files."""
        path, index = self._named(key)
        if index is None:
            return None
        if path in self._by_library:
            return await run(self._decoded, path, index)
        table = await self._table_of(path, run)
        extent = table.find(index)
        if extent is None:
            return None
        if extent.offset in table.unfiltered:
            return await run(self._encoded, path, index)
        return (await self._read_extent(table, key, extent, far_reader, run)).ljust(table.padded_bytes, b"\0")

    @staticmethod
    async def _read_extent(
        table: ChunkTable, key: str, extent: Extent, far_reader: FarReader | None, run: Callable[..., Awaitable[Any]]
    ) -> bytes:
        far = table.far_file_of(extent)
        found: bytes
        if far is None:
            found = await run(table.read, extent)
        else:
            assert far_reader is not None
            found = await far_reader.read(key, far, extent)
        return found

    async def _table_of(self, path: str, run: Callable[..., Awaitable[Any]] = asyncio.to_thread) -> ChunkTable:
        known = self._tables.get(path)
        table: ChunkTable = await run(self.table, path) if known is None else known
        return table

    def _named(self, key: str) -> tuple[str, tuple[int, ...] | None]:
        """Return the path of the array that a key is of, and the index of the chunk; None if it names no chunk."""
        path = key
        while path and path not in self._arrays:
            path = path.rpartition("/")[0]
        names = self._arrays.get(path)
        return path, None if names is None else names.index_of(key.removeprefix(path).lstrip("/"))

    def _decoded(self, path: str, index: tuple[int, ...]) -> bytes | None:
        assert self._read_values is not None
        assert self.file is not None
        self.file.check()
        return self._read_values(self.file, path, index)

    def _encoded(self, path: str, index: tuple[int, ...]) -> bytes | None:
        """Return a chunk that lacks filters as it would be with them."""
        document = parse_json(self._documents[f"{path}/{_ARRAY}".lstrip("/")])
        data: Any = self._decoded(path, index)
        for config in [*(document["filters"] or ()), document["compressor"]]:
            data = get_codec(config).encode(data)
        return bytes(data)

    async def exists(self, key: str) -> bool:
        """Return whether there is an object, as in `zarr.abc.store.Store`."""
        if key in self._documents:
            return True
        path, index = self._named(key)
        if index is None:
            return False
        if path in self._by_library:
            return await asyncio.to_thread(self._decoded, path, index) is not None
        return (await self._table_of(path)).find(index) is not None

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return byte ranges of objects, as in `zarr.abc.store.Store`."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def list(self) -> AsyncIterator[str]:
        """Yield the keys of all documents; chunks are not listed."""
        for key in self._documents:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys of documents that begin with a prefix; chunks are not listed."""
        for key in self._documents:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of the members of a group."""
        for name in self._members.get(prefix.strip("/"), ()):
            yield name

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002 - the names of the base class
        """Raise ConfigError: files are never written."""
        raise self._refusal()

    async def delete(self, key: str) -> None:  # noqa: ARG002
        """Raise ConfigError: files are never written."""
        raise self._refusal()

    def _refusal(self) -> ConfigError:
        return ConfigError(f"{self}: files are read in place, and never written")

    def __eq__(self, other: object) -> bool:
        is_same = isinstance(other, TableStore) and self.file is not None and self.file == other.file
        return self is other or is_same

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return printable(self._name)

    def __repr__(self) -> str:
        return f"TableStore({str(self)!r})"


def _part_of(data: bytes, byte_range: ByteRequest | None) -> bytes:
    match byte_range:
        case RangeByteRequest():
            return data[byte_range.start : byte_range.end]
        case OffsetByteRequest():
            return data[byte_range.offset :]
        case SuffixByteRequest():
            return data[max(0, len(data) - byte_range.suffix) :]
        case _:
            return data

"""HDF5 files, which NetCDF4 files are, too, as a `TableStore`: what their datasets are in Zarr.

h5py reads the metadata, and lists where chunks lie. Invariant: an array of the store has the bytes of its dataset, as
the file has them, under a dtype and codecs that say exactly how the file encodes them. Where no dtype and no codecs say
that, h5py decodes the chunks (`hdf5_values.py`), or the dataset is refused by name.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError, printable
from zarrfeed.storage.files.chunk_table import ChunkTable, Int64, chunk_grid
from zarrfeed.storage.files.data_file import AnyFile, FarFile, file_of
from zarrfeed.storage.files.hdf5_filters import codecs_of, lacks_filters
from zarrfeed.storage.files.hdf5_library import (
    address_of,
    chunks_of,
    dataset_at,
    filters_of,
    library,
    load_filters,
    opened_file,
    shape_of,
)
from zarrfeed.storage.files.hdf5_names import (
    attributes_of,
    attributes_of_group,
    dims_of,
    is_dimension_alone,
    link_to,
    member_name,
)
from zarrfeed.storage.files.hdf5_values import document_of_values, read_values
from zarrfeed.storage.files.table_store import PACK, TableStore, array_document, plain_dtype

#: A file begins with this, or has it at byte 512, 1024, 2048, ..., behind a block of the user's.
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_USER_BYTES = 1 << 26
_SHUFFLE = 2
#: HDF5 is asked for so many chunks before their bytes are compared.
_ASKED_FIRST = 16
#: So many integers of a listing become an array at a time.
_LISTED_AT_ONCE = 1 << 16


def is_hdf5(path: Path | FarFile) -> bool:
    """Return whether a file is an HDF5 file, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        at = 0
        while at <= _MOST_USER_BYTES:
            file.seek(at)
            found = file.read(len(_SIGNATURE))
            if found == _SIGNATURE:
                return True
            if len(found) < len(_SIGNATURE):
                return False
            at = max(512, at * 2)
    return False


def open_hdf5(path: Path | FarFile) -> TableStore:
    """Return an HDF5 file as a store.

    Raises
    ------
    ConfigError
        If h5py is not installed.
    StoreReadError
        If the file is damaged, or a program writes to it.
    """
    file = file_of(path)
    store = TableStore(file, "HDF5", read_table, read_values=read_stored_values)
    with opened_file(file) as one:
        _add_group(store, "", one, {})
    return store


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the chunks of a dataset lie in a file.

    Raises
    ------
    StoreReadError
        If the file is damaged.
    """
    with opened_file(file, path) as one:
        dataset = dataset_at(one, path)
        name = f"{file}/{path}"
        if dataset.chunks is not None:
            return _listed(file, name, dataset, one.userblock_size)
        inline, offset = None, dataset.id.get_offset()
        if _layout_of(dataset) == "compact":
            inline, offset = np.asarray(dataset[()]).tobytes(), 0
        if offset is None or (inline is None and not dataset.id.get_storage_size()):  # nothing was ever written
            return ChunkTable.without_chunks(file, name, chunk_grid(dataset.shape, chunks_of(dataset)))
        return ChunkTable.of_rows(file, name, dataset.shape, dataset.dtype.itemsize, offset, inline)


def read_stored_values(file: AnyFile, path: str, index: Sequence[int]) -> bytes | None:
    """Return the bytes of a chunk that h5py decodes, as `read_values` does; None also if it was never written."""
    table = _chunks_of(file, path)
    return None if table is not None and table.find(index) is None else read_values(file, path, index)


@lru_cache(maxsize=8)
def _chunks_of(file: AnyFile, path: str) -> ChunkTable | None:
    """Return where the chunks of a dataset lie; None if it lies in one piece."""
    with opened_file(file, path) as one:
        return None if dataset_at(one, path).chunks is None else read_table(file, path)


def _add_group(store: TableStore, path: str, group: Any, entered: dict[Any, str]) -> None:
    """Add a group with all that lies in it.

    A dataset has all of its names, those of links in the file among them. A group that has several is entered by the
    first one, so that groups that lie in each other end; `entered` has the names of those that were.
    """
    h5py = library()
    entered[address_of(group)] = path
    store.add_group(path, attributes_of_group(group))
    file_number, _ = address_of(group.file["/"])
    for name in dict.fromkeys(map(member_name, group)):
        below, key = f"{path}/{name}".lstrip("/"), link_to(group, name)
        link = group.get(key, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            store.refused[below] = f"is a link to {printable(link.path)} in {printable(link.filename)}: give that file"
            continue
        try:
            node = group[key]
            address = address_of(node)
        except (KeyError, OSError, RuntimeError) as error:
            store.refused[below] = f"HDF5 cannot open it: {error}"
            continue
        if address[0] != file_number:
            store.refused[below] = f"is a link into {printable(node.file.filename)}: give that file"
        elif address in entered:
            store.refused[below] = f"is the group {printable(entered[address] or '/')}: give that one"
        elif isinstance(node, h5py.Group):
            _add_group(store, below, node, entered)
        elif isinstance(node, h5py.Dataset) and node.shape is None:
            store.refused[below] = "has no values (a null dataspace)"
        elif isinstance(node, h5py.Dataset) and not is_dimension_alone(node):
            _add_dataset(store, below, node)


def _add_dataset(store: TableStore, path: str, dataset: Any) -> None:
    """Add a dataset as an array, or say why it cannot be read."""
    try:
        (document, by_library), attributes, dims = _document_of(dataset), attributes_of(dataset), dims_of(dataset)
    except UnsupportedError as error:
        store.refused[path] = str(error)
    except Exception as error:  # noqa: BLE001 - h5py raises errors of any class on damaged files
        store.refused[path] = f"HDF5 cannot read how it is stored: {error}"
    else:
        named = {"_ARRAY_DIMENSIONS": list(dims)} if any(dims) else {}
        store.add_array(path, document, {**attributes, **named}, by_library=by_library)


def _layout_of(dataset: Any) -> str:
    h5d = library().h5d
    kinds = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}
    return kinds.get(dataset.id.get_create_plist().get_layout(), "unknown")


def _document_of(dataset: Any) -> tuple[dict[str, Any], bool]:
    """Return the document of Zarr v2 for a dataset, and whether h5py decodes its chunks.

    Raises
    ------
    UnsupportedError
        If its items, its layout or its filters have no place in Zarr; says why.
    """
    created = dataset.id.get_create_plist()
    layout = _layout_of(dataset)
    if layout not in ("compact", "contiguous", "chunked"):
        raise UnsupportedError(f"its layout is {layout}: the values lie in other datasets or files{PACK}")
    if created.get_external_count():
        raise UnsupportedError(f"its values lie in other files (external storage){PACK}")
    try:
        dtype, codecs = _dtype_of(dataset), _codecs_of(dataset)
    except UnsupportedError as error:
        if not load_filters(dataset):
            raise UnsupportedError(f"{error}, and h5py lacks it, too: pip install hdf5plugin") from error
        return document_of_values(dataset), True
    return array_document(shape_of(dataset), chunks_of(dataset), dtype, dataset.fillvalue, codecs), False


def _codecs_of(dataset: Any) -> list[dict[str, Any]]:
    filters = filters_of(dataset)
    if [one.number for one in filters] == [_SHUFFLE] and _may_leave_edges(dataset):
        raise UnsupportedError(
            "it has the shuffle filter alone, so chunks without the filter cannot be told from others"
        )
    return codecs_of(filters, dataset.dtype.itemsize, _chunk_bytes(dataset))


def _chunk_bytes(dataset: Any) -> int:
    return int(dataset.dtype.itemsize) * math.prod(chunks_of(dataset))


def _may_leave_edges(dataset: Any) -> bool:
    """Return whether chunks that reach over the end may lack the filters, an option since HDF5 1.10."""
    superblock: int = dataset.file.id.get_create_plist().get_version()[0]
    return superblock > 1 and any(n % c for n, c in zip(dataset.shape, dataset.chunks, strict=True))


def _dtype_of(dataset: Any) -> np.dtype[Any]:
    """Return the dtype of which the bytes in the file are items."""
    h5py = library()
    try:
        stored, dtype = dataset.id.get_type(), dataset.dtype
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"its items have no dtype in NumPy ({error})") from error
    if h5py.check_enum_dtype(dtype) is not None:
        stored = stored.get_super()
    plain = plain_dtype(dtype)
    if plain.kind == "S":
        is_plain = stored.get_strpad() == h5py.h5t.STR_NULLPAD or plain.itemsize == 1
    else:
        is_plain = bool(h5py.h5t.py_create(plain, logical=True).equal(stored))
    if not is_plain:
        raise UnsupportedError(f"its items are not stored as NumPy stores {plain}")
    return plain


def _listed(file: AnyFile, name: str, dataset: Any, user_bytes: int) -> ChunkTable:
    """Return the table of a dataset in chunks."""
    grid = chunk_grid(shape_of(dataset), dataset.chunks)
    index, extents, masks = _stored_chunks(dataset)
    if not len(masks):
        return ChunkTable.without_chunks(file, name, grid)
    last = dataset.id.get_chunk_info_by_coord(tuple((index[-1] * dataset.chunks).tolist()))
    if last.byte_offset != extents[-1, 0]:
        raise ConfigError(f"{name}: this version of HDF5 lists chunks wrongly: install a newer h5py")
    index = _as_found(file, dataset, index, extents, user_bytes)
    if np.any(index < 0) or np.any(index >= np.array(grid)):
        raise StoreReadError(errno.EINVAL, f"{name}: the file lists a chunk outside of the array: it is damaged")
    if user_bytes:
        shift = _shift_of(file, dataset, index[-1], last.byte_offset, user_bytes)
        if shift is None:
            what = f"{name}: its chunks do not lie where the file lists them: it is damaged"
            raise StoreReadError(errno.EINVAL, what)
        extents[:, 0] += shift
    table = ChunkTable.of_chunks(file, name, grid, np.ravel_multi_index(tuple(index.T), grid), extents)
    is_unfiltered = lacks_filters(filters_of(dataset), _chunk_bytes(dataset), extents[:, 1], masks)
    return replace(table, unfiltered=frozenset(extents[is_unfiltered, 0].tolist()))


def _as_found(file: AnyFile, dataset: Any, index: Int64, extents: Int64, user_bytes: int) -> Int64:
    """Return the indices of chunks at which HDF5 finds them: those that it lists, or those of an extensible array.

    HDF5 reads each chunk that it is asked for, so it is asked for few: the first one tells, unless chunks are alike.
    Where the first ones are, indices at which several chunks would lie are wrong, and HDF5 is asked only for chunks
    that differ from those in their places.
    """
    moved = _in_extensible_array(dataset, index)
    differ = np.flatnonzero(np.any(moved != index, axis=1))
    found = _found_among(differ[:_ASKED_FIRST], file, dataset, (index, moved), extents, user_bytes)
    if found is not None or len(differ) <= _ASKED_FIRST:
        return index if found is None else found
    numbered: Int64 = np.unique(np.concatenate([index, moved]), axis=0, return_inverse=True)[1].reshape(2, -1)
    chunks_at = [dict(zip(of.tolist(), range(len(index)), strict=True)) for of in numbered]
    lie_apart = [len(one) == len(index) for one in chunks_at]
    if lie_apart[0] != lie_apart[1]:
        return index if lie_apart[0] else moved
    rest = differ[_ASKED_FIRST:]
    telling = rest if user_bytes else _unlike(file, numbered, chunks_at, extents, rest)
    found = _found_among(telling, file, dataset, (index, moved), extents, user_bytes)
    return index if found is None else found


def _found_among(
    numbers: Iterable[int], file: AnyFile, dataset: Any, either: tuple[Int64, Int64], extents: Int64, user_bytes: int
) -> Int64 | None:
    """Return the indices, of the two, at which HDF5 finds the first of some chunks that tells; None: none does."""
    for one in numbers:
        begin = int(extents[one, 0])
        at = [_shift_of(file, dataset, index[one], begin, user_bytes) is not None for index in either]
        if at[0] != at[1]:
            return either[at[1]]
    return None


def _unlike(
    file: AnyFile, numbered: Int64, chunks_at: Sequence[Mapping[int, int]], extents: Int64, numbers: Int64
) -> Iterator[int]:
    """Yield the chunks of `numbers` whose bytes are not those of the chunks that lie in their places.

    Whichever indices are right, HDF5 finds such a chunk at one of its two indices and not at the other. `numbered`,
    shape (2, chunks), numbers the two indices of each chunk, and `chunks_at` has the chunk at each of these numbers.
    """
    digests: dict[int, bytes] = {}
    with file.open() as opened:

        def content(chunk: int | None) -> bytes:
            if chunk is None:
                return b""
            if chunk not in digests:
                begin, length = extents[chunk].tolist()
                opened.seek(begin)
                digests[chunk] = blake2b(opened.read(length), digest_size=16).digest()
            return digests[chunk]

        for one in numbers.tolist():
            others = chunks_at[0].get(int(numbered[1, one])), chunks_at[1].get(int(numbered[0, one]))
            if all(content(one) != content(other) for other in others):
                yield one


def _in_extensible_array(dataset: Any, index: Int64) -> Int64:
    """Return the indices of chunks that HDF5 lists by their places in an extensible array as if nothing had moved.

    Such an array, which HDF5 1.10 brought, is for datasets that may grow along one axis. It counts the chunks of that
    axis in its outermost loop; HDF5 lists them as if the loops were in the order of the axes.
    """
    axes = list(range(dataset.ndim))
    if dataset.maxshape.count(None) != 1 or dataset.maxshape[0] is None:
        return index
    grows = dataset.maxshape.index(None)
    most = [1 if n is None else -(-n // c) for n, c in zip(dataset.maxshape, dataset.chunks, strict=True)]
    number = np.zeros(len(index), np.int64)
    for axis in axes:
        number = number * most[axis] + index[:, axis]
    found = np.empty_like(index)
    for axis in [one for one in reversed(axes) if one != grows]:
        number, found[:, axis] = np.divmod(number, most[axis])
    found[:, grows] = number
    return found


def _stored_chunks(dataset: Any) -> tuple[Int64, Int64, Int64]:
    """Return the index, the extent (offset, length) and the filter mask of each stored chunk, as HDF5 lists them.

    Plain integers, and few at a time, become arrays: h5py's tuples of a million chunks would take 300 MB, and twice the
    time, which the garbage collector spends.
    """
    blocks: list[Int64] = []
    numbers: list[int] = []
    append, extend = numbers.append, numbers.extend

    def take(chunk: Any) -> None:
        offsets, mask, begin, length = chunk
        append(begin)
        append(length)
        append(mask)
        extend(offsets)
        if len(numbers) >= _LISTED_AT_ONCE:
            blocks.append(np.array(numbers, np.int64))
            numbers.clear()

    dataset.id.chunk_iter(take)
    rows = np.concatenate([*blocks, np.array(numbers, np.int64)]).reshape(-1, 3 + dataset.ndim)
    return rows[:, 3:] // np.array(dataset.chunks), rows[:, :2], rows[:, 2]


def _shift_of(file: AnyFile, dataset: Any, index: Int64, begin: int, user_bytes: int) -> int | None:
    """Return what is to be added to the offset of a chunk: versions of HDF5 count from the user block, or behind it.

    None: the chunk at this index lies elsewhere.
    """
    try:
        stored = dataset.id.read_direct_chunk(tuple((index * dataset.chunks).tolist()))[1]
    except (OSError, RuntimeError, ValueError):
        return None
    with file.open() as opened:
        for shift in (0, user_bytes):
            opened.seek(begin + shift)
            if opened.read(len(stored)) == stored:
                return shift
    return None

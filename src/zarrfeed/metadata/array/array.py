"""Zarr metadata -> `ArraySpec`: everything the engine must know to read one array.

zarr-python opens the array and parses its metadata; this module only translates, and refuses what the engine
cannot decode.
"""

from __future__ import annotations

import errno
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import zarr
from zarr.dtype import FixedLengthUTF32, VariableLengthBytes, VariableLengthUTF8, ZDType

from zarrfeed.base.errors import (
    ConfigError,
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
    ZarrfeedError,
    printable,
)
from zarrfeed.metadata.array.codecs import check_depth, codecs_v2, codecs_v3, described
from zarrfeed.metadata.array.dask_arrays import refuse_dask
from zarrfeed.metadata.array.known_groups import not_an_array
from zarrfeed.metadata.array.not_zarr import not_zarr
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.sharding import ShardSpec
from zarrfeed.spec.values.dtypes import Items, read_fill, read_items
from zarrfeed.storage.access.access import StoreAccess, ZarrFormat
from zarrfeed.storage.access.checked_nodes import checked, node_name
from zarrfeed.storage.access.far_chunks import FarChunks
from zarrfeed.storage.access.far_files import open_far_file, opened_by_index, split_at_far_file
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.local_files import check_metadata_files, is_node, local_path
from zarrfeed.storage.access.open_errors import open_error
from zarrfeed.storage.access.urls import open_url
from zarrfeed.storage.access.zarr_internals import ArrayV2Metadata, ArrayV3Metadata, dtype_name, regular_chunk_shape
from zarrfeed.storage.access.zip_stores import locate_in_zip
from zarrfeed.storage.chunks.chunk_keys import ChunkKeys, check_files
from zarrfeed.storage.chunks.codec_configs import as_meant
from zarrfeed.storage.chunks.location import locate_array
from zarrfeed.storage.chunks.node_cache import with_cache, with_staging
from zarrfeed.storage.files.data_file import FarFile
from zarrfeed.storage.files.inside_path import split_at_file
from zarrfeed.storage.files.open_file import open_file
from zarrfeed.storage.files.table_store import TableStore

ArrayLike: TypeAlias = "str | Path | zarr.Array[Any]"

_MAX_ARRAY_BYTES = 2**62
_MAX_CHUNKS = 2**32
_MAX_AXES = 32  # NumPy 1 has no more
#: Most bytes of fixed-length bytes and text: the fill value is made before anything is read.
_MAX_ITEM_BYTES = 2**24
#: The engine keeps about 600 bytes for each chunk that a sample lies in.
_MOST_CELLS = 1 << 18
#: Text of a chunk becomes Python objects all at once.
_MOST_VLEN_ITEMS = 1 << 27


def open_array(source: ArrayLike, zarr_format: ZarrFormat | None = None) -> zarr.Array[Any]:
    """Open `source` with zarr-python, for reading.

    Parameters
    ----------
    source
        A path (of a directory or a zip file), a URL, or an open `zarr.Array`.
    zarr_format
        2 or 3, of a path or a URL at which documents of the other format are not looked for. None: either.

    Returns
    -------
    The array, with the configurations of its codecs as their writer means them (`storage/chunks/codec_configs.py`).

    Raises
    ------
    ConfigError
        If there is a group, or nothing that zarr-python can read, or a codec's configuration contradicts the dtype.
    StoreReadError
        If the path does not exist or may not be read.
    UnsupportedError
        If the URL has a scheme that is not read.
    """
    if isinstance(source, zarr.Array):
        return as_meant(checked(source))
    if isinstance(source, zarr.Group):
        raise not_an_array(printable(source.store_path), source)
    if not isinstance(source, str | Path):
        refuse_dask(source)
        raise ConfigError(f"got a {type(source).__name__}, must be a path, a URL or a zarr.Array")
    node = open_node(source, zarr_format)
    if isinstance(node, zarr.Group):
        raise not_an_array(str(source), node)
    return as_meant(node, printable(source))


def open_node(
    source: str | Path, zarr_format: ZarrFormat | None = None, access: StoreAccess | None = None
) -> zarr.Array[Any] | zarr.Group:
    """Open the array or the group at a path or a URL with zarr-python, for reading; of one format, if it is given.

    `access` says how objects are reached that the path refers to.

    Raises
    ------
    ConfigError
        If there is a file of another kind, or nothing that zarr-python can read, or its metadata files are none.
    StoreReadError
        If the path does not exist or may not be read.
    UnsupportedError
        If the URL has a scheme that is not read.
    """
    if is_url(source):
        return open_at_url(str(source), StoreAccess(zarr_format=zarr_format))
    path = local_path(source)
    check_metadata_files(path)
    try:
        zipped = locate_in_zip(path)
        if zipped is not None:
            return checked(
                zarr.open(store=zipped[0], path=zipped[1], mode="r", zarr_format=zarr_format), printable(source)
            )
        file, inside = (path, "") if path.exists() else split_at_file(path)
        opened = open_file(file) if file.exists() else None
        if opened is not None:
            if isinstance(opened.file, FarFile):
                opened = opened_by_index(opened, file, access or StoreAccess())
            elif opened.is_zarr:
                opened.far_reader = FarChunks(access or StoreAccess())
            opened.check_readable(inside)
            return checked(zarr.open(store=opened, path=inside, mode="r"), printable(source))
        if file.is_file():
            raise not_zarr(source, path)
        return checked(zarr.open(store=path, mode="r", zarr_format=zarr_format), printable(source))
    except ZarrfeedError:
        raise
    except PermissionError as error:
        raise StoreReadError(error.errno, f"{source}: permission denied") from error
    except FileNotFoundError as error:
        if not is_node(path):
            raise not_zarr(source, path) from error
        if zarr_format is None:
            raise open_error(printable(source), error, path) from error
        what = f"no Zarr array is there in format {zarr_format}; one of the other may be: leave out zarr_format"
        raise StoreReadError(errno.ENOENT, f"{source}: {what}") from error
    except Exception as error:  # what zarr-python's parsers raise on damaged metadata is of any class
        raise open_error(printable(source), error, path) from error


def open_at_url(url: str, access: StoreAccess) -> zarr.Array[Any] | zarr.Group:
    """Open the array or the group at a URL, also in a file of HDF5 or NetCDF there. Raises as `open_url`."""
    file, inside = split_at_far_file(url)
    opened = open_far_file(file, access) if file else None
    if opened is None:
        return open_url(url, access)
    opened.check_readable(inside)
    try:
        return checked(zarr.open(store=opened, path=inside, mode="r"), printable(url))
    except FileNotFoundError as error:
        raise StoreReadError(
            errno.ENOENT, f"{printable(url)}: the file has no array and no group {inside!r}"
        ) from error


def read_layout(source: ArrayLike, *, sample_axis: int = 0, access: StoreAccess | None = None) -> ArraySpec:
    """Describe a stored array for the engine, or refuse it.

    Parameters
    ----------
    source
        A path, a URL, or an open `zarr.Array` in any store.
    sample_axis
        The axis whose indices are samples; negative ones count from the end.
    access
        The access to a store that is not local, and the format that is read.

    Raises
    ------
    ConfigError
        If the array has no axis, no element, or no such sample axis.
    UnsupportedError
        If the engine does not decode the array's dtype, codecs or chunk grid; names the array and the reason.
    """
    array = open_array(source, None if access is None else access.zarr_format)
    metadata = array.metadata
    name = node_name(array) if isinstance(source, zarr.Array) else printable(str(source).removeprefix("file://"))
    if len(metadata.shape) == 0:
        raise ConfigError(f"{name}: has no axes (0-d), must have a sample axis")
    if math.prod(metadata.shape) == 0:
        raise ConfigError(f"{name}: has the shape {tuple(metadata.shape)}, must have at least one element")
    ndim = len(metadata.shape)
    if not -ndim <= sample_axis < ndim:
        raise ConfigError(f"{name}: sample_axis = {sample_axis}, must be in [{-ndim}, {ndim - 1}]")
    chunk_shape = regular_chunk_shape(metadata, name)
    _check_lengths(name, chunk_shape)
    shard: ShardSpec | None = None
    if isinstance(metadata, ArrayV2Metadata):
        stored_big = array.dtype.byteorder == ">"
        storage_order = tuple(range(ndim)) if metadata.order == "C" else tuple(reversed(range(ndim)))
        codecs = codecs_v2(metadata, name)
        metadata_key = ".zarray"
        keys = _KeyEncoding("", metadata.dimension_separator)
    else:
        if metadata.storage_transformers:
            raise UnsupportedError(f"{name}: has storage transformers, which are not supported")
        chain = [described(codec.to_dict()) for codec in metadata.codecs]
        check_depth(chain, name)
        if [kind for kind, _ in chain] == ["sharding_indexed"] and _is_known_index(chain[0][1]):
            shard, chunk_shape, chain = _shard(chain[0][1], chunk_shape, name)
        codecs, storage_order, stored_big = codecs_v3(chain, array.dtype, ndim, name, in_shards=shard is not None)
        metadata_key = "zarr.json"
        keys = _key_encoding(metadata, name)
    check_sizes(name, tuple(metadata.shape), chunk_shape, array.dtype.itemsize)
    native = all(codec.native for codec in codecs)
    if not native:  # zarr-python decodes to C order and native byte order
        storage_order, stored_big = tuple(range(ndim)), sys.byteorder == "big"
    item_type = vlen_item_type(metadata.dtype)
    if item_type:
        items, fill, native = Items(np.dtype(object)), b"", False
    else:
        dtype = array.dtype.newbyteorder("=") if array.dtype.names and not native else array.dtype
        items = read_items(dtype, swapped=stored_big != (sys.byteorder == "big"), name=name)
        fill = read_fill(metadata.fill_value, array.dtype, items)
        items = _with_axes_of_members(items, array)
    location = locate_array(array, metadata_key, name, native=native, in_shards=shard is not None, access=access)
    inner_axes = tuple(range(ndim, ndim + len(items.shape)))
    spec = ArraySpec(
        name=name,
        shape=tuple(int(n) for n in metadata.shape) + items.shape,
        chunk_shape=chunk_shape + items.shape,
        storage_order=storage_order + inner_axes,
        sample_axis=sample_axis % ndim,
        dtype=items.dtype,
        swap_bytes=items.swap_bytes,
        fill=fill,
        codecs=codecs,
        zarr_format=metadata.zarr_format,
        stored_dtype=_dtype_label(array, item_type, items),
        item_type=item_type,
        num_key_axes=ndim,
        record=items.record,
        shard=shard,
        key_prefix=keys.prefix,
        key_separator=keys.separator,
        root=location.root,
        metadata_key=location.metadata_key,
        source=location.source,
    )
    if location.source is None:
        return spec if access is None else with_staging(spec, chunk_keys(spec), access)
    array_source = replace(location.source, chunk_keys=chunk_keys(spec))
    return replace(spec, source=array_source if access is None else with_cache(array_source, spec, access))


def _with_axes_of_members(items: Items, array: zarr.Array[Any]) -> Items:
    """Return items with the axes that members of records have in files of other formats."""
    if items.record is None or not isinstance(array.store, TableStore):
        return items
    exact, known = array.store.record_of(array.path), items.record
    if exact is None:
        return items
    members = [(name, exact[name] if exact[name].shape else known[name]) for name in known.names or ()]
    return replace(items, record=np.dtype(members))


def chunk_keys(spec: ArraySpec) -> ChunkKeys:
    """Return the keys of an array's stored objects."""
    axes = spec.num_key_axes
    counts = [-(-n // c) for n, c in zip(spec.shape[:axes], spec.shard_shape[:axes], strict=True)]
    return ChunkKeys(spec.key_prefix, spec.key_separator, tuple(counts))


def check_any_is_stored(spec: ArraySpec) -> ArraySpec:
    """Return an array, unless it is in a local store that has other files in place of all of its chunks.

    Chunks of other stores are looked for when the first one is missing.

    Raises
    ------
    StoreReadError
        If so; names an expected key and a file that is there.
    """
    if spec.source is None:
        check_files(spec.name, Path(spec.root), chunk_keys(spec))
    return spec


def vlen_item_type(dtype: ZDType[Any, Any]) -> str:
    """Return "str" or "bytes" if items are Python objects of that type, of which batches have lists; else ""."""
    if isinstance(dtype, VariableLengthUTF8 | FixedLengthUTF32):
        return "str"
    return "bytes" if isinstance(dtype, VariableLengthBytes) else ""


def _dtype_label(array: zarr.Array[Any], item_type: str, items: Items) -> str:
    """Return the name of the stored dtype for people."""
    if item_type:
        return dtype_name(array.metadata.dtype)
    return array.dtype.name if items.shape == () else str(array.dtype)


def check_sizes(name: str, shape: tuple[int, ...], chunk_shape: tuple[int, ...], item_bytes: int) -> None:
    """Raise ConfigError for sizes that no store has, before arithmetic with them overflows."""
    if len(shape) > _MAX_AXES:
        raise ConfigError(f"{name}: has {len(shape)} axes, must have at most {_MAX_AXES}")
    if item_bytes > _MAX_ITEM_BYTES:
        raise ConfigError(f"{name}: has items of {item_bytes} bytes, must have items of at most {_MAX_ITEM_BYTES}")
    _check_lengths(name, chunk_shape)
    covered = [-(-n // c) * c for n, c in zip(shape, chunk_shape, strict=True)]
    if math.prod(covered) * item_bytes > _MAX_ARRAY_BYTES:
        raise ConfigError(f"{name}: shape {shape} in chunks {chunk_shape} has more than 2**62 bytes")
    num_chunks = math.prod(n // c for n, c in zip(covered, chunk_shape, strict=True))
    if num_chunks > _MAX_CHUNKS:
        raise ConfigError(f"{name}: has {num_chunks} chunks, must have at most {_MAX_CHUNKS}")


def _check_lengths(name: str, chunk_shape: tuple[int, ...]) -> None:
    """Raise ConfigError for chunks, inner chunks or shards without an element, by which nothing can be divided."""
    if min(chunk_shape, default=1) < 1:
        raise ConfigError(f"{name}: has the chunk shape {chunk_shape}, every length must be at least 1")


def check_counts(spec: ArraySpec) -> None:
    """Refuse what would take memory for each of too many parts."""
    if spec.num_cells > _MOST_CELLS:
        raise ConfigError(
            f"{spec.name}: a sample of shape {spec.sample_shape} lies in {spec.num_cells} chunks of shape "
            f"{spec.chunk_shape}, must lie in at most {_MOST_CELLS}"
        )
    items = math.prod(spec.chunk_shape)
    if spec.item_type and items > _MOST_VLEN_ITEMS:
        raise MemoryBudgetError(
            f"{spec.name}: a chunk has {items} items of {spec.item_type}, must have at most {_MOST_VLEN_ITEMS}"
        )


def _is_known_index(config: dict[str, Any]) -> bool:
    """Return whether the index of such shards is one that the engine parses."""
    index = [described(codec) for codec in config["index_codecs"]]
    kinds = [kind for kind, _ in index]
    return (
        kinds in (["bytes"], ["bytes", "crc32c"])
        and index[0][1].get("endian") in ("little", "big")
        and _index_location(config) in ("start", "end")
    )


def _index_location(config: dict[str, Any]) -> str:
    location = config.get("index_location", "end")
    return str(getattr(location, "value", location))


def _shard(
    config: dict[str, Any], shard_shape: tuple[int, ...], name: str
) -> tuple[ShardSpec, tuple[int, ...], list[tuple[str, dict[str, Any]]]]:
    """Parse a shard's codec: the form of the array's shards, the shape of its inner chunks, and the codecs of these."""
    inner_shape = tuple(int(n) for n in config["chunk_shape"])
    if len(inner_shape) != len(shard_shape) or any(
        i < 1 or s % i for s, i in zip(shard_shape, inner_shape, strict=True)
    ):
        raise ConfigError(f"{name}: inner chunks {inner_shape} do not divide shards {shard_shape}")
    index = [described(codec) for codec in config["index_codecs"]]
    spec = ShardSpec(
        chunks=tuple(s // i for s, i in zip(shard_shape, inner_shape, strict=True)),
        index_at_start=_index_location(config) == "start",
        index_big_endian=index[0][1]["endian"] == "big",
        index_has_crc32c=len(index) == 2,
    )
    return spec, inner_shape, [described(codec) for codec in config["codecs"]]


class _KeyEncoding(NamedTuple):
    """The prefix and the separator by which chunk indices become keys."""

    prefix: str
    separator: str


def _key_encoding(metadata: ArrayV3Metadata, name: str) -> _KeyEncoding:
    encoding = metadata.chunk_key_encoding
    if encoding.name not in ("default", "v2"):
        raise UnsupportedError(f"{name}: has the chunk key encoding {encoding.name!r}, must have 'default' or 'v2'")
    separator = str(getattr(encoding, "separator"))  # noqa: B009 (the base class does not declare it)
    return _KeyEncoding("c" if encoding.name == "default" else "", separator)

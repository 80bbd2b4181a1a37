"""The layout of the packed store: samples of a chunk and of a shard, and the encoding, of each array.

Invariant: a chunk has whole samples, and a shard has whole chunks. Arrays with large samples share chunk and shard
lengths, so that a block of the epoch order is one chunk in each of them. Arrays with small samples have longer shards,
which hold the samples of several units of work: otherwise a label array would be thousands of tiny files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.array.cf import decoding_of
from zarrfeed.metadata.array.meaning import FILLS, difference, meaning_of
from zarrfeed.packing.sources.source import Kind, SourceField, bytes_of
from zarrfeed.packing.targets.chunk_lengths import (
    CHUNK_BYTES,
    MOST_CHUNKS_PER_SHARD,
    RESIDENT_BYTES,
    SHARD_BYTES,
    choose_chunk_rows,
)
from zarrfeed.storage.chunks.chunk_encoder import MOST_CHUNK_BYTES, Encoding

#: An array whose part of a shard of the largest array would be smaller than this gets longer shards.
_LEAST_SHARD_BYTES = 1 << 20


@dataclass(frozen=True)
class SparseLayout:
    """The layout of a packed sparse matrix: three arrays along one axis.

    Attributes
    ----------
    columns
        Number of columns of the matrix.
    stored
        Dtype of the values in the source, as `.npy` files have it.
    data, indices, indptr
        Layouts of the three arrays of the matrix.
    elements
        Number of stored values in each part of the store.
    """

    columns: int
    stored: Any
    data: FieldLayout
    indices: FieldLayout
    indptr: FieldLayout
    elements: tuple[int, ...] = ()


@dataclass(frozen=True)
class FieldLayout:
    """One array of the packed store.

    Attributes
    ----------
    name, kind, shape
        Name, kind and shape of the source's field.
    dtype
        Dtype of an item in the packed store, as `.npy` files have it: text, or a list of members for records; "|O" for
        bytes and text; for a sparse matrix, that of its values.
    chunk_rows, shard_rows
        Samples of a chunk and of a stored object; equal: there are no shards. Of a sparse matrix, on average.
    encoding
        Encoding of a chunk.
    is_gathered
        True if a stored object has the samples of several units of work, as all of a sparse matrix may have.
    mean_bytes
        Mean decoded bytes of a sample of a sparse matrix.
    sparse
        The layout of a sparse matrix; None: the array is none.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: Any
    chunk_rows: int
    shard_rows: int
    encoding: Encoding
    is_gathered: bool = False
    mean_bytes: int = 0
    sparse: SparseLayout | None = None

    @property
    def leaves_rows(self) -> bool:
        """True if units leave rows in files, and other units make stored objects of these."""
        return self.is_gathered or self.sparse is not None

    @property
    def item(self) -> np.dtype[Any]:
        """The dtype of an item."""
        return np.lib.format.descr_to_dtype(self.dtype)

    @property
    def chunks_per_shard(self) -> int:
        """Chunks of a stored object."""
        return self.shard_rows // self.chunk_rows


@dataclass(frozen=True)
class RequestedLayout:
    """The layout that the user requested.

    Attributes
    ----------
    chunk_rows
        Samples of a chunk of the largest array. None: as `zarrfeed info --advise` chooses it.
    shard_bytes
        Decoded bytes of a shard of the largest array; 0: no shards.
    codecs
        Codecs by the name of an array, "" for all others, as `Encoding.parse` takes them, or "auto" for measured ones.
    dtypes
        Dtypes by the name of an array, "" for all others of floats.
    """

    chunk_rows: int | None = None
    shard_bytes: int = SHARD_BYTES
    codecs: Mapping[str, str] | None = None
    dtypes: Mapping[str, str] | None = None


def plan_layout(
    fields: Sequence[SourceField], num_samples: int, requested: RequestedLayout, measured: Mapping[str, str]
) -> tuple[FieldLayout, ...]:
    """Plan the layouts of the packed arrays of a source.

    Parameters
    ----------
    fields
        Fields of the source.
    num_samples
        Number of samples.
    requested
        The layout that the user requested.
    measured
        Codecs of arrays for which the user wants a measured one, by their names.

    Raises
    ------
    ConfigError
        If a name, a dtype or a codec cannot be; or if a sample is too large for a chunk.
    """
    _check_names(requested, fields)
    dtypes = {f.name: _packed_dtype(f, requested.dtypes or {}) for f in fields}
    sizes = {f.name: _sample_bytes(f, dtypes[f.name]) for f in fields}
    largest = max(sizes.values())
    chunk_rows = min(requested.chunk_rows or choose_chunk_rows(largest, num_samples), num_samples)
    whole = max(1, min(requested.shard_bytes // (chunk_rows * largest), -(-num_samples // chunk_rows)))
    shard_rows = chunk_rows * min(whole, MOST_CHUNKS_PER_SHARD)
    made = []
    for f in fields:
        size, text = sizes[f.name], _codec_of(f, requested.codecs or {}, measured)
        of_chunk, of_shard, gathered = chunk_rows, shard_rows, False
        if shard_rows * size < min(_LEAST_SHARD_BYTES, requested.shard_bytes or _LEAST_SHARD_BYTES) and size < largest:
            gathered = True
            if num_samples * size <= RESIDENT_BYTES:
                of_chunk = max(1, min(num_samples, CHUNK_BYTES // size))
            least = max(1, (requested.shard_bytes or CHUNK_BYTES) // (of_chunk * size))
            of_shard = of_chunk * min(least, -(-num_samples // of_chunk), MOST_CHUNKS_PER_SHARD)
        if f.dtype.names is not None:
            of_shard = of_chunk  # zarr-python 3.1 does not read records in shards
        if of_chunk * size > MOST_CHUNK_BYTES:
            raise ConfigError(
                f"{f.name or 'the array'}: a chunk of {of_chunk} samples has {format_bytes(of_chunk * size)}, "
                f"and a chunk can have {format_bytes(MOST_CHUNK_BYTES)}"
            )
        if f.csr is not None:
            made.append(_sparse(f, dtypes[f.name], text, (of_chunk, of_shard), num_samples, is_gathered=gathered))
            continue
        encoding = Encoding.parse(
            text, 1 if f.kind != "number" else np.lib.format.descr_to_dtype(dtypes[f.name]).itemsize
        )
        if f.kind != "number" and encoding.compressor not in ("none", "plain-zstd"):
            encoding = Encoding("plain-zstd", min(encoding.level, 9))
        made.append(FieldLayout(f.name, f.kind, f.shape, dtypes[f.name], of_chunk, of_shard, encoding, gathered))
    return tuple(made)


def _sparse(
    field: SourceField,
    dtype: Any,
    codec: str,
    rows: tuple[int, int],
    num_samples: int,
    *,
    is_gathered: bool,
) -> FieldLayout:
    """Return the layout of a sparse matrix whose chunks and shards have these numbers of rows on average."""
    assert field.csr is not None
    (of_chunk, of_shard), elements = rows, int(field.csr.lengths.sum())
    chunk = max(1, min(-(-of_chunk * elements // num_samples), elements))
    in_shard = min(of_shard // of_chunk, max(1, -(-elements // chunk)))
    pointer = np.dtype(np.int64) if elements > np.iinfo(np.int32).max else field.csr.pointer

    def array(name: str, item: Any, chunk: int, shard: int) -> FieldLayout:
        encoding = Encoding.parse(codec, np.lib.format.descr_to_dtype(item).itemsize)
        return FieldLayout(f"{field.name}/{name}", "number", (), item, chunk, shard, encoding)

    of_pointers = min(num_samples + 1, CHUNK_BYTES // pointer.itemsize)
    pointers = of_pointers * min(64, -(-(num_samples + 1) // of_pointers))
    sparse = SparseLayout(
        field.csr.columns,
        field.csr.value.str,
        array("data", dtype, chunk, chunk * in_shard),
        array("indices", field.csr.index.str, chunk, chunk * in_shard),
        array("indptr", pointer.str, of_pointers, pointers),
    )
    mean = field.mean_bytes
    return FieldLayout(
        field.name, "csr", (), dtype, of_chunk, of_shard, sparse.data.encoding, is_gathered, mean, sparse
    )


def unit_rows(layouts: Sequence[FieldLayout], block_samples: int, num_samples: int, *, shuffled: bool) -> int:
    """Return the number of samples of a unit of work: whole shards of every array that is not gathered.

    Samples that a source reads as a whole are read by few units, where these follow the order of the source.
    """
    each = max(layout.shard_rows for layout in layouts if not layout.is_gathered)
    if all(layout.shard_rows == layout.chunk_rows for layout in layouts if not layout.is_gathered):
        sizes = [sample_bytes(layout) for layout in layouts]
        each *= max(1, SHARD_BYTES // max(1, each * sum(sizes)))
    wanted = each if shuffled else max(each, 2 * block_samples)
    return each * -(-min(wanted, num_samples) // each)


def sample_bytes(layout: FieldLayout) -> int:
    """Return the decoded bytes of a sample of numbers; on average for a sparse matrix, 0 for bytes and text."""
    if layout.sparse is not None:
        return layout.mean_bytes
    if layout.kind != "number":
        return 0
    return bytes_of(layout.shape, layout.item)


def _sample_bytes(field: SourceField, dtype: Any) -> int:
    if field.kind != "number":
        return max(1, field.mean_bytes)
    return max(1, bytes_of(field.shape, np.lib.format.descr_to_dtype(dtype)))


def _check_names(requested: RequestedLayout, fields: Sequence[SourceField]) -> None:
    names = [f.name for f in fields]
    for option, named in (("codec", requested.codecs), ("dtype", requested.dtypes)):
        for name in named or {}:
            if name and name not in names:
                raise ConfigError(f"{option} names {name!r}, must name one of the arrays {', '.join(names)}")


def _packed_dtype(field: SourceField, wanted: Mapping[str, str]) -> Any:
    """Return the dtype in the packed store.

    Raises
    ------
    ConfigError
        If it is no dtype of numbers, or of another kind than that of the source.
    """
    stored_dtype = field.dtype if field.csr is None else field.csr.value
    if field.kind != "number" and field.csr is None:
        if field.name in wanted:
            raise ConfigError(f"dtype of {field.name}: it has {field.kind}, must have numbers")
        return "|O"
    stored = np.lib.format.dtype_to_descr(stored_dtype.newbyteorder("="))
    text = wanted.get(field.name, wanted.get("", "") if stored_dtype.kind == "f" else "")
    if not text:
        return stored
    try:
        dtype = np.dtype(text)
    except TypeError as error:
        raise ConfigError(f"dtype = {text!r}, must be the name of a dtype, such as float16") from error
    kinds = {"b": "b", "i": "iuf", "u": "iuf", "f": "f"}
    if stored_dtype.kind not in kinds or dtype.kind not in kinds[stored_dtype.kind]:
        raise ConfigError(
            f"dtype of {field.name or 'the array'}: {stored_dtype} cannot become {dtype}; "
            "floats become floats, and integers become integers or floats"
        )
    if field.csr is None:
        _check_still_mean_the_same(field, stored_dtype, dtype)
    return dtype.newbyteorder("=").str


def _check_still_mean_the_same(field: SourceField, stored: np.dtype[Any], packed: np.dtype[Any]) -> None:
    """Raise ConfigError if the attributes of an array would decode other values from numbers of another dtype."""
    ours, theirs = (meaning_of(field.attributes, dtype) for dtype in (stored, packed))
    for one in (ours, theirs):
        one.pop(FILLS, None)  # those that `packed` does not hold are named below
    found = difference(ours, theirs)
    decoding = decoding_of(field.attributes, stored)
    fills = () if decoding is None else decoding.fills
    lost = [one for one in fills if not _holds(packed, one, stored)]
    if found is None and not lost:
        return
    what = f"the fill value {lost[0]} has no place" if found is None else f"{found.attribute} means something else"
    raise ConfigError(
        f"dtype of {field.name or 'the array'}: {what} in {packed}; leave the dtype of this array as it is"
    )


def _holds(dtype: np.dtype[Any], fill: float, stored: np.dtype[Any]) -> bool:
    """Return whether a dtype holds a fill value as it is stored."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.array([fill]).astype(stored)
        return bool((value.astype(dtype).astype(stored) == value)[0])


def requested_codec(field: SourceField, wanted: Mapping[str, str]) -> str | None:
    """Return the codec that the user named for an array; None: the user named none."""
    return wanted.get(field.name, wanted.get(""))


def _codec_of(field: SourceField, wanted: Mapping[str, str], measured: Mapping[str, str]) -> str:
    text = requested_codec(field, wanted)
    if text is not None and text != "auto":
        return text
    usual = {"number": "lz4", "csr": "lz4", "bytes": "none", "text": "plain-zstd"}[field.kind]
    return measured.get(field.name, usual) if text == "auto" else usual

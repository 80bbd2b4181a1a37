"""Filters of HDF5 as codecs of numcodecs or of `file_codecs`, by the registered numbers of the filters.

Invariant: a filter has a codec only if the codec decodes exactly the bytes that the filter writes. Others are refused
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import UnsupportedError


class Filter(NamedTuple):
    """A filter as a dataset names it."""

    number: int
    values: Sequence[int]
    name: str


_CHECKSUM_BYTES = 4
_FLETCHER32, _LZF = 3, 32000
_COMPRESSORS = {1, 307, _LZF, 32001, 32004, 32008, 32015}
#: Filters whose codecs have to know how many bytes they decode to.
_SIZED = {2, _LZF, 32004, 32008}
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def _level(values: Sequence[int], default: int) -> int:
    return int(values[0]) if values else default


def _shuffle(values: Sequence[int], item_bytes: int, decoded_bytes: int) -> dict[str, Any]:
    """Return numcodecs' filter, which takes whole elements alone; netCDF-C shuffles the checksum along."""
    element = _level(values, item_bytes) or item_bytes
    if decoded_bytes % element == 0:
        return {"id": "shuffle", "elementsize": element}
    return {"id": "zarrfeed.shuffle", "decoded_bytes": decoded_bytes, "element_bytes": element}


def _blosc(values: Sequence[int], _item_bytes: int, _: int) -> dict[str, Any]:
    """Values 4 to 6 are the level, the shuffle and the compressor; chunks say themselves how they are compressed."""
    known = dict(enumerate(values))
    compressor = known.get(6, 0)
    name = _BLOSC_COMPRESSORS[compressor] if compressor < len(_BLOSC_COMPRESSORS) else "blosclz"
    return {"id": "blosc", "cname": name, "clevel": known.get(4, 5), "shuffle": known.get(5, 1), "blocksize": 0}


def _compressor(name: str, least: int) -> Callable[[Sequence[int], int, int], dict[str, Any]]:
    return lambda values, _item_bytes, _: {"id": name, "level": _level(values, least)}


def _of_file(name: str) -> Callable[[Sequence[int], int, int], dict[str, Any]]:
    return lambda _values, _item_bytes, decoded_bytes: {"id": f"zarrfeed.{name}", "decoded_bytes": decoded_bytes}


def _bitshuffle(values: Sequence[int], item_bytes: int, decoded_bytes: int) -> dict[str, Any]:
    """Values 2 to 4 are the bytes of an element, the elements of a block (0: the default), and the compressor.

    Source: bshuf_h5filter.c, and bshuf_default_block_size of bitshuffle.
    """
    known = dict(enumerate(values))
    element = known.get(2) or item_bytes
    block = element * (known.get(3) or max(128, 8192 // element // 8 * 8))
    kind = _BITSHUFFLED.get(known.get(4, 0))
    if kind is None or element > _MOST_BITSHUFFLED or block > _MOST_BLOCK_BYTES:
        raise UnsupportedError(f"its HDF5 filter 32008 (bitshuffle) has values {tuple(values)}, not read in place")
    run = {"run_bytes": block} if kind == "bitshuffle" else {}
    return {"id": f"zarrfeed.{kind}", "decoded_bytes": decoded_bytes, "element_bytes": element, **run}


#: Compressors behind bitshuffle, by their numbers.
_BITSHUFFLED = {0: "bitshuffle", 2: "bitshuffle_lz4", 3: "bitshuffle_zstd"}
_MOST_BITSHUFFLED = 255
#: Blocks that the engine has memory for (kWrittenBlockBytes in cpp/codecs/blosc_writer.h).
_MOST_BLOCK_BYTES = 128 << 10
#: Number of a filter -> the codec for its values, for the bytes of an item, and for those that it was given.
_CODECS: dict[int, Callable[[Sequence[int], int, int], dict[str, Any]]] = {
    1: _compressor("zlib", 1),
    2: _shuffle,
    _FLETCHER32: lambda *_: {"id": "fletcher32"},
    307: _compressor("bz2", 9),
    _LZF: _of_file("lzf"),
    32001: _blosc,
    32004: _of_file("hdf5_lz4"),
    32008: _bitshuffle,
    32015: _compressor("zstd", 3),
}
#: Names of filters that files often have, and that no codec reads.
_KNOWN = {
    4: "szip",
    5: "n-bit",
    6: "scale-offset",
    32013: "ZFP",
    32017: "SZ",
    32019: "JPEG",
    32026: "Blosc2",
}


def codecs_of(filters: Sequence[Filter], item_bytes: int, chunk_bytes: int) -> list[dict[str, Any]]:
    """Return the codecs that undo filters, as Zarr v2 has them, in the order of encoding.

    `chunk_bytes` are those of a decoded chunk.

    Raises
    ------
    UnsupportedError
        If a filter has no codec; names the filter.

    Examples
    --------
    >>> codecs_of([Filter(2, (4,), "shuffle"), Filter(1, (6,), "deflate")], 4, 80)
    [{'id': 'shuffle', 'elementsize': 4}, {'id': 'zlib', 'level': 6}]
    >>> codecs_of([Filter(3, (), "fletcher32"), Filter(2, (8,), "shuffle")], 8, 80)
    [{'id': 'fletcher32'}, {'id': 'zarrfeed.shuffle', 'decoded_bytes': 84, 'element_bytes': 8}]
    """
    made, is_compressed = [], False
    if _has_lzf(filters) and len(_COMPRESSORS.intersection(one.number for one in filters)) > 1:
        raise UnsupportedError("its HDF5 filter 32000 (LZF) stands beside another compressor, not read in place")
    for one in filters:
        codec = _CODECS.get(one.number)
        if codec is None:
            called = _KNOWN.get(one.number) or one.name or "no name"
            raise UnsupportedError(f"its HDF5 filter {one.number} ({called}) is not read in place")
        if is_compressed and one.number in _SIZED:
            raise UnsupportedError(f"its HDF5 filter {one.number} ({one.name}) follows a compressor, not read in place")
        is_compressed = is_compressed or one.number in _COMPRESSORS
        made.append(codec(one.values, item_bytes, chunk_bytes))
        chunk_bytes += _CHECKSUM_BYTES if one.number == _FLETCHER32 else 0
    return made


def lacks_filters(
    filters: Sequence[Filter], chunk_bytes: int, lengths: npt.NDArray[np.int64], masks: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which chunks lie in the file without filters that their codecs would undo, by length and filter mask.

    LZF leaves out what it does not make smaller, and its codec knows that by the length. So a chunk of this length must
    lack LZF and nothing else.

    >>> lzf = [Filter(2, (4,), "shuffle"), Filter(32000, (), "lzf")]
    >>> lacks_filters(lzf, 80, np.array([70, 80, 80, 70]), np.array([0, 2, 0, 2])).tolist()
    [False, False, True, True]
    """
    lacks_any: npt.NDArray[np.bool_] = masks != 0
    if not _has_lzf(filters):
        return lacks_any
    numbers = [one.number for one in filters]
    is_whole = lengths == chunk_bytes + _CHECKSUM_BYTES * numbers.count(_FLETCHER32)
    lacks_lzf = masks == 1 << numbers.index(_LZF)
    result: npt.NDArray[np.bool_] = np.where(lacks_lzf, ~is_whole, lacks_any | is_whole)
    return result


def _has_lzf(filters: Sequence[Filter]) -> bool:
    return any(one.number == _LZF for one in filters)

"""Filters of HDF5 as codecs of numcodecs, by the registered numbers of the filters.

Invariant: a filter has a codec only if numcodecs decodes exactly the bytes that the filter writes. Others are refused
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zarrfeed.base.errors import UnsupportedError


class Filter(NamedTuple):
    """A filter as a dataset names it."""

    number: int
    values: Sequence[int]
    name: str


_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def _level(values: Sequence[int], default: int) -> int:
    return int(values[0]) if values else default


def _shuffle(values: Sequence[int], item_bytes: int) -> dict[str, Any]:
    return {"id": "shuffle", "elementsize": _level(values, item_bytes) or item_bytes}


def _blosc(values: Sequence[int], _: int) -> dict[str, Any]:
    """Values 4 to 6 are the level, the shuffle and the compressor; chunks say themselves how they are compressed."""
    known = dict(enumerate(values))
    compressor = known.get(6, 0)
    name = _BLOSC_COMPRESSORS[compressor] if compressor < len(_BLOSC_COMPRESSORS) else "blosclz"
    return {"id": "blosc", "cname": name, "clevel": known.get(4, 5), "shuffle": known.get(5, 1), "blocksize": 0}


def _fletcher32(_values: Sequence[int], _item_bytes: int) -> dict[str, Any]:
    return {"id": "fletcher32"}


#: Number of a filter -> the codec for its values, and for the bytes of an item.
_CODECS: dict[int, Callable[[Sequence[int], int], dict[str, Any]]] = {
    1: lambda values, _: {"id": "zlib", "level": _level(values, 1)},
    2: _shuffle,
    3: _fletcher32,
    307: lambda values, _: {"id": "bz2", "level": _level(values, 9)},
    32001: _blosc,
    32015: lambda values, _: {"id": "zstd", "level": _level(values, 3)},
}
#: Names of filters that files often have, and that no codec reads.
_KNOWN = {
    4: "szip",
    5: "n-bit",
    6: "scale-offset",
    32000: "LZF",
    32004: "LZ4",
    32008: "bitshuffle",
    32013: "ZFP",
    32017: "SZ",
    32019: "JPEG",
    32026: "Blosc2",
}


def codecs_of(filters: Sequence[Filter], item_bytes: int) -> list[dict[str, Any]]:
    """Return the codecs that undo filters, as Zarr v2 has them, in the order of encoding.

    Raises
    ------
    UnsupportedError
        If a filter has no codec; names the filter.

    Examples
    --------
    >>> codecs_of([Filter(2, (4,), "shuffle"), Filter(1, (6,), "deflate")], 4)
    [{'id': 'shuffle', 'elementsize': 4}, {'id': 'zlib', 'level': 6}]
    """
    made = []
    for one in filters:
        codec = _CODECS.get(one.number)
        if codec is None:
            called = _KNOWN.get(one.number) or one.name or "no name"
            raise UnsupportedError(f"its HDF5 filter {one.number} ({called}) is not read in place")
        made.append(codec(one.values, item_bytes))
    return made

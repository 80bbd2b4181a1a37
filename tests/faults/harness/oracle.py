"""What faults are judged by: zarr-python, as the tests have it in tests/support/oracle.py and shares.py."""

from __future__ import annotations

from typing import Any

import numcodecs
from zarr.codecs import numcodecs as zarr_numcodecs

from tests.support.oracle import (
    CODECS,
    DTYPES,
    AnyArray,
    Compression,
    Layout,
    ZarrFormat,
    chunk_files,
    raw_rows,
    read_all,
)
from tests.support.shares import assert_shared_out

__all__ = [
    "ALL_CODECS",
    "CODECS",
    "DTYPES",
    "GENERAL_CODECS",
    "AnyArray",
    "Compression",
    "Layout",
    "ZarrFormat",
    "assert_shared_out",
    "chunk_files",
    "raw_rows",
    "read_all",
]


def _delta(item_bytes: int) -> list[Any]:
    # numcodecs views the chunk as integers, which fails for larger items in order F
    return [numcodecs.Delta(f"u{item_bytes}", astype=f"i{item_bytes}")] if item_bytes <= 8 else []


#: Codecs that the engine leaves to zarr-python.
GENERAL_CODECS: dict[str, Compression] = {
    "bz2": Compression(lambda _: [numcodecs.BZ2(level=1)], lambda _: [zarr_numcodecs.BZ2(level=1)]),
    "lzma": Compression(lambda _: [numcodecs.LZMA(preset=0)], lambda _: [zarr_numcodecs.LZMA(preset=0)]),
    "delta": Compression(lambda n: [*_delta(n), numcodecs.Shuffle(n)], None),
    "delta-zstd": Compression(lambda n: [*_delta(n), numcodecs.Zstd(level=1)], None),
    "delta-zlib": Compression(lambda n: [*_delta(n), numcodecs.Zlib(level=1)], None),
    "adler32": Compression(lambda _: [numcodecs.Adler32()], lambda _: [zarr_numcodecs.Adler32()]),
    "bz2-crc32": Compression(
        lambda _: [numcodecs.BZ2(level=1), numcodecs.CRC32()],
        lambda _: [zarr_numcodecs.BZ2(level=1), zarr_numcodecs.CRC32()],
    ),
}

ALL_CODECS: dict[str, Compression] = CODECS | GENERAL_CODECS

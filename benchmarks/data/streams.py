"""The compressed streams of stored chunks: where each lies, how long it is, and what undoes it.

A Blosc chunk (c-blosc, README_CHUNK_FORMAT) has a header of 16 bytes, a table of block offsets, and blocks. A block is
one stream or `typesize` streams, each behind its size as a little-endian int32; a stream as long as what it decodes to
is stored as it is. A chunk of plain zstd or gzip is one stream.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

_HEADER = struct.Struct("<4B3i")
_BYTE_SHUFFLE, _MEMCPYED, _BIT_SHUFFLE, _DONT_SPLIT = 0x1, 0x2, 0x4, 0x10
_COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")
_MAX_SPLITS, _MIN_SPLIT_ELEMENTS = 16, 128
#: An index of a shard: offset and size of each inner chunk, and behind them a checksum.
_INDEX_ENTRY, _INDEX_CHECKSUM = 16, 4
_ABSENT = 2**64 - 1
#: For each stream, a decoder on the GPU is told two pointers and two sizes.
_TABLE_BYTES = 32


class UnknownLayoutError(Exception):
    """An array is stored in a way of which the streams are not known here."""


@dataclass(frozen=True)
class Chunk:
    """The streams of one stored chunk.

    Attributes
    ----------
    codec
        Name of the codec of its streams: "lz4", "zstd", "zlib", "gzip", "blosclz" or "snappy".
    filtering
        Filter that a decoder undoes behind the codec, in each block: "shuffle", "bitshuffle" or "" for none.
    typesize, block_bytes
        Bytes of an item and of a block; the last block may be shorter.
    stored
        The bytes of the chunk.
    offsets, sizes
        Offset and length of each stream in `stored`.
    decoded_sizes
        Length of each stream when it is decoded. Decoded streams follow each other in the decoded chunk.
    is_raw
        True for each stream that is stored as it is.
    """

    codec: str
    filtering: str
    typesize: int
    block_bytes: int
    stored: bytes
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    decoded_sizes: npt.NDArray[np.int64]
    is_raw: npt.NDArray[np.bool_]

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the decoded chunk."""
        return int(self.decoded_sizes.sum())


def blosc_chunk(stored: bytes) -> Chunk:
    """Return the streams of a Blosc chunk.

    Raises
    ------
    ValueError
        If it is none, or ends too early.
    """
    if len(stored) < _HEADER.size or stored[0] != 2:
        raise ValueError(f"no Blosc chunk of format 2: {len(stored)} bytes, which begin with {stored[:4].hex()}")
    _, _, flags, typesize, decoded_bytes, block_bytes, _ = _HEADER.unpack_from(stored)
    number = flags >> 5
    if number >= len(_COMPRESSORS) or typesize < 1 or decoded_bytes < 0 or (decoded_bytes and block_bytes < 1):
        raise ValueError(f"a Blosc header with compressor {number}, typesize {typesize}, {decoded_bytes} bytes")
    if flags & _MEMCPYED:
        found = [(_HEADER.size, decoded_bytes, decoded_bytes)]
        filtering = ""
    else:
        found = list(_blosc_streams(stored, flags, typesize, decoded_bytes, block_bytes))
        filtering = (
            "shuffle" if flags & _BYTE_SHUFFLE and typesize > 1 else "bitshuffle" if flags & _BIT_SHUFFLE else ""
        )
    return _chunk(_COMPRESSORS[number], filtering, typesize, block_bytes, stored, found)


def _blosc_streams(
    stored: bytes, flags: int, typesize: int, decoded_bytes: int, block_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the offset, the size and the decoded size of each stream."""
    for block, begin in enumerate(range(0, decoded_bytes, block_bytes)):
        length = min(block_bytes, decoded_bytes - begin)
        is_split = (
            not flags & _DONT_SPLIT
            and typesize <= _MAX_SPLITS
            and block_bytes // typesize >= _MIN_SPLIT_ELEMENTS
            and length == block_bytes
        )
        streams = typesize if is_split else 1
        offset = _int32(stored, _HEADER.size + 4 * block)
        for _ in range(streams):
            size = _int32(stored, offset)
            offset += 4
            if size < 0 or offset + size > len(stored):
                raise ValueError(f"a stream of {size} bytes at {offset} in a chunk of {len(stored)}")
            yield offset, size, length // streams
            offset += size


def _int32(stored: bytes, offset: int) -> int:
    if not 0 <= offset <= len(stored) - 4:
        raise ValueError(f"a chunk of {len(stored)} bytes has no size at {offset}")
    return int.from_bytes(stored[offset : offset + 4], "little", signed=True)


def _chunk(
    codec: str, filtering: str, typesize: int, block_bytes: int, stored: bytes, found: Sequence[tuple[int, int, int]]
) -> Chunk:
    offsets, sizes, decoded = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return Chunk(codec, filtering, typesize, block_bytes, stored, offsets, sizes, decoded, sizes == decoded)


def decode_on_host(chunk: Chunk) -> bytes:
    """Return the decoded chunk, by numcodecs and zlib, and by NumPy for the filters: to compare others with."""
    parts = []
    for offset, size, decoded, is_raw in zip(
        chunk.offsets.tolist(), chunk.sizes.tolist(), chunk.decoded_sizes.tolist(), chunk.is_raw.tolist(), strict=True
    ):
        stream = chunk.stored[offset : offset + size]
        parts.append(stream if is_raw else _decode_stream(chunk.codec, stream, decoded))
    return unfiltered(chunk, b"".join(parts))


def _decode_stream(codec: str, stream: bytes, decoded_bytes: int) -> bytes:
    if codec == "lz4":  # numcodecs wants the size before it
        return bytes(numcodecs.LZ4().decode(decoded_bytes.to_bytes(4, "little") + stream))
    if codec == "zstd":
        return bytes(numcodecs.Zstd().decode(stream))
    if codec in ("zlib", "gzip"):
        return zlib.decompress(stream) if codec == "zlib" else gzip.decompress(stream)
    raise UnknownLayoutError(f"no library for streams of {codec} is at hand")


def unfiltered(chunk: Chunk, decompressed: bytes) -> bytes:
    """Return what the filter of a chunk made its decompressed streams of."""
    if not chunk.filtering:
        return decompressed
    blocks = []
    for begin in range(0, len(decompressed), chunk.block_bytes):
        block = np.frombuffer(decompressed[begin : begin + chunk.block_bytes], np.uint8)
        elements = len(block) // chunk.typesize
        if chunk.filtering == "bitshuffle" and elements % 8:
            blocks.append(block.tobytes())  # c-blosc 1 leaves such a block as it is
            continue
        moved = block[: elements * chunk.typesize]
        if chunk.filtering == "shuffle":
            items = moved.reshape(chunk.typesize, elements).T
        else:
            bits = np.unpackbits(moved.reshape(8 * chunk.typesize, elements // 8), axis=1, bitorder="little")
            items = np.packbits(bits.T, axis=1, bitorder="little")
        blocks.append(items.tobytes() + block[elements * chunk.typesize :].tobytes())
    return b"".join(blocks)


def stored_chunks(path: Path) -> Iterator[Chunk]:
    """Yield the streams of the chunks of an array, file by file; of shards, those of the inner chunks.

    Raises
    ------
    UnknownLayoutError
        If the array is stored in another way than by one compressor, with or without shards.
    """
    metadata = json.loads((path / "zarr.json").read_text()) if (path / "zarr.json").exists() else None
    if metadata is None:
        raise UnknownLayoutError(f"{path} has no zarr.json: arrays of Zarr format 2 are not surveyed")
    shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    codecs, inner = metadata["codecs"], 1
    if codecs[0]["name"] == "sharding_indexed":
        sharding = codecs[0]["configuration"]
        if [codec["name"] for codec in sharding["index_codecs"]] != ["bytes", "crc32c"]:
            raise UnknownLayoutError(f"{path}: an index of shards with other codecs than bytes and crc32c")
        if sharding.get("index_location", "end") != "end":
            raise UnknownLayoutError(f"{path}: the index lies at the beginning of a shard")
        inner = int(np.prod([length // part for length, part in zip(shape, sharding["chunk_shape"], strict=True)]))
        shape, codecs = sharding["chunk_shape"], sharding["codecs"]
    compressors = [codec for codec in codecs if codec["name"] not in ("bytes", "vlen-bytes")]
    if len(compressors) != 1 or compressors[0]["name"] not in ("blosc", "zstd", "gzip"):
        raise UnknownLayoutError(f"{path}: codecs {[codec['name'] for codec in codecs]}, not blosc, zstd or gzip alone")
    decoded_bytes = int(np.prod(shape)) * np.dtype(metadata["data_type"]).itemsize
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name != "zarr.json":
            for stored in _inner_chunks(file.read_bytes(), inner) if inner > 1 else [file.read_bytes()]:
                yield _of_codec(compressors[0], stored, decoded_bytes)


def _inner_chunks(shard: bytes, count: int) -> Iterator[bytes]:
    index = np.frombuffer(shard[-count * _INDEX_ENTRY - _INDEX_CHECKSUM : -_INDEX_CHECKSUM], "<u8").reshape(count, 2)
    for offset, size in index.tolist():
        if offset != _ABSENT:
            yield shard[offset : offset + size]


def _of_codec(codec: Mapping[str, Any], stored: bytes, decoded_bytes: int) -> Chunk:
    if codec["name"] == "blosc":
        return blosc_chunk(stored)
    return _chunk(codec["name"], "", 1, decoded_bytes, stored, [(0, len(stored), decoded_bytes)])


@dataclass(frozen=True)
class Streams:
    """The streams of an array's chunks.

    Attributes
    ----------
    name, codec, filtering
        The array's name, and the codec and the filter of its chunks.
    chunks, streams
        Numbers of chunks that were read, and of their streams.
    decoded_bytes, stored_bytes
        Sizes of these chunks together.
    raw_bytes
        Decoded bytes of streams that are stored as they are, so that they are copied and not decoded.
    smallest, middle, largest
        Decoded bytes of a stream.
    """

    name: str
    codec: str
    filtering: str
    chunks: int
    streams: int
    decoded_bytes: int
    stored_bytes: int
    raw_bytes: int
    smallest: int
    middle: int
    largest: int

    @property
    def copied_share(self) -> float:
        """Bytes that would be copied to the GPU, tables included, over those of decoded chunks."""
        return (self.stored_bytes + _TABLE_BYTES * self.streams) / self.decoded_bytes


def survey(name: str, chunks: Sequence[Chunk]) -> Streams:
    """Return what the chunks of an array consist of."""
    decoded = np.concatenate([chunk.decoded_sizes for chunk in chunks])
    smallest, middle, largest = (int(size) for size in np.quantile(decoded, (0, 0.5, 1), method="nearest"))
    return Streams(
        name,
        chunks[0].codec,
        next((chunk.filtering for chunk in chunks if chunk.filtering), ""),
        len(chunks),
        len(decoded),
        int(decoded.sum()),
        sum(len(chunk.stored) for chunk in chunks),
        sum(int(chunk.decoded_sizes[chunk.is_raw].sum()) for chunk in chunks),
        smallest,
        middle,
        largest,
    )

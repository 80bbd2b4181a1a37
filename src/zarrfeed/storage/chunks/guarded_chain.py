"""The chain of codecs of an array, each of them behind its guard, in the form that zarr-python's pipeline takes.

Invariant: every codec of numcodecs, wherever it stands (filters and compressor of v2, the chain of v3, inner chunks
and indices of shards at any depth), decodes through `codec_guards`; zarr-python runs the chain as before, in its own
threads. How many bytes a codec's output may have follows from the chunk's shape and dtype and from the codecs before it
in the order of encoding: exactly so many as long as these have a fixed size, at most so many behind a compressor.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numcodecs import Blosc, GZip, VLenBytes, VLenUTF8, Zstd
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    VLenBytesCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.dtype import UInt64

from zarrfeed.storage.access.zarr_internals import ArrayV2Metadata, ChunkSpec, V2Codec, numcodecs_codec
from zarrfeed.storage.chunks.codec_guards import MAX_TEXT_BYTES, Expected, Numcodec, decode_guarded

_BYTE = np.dtype(np.uint8)
#: Bytes that a codec that nobody here knows may make of one byte when it encodes.
_UNKNOWN_EXPANSION = 16
_OVERHEAD_BYTES = 1 << 20
_CHECKSUMS = ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")
_OBJECT_CODECS = ("vlen-utf8", "vlen-bytes", "vlen-array", "json2", "msgpack2", "pickle")
_COMPRESSORS = ("blosc", "lz4", "zstd", "bz2", "lzma", "zlib", "gzip", "pcodec", "zfpy")
#: Codecs of zarr-python that decode with one of numcodecs, whose configuration does not matter.
_AS_NUMCODECS: dict[type, Numcodec] = {BloscCodec: Blosc(), ZstdCodec: Zstd(), GzipCodec: GZip()}
_TEXT_CODECS: dict[type, Numcodec] = {VLenUTF8Codec: VLenUTF8(), VLenBytesCodec: VLenBytes()}


def guard_v2(metadata: ArrayV2Metadata, chunk: ChunkSpec) -> tuple[V2Codec, int]:
    """Return the chain of a v2 array, behind guards, and the bytes that a stored chunk has at most."""
    expected = expected_of(chunk)
    guarded: list[Numcodec] = []
    for codec in (*(metadata.filters or ()), *((metadata.compressor,) if metadata.compressor else ())):
        guarded.append(_GuardedNumcodec(codec, expected))
        expected = encoded(codec, expected)
    compressor = guarded.pop() if metadata.compressor else None
    chain = V2Codec(filters=cast("Any", tuple(guarded)) or None, compressor=cast("Any", compressor))
    return chain, _most_stored(expected)


def guard_v3(codecs: Sequence[Codec], chunk: ChunkSpec) -> tuple[tuple[Codec, ...], int]:
    """Return a chain of v3 codecs, behind guards, and the bytes that a stored chunk has at most.

    `chunk` describes what is decoded: chunks, or the inner chunks of shards.
    """
    guarded, expected = _guard_v3(codecs, chunk)
    return guarded, _most_stored(expected)


def _most_stored(encoded: Expected) -> int:
    # Blosc and others tolerate trailing bytes, so this is generous; it is there for objects that are no chunk at all
    return 2 * encoded.limit + _OVERHEAD_BYTES


def _guard_v3(codecs: Sequence[Codec], chunk: ChunkSpec) -> tuple[tuple[Codec, ...], Expected]:
    """Return a chain behind guards, and what it encodes a chunk to."""
    guarded: list[Codec] = []
    expected = expected_of(chunk)
    for codec in codecs:
        if isinstance(codec, ArrayArrayCodec):
            guarded.append(codec)  # zarr-python compares the size of what it gets from there with the metadata
            chunk = codec.resolve_metadata(chunk)
            expected = expected_of(chunk)
        elif isinstance(codec, ShardingCodec):
            shards, expected = _guard_shards(codec, chunk)
            guarded.append(shards)
        elif isinstance(codec, ArrayBytesCodec):
            numcodec = _TEXT_CODECS.get(type(codec)) or _numcodec_of(codec)
            guarded.append(codec if numcodec is None else _GuardedArrayBytes(codec, numcodec, expected))
            if not isinstance(codec, BytesCodec):
                expected = encoded(numcodec, expected)
        elif type(codec) is Crc32cCodec:  # reads no size
            guarded.append(codec)
            expected = replace(expected, limit=expected.limit + 4)
        else:
            numcodec = _AS_NUMCODECS.get(type(codec)) or _numcodec_of(codec)
            guarded.append(codec if numcodec is None else _GuardedBytesBytes(codec, numcodec, expected))
            expected = encoded(numcodec, expected)
    return tuple(guarded), expected


def _guard_shards(codec: ShardingCodec, shard: ChunkSpec) -> tuple[ShardingCodec, Expected]:
    """Return the codec of shards with guards in it, and what such a shard has at most."""
    inner = replace(shard, shape=codec.chunk_shape)
    codecs, of_inner = _guard_v3(codec.codecs, inner)
    per_shard = tuple(s // i for s, i in zip(shard.shape, codec.chunk_shape, strict=True))
    index_codecs, _ = _guard_v3(codec.index_codecs, replace(shard, shape=(*per_shard, 2), dtype=UInt64()))
    count = math.prod(per_shard)
    # shards that were changed in part may have gaps
    limit = 2 * count * (of_inner.limit + 32) + _OVERHEAD_BYTES
    expected = Expected(limit, is_exact=False, items=limit, dtype=_BYTE)
    return replace(codec, codecs=codecs, index_codecs=index_codecs), expected


def expected_of(chunk: ChunkSpec) -> Expected:
    """Return the size and the dtype of a decoded chunk."""
    dtype, items = chunk.dtype.to_native_dtype(), math.prod(chunk.shape)
    return Expected(items * dtype.itemsize, is_exact=True, items=items, dtype=dtype)


def _numcodec_of(codec: Codec) -> Numcodec | None:
    """Return the codec of numcodecs that one of v3 wraps; None for those of others."""
    is_wrapper = str(getattr(codec, "codec_name", "")).startswith("numcodecs.")
    return cast("Numcodec", numcodecs_codec(codec)) if is_wrapper else None


def encoded(codec: Numcodec | None, decoded: Expected) -> Expected:
    """Return the encoded form of an array or bytes: its size, and the dtype that the next codec sees.

    None, or a codec that is not of numcodecs, may make of them what it likes, within reason.
    """
    size, exact = decoded.limit, decoded.is_exact
    dtype = _BYTE
    name = getattr(codec, "codec_id", "") if type(codec).__module__.startswith("numcodecs.") else ""
    described = cast("Any", codec)
    if name == "astype":
        size, dtype = _converted(size, described.decode_dtype, described.encode_dtype)
    elif name in ("delta", "fixedscaleoffset", "quantize", "categorize"):
        size, dtype = _converted(size, described.dtype, described.astype)
    elif name == "bitround":
        is_rounded = described.keepbits != np.finfo(decoded.dtype).nmant if decoded.dtype.kind == "f" else False
        dtype = np.dtype(decoded.dtype.str.replace("f", "i")) if is_rounded else decoded.dtype
    elif name == "packbits":
        size = 1 + -(-size // 8)
    elif name == "base64":
        size = 4 * -(-size // 3)
    elif name == "shuffle":
        pass
    elif name in _CHECKSUMS:
        size += 4
    elif name in _OBJECT_CODECS:
        size, exact = MAX_TEXT_BYTES, False
    elif name in _COMPRESSORS:
        size, exact = size + size // 8 + (64 << 10), False  # of what does not compress
    else:
        size, exact = _UNKNOWN_EXPANSION * size + _OVERHEAD_BYTES, False
    return Expected(size, is_exact=exact, items=size // max(1, dtype.itemsize), dtype=dtype)


def _converted(size: int, dtype: np.dtype[Any], to: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
    return -(-size // max(1, dtype.itemsize)) * to.itemsize, to


@dataclass(frozen=True)
class _GuardedNumcodec:
    """A codec of numcodecs as zarr-python's `V2Codec` calls it."""

    codec: Numcodec
    expected: Expected

    def decode(self, buf: Any, out: Any = None) -> Any:
        assert out is None
        return decode_guarded(self.codec, buf, self.expected)


@dataclass(frozen=True)
class _Guarded:
    """A guarded codec of v3 beside its decoding: it has the codec itself, and `numcodec` decodes."""

    codec: BytesBytesCodec | ArrayBytesCodec
    numcodec: Numcodec
    expected: Expected

    @property
    def is_fixed_size(self) -> bool:
        """True if the codec's output has one size; zarr-python asks it of the codecs of a shard's index since 3.4."""
        return bool(getattr(self.codec, "is_fixed_size", False))

    def to_dict(self) -> Any:
        return self.codec.to_dict()

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ChunkSpec) -> int:
        return self.codec.compute_encoded_size(input_byte_length, chunk_spec)


@dataclass(frozen=True)
class _GuardedBytesBytes(_Guarded, BytesBytesCodec):  # type: ignore[override]  # nobody sets `is_fixed_size`
    """A codec of bytes."""

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ChunkSpec) -> Buffer:
        stored = chunk_data.as_numpy_array()
        decoded = await asyncio.to_thread(decode_guarded, self.numcodec, stored, self.expected)
        return chunk_spec.prototype.buffer.from_bytes(decoded)


@dataclass(frozen=True)
class _GuardedArrayBytes(_Guarded, ArrayBytesCodec):  # type: ignore[override]  # as above
    """A codec of arrays: text, bytes of any length, Pcodec, ZFP."""

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ChunkSpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode, chunk_data, chunk_spec)

    def _decode(self, chunk_data: Buffer, chunk_spec: ChunkSpec) -> NDBuffer:
        items = decode_guarded(self.numcodec, chunk_data.as_numpy_array(), self.expected).reshape(chunk_spec.shape)
        if type(self.codec) is VLenUTF8Codec:
            items = items.astype(chunk_spec.dtype.to_native_dtype(), copy=False)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(items)

"""Decoding with numcodecs' codecs, behind checks of every size that a codec would take from the stored bytes.

numcodecs trusts what chunks say of themselves: Blosc reads as many bytes as its header declares, whatever the length of
the buffer; LZ4, Zstandard, text and Pcodec allocate what a header declares; bz2, lzma, gzip and zlib allocate whatever
comes out. So nothing reaches a codec here before its header agrees with the buffer and with the metadata.

Invariants, for any bytes and any codec of numcodecs: `decode_guarded` returns what the codec makes of the bytes or
raises an exception; nothing beyond the buffer is read; the memory that is asked for is that of the input and a small
multiple of `Expected.limit`. Codecs that were registered by others are called as they are.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from numcodecs.compat import ensure_contiguous_ndarray, ensure_text

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import DecodeError
from zarrfeed.storage.chunks import zfp_guard

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Bytes that a chunk of text may have at any stage of decoding. Its size is in no metadata, so this stands in for it.
MAX_TEXT_BYTES = 2**31 - 1
#: Bytes that liblzma may allocate for a dictionary. The largest preset of xz takes 65 MiB.
_LZMA_MEMORY_BYTES = 256 << 20
#: Format version, codec version, flags, typesize; nbytes, blocksize, cbytes.
_BLOSC_HEADER = struct.Struct("<4B3i")
_ZSTD_BLOCK_BYTES = 128 << 10
#: Compressor of Blosc, as its header numbers them -> decoded bytes that one stored byte can make, at most.
_BLOSC_EXPANSION = {0: 256, 1: 256, 3: 1040}
_LZ4_EXPANSION = 256


class Numcodec(Protocol):
    """A codec of numcodecs, or one that was registered with it."""

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the decoded bytes or array."""
        ...


@dataclass(frozen=True)
class Expected:
    """The facts that the metadata imply of a codec's output.

    Attributes
    ----------
    limit
        Bytes that it has at most.
    is_exact
        True if the output has exactly `limit` bytes.
    items
        Items of the chunk: what a codec of objects has to return.
    dtype
        Dtype of the array that the codec was given by the writer. Codecs of arrays (Pcodec, ZFP) return such items.
    """

    limit: int
    is_exact: bool
    items: int
    dtype: np.dtype[Any]


def decode_guarded(codec: Numcodec, stored: Any, expected: Expected) -> Any:
    """Decode with a codec of numcodecs after its guard has looked at the bytes.

    Raises
    ------
    DecodeError
        If the bytes declare what is not so, or more than is expected.
    Exception
        Whatever the codec raises.
    """
    guard = _GUARDS.get(getattr(codec, "codec_id", "")) if type(codec).__module__.startswith("numcodecs.") else None
    try:
        return codec.decode(stored) if guard is None else guard(codec, stored, expected)
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of libraries in Rust: nobody catches a BaseException
            raise
        raise DecodeError(f"{type(codec).__name__} panicked: {error}") from None


def _as_bytes(stored: Any) -> Bytes:
    return ensure_contiguous_ndarray(stored).view(np.uint8)  # type: ignore[no-any-return]


def _le(data: Bytes, at: int, size: int = 4) -> int:
    """Return the little-endian integer at an offset; an error where the buffer ends before."""
    if at + size > len(data):
        raise DecodeError(f"is truncated: a number at byte {at} has {size} bytes, the chunk holds {len(data)}")
    return int.from_bytes(data[at : at + size].tobytes(), "little")


def _check_limit(what: str, declared: int, expected: Expected) -> None:
    if not 0 <= declared <= expected.limit:
        implied = "" if expected.is_exact else "at most "
        raise DecodeError(f"{what} {declared} decoded bytes, the metadata implies {implied}{expected.limit}")


# --- Blosc, LZ4, Zstandard --------------------------------------------------------------------------------------------


def _decode_blosc(codec: Numcodec, stored: Any, expected: Expected) -> Any:
    check_blosc(_as_bytes(stored), expected)
    return codec.decode(stored)


def check_blosc(data: Bytes, expected: Expected) -> None:
    """Check the header of a Blosc 1 container: all that c-blosc does not, or only against the header itself.

    c-blosc checks the offsets of blocks and the sizes of streams against `cbytes`; so `cbytes` has to be right.

    Raises
    ------
    DecodeError
        If the header contradicts the buffer, the metadata or itself.
    """
    if len(data) < _BLOSC_HEADER.size:
        raise DecodeError(f"a Blosc header has {_BLOSC_HEADER.size} bytes, the chunk holds {len(data)}")
    header: tuple[int, ...] = _BLOSC_HEADER.unpack_from(data.data)
    version, _, flags, typesize, nbytes, blocksize, cbytes = header
    if version != 2:
        raise DecodeError(f"Blosc format version = {version}, must be 2")
    _check_limit("Blosc header declares", nbytes, expected)
    if not _BLOSC_HEADER.size <= cbytes <= len(data):
        raise DecodeError(f"Blosc header declares {cbytes} stored bytes, the chunk holds {len(data)}")
    if typesize < 1:
        raise DecodeError("Blosc typesize = 0, must be at least 1")
    if nbytes > 0 and not 1 <= blocksize <= nbytes:
        raise DecodeError(f"Blosc blocksize = {blocksize}, must be between 1 and nbytes = {nbytes}")
    payload = cbytes - _BLOSC_HEADER.size
    if flags & 0x2:  # stored raw
        if nbytes != payload:
            raise DecodeError(f"Blosc header declares {nbytes} raw bytes, the chunk holds {payload}")
        return
    if nbytes > 0 and -(-nbytes // blocksize) > payload // 4:
        raise DecodeError(f"Blosc header implies {-(-nbytes // blocksize)} blocks, more than the chunk has room for")
    expansion = _BLOSC_EXPANSION.get(flags >> 5)
    if expansion is not None and nbytes > expansion * (payload + 64):
        raise DecodeError(f"Blosc header declares {nbytes} decoded bytes, more than {payload} stored bytes can make")
    # c-blosc would leave the rest of a block as it finds the memory
    is_split = not flags & 0x10 and typesize <= 16 and blocksize // typesize >= 128
    if is_split and blocksize % typesize:
        raise DecodeError(f"Blosc blocksize {blocksize} is no multiple of its {typesize} streams")


def _decode_lz4(codec: Numcodec, stored: Any, expected: Expected) -> Any:
    data = _as_bytes(stored)
    declared = _le(data, 0)
    _check_limit("LZ4 header declares", declared, expected)
    if declared > _LZ4_EXPANSION * len(data):
        raise DecodeError(f"LZ4 header declares {declared} decoded bytes, more than {len(data)} stored bytes can make")
    return codec.decode(stored)


def _decode_zstd(codec: Numcodec, stored: Any, expected: Expected) -> Any:
    known, most = measure_zstd(_as_bytes(stored))
    if known is not None:
        _check_limit("Zstandard frames declare", known, expected)
        return codec.decode(stored)
    if expected.is_exact:
        return codec.decode(stored, np.empty(expected.limit, np.uint8))
    if most > max(expected.limit, MAX_TEXT_BYTES):
        raise DecodeError(f"Zstandard frames hold up to {most} bytes, must be at most {MAX_TEXT_BYTES}")
    return codec.decode(stored)


def measure_zstd(data: Bytes) -> tuple[int | None, int]:
    """Walk over Zstandard frames (RFC 8878) and return what they declare to hold, and what they hold at most.

    Returns
    -------
    The sum of the content sizes, None if a frame does not have it; the sum over the blocks, of which a compressed one
    counts as 128 KiB.

    Raises
    ------
    DecodeError
        If a frame ends beyond the buffer, begins otherwise, or declares more than its blocks can hold.
    """
    at, total, is_known, most_of_all = 0, 0, True, 0
    while at < len(data):
        magic = _le(data, at)
        if magic & ~0xF == 0x184D2A50:  # to be skipped
            at += 8 + _le(data, at + 4)
            continue
        if magic != 0xFD2FB528:
            raise DecodeError(f"is no Zstandard frame: byte {at} begins with {magic:#010x}")
        descriptor = _le(data, at + 4, 1)
        is_single = descriptor >> 5 & 1
        at += 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3]
        size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
        declared = _le(data, at, size_bytes) + (256 if size_bytes == 2 else 0)
        at += size_bytes
        most, is_last = 0, False
        while not is_last:
            header = _le(data, at, 3)
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == 1 else size)
            most += _ZSTD_BLOCK_BYTES if kind == 2 else size
        at += 4 * (descriptor >> 2 & 1)
        if size_bytes and declared > most:
            raise DecodeError(f"a Zstandard frame declares {declared} decoded bytes, its blocks hold at most {most}")
        is_known = is_known and size_bytes > 0
        total += declared
        most_of_all += most
    if at > len(data):
        raise DecodeError(f"is truncated: Zstandard frames have {at} bytes, the chunk holds {len(data)}")
    return total if is_known else None, most_of_all


# --- the standard library's compressors -------------------------------------------------------------------------------


def _decode_streams(
    make: Callable[[], Any],
    stored: Any,
    expected: Expected,
    *,
    ignored: type[Exception] | None = None,
    padding: bytes = b"",
    is_one: bool = False,
) -> bytes:
    """Decode streams that follow each other (if `is_one`, the first), and no more than is expected.

    Bytes behind a stream that raise `ignored` when they are taken for another are ignored, as numcodecs does; so is
    `padding` behind the last one.
    """
    rest: Any = _as_bytes(stored).data
    parts: list[bytes] = []
    room = expected.limit
    while not parts or len(rest):
        decoder = make()
        try:
            part = decoder.decompress(rest, room + 1)  # one byte of room more, so that the stream's end is reached
        except Exception as error:
            if parts and ignored is not None and isinstance(error, ignored):
                break
            raise
        if len(part) > room:
            raise DecodeError(f"decodes to more than the {expected.limit} bytes that the metadata implies")
        if not decoder.eof:
            raise EOFError("is truncated: the compressed data end before the end-of-stream marker")
        parts.append(part)
        if is_one:
            break
        room -= len(part)
        rest = decoder.unused_data.lstrip(padding) if padding else decoder.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode_bz2(_: Any, stored: Any, expected: Expected) -> Any:
    return _decode_streams(bz2.BZ2Decompressor, stored, expected, ignored=OSError)


def _decode_lzma(codec: Any, stored: Any, expected: Expected) -> Any:
    most = _LZMA_MEMORY_BYTES + 2 * expected.limit
    is_raw = codec.format == lzma.FORMAT_RAW  # the dictionary's size is in the metadata then, and liblzma has no limit
    if is_raw and any(_dictionary_bytes(one) > most for one in codec.filters or ()):
        raise DecodeError(f"LZMA filters {codec.filters} have a dictionary of more than {most} bytes")
    return _decode_streams(
        lambda: lzma.LZMADecompressor(codec.format, None if is_raw else most, codec.filters),
        stored,
        expected,
        ignored=lzma.LZMAError,
    )


def _dictionary_bytes(one: Any) -> int:
    size = one.get("dict_size") if isinstance(one, dict) else None
    return size if isinstance(size, int) else 0


def _decode_zlib(_: Any, stored: Any, expected: Expected) -> Any:
    return _decode_streams(zlib.decompressobj, stored, expected, is_one=True)  # as zlib.decompress does


def _decode_gzip(_: Any, stored: Any, expected: Expected) -> Any:
    return _decode_streams(lambda: zlib.decompressobj(31), stored, expected, padding=b"\0")


# --- filters ----------------------------------------------------------------------------------------------------------


def _decode_to_items(encoded: str, decoded: str) -> Callable[[Any, Any, Expected], Any]:
    """Return the guard of a filter that makes one item of another dtype of each: attributes of the codec name them."""

    def decode(codec: Any, stored: Any, expected: Expected) -> Any:
        items = _as_bytes(stored).size // max(1, getattr(codec, encoded).itemsize)
        _check_limit(f"{type(codec).__name__} makes", items * getattr(codec, decoded).itemsize, expected)
        return codec.decode(stored)

    return decode


def _decode_packbits(codec: Any, stored: Any, expected: Expected) -> Any:
    bits = 8 * (_as_bytes(stored).size - 1)
    if bits > expected.limit + 7:
        _check_limit("PackBits makes", bits, expected)
    return codec.decode(stored)


# --- objects ----------------------------------------------------------------------------------------------------------


def _decode_vlen(sizes: Callable[[list[Any]], int]) -> Callable[[Any, Any, Expected], Any]:
    """Return the guard of a codec of items of any length; `sizes` returns the stored bytes of all items."""

    def decode(codec: Any, stored: Any, expected: Expected) -> Any:
        data = _as_bytes(stored)
        count = _le(data, 0)
        if count != expected.items:
            raise DecodeError(f"its header declares {count} items, the metadata implies {expected.items}")
        items = codec.decode(stored)  # which checks each length against what is left
        used = 4 * (1 + count) + sizes(items.tolist())
        if used != data.size:
            raise DecodeError(f"its {count} items take {used} bytes, the chunk holds {data.size}")
        return items

    return decode


def _utf8_bytes(items: list[str]) -> int:
    joined = "".join(items)
    return len(joined) if joined.isascii() else len(joined.encode())


def _decode_json(codec: Any, stored: Any, expected: Expected) -> Any:
    _check_described(parse_json(ensure_text(stored, codec.get_config()["encoding"])), expected)
    return codec.decode(stored)


def _decode_msgpack(codec: Any, stored: Any, expected: Expected) -> Any:
    msgpack = importlib.import_module("msgpack")
    _check_described(msgpack.unpackb(_as_bytes(stored), raw=codec.raw), expected)
    return codec.decode(stored)


def _check_described(items: Any, expected: Expected) -> None:
    """Check the dtype and the shape that JSON and MsgPack append to the items."""
    dtype, shape = np.dtype(items[-2]), items[-1]
    count = math.prod(shape)
    if count != expected.items:
        raise DecodeError(f"it declares shape {shape}, the metadata implies {expected.items} items")
    if count * dtype.itemsize > MAX_TEXT_BYTES:
        raise DecodeError(
            f"it declares {count} items of {dtype.itemsize} bytes, must be at most {MAX_TEXT_BYTES} bytes"
        )


# --- arrays -----------------------------------------------------------------------------------------------------------


def _decode_pcodec(_: Any, stored: Any, expected: Expected) -> Any:
    """Decode into an array of the size that the metadata implies, as the header's counts are not to be trusted."""
    standalone = importlib.import_module("pcodec").standalone
    count = expected.limit // expected.dtype.itemsize
    room = np.empty(count, expected.dtype)
    progress = standalone.simple_decompress_into(_as_bytes(stored).tobytes(), room)
    if not progress.finished or progress.n_processed != count:
        raise DecodeError(f"Pcodec holds other than the {count} items that the metadata implies")
    return room


def _decode_zfp(codec: Any, stored: Any, expected: Expected) -> Any:
    return zfp_guard.decode(codec, _as_bytes(stored), expected.limit // expected.dtype.itemsize, expected.dtype)


#: The guards. Codecs that are not here cannot be harmed: the checksums, Shuffle, BitRound, Base64 return at most as
#: many bytes as they are given, and look no further.
_GUARDS: dict[str, Callable[[Any, Any, Expected], Any]] = {
    "blosc": _decode_blosc,
    "lz4": _decode_lz4,
    "zstd": _decode_zstd,
    "bz2": _decode_bz2,
    "lzma": _decode_lzma,
    "zlib": _decode_zlib,
    "gzip": _decode_gzip,
    "delta": _decode_to_items("astype", "dtype"),
    "fixedscaleoffset": _decode_to_items("astype", "dtype"),
    "quantize": _decode_to_items("astype", "dtype"),
    "categorize": _decode_to_items("astype", "dtype"),
    "astype": _decode_to_items("encode_dtype", "decode_dtype"),
    "packbits": _decode_packbits,
    "vlen-utf8": _decode_vlen(_utf8_bytes),
    "vlen-bytes": _decode_vlen(lambda items: sum(map(len, items))),
    "vlen-array": _decode_vlen(lambda items: sum(item.nbytes for item in items)),
    "json2": _decode_json,
    "msgpack2": _decode_msgpack,
    "pcodec": _decode_pcodec,
    "zfpy": _decode_zfp,
}

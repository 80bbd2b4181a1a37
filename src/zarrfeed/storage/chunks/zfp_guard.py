"""Decoding with numcodecs' ZFPY, which reads on where the stored bytes end.

zfp's decoder has no notion of the end of its input, and takes shape, type and mode from the header. So the header has
to say what the metadata say; then no block has more bits than `_padded_bytes` adds up. The input is padded to that
size, twice and with different bytes: where the result depends on the padding, the stored bytes were too few.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import DecodeError

_DTYPES = ("int32", "int64", "float32", "float64")
#: Bits of the header (zfp's `zfp_write_header`): magic, field, and mode in its short and its long form.
_MAGIC_BITS, _FIELD_BITS, _SHORT_MODE_BITS, _LONG_MODE_BITS = 32, 52, 12, 64
_HEADER_BYTES = -(-(_MAGIC_BITS + _FIELD_BITS + _LONG_MODE_BITS) // 8)
#: Bits of a block, at most, in any mode (zfp's ZFP_MAX_BITS).
_MOST_BLOCK_BITS = 16658
_LONG_MODE = (1 << _SHORT_MODE_BITS) - 1


def decode(codec: Any, data: npt.NDArray[np.uint8], count: int, dtype: np.dtype[Any]) -> Any:
    """Decode `count` items of `dtype` with numcodecs' ZFPY.

    Raises
    ------
    DecodeError
        If the header says otherwise than the metadata, or the stream is truncated.
    """
    shape = _check_header(codec, data, count, dtype)
    size = max(_padded_bytes(codec, shape, dtype), len(data))
    results = []
    for padding in (0x00, 0xFF):
        padded = np.full(size, padding, np.uint8)
        padded[: len(data)] = data
        results.append(codec.decode(padded.tobytes()))
    if results[0].tobytes() != results[1].tobytes():
        raise DecodeError(f"is truncated: the ZFP stream needs more than the {len(data)} bytes that the chunk holds")
    return results[0]


def _check_header(codec: Any, data: npt.NDArray[np.uint8], count: int, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the shape that the header declares, innermost axis first."""
    kind, shape, mode = _parse_header(data[:_HEADER_BYTES].tobytes())
    if kind != dtype.name:
        raise DecodeError(f"ZFP header declares items of {kind}, the metadata implies {dtype.name}")
    if math.prod(shape) != count:
        raise DecodeError(f"ZFP header declares {math.prod(shape)} items, the metadata implies {count}")
    small = codec.encode(np.zeros((1,) * len(shape), dtype.newbyteorder("=")))
    if mode != _parse_header(bytes(small)[:_HEADER_BYTES])[2]:
        raise DecodeError(f"ZFP header declares other parameters than the metadata, which says {codec!r}")
    return shape


def _parse_header(header: bytes) -> tuple[str, tuple[int, ...], int]:
    """Return dtype, shape and mode."""
    if len(header) < 12 or header[:3] != b"zfp":
        raise DecodeError("is no ZFP stream: it does not begin with 'zfp'")
    bits = int.from_bytes(header, "little") >> _MAGIC_BITS
    field = bits & (1 << _FIELD_BITS) - 1
    num_axes = (field >> 2 & 3) + 1
    axis_bits = 48 // num_axes
    shape = tuple((field >> 4 + axis * axis_bits & (1 << axis_bits) - 1) + 1 for axis in range(num_axes))
    mode = bits >> _FIELD_BITS & _LONG_MODE
    if mode == _LONG_MODE:
        mode = bits >> _FIELD_BITS & (1 << _LONG_MODE_BITS) - 1
    return _DTYPES[field & 3], shape, mode


def _padded_bytes(codec: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the number of bytes of the longest stream of such an array, header included."""
    values: int = 4 ** len(shape)
    rate = max(codec.rate, 0) if isinstance(codec.rate, int | float) else 0
    # beside its bits, a value may cost one of the group test; a block has an exponent and its precision
    block_bits = min(_MOST_BLOCK_BITS, max(values * (8 * dtype.itemsize + 2), math.ceil(values * rate)) + 128)
    num_blocks = math.prod(-(-n // 4) for n in shape)
    return _HEADER_BYTES + 64 + num_blocks * block_bits // 8

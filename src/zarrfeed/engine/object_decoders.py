"""Decode the bytes of an object, by the user's function or by a decoder that has a name.

Invariants: a decoder is called in threads, several at once, with a read-only view of the bytes. NumPy parses the header
of a .npy file with Python's own parser, which raises SystemError at random where several threads use it at once (seen
in CPython 3.11.7). So "npy" parses one header at a time.
"""

from __future__ import annotations

import inspect
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from zarr.buffer import cpu

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.spec.fields.images import Images
from zarrfeed.storage.access.zarr_internals import sync
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder

DecoderName: TypeAlias = Literal["bytes", "image", "npy", "zarr-chunk"]
DECODER_NAMES: tuple[DecoderName, ...] = get_args(DecoderName)
#: The decoder that a user may give: a function of the bytes (a memoryview), or of the bytes and the key, or a name.
Decode: TypeAlias = Callable[..., Any] | DecoderName | None
#: The function that decodes an object: it is called with the bytes and the key.
Decoder: TypeAlias = Callable[[memoryview, str], Any]


_AS_THEY_ARE = Images(mode=None)

_parsing = threading.Lock()


def _parse_anew() -> None:
    """Forget, in a forked child, that a thread of the parent was parsing."""
    global _parsing
    _parsing = threading.Lock()


os.register_at_fork(after_in_child=_parse_anew)


def make_decoder(decode: Decode, chunks: Callable[[], ChunkDecoder]) -> Decoder | None:
    """Return the function to call with the bytes and the key of each object; None: bytes are delivered as they are.

    Parameters
    ----------
    decode
        The decoder that the user gave.
    chunks
        Returns the decoder of the Zarr array whose chunks the objects are; called for "zarr-chunk" alone.

    Raises
    ------
    ConfigError
        If `decode` cannot be called so, names no decoder, or the decoder's library is not installed.
    """
    if decode is None:
        return None
    if isinstance(decode, str):
        if decode not in DECODER_NAMES:
            names = ", ".join(map(repr, DECODER_NAMES))
            raise ConfigError(f"decode = {decode!r}, must be a function or one of {names}{_similar(decode)}")
        if decode == "image":
            check_pillow("decode = 'image'")
        if decode == "zarr-chunk":
            return _ZarrChunk(chunks())
        return {"bytes": _to_bytes, "image": decode_image, "npy": decode_npy}[decode]
    if not callable(decode):
        raise ConfigError(f"decode = {decode!r}, must be a function or one of {', '.join(map(repr, DECODER_NAMES))}")
    try:
        parameters = inspect.signature(decode).parameters.values()
    except (TypeError, ValueError):  # of some builtins
        return _OfBytes(decode)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(required) == 2:
        return decode
    if len(required) == 1 or (not required and (positional or variadic)):
        return _OfBytes(decode)
    raise ConfigError(
        f"decode: the function requires {len(required)} arguments, must take the bytes, or the bytes and the key"
    )


def decode_image(data: memoryview, _: str = "") -> npt.NDArray[np.uint8]:
    """Decode JPEG, PNG, TIFF and other formats of Pillow: uint8 of shape (channels, height, width).

    Grey images have one channel; palettes and other modes become RGB.
    """
    return np.ascontiguousarray(pixels_of(data, _AS_THEY_ARE))


def decode_npy(data: memoryview, _: str = "") -> npt.NDArray[Any]:
    """Decode a file of `numpy.save`, without Python objects."""
    with _parsing:
        array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of several arrays (.npz), not one (.npy)")
    return array


def _to_bytes(data: memoryview, _: str = "") -> bytes:
    return bytes(data)


@dataclass(frozen=True)
class _OfBytes:
    """Calls a function of the bytes alone."""

    function: Callable[[memoryview], Any]

    def __call__(self, data: memoryview, _: str) -> Any:
        return self.function(data)


@dataclass(frozen=True)
class _ZarrChunk:
    """Decodes the chunks of a Zarr array; those at its ends have the fill value, or anything, beyond it."""

    decoder: ChunkDecoder

    def __call__(self, data: memoryview, _: str) -> npt.NDArray[Any]:
        stored = cpu.Buffer.from_array_like(np.frombuffer(data, np.uint8))
        return self.decoder.shaped(sync(self.decoder.decode(stored)))


def _similar(name: str) -> str:
    return did_you_mean(name, DECODER_NAMES)

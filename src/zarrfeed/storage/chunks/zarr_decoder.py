"""Chunks decoded by zarr-python's own codec pipeline, for codecs that the engine does not have.

Invariant: the bytes that are returned are those of the whole read chunk, padding at the edges of the array included,
in C order and native byte order; whatever does not decode to exactly that is an error and never a batch. No codec is
given bytes that declare sizes which are not so (`storage/chunks/codec_guards.py`).
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.buffer import Buffer
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec

from zarrfeed.base.errors import DecodeError, StoreReadError, UnsupportedError
from zarrfeed.storage.access.zarr_internals import (
    ArrayMetadata,
    ArrayV2Metadata,
    BatchedCodecPipeline,
    ChunkSpec,
    chunk_spec,
    fill_scalar,
    numcodecs_codec,
    regular_chunk_shape,
)
from zarrfeed.storage.chunks.guarded_chain import guard_v2, guard_v3

#: More than any object has; the bound of a long chain of codecs may be more than a number of 64 bits.
_MOST_STORED_BYTES = 2**62


@dataclass(frozen=True)
class ChunkDecoder:
    """Decodes the read chunks of one array. Can be pickled, and used by several tasks at once.

    Attributes
    ----------
    metadata
        The array's metadata, as zarr-python parsed them.
    in_shards
        True if the inner chunks of the array's shards are decoded, and not the stored objects.
    """

    metadata: ArrayMetadata
    in_shards: bool = False

    @cached_property
    def _chain(self) -> tuple[tuple[Codec, ...], int]:
        if isinstance(self.metadata, ArrayV2Metadata):
            v2, most = guard_v2(self.metadata, self._chunk)
            return (v2,), most
        return guard_v3(self.metadata.codecs if self._shards is None else self._shards.codecs, self._chunk)

    @cached_property
    def _pipeline(self) -> BatchedCodecPipeline:
        # Not the pipeline that the user may have configured: those cannot all decode a chunk by itself.
        return BatchedCodecPipeline.from_codecs(self._chain[0])

    @cached_property
    def signature(self) -> str:
        """The identity of the encoding of chunks: the metadata, without the shape and the attributes."""
        document = self.metadata.to_dict()
        described = {name: value for name, value in document.items() if name not in ("shape", "attributes")}
        return json.dumps([self.in_shards, described], sort_keys=True, default=str)

    @property
    def most_stored_bytes(self) -> int:
        """Bytes that a stored chunk has at most: an object with more is none of this array."""
        return min(self._chain[1], _MOST_STORED_BYTES)

    @cached_property
    def _shards(self) -> ShardingCodec | None:
        if not self.in_shards or isinstance(self.metadata, ArrayV2Metadata):
            return None
        (codec,) = self.metadata.codecs
        assert isinstance(codec, ShardingCodec)
        return codec

    @cached_property
    def _chunk(self) -> ChunkSpec:
        if self._shards is not None:
            return chunk_spec(self.metadata, self._shards.chunk_shape)
        return chunk_spec(self.metadata, regular_chunk_shape(self.metadata, "array"))

    def __getstate__(self) -> dict[str, Any]:
        return {"metadata": self.metadata, "in_shards": self.in_shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def check_shards(self, name: str) -> None:
        """Raise UnsupportedError if zarr-python is to decode shards of items that it cannot decode in shards."""
        if isinstance(self._pipeline.array_bytes_codec, ShardingCodec):
            try:
                hash(self._chunk)  # as it does, for its caches
            except TypeError as error:
                dtype = self._chunk.dtype.to_native_dtype()
                raise UnsupportedError(f"{name}: zarr-python cannot decode shards of {dtype} as a whole") from error

    async def decode(self, stored: Buffer) -> npt.NDArray[np.uint8]:
        """Return the bytes of a decoded chunk. Codecs of zarr-python and numcodecs run in threads of the loop.

        Raises
        ------
        DecodeError
            If a codec fails, or the result has another shape or dtype than the metadata implies.
        """
        values = await self._decode(stored)
        dtype = self._chunk.dtype.to_native_dtype().newbyteorder("=")
        if values.shape != self._chunk.shape or values.dtype.newbyteorder("=") != dtype:
            raise self._mismatch(values)
        return np.ascontiguousarray(values, dtype=dtype).reshape(-1).view(np.uint8)

    def shaped(self, decoded: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return a chunk that `decode` returned in the shape and the dtype of a chunk."""
        return decoded.view(self._chunk.dtype.to_native_dtype().newbyteorder("=")).reshape(self._chunk.shape)

    async def decode_items(self, stored: Buffer | None) -> npt.NDArray[Any]:
        """Return the items of a chunk of text or bytes; of a chunk that does not exist, fill values.

        Returns
        -------
        An array of NumPy's strings, or of str or bytes as Python objects.

        Raises
        ------
        DecodeError
            If a codec fails, or the result has another shape than the metadata implies, or other items.
        """
        if stored is None:
            return np.full(self._chunk.shape, fill_scalar(self._chunk), dtype=object)
        values = await self._decode(stored)
        if values.shape != self._chunk.shape or values.dtype.kind not in "TUO":
            raise self._mismatch(values)
        return values

    def _mismatch(self, values: npt.NDArray[Any]) -> DecodeError:
        return DecodeError(
            f"zarr-python decodes it to {values.shape} {values.dtype}, the metadata implies {self._chunk.shape} "
            f"{self._chunk.dtype.to_native_dtype()}"
        )

    async def _decode(self, stored: Buffer) -> npt.NDArray[Any]:
        """Decode a chunk by zarr-python's pipeline.

        Raises
        ------
        DecodeError
            If a codec fails.
        StoreReadError
            If the interpreter is about to exit.
        """
        try:
            (decoded,) = await self._pipeline.decode([(stored, self._chunk)])
        except (MemoryError, DecodeError):
            raise
        except Exception as error:  # of any class: a codec is anybody's code
            # Python shuts its executors down shortly before the main thread has ended: not the chunk's fault.
            if "cannot schedule new futures" in str(error) or not threading.main_thread().is_alive():
                raise StoreReadError(errno.ESHUTDOWN, f"the interpreter is about to exit: {error!r}") from error
            raise DecodeError(f"zarr-python cannot decode it: {error!r}") from error
        if decoded is None:
            raise DecodeError("zarr-python decodes it to nothing")
        return decoded.as_numpy_array()


def make_decoder(array: zarr.Array[Any], name: str, *, in_shards: bool = False) -> ChunkDecoder:
    """Return the decoder of an array, or of the inner chunks of its shards.

    Raises
    ------
    UnsupportedError
        If a codec's library is not installed, a codec would run code that is in the store, or zarr-python cannot decode
        such shards either.
    """
    metadata = array.metadata
    codecs: tuple[Any, ...]
    if isinstance(metadata, ArrayV2Metadata):
        codecs = (*(metadata.filters or ()), *((metadata.compressor,) if metadata.compressor else ()))
    else:
        codecs = metadata.codecs
    _check_codecs(codecs, name)
    decoder = ChunkDecoder(metadata, in_shards)
    try:
        decoder.check_shards(name)
    except UnsupportedError:
        raise
    except Exception as error:  # of any class, as codecs say what becomes of sizes
        raise UnsupportedError(f"{name}: zarr-python cannot use its codecs: {error!r}") from error
    return decoder


def _check_codecs(codecs: Iterable[Any], name: str) -> None:
    for codec in codecs:
        try:
            inner = numcodecs_codec(codec)
        except Exception as error:
            raise UnsupportedError(f"{name}: codec {codec!r} cannot be loaded: {error!r}") from error
        if getattr(inner, "codec_id", None) == "pickle":
            raise UnsupportedError(f"{name}: codec 'pickle' is not supported, it runs code that is in the store")
        _check_codecs(getattr(codec, "codecs", ()), name)  # those inside of a shard

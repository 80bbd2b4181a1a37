"""Encoding of chunks and shards for a new store, equal to that of zarr-python's codecs, in threads without the GIL.

numcodecs compresses without the GIL, and in one thread per call, as long as the call is not made on the main thread or
`blosc.use_threads` is False. zarr-python writes the metadata, with `compressors` of the same `Encoding`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc
from numcodecs.zstd import Zstd
from zarr.codecs import BloscCodec, ZstdCodec

from zarrfeed.base.errors import ConfigError

Shuffle: TypeAlias = Literal["noshuffle", "shuffle", "bitshuffle"]
#: The shuffles of Blosc, in the order of its numbers.
_SHUFFLES: tuple[Shuffle, ...] = ("noshuffle", "shuffle", "bitshuffle")
_USUAL_COMPRESSION = {"lz4": 5, "lz4hc": 9, "zstd": 3, "blosclz": 5, "zlib": 5}
_NAMES = "none, zstd, zstd-5, lz4, lz4-9-bitshuffle"
#: Blosc's own limit for a chunk.
MOST_CHUNK_BYTES = 2**31 - 1 - 16


@dataclass(frozen=True)
class Encoding:
    """The compression of a chunk.

    Attributes
    ----------
    compressor
        "none"; a compressor of Blosc's: "lz4", "lz4hc", "zstd", "blosclz", "zlib"; or "plain-zstd", without Blosc.
    level
        Compression level of the compressor.
    shuffle
        The order in which Blosc puts the bytes before it compresses them.
    """

    compressor: str = "none"
    level: int = 0
    shuffle: Shuffle = "noshuffle"

    @classmethod
    def parse(cls, text: str, item_bytes: int = 4) -> Encoding:
        """Return the encoding that a text names: "none", or compressor[-level][-shuffle], such as "zstd-3-bitshuffle".

        Without a shuffle, items of several bytes are shuffled, and those of one byte are not.

        Raises
        ------
        ConfigError
            For any other text.
        """
        found = re.fullmatch(r"(plain-zstd|[a-z]+[0-9]?(?:hc)?)(?:-([0-9]+))?(?:-([a-z]+))?", text)
        name = found[1] if found else ""
        if found and name == "none" and not found[2] and not found[3]:
            return cls()
        usual = 3 if name == "plain-zstd" else _USUAL_COMPRESSION.get(name)
        if found is None or usual is None or (name == "plain-zstd" and found[3]):
            raise ConfigError(f"codec = {text!r}, must be compressor-level-shuffle, such as {_NAMES}")
        level, most = int(found[2] or usual), 22 if name == "plain-zstd" else 9
        if not 1 <= level <= most:
            raise ConfigError(f"codec = {text!r}: its level must be in [1, {most}]")
        shuffle = found[3] or ("shuffle" if item_bytes > 1 and name != "plain-zstd" else "noshuffle")
        if shuffle not in _SHUFFLES:
            raise ConfigError(f"codec = {text!r}: the shuffle must be one of {', '.join(_SHUFFLES)}")
        return cls(name, level, _SHUFFLES[_SHUFFLES.index(shuffle)])

    def __str__(self) -> str:
        if self.compressor in ("none", "plain-zstd"):
            return self.compressor if self.compressor == "none" else f"plain-zstd-{self.level}"
        return f"{self.compressor}-{self.level}-{self.shuffle}"

    def zarr_compressors(self, item_bytes: int) -> tuple[Any, ...]:
        """Convert it to the `compressors` of `zarr.create_array`."""
        if self.compressor == "none":
            return ()
        if self.compressor == "plain-zstd":
            return (ZstdCodec(level=self.level),)
        names: Any = {"cname": self.compressor, "shuffle": self.shuffle}  # text: newer versions have no enumerations
        return (BloscCodec(typesize=item_bytes, clevel=self.level, **names),)

    def encode(self, chunk: npt.NDArray[Any] | bytes) -> bytes | memoryview:
        """Return the stored bytes of a C-contiguous chunk, or of bytes of a chunk.

        Call it on other threads than the main one: there Blosc would take threads of its own, under the GIL's lock.
        """
        item_bytes = 1 if isinstance(chunk, bytes) else chunk.dtype.itemsize
        content = chunk if isinstance(chunk, bytes) else chunk.reshape(-1).view(np.uint8).data
        if self.compressor == "none":
            return content
        if self.compressor == "plain-zstd":
            stored: bytes = Zstd(level=self.level).encode(content)
            return stored
        number = _SHUFFLES.index(self.shuffle)
        blosc_bytes: bytes = blosc.compress(content, self.compressor.encode(), self.level, number, 0, item_bytes)
        return blosc_bytes


def join_shard(chunks: Sequence[bytes | memoryview | None]) -> list[bytes | memoryview]:
    """Return the parts of a shard: encoded inner chunks (None: missing), with the index behind them.

    The index is that of the codec `sharding_indexed`: little-endian offset and length of each chunk, and a CRC32C.
    """
    index = np.full((len(chunks), 2), 2**64 - 1, "<u8")
    parts: list[bytes | memoryview] = []
    begin = 0
    for number, chunk in enumerate(chunks):
        if chunk is None:
            continue
        index[number] = begin, len(chunk)
        begin += len(chunk)
        parts.append(chunk)
    stored = index.tobytes()
    return [*parts, stored, google_crc32c.value(stored).to_bytes(4, "little")]

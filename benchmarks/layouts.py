"""The layouts that are measured: what is stored, and how. `stores.py` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

ZarrFormat = Literal[2, 3]

#: `small` has 1/64 of the samples and a few more, so that the last chunk and the last batch are short.
SCALES = ("full", "small")
_SMALL_DIVISOR = 64
_SMALL_EXTRA_SAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One array of samples, optionally with targets, as it is stored.

    Attributes
    ----------
    name, description
        For the command line and the table.
    shape, chunks
        Of the samples, one entry per axis; axis 0 is the sample axis and the only one that is chunked.
    dtype
        NumPy name, a float type.
    zarr_format
        Of samples and targets.
    codec
        The only compressor, in the form that the metadata of `zarr_format` has.
    batch_size
        Samples of a batch, for all loaders.
    chunks_per_shard
        Chunks along axis 0 that are stored in one shard; 0: there are no shards. For samples alone.
    targets
        Whether an int64 array of shape (samples,), chunked and compressed alike, is delivered with the samples.
    """

    name: str
    description: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: Mapping[str, Any]
    batch_size: int = 64
    dtype: str = "float32"
    zarr_format: ZarrFormat = 3
    targets: bool = False
    chunks_per_shard: int = 0

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.shape[0]

    @property
    def rows_per_chunk(self) -> int:
        """Samples of a chunk."""
        return self.chunks[0]

    @property
    def num_chunks(self) -> int:
        """Chunks of samples, the short one at the end included."""
        return -(-self.num_samples // self.rows_per_chunk)

    @property
    def sample_bytes(self) -> int:
        """Decoded bytes of one sample with its target."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize + (8 if self.targets else 0)

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of an epoch."""
        return self.num_samples * self.sample_bytes

    def scaled(self, scale: str) -> Layout:
        """Return this layout with the number of samples of a scale, one of `SCALES`."""
        if scale == "full":
            return self
        return replace(self, shape=(self.num_samples // _SMALL_DIVISOR + _SMALL_EXTRA_SAMPLES, *self.shape[1:]))


def _blosc(cname: str, shuffle: str) -> dict[str, Any]:
    config = {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": 0}
    return {"name": "blosc", "configuration": config}


_MAIN = Layout(
    name="main",
    description="64 KiB samples, 16 a chunk of 1 MiB, Blosc lz4 + shuffle",
    shape=(8192, 4, 64, 64),
    chunks=(16, 4, 64, 64),
    codec=_blosc("lz4", "shuffle"),
)

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        _MAIN,
        replace(
            _MAIN,
            name="blosc-zstd",
            description="as main, Blosc zstd + bitshuffle",
            codec=_blosc("zstd", "bitshuffle"),
        ),
        replace(
            _MAIN,
            name="zstd-v3",
            description="as main, plain zstd: the default of Zarr v3",
            codec={"name": "zstd", "configuration": {"level": 0, "checksum": False}},
        ),
        replace(
            _MAIN,
            name="sharded",
            description="as main, 32 of its chunks a shard of 32 MiB",
            chunks_per_shard=32,
        ),
        Layout(
            name="rows-512",
            description="rows of 512 bytes with int64 targets, 4096 a chunk of 2 MiB, Blosc lz4 + shuffle",
            shape=(1 << 20, 128),
            chunks=(4096, 128),
            codec=_blosc("lz4", "shuffle"),
            batch_size=1024,
            targets=True,
        ),
        Layout(
            name="one-sample",
            description="1 MiB samples, one a chunk, Blosc lz4 + shuffle",
            shape=(512, 4, 256, 256),
            chunks=(1, 4, 256, 256),
            codec=_blosc("lz4", "shuffle"),
            batch_size=16,
        ),
    )
}

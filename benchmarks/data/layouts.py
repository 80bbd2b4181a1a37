"""The layouts that are measured: what is stored, and how. `stores.py` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

ZarrFormat = Literal[2, 3]

#: What a batch has in place of the stored values: integers unpacked by their CF attributes to float32, or floats
#: normalised to bfloat16; see `metadata/array/conversion.py`.
Conversion = Literal["unpack", "normalize"]

#: `small` has 1/64 of the samples and a few more, so that the last chunk and the last batch are short.
SCALES = ("full", "small")
#: The scale of `benchmarks.run --quick` and of `benchmarks.history`: 128 MiB a layout, which are soon written.
QUICK = "quick"
_DIVISORS = {"full": 1, QUICK: 4, "small": 64}
_EXTRA_SAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One array of samples, optionally with targets, as it is stored.

    Attributes
    ----------
    name, description
        For the command line and the table.
    shape, chunks
        Of the samples, one entry per axis; axis 0 is the sample axis.
    dtype
        NumPy name as stored: float32, or int16 for packed values.
    conversion
        What a loader has to do to the samples; None: deliver them as they are stored.
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
    shares
        The name of the layout whose store this one reads, which must be stored alike; "": it has its own.
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
    conversion: Conversion | None = None
    shares: str = ""

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
        """Chunks along the sample axis, the short one at the end included."""
        return -(-self.num_samples // self.rows_per_chunk)

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of all chunks over the samples of one chunk."""
        return self.rows_per_chunk * self.sample_bytes

    @property
    def sample_bytes(self) -> int:
        """Decoded bytes of one sample with its target, in the dtype that they are stored in."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize + (8 if self.targets else 0)

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of an epoch."""
        return self.num_samples * self.sample_bytes

    def stored_as(self) -> str:
        """Return how samples are stored, for a page that names no other layout."""
        how = self.codec.get("configuration", {})
        filtered = "" if how.get("shuffle", "noshuffle") == "noshuffle" else f" + {how['shuffle']}"
        codec = f"{self.codec['name']} {how['cname']}{filtered}" if "cname" in how else self.codec["name"]
        shape = " x ".join(map(str, self.shape[1:]))
        shards = f", {self.chunks_per_shard} chunks a shard" if self.chunks_per_shard else ""
        targets = " with int64 targets" if self.targets else ""
        return f"{self.dtype} samples of {shape}{targets}, {self.rows_per_chunk} a chunk{shards}, {codec}"

    def scaled(self, scale: str) -> Layout:
        """Return this layout with the number of samples of a scale, one of `SCALES` or `QUICK`."""
        if scale == "full":
            return self
        return replace(self, shape=(self.num_samples // _DIVISORS[scale] + _EXTRA_SAMPLES, *self.shape[1:]))


def blosc(cname: str, shuffle: str, typesize: int = 4) -> dict[str, Any]:
    config = {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": typesize, "blocksize": 0}
    return {"name": "blosc", "configuration": config}


_A = Layout(
    name="A",
    description="64 KiB samples, 16 a chunk of 1 MiB, Blosc lz4 + shuffle",
    shape=(8192, 4, 64, 64),
    chunks=(16, 4, 64, 64),
    codec=blosc("lz4", "shuffle"),
)
_D = Layout(
    name="D",
    description="rows of 512 bytes with int64 targets, 4096 a chunk of 2 MiB",
    shape=(1 << 20, 128),
    chunks=(4096, 128),
    codec=blosc("lz4", "shuffle"),
    targets=True,
)

#: Batches of 64 samples, Blosc lz4 + shuffle and no shards, unless said.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        _A,
        replace(_A, name="B-blosc", description="as A, Blosc zstd + bit-shuffle", codec=blosc("zstd", "bitshuffle")),
        replace(
            _A,
            name="B-zstd",
            description="as A, plain zstd: the default of Zarr v3",
            codec={"name": "zstd", "configuration": {"level": 0, "checksum": False}},
        ),
        replace(
            _A,
            name="B-gzip",
            description="as A, gzip",
            codec={"name": "gzip", "configuration": {"level": 5}},
        ),
        replace(
            _A,
            name="C",
            description="1 MiB samples, one a chunk",
            shape=(512, 4, 256, 256),
            chunks=(1, 4, 256, 256),
        ),
        _D,
        replace(_D, name="D-1024", description="as D, batches of 1024", batch_size=1024, shares="D"),
        replace(_A, name="E", description="as A, 32 of its chunks a shard of 32 MiB", chunks_per_shard=32),
        replace(
            _A,
            name="F",
            description="256 KiB samples, 256 a chunk of 64 MiB",
            shape=(2048, 4, 128, 128),
            chunks=(256, 4, 128, 128),
        ),
        replace(
            _A,
            name="G",
            description="16 KiB samples, one a chunk",
            shape=(32768, 64, 64),
            chunks=(1, 64, 64),
        ),
        replace(
            _A,
            name="H",
            description="as A, but chunked in space too: a sample is made of 4 chunks of 1 MiB",
            chunks=(64, 4, 32, 32),
        ),
        replace(
            _A,
            name="I-int16",
            description="64 KiB float32 samples of int16 packed as CF has it, 32 a chunk of 1 MiB",
            shape=(16384, 4, 64, 64),
            chunks=(32, 4, 64, 64),
            dtype="int16",
            codec=blosc("lz4", "shuffle", typesize=2),
            conversion="unpack",
        ),
        replace(
            _A,
            name="I-bfloat16",
            description="as A, delivered as bfloat16, normalised",
            conversion="normalize",
            shares="A",
        ),
    )
}

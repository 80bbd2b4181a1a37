"""A larger store to measure rates on: generated, with the checksum of every sample."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.tools.demo.stores import build_store

SAMPLE_SHAPE = (4, 64, 64)
CHUNK_SAMPLES = 16
_SAMPLES_PER_MIB = (1 << 20) // (4 * 4 * 64 * 64)


@dataclass(frozen=True)
class GeneratedStore:
    """A Zarr group with the arrays `samples` (n, 4, 64, 64) float32 and `crc32` (n,) uint32.

    Attributes
    ----------
    path
        Path of the group.
    num_samples
        Number of samples, n.
    decoded_bytes, stored_bytes
        Sizes of `samples`.
    reused
        True if the group was there already.
    """

    path: Path
    num_samples: int
    decoded_bytes: int
    stored_bytes: int
    reused: bool

    @property
    def samples(self) -> Path:
        """The array that is streamed."""
        return self.path / "samples"

    def checksums(self) -> npt.NDArray[np.uint32]:
        """Read the CRC-32 of each sample, shape (n,), noted when the samples were made."""
        return cast("npt.NDArray[np.uint32]", zarr.open_array(store=self.path / "crc32", mode="r")[...])


def generate_store(directory: Path, size_mib: int, on_chunk: Callable[[int, int], None]) -> GeneratedStore:
    """Write the store `stream.zarr`.

    A sample is four smooth fields around 280 with noise of standard deviation 1, mantissas rounded to 12 bits;
    Blosc (lz4, byte shuffle) compresses this about 2.3 : 1. A chunk has 16 samples, 1 MiB.

    Parameters
    ----------
    directory
        The folder in which the store is written.
    size_mib
        Decoded size in MiB.
    on_chunk
        Called after each chunk with the chunks done and their total.

    Raises
    ------
    ConfigError
        If the disk is too small, or another store is there.
    """
    n = size_mib * _SAMPLES_PER_MIB
    path = directory / "stream.zarr"
    if not path.exists():
        _check_space(directory, size_mib)

    def write(group: zarr.Group) -> None:
        array = group.create_array(
            "samples",
            shape=(n, *SAMPLE_SHAPE),
            dtype=np.float32,
            chunks=(CHUNK_SAMPLES, *SAMPLE_SHAPE),
            compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
        )
        noted = np.empty(n, dtype=np.uint32)
        for begin in range(0, n, CHUNK_SAMPLES):
            rows = _generate(np.random.default_rng([begin, n]), CHUNK_SAMPLES)
            array[begin : begin + CHUNK_SAMPLES] = rows
            noted[begin : begin + CHUNK_SAMPLES] = checksums(rows)
            on_chunk(begin // CHUNK_SAMPLES + 1, n // CHUNK_SAMPLES)
        group.create_array("crc32", data=noted)

    reused = build_store(path, {"generated": "smooth fields and noise, version 1", "num_samples": n}, write)
    stored_bytes = sum(file.stat().st_size for file in (path / "samples").rglob("*") if file.is_file())
    return GeneratedStore(path, n, size_mib << 20, stored_bytes, reused)


def checksums(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each row."""
    return np.array([zlib.crc32(row) for row in np.ascontiguousarray(rows)], dtype=np.uint32)


def _check_space(directory: Path, size_mib: int) -> None:
    needed_bytes, free_bytes = (size_mib << 20) // 2, shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"{directory}: {format_bytes(free_bytes)} are free, the store of --stream-mb {size_mib} takes about "
            f"{format_bytes(needed_bytes)}"
        )


def _generate(rng: np.random.Generator, rows: int) -> npt.NDArray[np.float32]:
    """Return samples: per field a sum of three products of waves along y and x, and noise."""
    fields, size = SAMPLE_SHAPE[0], SAMPLE_SHAPE[-1]
    angle = np.linspace(0, 2 * np.pi, size, dtype=np.float32)
    # (y or x, row, field, term, position)
    phase = 2 * np.pi * rng.random((2, rows, fields, 3, 1), dtype=np.float32)
    waves = np.sin(rng.integers(1, 4, phase.shape).astype(np.float32) * angle + phase)
    # (row, field, y, x)
    values = 280 + 10 * np.matmul(waves[0].swapaxes(-1, -2), waves[1])
    values += rng.standard_normal(values.shape, dtype=np.float32)
    bits = values.view(np.uint32)
    bits += np.uint32(1 << 10)  # rounds to nearest: the next line drops 11 of the 23 bits of the mantissa
    bits &= np.uint32(0xFFFFF800)
    return cast("npt.NDArray[np.float32]", values)

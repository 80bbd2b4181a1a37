"""Write the store of a layout once: fields that look like weather, in which every sample differs from every other."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from benchmarks.layouts import Layout

#: All stores of a data directory together, in bytes.
MAX_STORED_BYTES = 2 * 10**9

#: Raise it where the same layout begins to mean other data.
_GENERATOR_VERSION = 1

# A temperature in kelvin: 12 of 23 mantissa bits then compress about 2.3 : 1 under Blosc lz4 + shuffle.
_MEAN, _AMPLITUDE, _NOISE = 280.0, 8.0, 0.7
_MANTISSA_BITS = 12
_MODES = 4


@dataclass(frozen=True)
class Store:
    """A written layout."""

    layout: Layout
    path: Path
    stored_bytes: int

    @property
    def samples_path(self) -> Path:
        """The array of samples."""
        return self.path / "samples"

    @property
    def targets_path(self) -> Path | None:
        """The array of targets, if the layout has one."""
        return self.path / "targets" if self.layout.targets else None

    @property
    def compression_ratio(self) -> float:
        """Decoded over stored bytes."""
        return self.layout.decoded_bytes / self.stored_bytes


def prepare_store(layout: Layout, directory: Path, *, scale: str) -> Store:
    """Return the store of a layout, written now unless `directory` already has it with the same fingerprint.

    It is written under another name first: a store that was begun and not finished is never taken for one.

    Raises
    ------
    OSError
        If the stores in `directory` would exceed `MAX_STORED_BYTES`.
    """
    path = directory / f"{layout.name}-{scale}.zarr"
    fingerprint = _fingerprint(layout)
    if not _has_fingerprint(path, fingerprint):
        begun = directory / f".{path.name}.{os.getpid()}"
        shutil.rmtree(begun, ignore_errors=True)
        try:
            _write(layout, begun, fingerprint)
            shutil.rmtree(path, ignore_errors=True)
            stored_bytes = tree_bytes(directory)
            if stored_bytes > MAX_STORED_BYTES:
                raise OSError(
                    f"{directory}: {layout.name} would bring it to {stored_bytes} bytes, at most "
                    f"{MAX_STORED_BYTES} are allowed; remove stores that you do not need"
                )
            begun.rename(path)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    return Store(layout, path, tree_bytes(path))


def tree_bytes(path: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _fingerprint(layout: Layout) -> str:
    data = (_GENERATOR_VERSION, _MEAN, _AMPLITUDE, _NOISE, _MANTISSA_BITS, _MODES)
    stored_as = (layout.shape, layout.chunks, layout.dtype, layout.zarr_format, layout.codec, layout.targets)
    shards = [layout.chunks_per_shard] if layout.chunks_per_shard else []  # stores without are what they were
    return hashlib.sha256(repr((data, (*stored_as, *shards))).encode()).hexdigest()


def _has_fingerprint(path: Path, fingerprint: str) -> bool:
    try:
        return zarr.open_group(path, mode="r").attrs.get("fingerprint") == fingerprint
    except FileNotFoundError:
        return False


def _write(layout: Layout, path: Path, fingerprint: str) -> None:
    group = zarr.create_group(path, zarr_format=layout.zarr_format, attributes={"fingerprint": fingerprint})
    storage: dict[str, Any] = {"compressors": layout.codec, "fill_value": 0}
    at_once = max(1, layout.chunks_per_shard)
    shards = (layout.rows_per_chunk * at_once, *layout.chunks[1:]) if layout.chunks_per_shard else None
    samples = group.create_array(
        "samples", shape=layout.shape, chunks=layout.chunks, shards=shards, dtype=layout.dtype, **storage
    )
    for first in range(0, layout.num_chunks, at_once):
        begins = [c * layout.rows_per_chunk for c in range(first, min(first + at_once, layout.num_chunks))]
        ends = [min(begin + layout.rows_per_chunk, layout.num_samples) for begin in begins]
        pieces = [_chunk_samples(layout, first + i, end - begins[i]) for i, end in enumerate(ends)]
        samples[begins[0] : ends[-1]] = np.concatenate(pieces)
    if layout.targets:
        targets = group.create_array(
            "targets", shape=layout.shape[:1], chunks=layout.chunks[:1], dtype="int64", **storage
        )
        targets[:] = np.arange(layout.num_samples, dtype=np.int64)


def _chunk_samples(layout: Layout, chunk: int, rows: int) -> npt.NDArray[Any]:
    """Return smooth fields plus noise, shape (rows, *sample_shape); the first item is the sample's number."""
    rng = np.random.default_rng((_GENERATOR_VERSION, chunk))
    *others, height, width = (1, 1, *layout.shape[1:])
    fields = (rows, int(np.prod(others)))
    weights = rng.standard_normal((*fields, _MODES, _MODES), dtype=np.float32)
    # (rows, fields, modes, modes) -> (rows, fields, height, width)
    out = _cosines(height).T @ weights @ _cosines(width)
    out *= _AMPLITUDE
    out += _MEAN
    out += _NOISE * rng.standard_normal(out.shape, dtype=np.float32)
    bits = out.view(np.uint32)
    dropped_bits = 23 - _MANTISSA_BITS
    bits += np.uint32(1 << (dropped_bits - 1))
    bits &= np.uint32(0xFFFFFFFF << dropped_bits & 0xFFFFFFFF)
    out = out.reshape(rows, -1)
    out[:, 0] = np.arange(rows) + chunk * layout.rows_per_chunk
    return out.reshape(rows, *layout.shape[1:]).astype(layout.dtype, copy=False)


def _cosines(length: int) -> npt.NDArray[np.float32]:
    """Return the lowest frequencies of a cosine transform, shape (modes, length)."""
    mode = np.arange(_MODES)[:, None]
    return np.cos(np.pi * mode * (np.arange(length) + 0.5) / length).astype(np.float32)


def warm_page_cache(store: Store) -> None:
    """Read all files of a store once, so that a measurement is of decoding and not of a disk."""
    for file in store.path.rglob("*"):
        if file.is_file():
            file.read_bytes()

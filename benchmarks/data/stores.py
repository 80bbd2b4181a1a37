"""Write the store of a layout once: fields that look like weather, in which every sample differs from every other."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from benchmarks.data.conversion import PACKED
from benchmarks.data.layouts import Layout
from zarrfeed.base.system import usable_cores

#: All stores of a data directory together, in bytes: where one more would not fit, those unused for longest make room.
MAX_STORED_BYTES = 14 * 10**8
#: Written at once, in decoded bytes, or a shard if that is more.
_WRITTEN_AT_ONCE = 16 << 20

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
    def array_paths(self) -> list[Path]:
        """The array of samples, then that of targets, if the layout has one."""
        return [path for path in (self.samples_path, self.targets_path) if path is not None]

    @property
    def compression_ratio(self) -> float:
        """Decoded over stored bytes."""
        return self.layout.decoded_bytes / self.stored_bytes


def store_path(layout: Layout, directory: Path, *, scale: str) -> Path:
    """Return where the store of a layout is, if it is written."""
    return directory / f"{layout.shares or layout.name}-{scale}.zarr"


def prepare_store(
    layout: Layout, directory: Path, *, scale: str, max_bytes: int = MAX_STORED_BYTES, keep: Collection[Path] = ()
) -> Store:
    """Return the store of a layout, written now unless `directory` already has it with the same fingerprint.

    It is written under another name first: a store that was begun and not finished is never taken for one. Where the
    stores of `directory` would then take more than `max_bytes`, the least recently used ones are removed, but for
    those in `keep`.
    """
    path = store_path(layout, directory, scale=scale)
    fingerprint = _fingerprint(layout)
    if not _has_fingerprint(path, fingerprint):
        begun = directory / f".{path.name}.{os.getpid()}"
        shutil.rmtree(begun, ignore_errors=True)
        try:
            _write(layout, begun, fingerprint)
            shutil.rmtree(path, ignore_errors=True)
            _make_room(directory, max_bytes - tree_bytes(begun), {begun, *keep})
            begun.rename(path)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    else:
        os.utime(path)
    return Store(layout, path, tree_bytes(path))


def _make_room(directory: Path, max_bytes: int, keep: Collection[Path]) -> None:
    """Remove stores, the least recently used ones first, until the rest takes at most `max_bytes`."""
    stores = sorted((p for p in directory.glob("*.zarr") if p not in keep), key=lambda p: p.stat().st_mtime)
    sizes = {path: tree_bytes(path) for path in stores}
    for path in stores:
        if sum(sizes.values()) <= max_bytes:
            return
        shutil.rmtree(path)
        del sizes[path]


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
    at_once = layout.chunks_per_shard or max(1, _WRITTEN_AT_ONCE // layout.chunk_bytes)
    shards = (layout.rows_per_chunk * at_once, *layout.chunks[1:]) if layout.chunks_per_shard else None
    samples = group.create_array(
        "samples",
        shape=layout.shape,
        chunks=layout.chunks,
        shards=shards,
        dtype=layout.dtype,
        attributes={**PACKED} if layout.conversion == "unpack" else None,
        **storage,
    )

    def write_chunks(first: int) -> None:
        begins = [c * layout.rows_per_chunk for c in range(first, min(first + at_once, layout.num_chunks))]
        ends = [min(begin + layout.rows_per_chunk, layout.num_samples) for begin in begins]
        pieces = [chunk_samples(layout, first + i, end - begins[i]) for i, end in enumerate(ends)]
        samples[begins[0] : ends[-1]] = np.concatenate(pieces)

    # whole chunks and shards: no two threads write to one file
    with ThreadPoolExecutor(usable_cores()) as threads:
        for _ in threads.map(write_chunks, range(0, layout.num_chunks, at_once)):
            pass
    if layout.targets:
        targets = group.create_array(
            "targets", shape=layout.shape[:1], chunks=layout.chunks[:1], dtype="int64", **storage
        )
        targets[:] = np.arange(layout.num_samples, dtype=np.int64)


def chunk_samples(layout: Layout, chunk: int, rows: int) -> npt.NDArray[Any]:
    """Return smooth fields plus noise, shape (rows, *sample_shape); the first item is the sample's number.

    int16 ones are packed by `PACKED`, with the same resolution as the rounded mantissas of floats have.
    """
    rng = np.random.default_rng((_GENERATOR_VERSION, chunk))
    *others, height, width = (1, 1, *layout.shape[1:])
    fields = (rows, int(np.prod(others)))
    weights = rng.standard_normal((*fields, _MODES, _MODES), dtype=np.float32)
    # (rows, fields, modes, modes) -> (rows, fields, height, width)
    out = _cosines(height).T @ weights @ _cosines(width)
    out *= _AMPLITUDE
    out += _MEAN
    out += _NOISE * rng.standard_normal(out.shape, dtype=np.float32)
    if layout.dtype == "int16":
        packed = np.rint((out - PACKED["add_offset"]) / PACKED["scale_factor"]).astype(np.int16).reshape(rows, -1)
        packed[:, 0] = (np.arange(rows) + chunk * layout.rows_per_chunk) % 32768
        return packed.reshape(rows, *layout.shape[1:])
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


def read_store(store: Store) -> tuple[npt.NDArray[Any], ...]:
    """Return all samples, and the targets if there are any, as zarr-python reads them; do not write to them.

    The last store that was read stays in memory.
    """
    return _read_arrays(tuple(store.array_paths), _fingerprint(store.layout))


@lru_cache(maxsize=1)
def _read_arrays(paths: tuple[Path, ...], _fingerprint: str) -> tuple[npt.NDArray[Any], ...]:
    arrays: list[Any] = [zarr.open_array(path, mode="r") for path in paths]
    return tuple(np.asarray(array[:]) for array in arrays)


def warm_page_cache(store: Store | Path) -> None:
    """Read all files of a store once, so that a measurement is of decoding and not of a disk."""
    for file in (store if isinstance(store, Path) else store.path).rglob("*"):
        if file.is_file():
            file.read_bytes()

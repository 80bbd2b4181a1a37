"""HDF5 files for tests: random datasets, whose samples say which they are."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.support.oracle import DTYPES, AnyArray, numbered

_CHUNKED: tuple[dict[str, Any], ...] = (
    {},
    {"shuffle": True},
    {"compression": "gzip", "compression_opts": 1},
    {"compression": "gzip", "shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
)


def write_random(path: Path, seed: int) -> dict[str, AnyArray]:
    """Write a file with datasets of equal length, each stored in another way, and return their values by name.

    Dtypes, byte orders, shapes, chunks, filters, chunks that are missing, and user blocks are random.
    """
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 70))
    written: dict[str, AnyArray] = {}
    options: dict[str, Any] = {"userblock_size": int(rng.choice([0, 512, 2048]))}
    if rng.random() < 0.3:
        options["libver"] = "latest"
    with h5py.File(path, "w", **options) as file:
        for number in range(int(rng.integers(1, 5))):
            kind = str(rng.choice(DTYPES))
            shape = (length, *rng.integers(1, 6, size=int(rng.integers(0, 3))).tolist())
            order: Any = rng.choice(["<", ">"])
            values = numbered(shape, kind).astype(np.dtype(kind).newbyteorder(order), copy=False)
            name = f"x{number}"
            stored: Any = {}
            if rng.random() < 0.7:
                filters = _CHUNKED[rng.integers(len(_CHUNKED))]
                chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
                if "libver" in options and filters == {"shuffle": True}:
                    filters = {}  # refused: nothing tells whether edge chunks have the filter
                stored = {"chunks": chunks, "maxshape": (None, *shape[1:]), **filters}
            if rng.random() < 0.3:
                stored["fillvalue"] = values.reshape(-1)[0]
            dataset = file.create_dataset(name, shape, values.dtype, **stored)
            end = length
            if dataset.chunks is not None and rng.random() < 0.4:  # what comes behind was never written
                end = int(rng.integers(0, length + 1))
            dataset[:end] = values[:end]
            written[name] = np.asarray(dataset[()])
    return written


def bytes_of(values: Any) -> bytes:
    """Return the bytes of values in native byte order: NaNs differ in their payloads."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False).tobytes()


def write_chunk_directly(
    path: Path, values: AnyArray, filters: list[tuple[int, tuple[int, ...]]], encoded: bytes
) -> None:
    """Write a dataset "x" of one chunk, whose filters this machine need not have."""
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk(values.shape)
    for number, options in filters:
        created.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(values.dtype), space, created)
        dataset.write_direct_chunk((0,) * values.ndim, encoded, 0)


def masked(path: Path) -> None:
    """Write a dataset "x" with a chunk that its filter left as it was."""
    values = np.arange(8, dtype="i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (16,), "i4", chunks=(8,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(values.tobytes()), 0)
        dataset.id.write_direct_chunk((8,), values.tobytes(), 1)

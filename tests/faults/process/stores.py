"""Stores for faults that concern processes: of each way in which chunks are read, with samples that tell their index.

A sample is a function of its index in all of its items, so that a row in the wrong place, of an old batch or half
written is seen. What a whole epoch delivers is each index once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.buffer import Buffer
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import MemoryStore

from tests.faults.harness.row import UnspecifiedError
from tests.support.flat import iterable_dataset
from zarrfeed import ZarrDataset, ZarrIterableDataset

NUM_SAMPLES = 960
BATCH_SIZE = 16
NUM_BATCHES = NUM_SAMPLES // BATCH_SIZE

_ROWS_PER_CHUNK = 16
_COLUMNS = np.arange(512, dtype=np.int64)

#: Name -> how the array is written. Read from files; "fed" ones from a MemoryStore, on zarr-python's event loop.
LAYOUTS: dict[str, dict[str, Any]] = {
    "zstd": {"compressors": ZstdCodec(level=1)},
    "blosc": {"compressors": BloscCodec(cname="lz4", typesize=8, shuffle="shuffle")},
    "shards": {"compressors": ZstdCodec(level=1), "shards": (8 * _ROWS_PER_CHUNK, len(_COLUMNS))},
    "codec": {"compressors": numcodecs.BZ2(level=1), "zarr_format": 2},  # one that the engine lacks
}

#: Ways to read, as `make` knows them.
KINDS = (*LAYOUTS, "fed", "fed shards", "text", "access")


class RandomAccess:
    """A `ZarrDataset`, read like an epoch: batches of a permutation of all samples."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dataset = ZarrDataset(path, return_index=True, num_threads=2, cache="1MiB")
        self._random = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Any]:
        """Read each sample once."""
        order = self._random.permutation(NUM_SAMPLES)
        for begin in range(0, NUM_SAMPLES, BATCH_SIZE):
            yield self.dataset[order[begin : begin + BATCH_SIZE].tolist()]


def rows_of(index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the samples of an index, one a row; they hardly compress."""
    return (index[:, None] * np.int64(1_000_003) + _COLUMNS) * np.int64(6364136223846793005)


def write_stores(folder: Path) -> None:
    """Write a store of each layout, and one of text, unless they are there."""
    if (folder / "stores").exists():
        return
    with tempfile.TemporaryDirectory(dir=folder) as made:
        data = rows_of(np.arange(NUM_SAMPLES))
        for name, options in LAYOUTS.items():
            array = zarr.create_array(
                Path(made) / "stores" / name,
                shape=data.shape,
                dtype=data.dtype,
                chunks=(_ROWS_PER_CHUNK, data.shape[1]),
                **options,
            )
            array[...] = data
        text = zarr.create_array(Path(made) / "stores" / "text", shape=(NUM_SAMPLES,), chunks=(48,), dtype=str)
        text[...] = np.array([f"sample {i}" for i in range(NUM_SAMPLES)], dtype=object)
        (Path(made) / "stores").rename(folder / "stores")


def source(kind: str, folder: Path) -> Any:
    """Return what a dataset of this kind is made of."""
    stores = folder / "stores"
    if kind.startswith("fed"):
        path = stores / ("shards" if kind == "fed shards" else "zstd")
        chunks: dict[str, Buffer] = {
            str(file.relative_to(path)): cpu.Buffer.from_bytes(file.read_bytes())
            for file in path.rglob("*")
            if file.is_file()
        }
        return zarr.open_array(MemoryStore(chunks), mode="r")
    return stores / ("zstd" if kind in ("text", "access") else kind)


def make(kind: str, folder: Path, *, seed: int = 0, **options: Any) -> ZarrIterableDataset:
    """Return a dataset, whose stores were written to `folder`."""
    targets = folder / "stores" / "text" if kind == "text" else None
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_threads": 2, "return_index": True}
    return iterable_dataset(source(kind, folder), targets, seed=seed, **(settings | options))


def make_iterable(kind: str, folder: Path, *, seed: int = 0) -> Any:
    """Return what is iterated, of every kind, one that has random access too."""
    if kind == "access":
        return RandomAccess(source(kind, folder), seed)
    return make(kind, folder, seed=seed)


def check(batch: Any) -> npt.NDArray[np.int64]:
    """Return the indices of a batch; UnspecifiedError if a sample is not that of its index."""
    samples, *text, index = batch
    indices: npt.NDArray[np.int64] = index.numpy()
    if not np.array_equal(samples.numpy(), rows_of(indices)):
        raise UnspecifiedError(f"samples {indices.tolist()} are wrong")
    if text and list(text[0]) != [f"sample {i}" for i in indices]:
        raise UnspecifiedError(f"texts of samples {indices.tolist()} are wrong: {text[0]}")
    return indices.copy()


def check_epoch(batches: Iterable[Any], before: Iterable[npt.NDArray[np.int64]] = ()) -> None:
    """Take all batches; UnspecifiedError unless they, and those `before`, are each sample once."""
    seen = np.concatenate([*before, *map(check, batches)])
    if not np.array_equal(np.sort(seen), np.arange(NUM_SAMPLES)):
        raise UnspecifiedError(f"{len(seen)} samples in place of {NUM_SAMPLES}, {len(np.unique(seen))} different ones")

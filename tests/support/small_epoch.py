"""One epoch of an installed zarrfeed, bit by bit what zarr reads: `python small_epoch.py`.

The script needs nothing of the checkout, so that it can try a wheel where there is none. Each sample comes exactly
once, from arrays of several codecs and from shards, and its bytes are those that zarr-python reads.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import zarrfeed

SAMPLES, BATCH = 200, 16

#: Name of the array -> what `create_array` is told of it.
ARRAYS: dict[str, dict[str, Any]] = {
    "blosc": {"compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    "bits": {"compressors": BloscCodec(cname="zstd", shuffle="bitshuffle")},
    "zstd": {"compressors": ZstdCodec(level=3)},
    "gzip": {"compressors": GzipCodec(level=1)},
    "shards": {"compressors": ZstdCodec(level=1), "shards": (24, 20, 4)},
    "plain": {"compressors": None},
}


def write_store(path: Path) -> None:
    """Write arrays of random walks, in chunks that do not divide the array, and the samples' numbers."""
    group = zarr.create_group(path)
    for number, (name, options) in enumerate(ARRAYS.items()):
        values = np.random.default_rng(number).normal(size=(SAMPLES, 19, 4)).cumsum(axis=1).astype("float32")
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(6, 10, 4), **options)
        array[:] = values
    group.create_array("number", shape=(SAMPLES,), dtype="int64", chunks=(50,))[:] = np.arange(SAMPLES)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.zarr"
        write_store(path)
        expected = {name: np.asarray(array[:]) for name, array in zarr.open_group(path, mode="r").arrays()}
        dataset = zarrfeed.ZarrIterableDataset(path, batch_size=BATCH, shuffle=True, seed=7)
        seen: list[int] = []
        for batch in zarrfeed.ZarrDataLoader(dataset):
            numbers = batch["number"].numpy()
            seen += numbers.tolist()
            for name in ARRAYS:
                if batch[name].numpy().tobytes() != expected[name][numbers].tobytes():
                    print(f"{name}: samples {numbers.tolist()} are not what zarr reads")
                    return 1
        if sorted(seen) != list(range(SAMPLES)) or seen == sorted(seen):
            print(f"the epoch was not a shuffle of {SAMPLES} samples: {seen}")
            return 1
    found = ", ".join(f"{package} {version(package)}" for package in ("zarrfeed", "torch", "zarr", "numpy"))
    print(f"{len(seen)} samples of {len(ARRAYS)} arrays are right: Python {sys.version.split()[0]}, {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One turn of one side of the packing benchmark, in a process of its own: re-chunk a store, and print the seconds.

Libraries are imported before. The clock runs until the files are on the disk: a side that leaves them in the page cache
pays for it here.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr

CHUNK_ROWS, SHARD_ROWS = 16, 1024


def by_pack(source: str, out: str) -> None:
    from zarrfeed import pack

    array = zarr.open_array(source, mode="r")
    sample_bytes = array.nbytes // array.shape[0]
    pack(source, out, sample_chunk=CHUNK_ROWS, shard=SHARD_ROWS * sample_bytes, codec="lz4-5-shuffle")


def by_tensorstore(source: str, out: str) -> None:
    import tensorstore

    def kvstore(path: str) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}

    stored = tensorstore.open(kvstore(source), read=True).result()
    sample = list(stored.shape[1:])
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    sharding = {
        "chunk_shape": [CHUNK_ROWS, *sample],
        "codecs": [{"name": "bytes"}, {"name": "blosc", "configuration": blosc}],
        "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
    }
    metadata = {
        "shape": list(stored.shape),
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [SHARD_ROWS, *sample]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    made = tensorstore.open({**kvstore(out), "metadata": metadata}, create=True).result()
    waiting: list[Any] = []
    for begin in range(0, stored.shape[0], SHARD_ROWS):
        if len(waiting) > 2:
            waiting.pop(0).result()
        waiting.append(made[begin : begin + SHARD_ROWS].write(stored[begin : begin + SHARD_ROWS]))
    for one in waiting:
        one.result()


def by_zarr(source: str, out: str) -> None:
    stored, made = zarr.open_array(source, mode="r"), _create(source, out)

    def copy(begin: int) -> None:
        made[begin : begin + SHARD_ROWS] = stored[begin : begin + SHARD_ROWS]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(copy, range(0, stored.shape[0], SHARD_ROWS)))


def by_zarrs(source: str, out: str) -> None:
    import zarrs  # noqa: F401 (registers the pipeline)

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    by_zarr(source, out)


def by_dask(source: str, out: str) -> None:
    import dask.array

    stored = dask.array.from_zarr(source)
    dask.array.store(stored.rechunk((SHARD_ROWS, *stored.shape[1:])), _create(source, out), lock=False)


SIDES: dict[str, Callable[[str, str], None]] = {
    "zarrfeed": by_pack,
    "tensorstore": by_tensorstore,
    "zarrs": by_zarrs,
    "zarr-python": by_zarr,
    "dask": by_dask,
}


#: Imported before the clock runs.
_LIBRARIES = {
    "zarrfeed": ("zarrfeed.packing.pack",),
    "tensorstore": ("tensorstore",),
    "zarrs": ("zarrs",),
    "zarr-python": (),
    "dask": ("dask.array",),
}


def _shape(source: str) -> tuple[int, ...]:
    return zarr.open_array(source, mode="r").shape


def _create(source: str, out: str) -> Any:
    shape = _shape(source)
    return zarr.create_array(
        out,
        shape=shape,
        dtype="float32",
        chunks=(CHUNK_ROWS, *shape[1:]),
        shards=(SHARD_ROWS, *shape[1:]),
        compressors=zarr.codecs.BloscCodec(typesize=4, cname="lz4", clevel=5, shuffle="shuffle"),
    )


if __name__ == "__main__":
    side, source, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name in _LIBRARIES[side]:
        importlib.import_module(name)
    os.sync()
    begin = time.perf_counter()
    SIDES[side](source, out)
    subprocess.run(["sync", "--file-system", out], check=True)
    print(time.perf_counter() - begin)

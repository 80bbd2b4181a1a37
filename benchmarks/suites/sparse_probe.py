"""One side of benchmarks/suites/sparse.py, in a process of its own; needs nothing of this repository but zarrfeed.

python sparse_probe.py zarrfeed /tmp/cells.zarr 4096 3

Prints a JSON line for each epoch: seconds, rows, and sums over all elements, which do not depend on the order of rows.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any


def zarrfeed_batches(path: str, batch_size: int) -> Iterable[Any]:
    """Return the batches of an epoch, and of the next one the next time."""
    import zarrfeed

    return zarrfeed.ZarrIterableDataset(zarrfeed.open(f"{path}/X"), batch_size=batch_size, shuffle=True)


class AnnbatchBatches:
    """The same by annbatch: `chunk` rows side by side, `chunks` of them at once."""

    def __init__(self, path: str, batch_size: int, chunk: int, chunks: int) -> None:
        import anndata
        import zarr
        from annbatch import Loader

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        options = {"chunk_size": chunk, "preload_nchunks": chunks, "shuffle": True, "to": "torch"}
        matrix = anndata.io.sparse_dataset(zarr.open_group(path, mode="r")["X"])
        self._loader = Loader(batch_size=batch_size, preload_to_gpu=False, **options)
        self._loader.add_dataset(matrix)

    def __iter__(self) -> Any:
        return (batch["X"] for batch in self._loader)


#: annbatch's own default, what its documentation shows, and the fastest of those that were tried.
SIDES: dict[str, Callable[[str, int], Iterable[Any]]] = {
    "zarrfeed": zarrfeed_batches,
    "annbatch-512x32": lambda path, batch_size: AnnbatchBatches(path, batch_size, 512, 32),
    "annbatch-32x256": lambda path, batch_size: AnnbatchBatches(path, batch_size, 32, 256),
    "annbatch-256x128": lambda path, batch_size: AnnbatchBatches(path, batch_size, 256, 128),
}


def sums(batches: Iterable[Any]) -> dict[str, float]:
    """Return how many rows and elements came, and sums of columns, values and their products."""
    found = {"rows": 0.0, "elements": 0.0, "columns": 0.0, "values": 0.0, "products": 0.0}
    for batch in batches:
        columns, values = batch.col_indices().double(), batch.values().double()
        found["rows"] += batch.shape[0]
        found["elements"] += len(values)
        found["columns"] += columns.sum().item()
        found["values"] += values.sum().item()
        found["products"] += (columns * values).sum().item()
    return found


def main(side: str, path: str, batch_size: int, epochs: int) -> None:
    """Deliver an epoch to be checked, and some that are timed."""
    warnings.simplefilter("ignore")
    batches = SIDES[side](path, batch_size)
    print(json.dumps(sums(batches)), flush=True)
    for _ in range(epochs):
        begin = time.perf_counter()
        rows = sum(batch.shape[0] for batch in batches)
        print(json.dumps({"seconds": time.perf_counter() - begin, "rows": rows}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

"""NumPy: batches of a store as arrays, shuffled and by index, without a training framework.

python examples/numpy_only.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import zarr

import zarrfeed as zf


def main() -> None:
    """Fit a line by ordinary least squares in one pass over shuffled batches."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 8)).astype("f4")
    weights = np.arange(8, dtype="f4")
    with tempfile.TemporaryDirectory() as folder:
        store = zarr.create_group(Path(folder) / "table.zarr")
        store.create_array("x", data=x, chunks=(500, 8))
        store.create_array("y", data=x @ weights + rng.normal(0, 0.1, 5000).astype("f4"), chunks=(500,))
        table = zf.open(Path(folder) / "table.zarr")

        gram, moment = np.zeros((8, 8)), np.zeros(8)
        for batch in zf.ZarrIterableDataset(table, batch_size=256, shuffle=True, seed=0):
            rows, y = batch["x"].numpy(), batch["y"].numpy()  # the same memory
            gram += rows.T @ rows
            moment += rows.T @ y
        print("weights", np.linalg.solve(gram, moment).round(1) + 0.0)

        some = zf.ZarrDataset(table)[[4999, 0, 4999]]["x"].numpy()
        print("rows by index", bool((some == x[[4999, 0, 4999]]).all()))


if __name__ == "__main__":
    main()

"""Single cell: sparse counts of an AnnData store, whose cells lie in order of their type; a linear model tells types.

python examples/single_cell.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse
import torch

import zarrfeed as zf

CELLS, GENES = 4000, 300


def write_cells(path: Path) -> None:
    """Write cells of four types, each of which has genes of its own; nine of ten counts are zero."""
    rng = np.random.default_rng(0)
    kind = np.sort(rng.integers(0, 4, CELLS))
    rate = np.full((4, GENES), 0.05)
    for one in range(4):
        rate[one, 20 * one : 20 * one + 20] = 0.6
    counts = scipy.sparse.csr_matrix(rng.poisson(rate[kind]).astype("f4"))
    pd.set_option("future.infer_string", False)  # anndata 0.12 does not write the texts of pandas 3
    cells = anndata.AnnData(counts)
    cells.obs["cell_type"] = pd.Categorical.from_codes(kind, ["B", "T", "NK", "other"])
    cells.write_zarr(path)


def main() -> None:
    """Train on four fifths of the cells, and say how many of the others are told rightly."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "cells.zarr"
        write_cells(store)
        cells = zf.open(store, variables=["X", "obs/cell_type"]).dense()
        train, test = cells.split((0.8, 0.2), by="sample", seed=0)
        model = torch.nn.Linear(GENES, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        dataset = zf.ZarrIterableDataset(train, batch_size=128, shuffle=True, seed=0)
        for _ in range(3):
            for batch in dataset:
                loss = torch.nn.functional.cross_entropy(model(batch["X"]), batch["obs/cell_type"].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        right = 0
        for batch in zf.ZarrIterableDataset(test, batch_size=128):
            right += int((model(batch["X"]).argmax(1) == batch["obs/cell_type"]).sum())
        print(f"{dict(cells.categories)['obs/cell_type']}: {right / len(test):.0%} of {len(test)} cells told rightly")


if __name__ == "__main__":
    main()

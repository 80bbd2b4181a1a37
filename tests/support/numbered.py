"""Stores whose rows are their own index in the array, with columns beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed import Data, ZarrIterableDataset


def numbered(path: Path, n: int, chunk: int, **columns: Any) -> str:
    """Write rows that are their own index, and columns beside them."""
    group = zarr.create_group(path)
    array = group.create_array("x", shape=(n, 2), chunks=(chunk, 2), dtype="i8", dimension_names=("time", "y"))
    array[:] = np.arange(n)[:, None] + np.zeros(2, dtype=int)
    for name, values in columns.items():
        group.create_array(name, data=np.asarray(values), dimension_names=("time",))
    return str(path)


def samples_of(data: Data) -> np.ndarray:
    """Return the indices of the samples, as a dataset delivers them in order."""
    read = [batch["x"] for batch in ZarrIterableDataset(data, batch_size=7)]
    return np.concatenate([batch.reshape(len(batch), -1)[:, 0].numpy() for batch in read])

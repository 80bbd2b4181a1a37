"""Rows of an array read one by one in a DataLoader, as a user of another library would make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

#: Returns the row with a number.
ReadRow = Callable[[int], Any]


class SingleRows(Dataset[torch.Tensor]):
    """Rows by their numbers; each process makes its own reader when it is first asked.

    Parameters
    ----------
    length
        Number of rows.
    make_reader
        Opens the store or the files: a function that can be pickled.
    """

    def __init__(self, length: int, make_reader: Callable[[], ReadRow]) -> None:
        self._length, self._make_reader = length, make_reader
        self._read: ReadRow | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> torch.Tensor:
        if self._read is None:
            self._read = self._make_reader()
        return torch.from_numpy(np.array(self._read(number)))


def row_loader(rows: SingleRows, batch_size: int, workers: int) -> DataLoader[torch.Tensor]:
    """Return a loader that shuffles rows; its workers stay from one epoch to the next."""
    processes: dict[str, Any] = {}
    if workers:
        processes = {"persistent_workers": True, "multiprocessing_context": "forkserver"}
    return DataLoader(rows, batch_size=batch_size, shuffle=True, num_workers=workers, **processes)

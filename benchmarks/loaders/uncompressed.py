"""No codec at all: rows of an uncompressed file by `numpy.memmap`, or of a tensor in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.data.conversion import convert
from benchmarks.data.stores import Store, read_store
from benchmarks.loaders.protocol import Batch


class Memmap:
    """`memmap[rows]`, fancy indexing of a file that is written for the while beside the store."""

    def __init__(self, store: Store) -> None:
        self._layout = store.layout
        self._files: list[Path] = []
        self._arrays: list[npt.NDArray[Any]] = []
        for number, array in enumerate(read_store(store)):
            path = store.path.parent / f".{store.path.name}.{number}.npy"
            np.save(path, array)
            self._files.append(path)
            self._arrays.append(np.load(path, mmap_mode="r"))
        self.samples_per_epoch = store.layout.num_samples
        self.settings: dict[str, object] = {}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        order = np.random.default_rng((4, epoch)).permutation(self._layout.num_samples)
        for begin in range(0, len(order), self._layout.batch_size):
            rows = order[begin : begin + self._layout.batch_size]
            samples, *targets = (torch.from_numpy(np.asarray(array[rows])) for array in self._arrays)
            yield [convert(self._layout, samples), *targets]

    def close(self) -> None:
        self._arrays = []
        for path in self._files:
            path.unlink(missing_ok=True)


class Preloaded:
    """`torch.index_select`, with torch's threads: all data were read into memory before."""

    def __init__(self, store: Store) -> None:
        self._layout = store.layout
        self._tensors = [torch.from_numpy(array) for array in read_store(store)]
        self.samples_per_epoch = store.layout.num_samples
        self.settings: dict[str, object] = {"torch_threads": torch.get_num_threads()}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        order = torch.randperm(self._layout.num_samples, generator=torch.Generator().manual_seed(epoch))
        for begin in range(0, len(order), self._layout.batch_size):
            rows = order[begin : begin + self._layout.batch_size]
            samples, *targets = (torch.index_select(tensor, 0, rows) for tensor in self._tensors)
            yield [convert(self._layout, samples), *targets]

    def close(self) -> None:
        self._tensors = []

"""zarr-beluga 0.3, which streams single samples of weather data: arrays of one time step a chunk, hence layout C."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch

_PREFETCH_DEPTH = 8


class BelugaStream:
    """`Reader.stream(order)`, and `torch.cat` of the samples of a batch, as its own batch loader does it."""

    def __init__(self, store: Store) -> None:
        import beluga

        self._layout = store.layout
        # it wants a group with an array of that name: one that has nothing but a link
        self._group = tempfile.TemporaryDirectory()
        zarr.create_group(self._group.name, zarr_format=3, overwrite=True)
        (Path(self._group.name) / "data").symlink_to(store.samples_path.resolve())
        self.settings: dict[str, object] = {"prefetch_depth": _PREFETCH_DEPTH, "zarr_read": "fetch_decode"}
        self._reader: Any = beluga.Reader(
            self._group.name,
            source="zarr",
            scheduler="zarrs",
            sched={"prefetch_depth": _PREFETCH_DEPTH, "extra": {"zarr_read": "fetch_decode"}},
        )
        self.samples_per_epoch = store.layout.num_samples

    def epoch(self, epoch: int) -> Iterator[Batch]:
        order = np.random.default_rng((3, epoch)).permutation(self._layout.num_samples)
        batch_size = self._layout.batch_size
        stream = self._reader.stream(order.tolist(), frames=1, queue_depth=2 * batch_size)
        try:
            while samples := [torch.utils.dlpack.from_dlpack(sample) for sample in islice(stream, batch_size)]:
                yield torch.cat(samples)
        finally:
            stream.close()

    def close(self) -> None:
        self._reader = None
        self._group.cleanup()

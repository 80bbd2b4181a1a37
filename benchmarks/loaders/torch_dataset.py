"""zarr-torch-dataset 0.0.9: its first epoch reads the whole array into memory, later ones index it sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import zarr

from benchmarks.data.conversion import convert
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch, fields_of

#: It takes each sample by itself, and a millisecond for each chunk: of more than these, a random part is timed. The
#: rates of later epochs, from memory, are those of all.
_MAX_SAMPLES = 1 << 17
_MAX_CHUNKS = 4096


class TorchDataset:
    """`ZarrDataLoader(dataset=ZarrIterableDataset(...))`, which shuffles the chunks once and all samples anew."""

    def __init__(self, store: Store, *, num_workers: int) -> None:
        from zarrdataset import ZarrDataLoader, ZarrIterableDataset

        self._layout = layout = store.layout
        arrays: list[Any] = [zarr.open_array(path, mode="r") for path in store.array_paths]
        rows = (arrays[0].shards or arrays[0].chunks)[0]
        num_chunks = -(-layout.num_samples // rows)
        part = min(num_chunks, _MAX_CHUNKS, max(1, _MAX_SAMPLES // rows))
        chunks = np.sort(np.random.default_rng(5).permutation(num_chunks)[:part])
        dataset = ZarrIterableDataset(
            samples=arrays[0],
            targets=arrays[1] if layout.targets else None,
            # of arrays that are chunked along other axes too, it would ask for more than there are
            selected_chunk_indexes=chunks,
            shuffle_chunks=True,
            chunks_shuffle_seed=1,
            shuffle_buffer=True,
        )
        workers = min(num_workers, len(dataset.selected_chunk_indexes))
        self._loader: Any = ZarrDataLoader(dataset=dataset, num_workers=workers, batch_size=layout.batch_size)
        self.samples_per_epoch = int(np.minimum(rows, layout.num_samples - chunks * rows).sum())
        self.settings: dict[str, object] = {"num_workers": workers, "persistent_workers": workers > 0}

    def epoch(self, epoch: int) -> Iterator[Batch]:  # noqa: ARG002 (it has no such thing)
        for batch in self._loader:
            samples, *targets = fields_of(batch)
            yield [convert(self._layout, samples), *(torch.as_tensor(t) for t in targets)]

    def close(self) -> None:
        self._loader = None

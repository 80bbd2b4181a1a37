"""zarr-torch-dataset 0.0.9: its first epoch reads the whole array into memory, later ones index it sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """`ZarrDataLoader(dataset=ZarrIterableDataset(...))`, which shuffles the chunks once and all samples anew.

    `open_arrays` opens what is read in place of the store's directory: the same arrays, on a server. Each epoch is then
    one of a new dataset, so that none comes from the memory that the epoch before has filled.
    """

    def __init__(
        self, store: Store, *, num_workers: int, open_arrays: Callable[[], Sequence[zarr.Array[Any]]] | None = None
    ) -> None:
        self._store, self._num_workers, self._open_arrays = store, num_workers, open_arrays
        self._layout = store.layout
        self._loader = self._made()

    def epoch(self, epoch: int) -> Iterator[Batch]:  # noqa: ARG002 (it has no such thing)
        if self._open_arrays is not None:
            self._loader = None  # its memory first
            self._loader = self._made()
        for batch in self._loader:
            samples, *targets = fields_of(batch)
            yield [convert(self._layout, samples), *(torch.as_tensor(t) for t in targets)]

    def close(self) -> None:
        self._loader = None

    def _made(self) -> Any:
        from zarrdataset import ZarrDataLoader, ZarrIterableDataset

        layout, opened = self._layout, self._open_arrays
        local = [zarr.open_array(path, mode="r") for path in self._store.array_paths] if opened is None else []
        arrays: list[Any] = local if opened is None else list(opened())
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
        workers = min(self._num_workers, len(dataset.selected_chunk_indexes))
        self.samples_per_epoch = int(np.minimum(rows, layout.num_samples - chunks * rows).sum())
        self.settings: dict[str, object] = {"num_workers": workers, "persistent_workers": workers > 0}
        return ZarrDataLoader(dataset=dataset, num_workers=workers, batch_size=layout.batch_size)

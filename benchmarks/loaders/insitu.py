"""insitubatch: one event loop streams chunks through obstore into a pool, from which batches are gathered. At a URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.data.conversion import convert
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch

#: Decoded bytes of the chunks whose rows are shuffled together, as for the other loaders that have such groups.
_GROUP_BYTES = 64 << 20


class InSitu:
    """`InSituDataset(...).train`, with all chunks in that part, and no option but the block and the batch size.

    Each epoch is one of a new dataset, so that none is served from the pool that the epoch before has filled.
    """

    def __init__(self, store: Store, *, url: str) -> None:
        self._layout = layout = store.layout
        self._url = url
        self._block_chunks = max(1, round(_GROUP_BYTES / layout.chunk_bytes))
        self._dataset: Any = None
        self.samples_per_epoch = layout.num_samples
        self.settings: dict[str, object] = {"block_chunks": self._block_chunks}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk

        self.close()
        store = obstore_store(self._url, client_options={"allow_http": True})
        geometries = open_geometries(store, variables=["samples"])
        parts = split_by_chunk(geometries["samples"], fractions=(1.0, 0.0, 0.0))
        self._dataset = InSituDataset(
            store, parts, geometries=geometries, batch_size=self._layout.batch_size, block_chunks=self._block_chunks
        )
        self._dataset.set_epoch(epoch)
        for batch in self._dataset.train:
            yield [convert(self._layout, torch.from_numpy(batch.arrays["samples"]))]

    def close(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
        self._dataset = None

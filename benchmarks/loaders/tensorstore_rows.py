"""tensorstore: each batch is one indexed read, served by tensorstore's own cache, and many are read ahead.

The rows of a group of chunks are shuffled together, so that the cache decodes each chunk once. We tried whole
chunks too, into a buffer of ours or into new memory, with rows cut from there: this is faster by far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.data.conversion import convert
from benchmarks.data.stores import Store
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.loaders.protocol import Batch

#: Decoded bytes of the chunks whose rows are shuffled together.
_GROUP_BYTES = 64 << 20
#: Batches that are asked for before one is waited for.
_READ_AHEAD = 16
_CACHE_BYTES = 256 << 20


class TensorStoreRows:
    """`array[rows].read()` for the next batches, and `result()` of the first of them.

    With `url`, the arrays are read from there: `url` is where a web server has the store's directory. Each epoch then
    opens the arrays anew, so that none is served from what the cache has left of the epoch before.
    """

    def __init__(self, store: Store, *, url: str | None = None) -> None:
        self._store, self._url = store, url
        self._layout = layout = store.layout
        self._group_chunks = max(1, round(_GROUP_BYTES / layout.chunk_bytes))
        self._cache_bytes = max(_CACHE_BYTES, 4 * self._group_chunks * layout.chunk_bytes)
        self._arrays = self._open()
        self.samples_per_epoch = layout.num_samples
        self.settings: dict[str, object] = {
            "group_chunks": self._group_chunks,
            "read_ahead": _READ_AHEAD,
            "cache_bytes": self._cache_bytes,
            "data_copy_concurrency": usable_cores(),
        }

    def epoch(self, epoch: int) -> Iterator[Batch]:
        if self._url is not None:
            self._arrays = self._open()
        order = self._order(epoch)
        asked: deque[list[Any]] = deque()
        for begin in range(0, len(order), self._layout.batch_size):
            rows = order[begin : begin + self._layout.batch_size]
            asked.append([array[rows].read() for array in self._arrays])
            if len(asked) > _READ_AHEAD:
                yield self._batch(asked.popleft())
        while asked:
            yield self._batch(asked.popleft())

    def close(self) -> None:
        self._arrays = []

    def _open(self) -> list[Any]:
        import tensorstore

        context = tensorstore.Context(
            {
                "cache_pool": {"total_bytes_limit": self._cache_bytes},
                "data_copy_concurrency": {"limit": usable_cores()},
                "file_io_concurrency": {"limit": 2 * usable_cores()},
            }
        )
        return [
            tensorstore.open(
                {
                    "driver": "zarr3" if self._layout.zarr_format == 3 else "zarr",
                    "kvstore": (
                        {"driver": "file", "path": str(path)}
                        if self._url is None
                        else {"driver": "http", "base_url": f"{self._url}/{path.name}/"}
                    ),
                    "recheck_cached_data": "open",
                    "recheck_cached_metadata": "open",
                },
                open=True,
                read=True,
                context=context,
            ).result()
            for path in self._store.array_paths
        ]

    def _batch(self, reads: list[Any]) -> list[torch.Tensor]:
        samples, *targets = (torch.from_numpy(read.result()) for read in reads)
        return [convert(self._layout, samples), *targets]

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        rng = np.random.default_rng((2, epoch))
        n, rows_per_chunk = self._layout.num_samples, self._layout.rows_per_chunk
        chunks = rng.permutation(self._layout.num_chunks)
        groups = []
        for i in range(0, len(chunks), self._group_chunks):
            rows = (chunks[i : i + self._group_chunks, None] * rows_per_chunk + np.arange(rows_per_chunk)).ravel()
            groups.append(rng.permutation(rows[rows < n]))
        return np.concatenate(groups)

"""zarrfeed as its README uses it: no option but the batch size, `shuffle`, and what a layout asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.data.conversion import open_converted
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch
from zarrfeed import Data, ZarrIterableDataset


class Zarrfeed:
    """`ZarrIterableDataset` without a DataLoader; `options` are more of its arguments.

    `data` is what is read in place of the store's directory: the same arrays, at a URL.
    """

    def __init__(self, store: Store, *, data: Data | None = None, **options: Any) -> None:
        self._dataset = ZarrIterableDataset(
            open_converted(store.layout, store.samples_path, store.targets_path) if data is None else data,
            batch_size=store.layout.batch_size,
            shuffle=True,
            **options,
        )
        self.samples_per_epoch = store.layout.num_samples
        plan = self._dataset.explain()
        self.settings: dict[str, object] = {"lanes": plan.lanes, "num_threads": plan.num_threads}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._dataset.set_epoch(epoch)
        return iter(self._dataset)

    def close(self) -> None:
        self._dataset.close()

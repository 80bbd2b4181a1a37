"""zarrfeed as its README uses it: no option but the batch size, `shuffle`, and what a layout asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.data.conversion import open_converted
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch
from zarrfeed import Data, ZarrDataLoader, ZarrIterableDataset

#: A batch of 33 KiB took 2 ms through shared memory, so that an epoch of layout D took 40 s.
_MOST_BATCHES = 1024


class Zarrfeed:
    """`ZarrIterableDataset` without a DataLoader; `options` are more of its arguments.

    `data` is what is read in place of the store's directory: the same arrays, at a URL.
    """

    def __init__(self, store: Store, *, data: Data | None = None, **options: Any) -> None:
        self.dataset = ZarrIterableDataset(
            open_converted(store.layout, store.samples_path, store.targets_path) if data is None else data,
            batch_size=store.layout.batch_size,
            shuffle=True,
            **options,
        )
        self.samples_per_epoch = store.layout.num_samples
        plan = self.dataset.explain()
        self.settings: dict[str, object] = {"lanes": plan.lanes, "num_threads": plan.num_threads}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self.dataset.set_epoch(epoch)
        return iter(self.dataset)

    def close(self) -> None:
        self.dataset.close()


class ZarrfeedWorkers:
    """The same dataset behind a `ZarrDataLoader` whose worker processes persist.

    Each batch is a message between processes: of more than `_MOST_BATCHES` an epoch, the first ones stand for it.
    """

    def __init__(self, store: Store, *, num_workers: int) -> None:
        layout = store.layout
        data = open_converted(layout, store.samples_path, store.targets_path)
        most = _MOST_BATCHES * layout.batch_size
        self._inside = Zarrfeed(store, data=data.select(slice(most)) if layout.num_samples > most else data)
        self._loader: ZarrDataLoader | None = ZarrDataLoader(
            self._inside.dataset, num_workers=num_workers, persistent_workers=True
        )
        self.samples_per_epoch = min(most, layout.num_samples)
        self.settings: dict[str, object] = self._inside.settings | {"num_workers": num_workers}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        assert self._loader is not None
        self._inside.dataset.set_epoch(epoch)
        return iter(self._loader)

    def close(self) -> None:
        self._loader = None  # the last reference: its worker processes end
        self._inside.close()

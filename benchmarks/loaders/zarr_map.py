"""What the PyTorch tutorial leads to: a map-style dataset over zarr-python behind a shuffling DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import zarr
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.data.conversion import convert
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch, fields_of

#: Of large chunks fewer samples are timed than asked for: each costs one chunk.
_MAX_DECODED_BYTES = 4 << 30


class ZarrSamples(Dataset[Any]):
    """Sample i is `array[i]`; with targets the pair."""

    def __init__(self, store: Store) -> None:
        self._samples: Any = zarr.open_array(store.samples_path, mode="r")
        self._targets: Any = zarr.open_array(store.targets_path, mode="r") if store.targets_path else None

    def __len__(self) -> int:
        return int(self._samples.shape[0])

    def __getitem__(self, index: int) -> Any:
        sample = torch.from_numpy(self._samples[index])
        return sample if self._targets is None else (sample, int(self._targets[index]))


class ZarrMap:
    """`DataLoader(ZarrSamples(...), shuffle=True)`.

    Every sample costs the decoding of its whole chunk, so that an epoch may take hours: `max_samples` random samples
    stand for it. The sampler ends there, hence workers have nothing in flight when the clock stops.
    """

    def __init__(self, store: Store, *, num_workers: int, max_samples: int) -> None:
        dataset = ZarrSamples(store)
        self._layout = store.layout
        few = max(store.layout.batch_size, _MAX_DECODED_BYTES // store.layout.chunk_bytes)
        self.samples_per_epoch = min(max_samples, few, len(dataset))
        self._generator = torch.Generator()
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            batch_size=store.layout.batch_size,
            # what shuffle=True makes, but for its length
            sampler=RandomSampler(dataset, num_samples=self.samples_per_epoch, generator=self._generator),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )
        self.settings: dict[str, object] = {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0,
            "prefetch_factor": self._loader.prefetch_factor,
            "max_samples": max_samples,
        }

    def epoch(self, epoch: int) -> Iterator[Batch]:
        assert self._loader is not None
        self._generator.manual_seed(epoch)
        for batch in self._loader:
            samples, *targets = fields_of(batch)
            yield [convert(self._layout, samples), *targets]

    def close(self) -> None:
        self._loader = None  # the last reference: its worker processes end

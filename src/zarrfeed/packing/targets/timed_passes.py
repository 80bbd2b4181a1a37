"""`time_passes`: how fast a dataset delivers its batches, when nothing is done with them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset


@dataclass(frozen=True)
class Rate:
    """Samples that were delivered, and the time that it took."""

    samples: int
    seconds: float
    complete: bool = True

    @property
    def per_s(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds else 0.0


def time_passes(dataset: ZarrIterableDataset, *, least_s: float, limit_s: float) -> Rate:
    """Take batches and drop them: whole passes for at least `least_s`, but no longer than `limit_s`."""
    before, begin = dataset.stats().samples, time.perf_counter()
    elapsed, complete = 0.0, True
    while complete:
        for _ in dataset:
            if time.perf_counter() - begin > limit_s:
                complete = False
                break
        elapsed = time.perf_counter() - begin
        if elapsed >= least_s:
            break
    samples = dataset.stats().samples - before
    return Rate(samples, elapsed, complete)

"""`Turn`: what one side of a benchmark did when it was its turn, for suites whose sides take turns."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Turn:
    """One turn of one side; a side that ran in another process has no CPU time."""

    side: str
    repeat: int
    samples_per_s: float
    cpu_us_per_sample: float | None = None

    @classmethod
    def measured(cls, side: str, repeat: int, batches: Iterable[torch.Tensor], least_s: float) -> Turn:
        """Read as many whole epochs as take some seconds."""
        count, begin, cpu_begin = 0, time.perf_counter(), time.process_time()
        while True:
            count += sum(len(batch) for batch in batches)
            if (took := time.perf_counter() - begin) >= least_s:
                return cls(side, repeat, count / took, (time.process_time() - cpu_begin) / count * 1e6)

"""Ranges of samples, measured batch by batch: by threads of one process, or range by range by any processes.

Invariants: batches and ranges are cut at the same samples whoever measures them. The batches of a range are merged in
their order, and then the ranges in theirs. So the result is the same, bit by bit, for any number of threads and tasks,
in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrfeed.base.in_order import results_in_order
from zarrfeed.base.system import usable_cores
from zarrfeed.metadata.description.measured_fields import MeasuredField
from zarrfeed.metadata.face.data import Data
from zarrfeed.storage.access.portable import from_bytes, to_bytes
from zarrfeed.tools.stats.moments import Moments
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset

#: Chunks along the samples that a range spans at least: those at its ends are decoded for two ranges.
_LEAST_CHUNKS = 4


@dataclass(frozen=True)
class Lengths:
    """Samples of a batch and of a range: whole batches."""

    batch: int
    range: int

    @classmethod
    def of(cls, data: Data, batch_bytes: int, range_bytes: int) -> Lengths:
        """Return the lengths that these samples are cut into, which depend on their arrays alone."""
        fields = data.resolved.fields
        each = max(1, sum(f.sample_bytes for f in fields))
        batch = max(1, min(len(data), batch_bytes // each))
        rows = max((f.layouts[0].spec.rows_per_chunk for f in fields if f.layouts and not f.item_type), default=1)
        wanted = max(range_bytes // each, _LEAST_CHUNKS * rows)
        return cls(batch, batch * max(1, wanted // batch))


@dataclass(frozen=True)
class RangeTask:
    """A range that any process can measure: its samples as `to_bytes` has them, and how they are read."""

    samples: bytes
    fields: tuple[MeasuredField, ...]
    lengths: Lengths
    options: Mapping[str, Any]


def task_of(
    data: Data, begin: int, end: int, fields: Sequence[MeasuredField], lengths: Lengths, options: Mapping[str, Any]
) -> RangeTask:
    """Return the task to measure samples [begin, end).

    Raises
    ------
    ConfigError
        If other processes cannot open the arrays.
    """
    samples = replace(data, resolved=data.resolved.select(slice(begin, end)))
    return RangeTask(to_bytes(samples), tuple(fields), lengths, {**options, "num_threads": options["num_threads"] or 1})


def measure_range(task: RangeTask) -> tuple[int, list[Moments]]:
    """Return the number of samples of a range, and their moments; executors are given this function."""
    data: Data = from_bytes(task.samples)
    moments, done = none_yet(task.fields), 0
    with closing(measured_batches(data, 0, task.fields, task.lengths, task.options)) as batches:
        for count, found in batches:
            moments, done = merged(moments, found), done + count
    return done, moments


def measured_batches(
    data: Data, begin: int, fields: Sequence[MeasuredField], lengths: Lengths, options: Mapping[str, Any]
) -> Generator[tuple[int, list[Moments]], None, None]:
    """Yield the length and the moments of each batch from a sample on: measured side by side, in order."""
    rest = replace(data, resolved=data.resolved.select(slice(begin, None))) if begin else data
    num_threads = options["num_threads"] or usable_cores()

    def measure(batch: Mapping[str, Any]) -> tuple[int, list[Moments]]:
        arrays = [_as_array(tensor) for tensor in batch.values()]
        present = [field.without_missing(arrays, number) for number, field in enumerate(fields)]
        return len(arrays[0]), [Moments.of(a, field.batch_axes) for a, field in zip(present, fields, strict=True)]

    with (
        ZarrIterableDataset(
            rest, batch_size=lengths.batch, rank=0, world_size=1, pin_memory=False, **options
        ) as dataset,
        ThreadPoolExecutor(num_threads, "zarrfeed-stats") as pool,
        closing(results_in_order(pool, measure, dataset, num_threads + 1)) as measured,
    ):
        yield from measured


def none_yet(fields: Sequence[MeasuredField]) -> list[Moments]:
    """Return the moments of no samples."""
    return [Moments.none_yet(tuple(field.shape[a - 1] for a in field.batch_axes)) for field in fields]


def merged(first: Sequence[Moments], second: Sequence[Moments]) -> list[Moments]:
    """Return the moments of the samples of both."""
    return [a.merge(b) for a, b in zip(first, second, strict=True)]


def _as_array(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    array: np.ndarray[Any, np.dtype[Any]]
    array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return array

"""A temporary store of encoded chunks, and the speed at which the engine reads it.

The store has the chunks, the shards and the codec that are tried, and lies in the page cache, as it was just written.
So the trial times decoding and feeding, by the code that will train, and no disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.native import core
from zarrfeed.packing.targets.timed_passes import time_passes
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.storage.chunks.chunk_encoder import Encoding, join_shard
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset

#: Rounds: the fastest counts, since other programs only ever make one slower. There are more than 3 until the two
#: fastest agree so well. How long a round takes.
_ROUNDS, _MOST_ROUNDS, _AGREE = 3, 8, 0.03
_LEAST_S, _LIMIT_S = 0.2, 1.0


@dataclass(frozen=True)
class TrialArray:
    """The array that is tried.

    Attributes
    ----------
    dtype, sample_shape
        Dtype of an item, and shape of a sample.
    chunk_rows
        Samples of a chunk.
    shard_chunks
        Chunks of a shard; 0: each chunk is a file.
    encoding
        Encoding of each chunk.
    attributes
        Attributes of the array: packed numbers are converted as in the real store.
    fill_value
        Fill value of the array; None: zero.
    """

    dtype: np.dtype[Any]
    sample_shape: tuple[int, ...]
    chunk_rows: int
    shard_chunks: int
    encoding: Encoding
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a chunk."""
        return self.chunk_rows * math.prod(self.sample_shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TrialOptions:
    """The options of the loader that reads the store.

    Attributes
    ----------
    batch_size
        Samples of a batch.
    num_threads
        Decode threads. None: all cores.
    memory_budget
        Memory budget of the loader.
    """

    batch_size: int
    num_threads: int | None = None
    memory_budget: int | str | None = None


@dataclass(frozen=True)
class TrialRate:
    """The speed at which the store was read.

    Attributes
    ----------
    decode_bytes_per_s
        Decoded bytes a second of bare loops of the engine, on all decode threads.
    loader_bytes_per_s
        Bytes a second that a `ZarrIterableDataset` delivers, shuffled, from the page cache, where it decodes each chunk
        once. The chunks that it decoded twice, at the ends of lanes, are counted twice.
    delivered_per_decoded
        Delivered bytes per decoded byte: 1, unless items are converted.
    """

    decode_bytes_per_s: float
    loader_bytes_per_s: float
    delivered_per_decoded: float = 1.0


def write_trial(path: Path, array: TrialArray, encoded: Sequence[bytes | memoryview], num_chunks: int) -> None:
    """Write a store of `num_chunks` chunks at least, in whole shards; encoded chunks are used in turn.

    Raises
    ------
    OSError
        If the disk has no room.
    """
    per_file = max(1, array.shard_chunks)
    num_files = -(-num_chunks // per_file)
    chunks = (array.chunk_rows, *array.sample_shape)
    zarr.create_array(
        path,
        shape=(num_files * per_file * array.chunk_rows, *array.sample_shape),
        chunks=chunks,
        shards=None if array.shard_chunks == 0 else (per_file * array.chunk_rows, *array.sample_shape),
        dtype=array.dtype,
        compressors=array.encoding.zarr_compressors(array.dtype.itemsize),
        filters=(),
        fill_value=array.fill_value,
        attributes=dict(array.attributes),
    )
    for number in range(num_files):
        folder = path / "c"
        name = "/".join([str(number), *("0" for _ in array.sample_shape)])
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        inner = [encoded[(number * per_file + i) % len(encoded)] for i in range(per_file)]
        parts = inner if array.shard_chunks == 0 else join_shard(inner)
        with (folder / name).open("wb") as file:
            file.writelines(parts)


def time_trial(path: Path, options: TrialOptions) -> TrialRate:
    """Read a store of one array from the page cache, by bare loops and by the loader; the best of some rounds."""
    with ZarrIterableDataset(
        str(path),
        batch_size=options.batch_size,
        shuffle=True,
        rank=0,
        world_size=1,
        num_threads=options.num_threads,
        memory_budget=options.memory_budget,
        pin_memory=False,
    ) as dataset:
        (stored,) = dataset.session.schedule.fields.fields
        assert isinstance(stored, StoredField)
        explained = dataset.explain()
        threads, amplification = explained.num_threads, explained.fields[0].amplification
        time_passes(dataset, least_s=_LEAST_S / 2, limit_s=_LIMIT_S)  # memory is fresh, which is slow
        per_s = best_rate(lambda: time_passes(dataset, least_s=_LEAST_S, limit_s=_LIMIT_S).per_s)
    decoded = stored.num_samples * stored.spec.sample_bytes

    def decode_rate() -> float:
        total, begin, count = 0.0, time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < _LEAST_S / 2:
            total += core.measure_ceiling(stored.to_core(), num_threads=threads, window_chunks=1, scatter=False)[0]
            count += 1
        return count * decoded / total

    return TrialRate(
        best_rate(decode_rate),
        per_s * stored.sample_bytes * amplification,
        stored.sample_bytes / max(1, stored.spec.sample_bytes),
    )


def best_rate(measure: Callable[[], float]) -> float:
    """Return the highest of three to eight rates; measuring ends when the two highest are 3 % apart at most.

    Examples
    --------
    >>> rates = iter([1.0, 5.0, 2.0, 4.9, 9.0])
    >>> best_rate(lambda: next(rates))
    5.0
    """
    found: list[float] = []
    while len(found) < _ROUNDS or (len(found) < _MOST_ROUNDS and found[1] < (1 - _AGREE) * found[0]):
        found = sorted([*found, measure()], reverse=True)
    return found[0]

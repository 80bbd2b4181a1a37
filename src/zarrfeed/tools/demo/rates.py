"""Measure the rates at which zarrfeed and plain zarr deliver shuffled batches of one store, and check the batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
import zarr

from zarrfeed.base.waits import result_of
from zarrfeed.engine.stats import Stats
from zarrfeed.report.explain import Explanation
from zarrfeed.tools.demo.generated import CHUNK_SAMPLES, GeneratedStore, checksums
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset

#: Samples and their global indices.
IndexedBatch: TypeAlias = tuple[torch.Tensor, torch.Tensor]

BATCH_SIZE = 64
#: Passes over the store of which the median counts: one of zarrfeed takes less than 0.1 s.
NUM_PASSES = 3
#: A pass of plain zarr is stopped after this time; the samples delivered until then give its rate.
PLAIN_LIMIT_S = 5.0
#: Chunks whose samples plain zarr permutes together. More of them leave the cache and were slower.
PLAIN_BUFFER_CHUNKS = 16


@dataclass(frozen=True)
class Delivery:
    """The bytes that a loader delivered, the time that it took, and whether they were the whole store."""

    num_bytes: int
    seconds: float
    complete: bool

    @property
    def gb_per_s(self) -> float:
        """Rate of decoded data, in units of 1e9 bytes a second."""
        return self.num_bytes / self.seconds / 1e9


@dataclass(frozen=True)
class Check:
    """The samples that a loader delivered, compared with the checksums of the store.

    Attributes
    ----------
    num_samples
        Number of samples that were delivered.
    num_wrong
        Number of these samples with another checksum.
    num_repeated
        Number of samples of the store that were delivered more than once.
    crc_sum
        Sum of the checksums.
    """

    num_samples: int
    num_wrong: int
    num_repeated: int
    crc_sum: int


@dataclass(frozen=True)
class Comparison:
    """Both loaders on one store.

    Attributes
    ----------
    num_samples
        Number of samples of the store.
    zarrfeed_check, plain_check
        The checks of each loader, in a pass of its own before the measured passes.
    first_epoch
        The first epoch of a new zarrfeed dataset: it starts threads and touches new memory.
    zarrfeed, plain
        The median of the dataset's next epochs, and of as many passes of plain zarr.
    num_threads
        Number of threads of each loader.
    stats
        Counters of zarrfeed's epochs after the first one.
    explanation
        The `explain()` of the dataset.
    """

    num_samples: int
    zarrfeed_check: Check
    plain_check: Check
    first_epoch: Delivery
    zarrfeed: Delivery
    plain: Delivery
    num_threads: int
    stats: Stats
    explanation: Explanation

    @property
    def ratio(self) -> float:
        """The rate of zarrfeed over that of plain zarr, after the first epoch."""
        return self.zarrfeed.gb_per_s / self.plain.gb_per_s


def compare(store: GeneratedStore, *, seed: int) -> Comparison:
    """Check the samples that both loaders deliver, then measure their rates."""
    with _open_zarrfeed(store, seed) as dataset:
        num_threads = dataset.explain().num_threads
        zarrfeed_check = check(_indexed(dataset), store)
    plain_check = check(plain_zarr(store, seed=seed, num_threads=num_threads), store, limit_s=PLAIN_LIMIT_S)
    # a new dataset, so that its first epoch shows the cost of starting
    with _open_zarrfeed(store, seed) as dataset:
        first_epoch = measure(_indexed(dataset))
        before = dataset.stats()
        epochs = [measure(_indexed(dataset)) for _ in range(NUM_PASSES)]
        stats = dataset.stats() - before
        explanation = dataset.explain()
    passes = [
        measure(plain_zarr(store, seed=seed + i, num_threads=num_threads), limit_s=PLAIN_LIMIT_S)
        for i in range(NUM_PASSES)
    ]
    return Comparison(
        num_samples=store.num_samples,
        zarrfeed_check=zarrfeed_check,
        plain_check=plain_check,
        first_epoch=first_epoch,
        zarrfeed=_median(epochs),
        plain=_median(passes),
        num_threads=num_threads,
        stats=stats,
        explanation=explanation,
    )


def _median(deliveries: list[Delivery]) -> Delivery:
    return sorted(deliveries, key=lambda delivery: delivery.gb_per_s)[len(deliveries) // 2]


def _open_zarrfeed(store: GeneratedStore, seed: int) -> ZarrIterableDataset:
    return ZarrIterableDataset(store.samples, batch_size=BATCH_SIZE, shuffle=True, seed=seed, return_index=True)


def _indexed(dataset: ZarrIterableDataset) -> Iterator[IndexedBatch]:
    return cast("Iterator[IndexedBatch]", iter(dataset))


def plain_zarr(store: GeneratedStore, *, seed: int, num_threads: int) -> Iterator[IndexedBatch]:
    """Yield shuffled batches with zarr-python alone, as one would write it by hand.

    Whole chunks are read in random order, each once, by a pool of threads that is one buffer ahead; the samples of a
    buffer are permuted together. Reading sample by sample would decode each chunk 16 times.
    """
    array = zarr.open_array(store=store.samples, mode="r")
    rng = np.random.default_rng(seed)
    order = rng.permutation(store.num_samples // CHUNK_SAMPLES) * CHUNK_SAMPLES
    buffers = [order[i : i + PLAIN_BUFFER_CHUNKS] for i in range(0, len(order), PLAIN_BUFFER_CHUNKS)]

    def read(begin: int) -> npt.NDArray[Any]:
        return cast("npt.NDArray[Any]", array[begin : begin + CHUNK_SAMPLES])

    with ThreadPoolExecutor(num_threads) as pool:
        ahead = [pool.submit(read, begin) for begin in buffers[0]]
        for number, begins in enumerate(buffers):
            rows = np.concatenate([result_of(chunk) for chunk in ahead])
            ahead = [pool.submit(read, begin) for following in buffers[number + 1 : number + 2] for begin in following]
            index = (begins[:, None] + np.arange(CHUNK_SAMPLES)).ravel()
            permuted = rng.permutation(len(rows))
            for i in range(0, len(rows), BATCH_SIZE):
                take = permuted[i : i + BATCH_SIZE]
                yield torch.from_numpy(rows[take]), torch.from_numpy(index[take])


def measure(batches: Iterable[IndexedBatch], *, limit_s: float = float("inf")) -> Delivery:
    """Take batches and drop them; nothing is computed with them."""
    begin = time.perf_counter()
    num_bytes = 0
    for samples, _ in batches:
        num_bytes += samples.nbytes
        if time.perf_counter() - begin > limit_s:
            return Delivery(num_bytes, time.perf_counter() - begin, complete=False)
    return Delivery(num_bytes, time.perf_counter() - begin, complete=True)


def check(batches: Iterable[IndexedBatch], store: GeneratedStore, *, limit_s: float = float("inf")) -> Check:
    """Compare every delivered sample with the checksum that the store has for it."""
    noted = store.checksums()
    times_seen = np.zeros(len(noted), dtype=np.int64)
    num_wrong, crc_sum = 0, 0
    begin = time.perf_counter()
    for samples, index in batches:
        found = checksums(samples.numpy())
        num_wrong += int((found != noted[index.numpy()]).sum())
        crc_sum += int(found.sum(dtype=np.int64))
        np.add.at(times_seen, index.numpy(), 1)
        if time.perf_counter() - begin > limit_s:
            break
    return Check(int(times_seen.sum()), num_wrong, int((times_seen > 1).sum()), crc_sum)

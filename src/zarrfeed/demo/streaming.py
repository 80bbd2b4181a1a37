"""A larger generated store, and how fast zarrfeed and plain zarr deliver shuffled batches from it."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
import zarr
from zarr.codecs import BloscCodec, BloscShuffle

from zarrfeed.dataset import ZarrIterableDataset
from zarrfeed.demo.stores import build_store
from zarrfeed.errors import ConfigError
from zarrfeed.stats import Stats, format_bytes

#: Samples and their global indices.
IndexedBatch: TypeAlias = tuple[torch.Tensor, torch.Tensor]

SAMPLE_SHAPE = (4, 64, 64)
CHUNK_SAMPLES = 16
BATCH_SIZE = 64
#: Plain zarr is stopped after this time; what it delivered until then gives its rate.
PLAIN_LIMIT_S = 5.0
#: Chunks that plain zarr mixes: as many batches' worth of shuffle as fits in cache, more of them made it slower.
PLAIN_BUFFER_CHUNKS = 16
_SAMPLES_PER_MIB = (1 << 20) // (4 * 4 * 64 * 64)


@dataclass(frozen=True)
class Delivery:
    """What a loader delivered, and in which time."""

    num_bytes: int
    seconds: float
    complete: bool

    @property
    def gb_per_s(self) -> float:
        """Rate of decoded data, in units of 1e9 bytes a second."""
        return self.num_bytes / self.seconds / 1e9


@dataclass(frozen=True)
class Check:
    """What a loader delivered, compared with the checksums that were noted when the store was generated.

    Attributes
    ----------
    num_samples
        Delivered.
    num_wrong
        Of these, samples with another checksum.
    num_repeated
        Of these, samples that had been delivered before.
    crc_sum
        Sum of the checksums.
    """

    num_samples: int
    num_wrong: int
    num_repeated: int
    crc_sum: int


def generate_stream_store(directory: Path, stream_mib: int, on_chunk: Callable[[int, int], None]) -> tuple[Path, bool]:
    """Write the store `stream.zarr`: `samples` (n, 4, 64, 64) float32, and `crc32` (n,) of them.

    A sample is four smooth fields around 280 with noise of standard deviation 1, mantissas rounded to 12 bits;
    Blosc (lz4, byte shuffle) compresses this about 2.3 : 1. A chunk has 16 samples, 1 MiB.

    Parameters
    ----------
    directory
        Where it goes.
    stream_mib
        Decoded size in MiB.
    on_chunk
        Called after each chunk with the chunks done and their total.

    Returns
    -------
    Path of the store, and whether it was there already.
    """
    n = stream_mib * _SAMPLES_PER_MIB
    path = directory / "stream.zarr"
    needed_bytes, free_bytes = (stream_mib << 20) // 2, shutil.disk_usage(directory).free
    if needed_bytes > free_bytes and not path.exists():
        raise ConfigError(
            f"{directory}: {format_bytes(free_bytes)} free, the store of --stream-mb {stream_mib} takes about "
            f"{format_bytes(needed_bytes)}"
        )

    def write(group: zarr.Group) -> None:
        array = group.create_array(
            "samples",
            shape=(n, *SAMPLE_SHAPE),
            dtype=np.float32,
            chunks=(CHUNK_SAMPLES, *SAMPLE_SHAPE),
            compressors=BloscCodec(cname="lz4", clevel=5, shuffle=BloscShuffle.shuffle),
        )
        checksums = np.empty(n, dtype=np.uint32)
        for begin in range(0, n, CHUNK_SAMPLES):
            rows = _generate(np.random.default_rng([begin, n]), CHUNK_SAMPLES)
            array[begin : begin + CHUNK_SAMPLES] = rows
            checksums[begin : begin + CHUNK_SAMPLES] = _checksums(rows)
            on_chunk(begin // CHUNK_SAMPLES + 1, n // CHUNK_SAMPLES)
        group.create_array("crc32", data=checksums)

    reused = build_store(path, {"generated": "smooth fields and noise, version 1", "num_samples": n}, write)
    return path, reused


def _generate(rng: np.random.Generator, rows: int) -> npt.NDArray[np.float32]:
    """Return samples: per channel a sum of three products of waves along y and x, and noise."""
    fields, size = SAMPLE_SHAPE[0], SAMPLE_SHAPE[-1]
    angle = np.linspace(0, 2 * np.pi, size, dtype=np.float32)
    # (y or x, row, field, term, position)
    phase = 2 * np.pi * rng.random((2, rows, fields, 3, 1), dtype=np.float32)
    waves = np.sin(rng.integers(1, 4, phase.shape).astype(np.float32) * angle + phase)
    # (row, field, y, x)
    values = 280 + 10 * np.matmul(waves[0].swapaxes(-1, -2), waves[1])
    values += rng.standard_normal(values.shape, dtype=np.float32)
    bits = values.view(np.uint32)
    bits += np.uint32(1 << 10)  # rounds to nearest: the next line drops 11 of the 23 bits of the mantissa
    bits &= np.uint32(0xFFFFF800)
    return cast("npt.NDArray[np.float32]", values)


def _checksums(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.array([zlib.crc32(row) for row in np.ascontiguousarray(rows)], dtype=np.uint32)


def open_zarrfeed(path: Path, *, seed: int) -> ZarrIterableDataset:
    """Return the dataset whose rate is measured: batches of samples and indices, everything else as by default."""
    return ZarrIterableDataset(path / "samples", batch_size=BATCH_SIZE, shuffle=True, seed=seed, return_index=True)


def plain_zarr(path: Path, *, seed: int, num_threads: int) -> Iterator[IndexedBatch]:
    """Yield shuffled batches with zarr-python alone, as one would write it by hand.

    Whole chunks are read in random order, each once, by a pool of threads that is one buffer ahead; the samples of a
    buffer are permuted together. Reading sample by sample would decode each chunk 16 times.
    """
    array = zarr.open_array(store=path / "samples", mode="r")
    rng = np.random.default_rng(seed)
    order = rng.permutation(array.shape[0] // CHUNK_SAMPLES) * CHUNK_SAMPLES
    buffers = [order[i : i + PLAIN_BUFFER_CHUNKS] for i in range(0, len(order), PLAIN_BUFFER_CHUNKS)]

    def read(begin: int) -> npt.NDArray[Any]:
        return cast("npt.NDArray[Any]", array[begin : begin + CHUNK_SAMPLES])

    with ThreadPoolExecutor(num_threads) as pool:
        ahead = [pool.submit(read, begin) for begin in buffers[0]]
        for number, begins in enumerate(buffers):
            rows = np.concatenate([chunk.result() for chunk in ahead])
            ahead = [pool.submit(read, begin) for begin in buffers[number + 1]] if number + 1 < len(buffers) else []
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


def check(batches: Iterable[IndexedBatch], path: Path, *, limit_s: float = float("inf")) -> Check:
    """Compare every delivered sample with the checksum of the store."""
    noted = cast("npt.NDArray[np.uint32]", zarr.open_array(store=path / "crc32", mode="r")[...])
    times_seen = np.zeros(len(noted), dtype=np.int64)
    num_wrong, crc_sum = 0, 0
    begin = time.perf_counter()
    for samples, index in batches:
        found = _checksums(samples.numpy())
        num_wrong += int((found != noted[index.numpy()]).sum())
        crc_sum += int(found.sum(dtype=np.int64))
        np.add.at(times_seen, index.numpy(), 1)
        if time.perf_counter() - begin > limit_s:
            break
    return Check(int(times_seen.sum()), num_wrong, int((times_seen > 1).sum()), crc_sum)


def thread_shares(before: Stats, after: Stats) -> dict[str, float]:
    """Return the shares of the engine's thread time between two readings: of its stages, and of idleness."""
    names = {"fetch": "fetch_s", "decode": "decode_s", "scatter": "scatter_s", "idle": "worker_idle_s"}
    spent = {stage: getattr(after, name) - getattr(before, name) for stage, name in names.items()}
    total = sum(spent.values()) or 1.0
    return {stage: seconds / total for stage, seconds in spent.items()}


def limiting_stage(shares: dict[str, float], *, waited_share: float) -> str:
    """Name what a faster machine would have to speed up.

    Parameters
    ----------
    shares
        As from `thread_shares`.
    waited_share
        Share of the time in which the consumer waited for a batch.
    """
    if waited_share < 0.1:
        return "the consumer"  # batches were ready before it asked
    if shares["idle"] > 0.5:
        return "storage"  # it waits, and so do the threads: for bytes
    return max(("fetch", "decode", "scatter"), key=lambda stage: shares[stage])

"""Stores for faults of input and output, and what is right to come out of them.

Each array has `SAMPLES` rows of `ITEMS` numbers which say what row they are: of version 0, and of version 1 after it
was written anew. Batches carry the index of each sample, so that every row can be compared with the one it has to be.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from tests.faults.harness.row import Try, UnspecifiedError
from tests.support.flat import iterable_dataset
from tests.support.proc import thread_file, thread_ids
from tests.support.stalls import StallWatch
from zarrfeed import CorruptChunkError, StoreReadError, ZarrIterableDataset

AnyArray = npt.NDArray[Any]

SAMPLES, ITEMS = 240, 16
#: Rows of a chunk, and of a shard.
ROWS, SHARD_ROWS = 8, 40
FILL = -7

#: Name -> how an array is made.
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "blosc": {"compressors": BloscCodec(cname="lz4")},
    "zstd": {"compressors": ZstdCodec()},
    "crc32c": {"compressors": (ZstdCodec(), Crc32cCodec())},
    "shards": {"compressors": ZstdCodec(), "shards": (SHARD_ROWS, ITEMS)},
    "shards-crc32c": {"compressors": (ZstdCodec(), Crc32cCodec()), "shards": (SHARD_ROWS, ITEMS)},
}


#: Of reads that do not return. No other read may take as long, and machines are busy.
TIMEOUT_S = 1.0


def rows_of(index: AnyArray, version: int = 0) -> AnyArray:
    """Return the rows of samples, (len(index), ITEMS) of int32. Those of version 1 compress to other sizes."""
    numbers = index.reshape(-1, 1) * ITEMS + np.arange(ITEMS)
    return (numbers * 2654435761 % 2**31 if version else numbers).astype(np.int32)


def stored(shared: Path, layout: str, version: int = 0) -> Path:
    """Return an array in a local store, made once in a process; not to be changed."""
    path = (shared / f"{layout}-{version}").resolve()
    if not path.exists():
        write(path, layout, version)
    return path


def copied(attempt: Try, layout: str) -> Path:
    """Return an array of version 0 that the try may change."""
    path = attempt.directory.resolve() / layout
    shutil.copytree(stored(attempt.shared, layout), path)
    return path


def write(store: Any, layout: str, version: int = 0) -> zarr.Array[Any]:
    """Write an array, to any store."""
    array: zarr.Array[Any] = zarr.create_array(
        store, shape=(SAMPLES, ITEMS), chunks=(ROWS, ITEMS), dtype="int32", fill_value=FILL, **LAYOUTS[layout]
    )
    array[:] = rows_of(np.arange(SAMPLES), version)
    return array


def chunk_files(path: Path) -> list[Path]:
    """Return the files of chunks, or of shards, of an array."""
    return sorted(file for file in (path / "c").rglob("*") if file.is_file())


def samples_of(file: Path, layout: str) -> AnyArray:
    """Return the samples that lie in the file of a chunk or a shard."""
    rows = SHARD_ROWS if "shards" in LAYOUTS[layout] else ROWS
    first = int(file.parent.name) * rows
    return np.arange(first, first + rows)


def opened(source: Any, chooser: random.Random, **options: Any) -> ZarrIterableDataset:
    """Return a dataset of the array in some configuration."""
    some = {
        "batch_size": chooser.choice((5, 16, 64)),
        "shuffle": chooser.random() < 0.75,
        "seed": chooser.randrange(1000),
        "lanes": chooser.choice((None, 1, 3)),
        "num_threads": chooser.randint(1, 4),
        "return_index": True,
    }
    return iterable_dataset(source, **some | options)


@dataclass(frozen=True)
class Epoch:
    """What came out: rows (samples, ITEMS), with the index of each."""

    index: AnyArray
    rows: AnyArray

    def is_of(self, version: int) -> AnyArray:
        """Return, for each row, whether it is that of the version."""
        right: AnyArray = (self.rows == rows_of(self.index, version)).all(axis=1)
        return right

    def is_fill(self) -> AnyArray:
        """Return, for each row, whether it is fill values."""
        fill: AnyArray = (self.rows == FILL).all(axis=1)
        return fill

    def lies_in(self, file: Path, layout: str) -> AnyArray:
        """Return, for each row, whether it is stored in the file."""
        return np.isin(self.index, samples_of(file, layout))

    def must(self, right: AnyArray, what: str) -> None:
        """Raise UnspecifiedError unless all rows are right."""
        if not right.all():
            wrong = self.index[~right]
            raise UnspecifiedError(f"{len(wrong)} rows are not {what}: {wrong[:5]}, {self.rows[~right][:2].tolist()}")


def read_batches(dataset: Iterable[Any]) -> Epoch:
    """Read an epoch; UnspecifiedError unless all batches are full but for the last."""
    batches = [(rows.numpy().copy(), index.numpy().copy()) for rows, index in dataset]
    lengths = [len(index) for _, index in batches]
    if len(set(lengths[:-1])) > 1 or lengths[-1] > lengths[0]:
        raise UnspecifiedError(f"batches have {lengths} samples")
    return Epoch(np.concatenate([index for _, index in batches]), np.concatenate([rows for rows, _ in batches]))


def read_epoch(dataset: Iterable[Any]) -> Epoch:
    """Read an epoch; UnspecifiedError unless every sample is there once, in batches that are full but for the last."""
    epoch = read_batches(dataset)
    if not np.array_equal(np.sort(epoch.index), np.arange(SAMPLES)):
        raise UnspecifiedError(f"the samples of an epoch are not each there once: {epoch.index.tolist()}")
    return epoch


def check_right(dataset: Iterable[Any]) -> None:
    """Raise UnspecifiedError unless an epoch has every sample once, each of version 0."""
    epoch = read_epoch(dataset)
    epoch.must(epoch.is_of(0), "right")


def check_names(error: StoreReadError | CorruptChunkError, path: Path, file: Path) -> None:
    """Raise UnspecifiedError unless the message names the array and the chunk or shard that lies in the file."""
    key = file.relative_to(path).as_posix()
    if not re.search(rf"{re.escape(str(path))} (chunk|shard) {re.escape(key)}\b", str(error)):
        raise UnspecifiedError(f"the error names not {path} and {key}: {error!r}")


def check_errno(error: OSError, *codes: int) -> None:
    """Raise UnspecifiedError unless the error has one of these numbers."""
    if error.errno not in codes:
        raise UnspecifiedError(f"errno = {error.errno}, must be one of {codes}: {error!r}")


class Stopwatch:
    """How long something takes, less the time in which its threads waited for a processor, or the process stalled."""

    def __init__(self) -> None:
        self._begin_s, self._waited_s = time.monotonic(), self._waited()
        self._watch = StallWatch()
        self._watch.start()

    def check(self, most_s: float) -> None:
        """Raise UnspecifiedError if it took longer."""
        took_s = time.monotonic() - self._begin_s
        self._watch.end()
        waited_s = max(0.0, self._waited() - self._waited_s, self._watch.total_s)
        if took_s - waited_s > most_s:
            raise UnspecifiedError(f"took {took_s:.1f} s ({waited_s:.1f} s without a processor), at most {most_s} s")

    @staticmethod
    def _waited() -> float:
        times = [thread_file(thread, "schedstat") for thread in thread_ids()]
        return sum(int(text.split()[1]) for text in times if text) * 1e-9


def check_injected(times: int) -> None:
    """Raise UnspecifiedError unless the fault has happened."""
    if times < 1:
        raise UnspecifiedError("nothing was injected")

"""Writers and readers of one store in processes of their own; samples say who wrote them, so that torn ones show."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import zarrfeed

#: int64 numbers of a sample: its number, and three that follow from it.
WIDTH = 4
#: Writers have their samples from this many numbers each.
PER_WRITER = 1 << 32


def samples(begin: int, end: int) -> npt.NDArray[np.int64]:
    """Return samples that can be checked: the number, its negative, its complement, and a constant."""
    number = np.arange(begin, end, dtype=np.int64)
    return np.stack([number, -number, ~number, np.full(len(number), 7)], axis=1)


def check(batch: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of samples, each of which must be whole."""
    number = batch[:, 0]
    torn = (batch[:, 1] != -number) | (batch[:, 2] != ~number) | (batch[:, 3] != 7)
    assert not torn.any(), f"{torn.sum()} torn samples of {len(batch)}: {batch[torn][:3].tolist()}"
    return number


def write(path: Path, writer: int, appends: int, chunk_rows: int, log: Path | None = None) -> None:
    """Append small batches; say in `log` how many samples were handed over."""
    drawn = random.Random(writer)
    end = 0
    with zarrfeed.Appender(path, chunk_rows=chunk_rows, compressors=None) as appender:
        for _ in range(appends):
            size = drawn.randrange(1, 2 * chunk_rows)
            begin = writer * PER_WRITER + end
            appender.append({"x": samples(begin, begin + size), "y": np.arange(begin, begin + size)})
            end += size
            if log is not None:
                log.write_text(str(end))


def read(path: Path, until: Path, results: Any) -> None:
    """Read epochs while others write, and send how many samples were read of how many versions."""
    total, versions = 0, set()
    before: dict[int, str] = {}
    try:
        dataset = _dataset(path)
        stopping = False
        while not stopping:
            stopping = until.exists()  # one epoch more, of all there is
            numbers = []
            for batch in dataset:
                number = check(batch["x"].numpy())
                assert (batch["y"].numpy() == number).all()
                numbers.append(number)
            epoch = np.concatenate(numbers)
            assert len(np.unique(epoch)) == len(epoch), "a sample was read twice"
            total += len(epoch)
            versions.add(len(epoch))
            for length in sorted(before)[-3:]:  # what was there stays what it was
                assert _digest(epoch[:length]) == before[length]
            before[len(epoch)] = _digest(epoch)
        results.put((total, len(versions)))
    except BaseException as error:
        results.put(error)
        raise


def _dataset(path: Path) -> zarrfeed.ZarrIterableDataset:
    deadline = time.monotonic() + 60
    while True:
        try:
            data = zarrfeed.open(path, refresh="epoch")
        except (zarrfeed.ConfigError, zarrfeed.StoreReadError):  # nothing is written yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return zarrfeed.ZarrIterableDataset(data, batch_size=256, num_threads=1)


def _digest(numbers: npt.NDArray[np.int64]) -> str:
    return hashlib.sha256(numbers.tobytes()).hexdigest()

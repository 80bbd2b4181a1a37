"""Measure the rate at which the disk delivers a store's files, and the share of them that is in the page cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

#: Limits of the measurement in bytes and in seconds; its number of threads, the same as of the engine's fetch threads.
_MOST_BYTES, _LIMIT_S, _THREADS = 128 << 20, 1.0, 16
_PIECE = 1 << 20
#: Number of files that are listed in the search for files to read.
_MOST_FILES = 4096
#: Files of metadata, and remains of unfinished writes.
_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


@dataclass(frozen=True)
class DiskRate:
    """The rate at which files were read.

    Attributes
    ----------
    read_bytes
        Bytes that were read.
    bytes_per_s
        Bytes a second, from disk and page cache as they were.
    cached_share
        The share of the bytes that was in the page cache; None if the system does not tell it.
    """

    read_bytes: int
    bytes_per_s: float
    cached_share: float | None

    @property
    def of_disk(self) -> float | None:
        """Bytes a second of the disk; None if most of it was in the page cache, which says nothing of the disk."""
        return self.bytes_per_s if self.cached_share is not None and self.cached_share < 1 / 10 else None


def measure_disk(
    roots: Sequence[Path], *, most_bytes: int = _MOST_BYTES, clock: Callable[[], float] = time.perf_counter
) -> DiskRate | None:
    """Read files below directories, evenly chosen; None if there are no files.

    Raises
    ------
    OSError
        If a file cannot be read.
    """
    files = [path for root in roots for path in islice(_files(root), _MOST_FILES // len(roots))]
    if not files:
        return None
    step = max(1, len(files) // 64)
    begin = clock()
    taken = [0]

    def read(path: Path) -> tuple[int, int | None]:
        if taken[0] >= most_bytes or clock() - begin > _LIMIT_S:
            return 0, 0
        count, cached = _read(path, min(most_bytes, 8 << 20))
        taken[0] += count
        return count, cached

    with ThreadPoolExecutor(_THREADS) as pool:
        counts = list(pool.map(read, [*files[::step], *(path for i, path in enumerate(files) if i % step)]))
    total = sum(count for count, _ in counts)
    if total == 0:
        return None
    known = [cached for _, cached in counts if cached is not None]
    share = sum(known) / total if len(known) == len(counts) else None
    return DiskRate(total, total / max(clock() - begin, 1e-9), share)


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names if name not in _METADATA and not name.startswith("."))


def _read(path: Path, most: int) -> tuple[int, int | None]:
    """Read the beginning of a file; return its bytes, and how many were in the page cache, judged by its first page.

    Later pages say nothing: the system reads ahead.
    """
    buffer, done = bytearray(_PIECE), 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        is_cached = _first_page_is_cached(descriptor)
        while done < most and (count := os.preadv(descriptor, [buffer], done)):
            done += count
    finally:
        os.close(descriptor)
    return done, None if is_cached is None else done * is_cached


def _first_page_is_cached(descriptor: int) -> bool | None:
    """Return whether the first page of a file is in the page cache; None where the system does not say."""
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    try:
        os.preadv(descriptor, [bytearray(1)], 0, flag)
    except BlockingIOError:
        return False
    except OSError:  # such as EOPNOTSUPP
        return None
    return True

"""What the process holds: memory, file descriptors, threads, shared memory; and whether that stays as it was.

The tolerance for memory. glibc by itself keeps up to 64 MiB of freed memory at the end of each of its arenas, so the
soak fixes its thresholds at 128 KiB, and measures after a garbage collection and after giving back free pages: what is
left is held by somebody. A leak grows with the number of configurations: one of a decoded chunk or a batch in each,
some KiB to some MiB, or of a thread's stack, comes to far more than 4 KiB a configuration. Making and reading the
stores with zarr-python alone took 2 KiB each, of 400. So a line is fitted to the measurements behind the first fifth of
the time (caches of Python, zarr and torch fill up there), and its rise must not exceed 4 KiB a configuration, or 16 MiB
where that is more. For the fit the median of the slopes between all pairs is taken (Theil and Sen), which a few high
measurements do not move.

File descriptors and mappings of shared memory must be as many as after the first configurations, and no thread may be
there that is neither Python's own nor was there at the start. Of Python's own only zarr-python's event loop and its
helpers stay.
"""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.proc import open_files, resident_bytes, thread_file, thread_ids

_MIB = 1 << 20
_LEAST_RISE_BYTES = 16 * _MIB
_RISE_BYTES = 4 << 10
_WARM_UP_PART = 0.2
_LOOKS = 25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_THREAD_NAMES = re.compile(r"MainThread|watchdog|zarr.*|asyncio_\d+|ThreadPoolExecutor.*")


@dataclass(frozen=True)
class Level:
    """What the process holds at one moment.

    Attributes
    ----------
    seconds
        When, since the start.
    configurations
        How many were done until then.
    rss_bytes
        Memory that is resident, after a garbage collection.
    descriptors
        Open file descriptors.
    shared
        Mappings of shared memory.
    threads
        Those that Python does not know.
    """

    seconds: float
    configurations: int
    rss_bytes: int
    descriptors: int
    shared: int
    threads: frozenset[int]


def settle_allocator() -> None:
    """Let the allocator give back what is freed; by itself it moves its thresholds up to 64 MiB."""
    for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, 128 << 10)


def measure(seconds: float, configurations: int) -> Level:
    """Measure, after giving back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Level(seconds, configurations, resident_bytes(), len(open_files()), _count_shared(), foreign_threads())


def peak_rss_bytes() -> int:
    """Return the most memory that was ever resident."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def foreign_threads() -> frozenset[int]:
    """Return the threads that Python did not start; those that just ended are waited for."""
    foreign = thread_ids()
    for _ in range(_LOOKS):  # and not until a time: a process that did not run has not looked
        foreign &= thread_ids() - {thread.native_id for thread in threading.enumerate()}
        if not foreign:
            break
        time.sleep(0.02)
    return frozenset(foreign)


def thread_names(ids: Iterable[int]) -> list[str]:
    """Return the names that the system has for these threads."""
    return [(thread_file(one, "comm") or "ended").strip() for one in ids]


def unexpected_threads() -> list[str]:
    """Return the names of Python's threads that should not be there between two configurations."""
    return [t.name for t in threading.enumerate() if not _THREAD_NAMES.fullmatch(t.name)]


def left_in_shared_memory(pids: Iterable[int]) -> list[str]:
    """Return the names in /dev/shm that have the number of one of these processes where torch's names have it."""
    numbers = {str(pid) for pid in pids}
    names = [entry.name for entry in Path("/dev/shm").iterdir()]
    return [name for name in names if (found := re.match(r"[a-z]+_(\d+)_", name)) and found[1] in numbers]


def rise_bytes(levels: list[Level]) -> tuple[float, float]:
    """Return by how much a line through the memory rises behind the warm-up, and how much it may."""
    late = [level for level in levels if level.seconds >= _WARM_UP_PART * levels[-1].seconds]
    configurations = levels[-1].configurations - levels[0].configurations
    allowed = max(_LEAST_RISE_BYTES, _RISE_BYTES * configurations)
    if len(late) < 3:
        return 0.0, allowed
    at = np.array([level.seconds for level in late])
    rss = np.array([level.rss_bytes for level in late], dtype=np.float64)
    one, other = np.triu_indices(len(late), 1)
    slope = float(np.median((rss[other] - rss[one]) / (at[other] - at[one])))
    return slope * (at[-1] - at[0]), allowed


def _count_shared() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/dev/shm/" in line or "/memfd:" in line for line in lines)

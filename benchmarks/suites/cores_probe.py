"""Reads one case on several numbers of threads, beside the bare loop on as many; `cores.py` runs it.

python -m benchmarks.suites.cores_probe TASK, which is a `Task` in JSON; the result is JSON, too.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import zarrfeed
from benchmarks.data.layouts import LAYOUTS, QUICK, Layout
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.measure import CpuWatch
from benchmarks.harness.perf_counters import PerfCounters
from benchmarks.loaders import fields_of
from benchmarks.loaders.ceiling import Ceiling
from benchmarks.suites.patch_cases import Case
from benchmarks.suites.patch_cases import write as write_volume
from benchmarks.suites.patches import PatchCeiling
from benchmarks.suites.remote_sides import ObstoreThreads, Source, remote_layout
from zarrfeed import ZarrIterableDataset

ROWS = ("A", "D-1024", "E", "G", "B-zstd")
PATCHES, REMOTE = "patches", "remote"

#: An epoch reads the stored data again and again, so that it does not end while it is timed.
_EPOCH_BYTES = {"full": 1 << 40, "small": 1 << 26}
_MOST_COPIES = 2048
#: G has 32768 files at the full scale, which would take longer to write than all other data together.
_SMALLER = {"G": QUICK}
_REMOTE_LAYOUT = "objects"
_VOLUME = Case((512, 512, 512), (64, 64, 64), (64, 64, 64), 8, 8, None)
#: All stores together, in bytes.
_MAX_STORED_BYTES = 19 * 10**8


@dataclass(frozen=True)
class Task:
    """The measurement that a process makes.

    Attributes
    ----------
    case, scale, data
        One of `ROWS`, `PATCHES` or `REMOTE`; "full" or "small"; the folder of the stores.
    threads
        Numbers of threads.
    seconds, warm_s, rounds
        Seconds of each side in a round, seconds of zarrfeed before the first round, and the number of rounds.
    cpus
        The cores that the process may use; None: all of its own.
    server
        URL of the folder of the stores, for `REMOTE`.
    with_counters
        True: read the processor's counters, in a window of their own.
    """

    case: str
    scale: str
    data: str
    threads: Sequence[int]
    seconds: float
    warm_s: float
    rounds: int
    cpus: Sequence[int] | None = None
    server: str = ""
    with_counters: bool = False


@dataclass(frozen=True)
class Row:
    """One round on a number of threads.

    Attributes
    ----------
    threads, repeat
        Number of threads, and number of the round.
    ours, loop
        Decoded GB/s; of a loop that only fetches, those of the objects.
    cpu_s_per_gb
        CPU seconds of zarrfeed's process for each decoded GB.
    batch_us
        CPU microseconds of the thread that takes a batch.
    foreign_cores
        Cores that were busy for others while zarrfeed read; None where that is not known.
    """

    threads: int
    repeat: int
    ours: float
    loop: float
    cpu_s_per_gb: float
    batch_us: float
    foreign_cores: float | None


class Loop(Protocol):
    """A bare loop over the same chunks, which delivers nothing."""

    def measure(self) -> float:
        """Return the seconds of one pass."""


@dataclass(frozen=True)
class Prepared:
    """A case whose data are written.

    Attributes
    ----------
    description, batch_size, batch_bytes
        The case in words, samples of a batch, and decoded bytes of a batch.
    data
        The samples, for zarrfeed to read.
    pass_bytes
        Decoded bytes of a pass of the loop.
    loop
        Makes the loop for a number of threads.
    """

    description: str
    batch_size: int
    batch_bytes: int
    data: zarrfeed.Data
    pass_bytes: int
    loop: Callable[[int], Loop]


def prepare(case: str, scale: str, folder: Path, server: str) -> Prepared:
    """Write the data of a case unless they are there, and open them."""
    if case == PATCHES:
        return _prepare_patches(scale, folder)
    if case == REMOTE:
        return _prepare_remote(scale, folder, server)
    store = store_of(case, scale, folder)
    layout = store.layout
    one = zarrfeed.open(store.samples_path, store.targets_path)
    return Prepared(
        f"{layout.stored_as()}, batches of {layout.batch_size}",
        layout.batch_size,
        layout.batch_size * layout.sample_bytes,
        _repeated(one, layout.decoded_bytes, scale),
        layout.decoded_bytes,
        lambda threads: Ceiling(store, scatter=True, num_threads=threads),
    )


def scale_of(case: str, scale: str) -> str:
    """Return the scale of `data/layouts.py` at which a case's rows are stored."""
    return _SMALLER.get(case, scale) if scale == "full" else scale


def store_of(case: str, scale: str, folder: Path) -> Store:
    """Return the written store of a case of rows, in the page cache."""
    stored = scale_of(case, scale)
    return _written(LAYOUTS[case].scaled(stored), folder, stored)


def remote_store(scale: str, folder: Path) -> Store:
    """Return the written store of `REMOTE`, in the page cache."""
    return _written(remote_layout(_REMOTE_LAYOUT, scale), folder, scale)


def _written(layout: Layout, folder: Path, scale: str) -> Store:
    store = prepare_store(layout, folder, scale=scale, max_bytes=_MAX_STORED_BYTES)
    warm_page_cache(store)
    return store


def _prepare_patches(scale: str, folder: Path) -> Prepared:
    case = _VOLUME if scale == "full" else _VOLUME.small()
    path, begun = folder / f"cores-volume-{scale}.zarr", folder / f".cores-volume-{scale}.{os.getpid()}"
    if not path.exists():
        write_volume(begun, case)
        begun.rename(path)
    warm_page_cache(path)
    one = zarrfeed.open(path).patch(dict(enumerate(case.patch)))
    with ZarrIterableDataset(one, batch_size=case.batch, shuffle=True, seed=0, return_index=True) as dataset:
        starts = one.locate(dataset.sample_order(0))[1]
    patch_bytes = math.prod(case.patch) * np.dtype(case.dtype).itemsize
    return Prepared(
        f"patches of {case.patch[0]}^3 voxels of a volume of {case.shape[0]}^3, {case.dtype}, in chunks of "
        f"{case.chunks[0]}^3, batches of {case.batch}",
        case.batch,
        case.batch * patch_bytes,
        _repeated(one, case.decoded_bytes, scale),
        len(starts) * patch_bytes,
        lambda threads: PatchCeiling(one, case, starts, threads),
    )


class _Fetching:
    """Fetches all objects of a store once, in threads, and decodes none."""

    def __init__(self, source: Source, threads: int) -> None:
        self._fetcher = ObstoreThreads(source, threads)
        self._keys = [file.relative_to(source.store.path).as_posix() for file in source.objects]

    def measure(self) -> float:
        begin = time.perf_counter()
        self._fetcher.fetch(self._keys, lambda _key, _data: None)
        return time.perf_counter() - begin


def _prepare_remote(scale: str, folder: Path, server: str) -> Prepared:
    store = remote_store(scale, folder)
    source, layout = Source(store, server), store.layout
    return Prepared(
        f"{layout.stored_as()}, over HTTP from this machine, batches of {layout.batch_size}; the loop only fetches",
        layout.batch_size,
        layout.batch_size * layout.sample_bytes,
        _repeated(zarrfeed.open(f"{source.url}/samples"), layout.decoded_bytes, scale),
        layout.decoded_bytes,
        lambda threads: _Fetching(source, threads),
    )


def _repeated(data: zarrfeed.Data, decoded_bytes: int, scale: str) -> zarrfeed.Data:
    return zarrfeed.concat([data] * min(_MOST_COPIES, -(-_EPOCH_BYTES[scale] // decoded_bytes)))


class Ours:
    """zarrfeed on a number of threads, whose epochs go on from one round to the next."""

    def __init__(self, prepared: Prepared, threads: int) -> None:
        self._prepared = prepared
        self._dataset = ZarrIterableDataset(
            prepared.data,
            batch_size=prepared.batch_size,
            shuffle=True,
            seed=0,
            drop_last=True,
            num_threads=threads,
            pin_memory=False,
        )
        self._batches = self._endless()

    def _endless(self) -> Iterator[int]:
        while True:
            for batch in self._dataset:
                yield len(fields_of(batch)[0])

    def take(self, seconds: float) -> tuple[int, float, float]:
        """Take batches for some seconds, at least one; return how many, and clock and CPU seconds of this thread."""
        count, begin, cpu_begin = 0, time.perf_counter(), time.thread_time()
        while count == 0 or time.perf_counter() - begin < seconds:
            next(self._batches)
            count += 1
        return count, time.perf_counter() - begin, time.thread_time() - cpu_begin

    def close(self) -> None:
        self._dataset.close()


def measure(task: Task) -> dict[str, Any]:
    """Measure all numbers of threads of a task."""
    prepared = prepare(task.case, task.scale, Path(task.data), task.server)
    rows: list[Row] = []
    counters: dict[int, Mapping[str, Any]] = {}
    for threads in task.threads:
        loop = prepared.loop(threads)
        loop.measure()
        with closing(Ours(prepared, threads)) as ours:
            ours.take(task.warm_s)  # fresh memory
            for repeat in range(task.rounds):
                ours.take(task.warm_s / 4)  # what waited in the pipeline meanwhile
                watch = CpuWatch()
                batches, wall_s, thread_s = ours.take(task.seconds)
                cpu_s, foreign_cores = watch.stop()
                gb = batches * prepared.batch_bytes / 1e9
                looped = _loop_rate(loop, prepared, task.seconds)
                batch_us = 1e6 * thread_s / batches
                rows.append(Row(threads, repeat, gb / wall_s, looped, cpu_s / gb, batch_us, foreign_cores))
            if task.with_counters:
                counters[threads] = _count(ours, prepared, task.seconds)
    return {
        "description": prepared.description,
        "batch_bytes": prepared.batch_bytes,
        "rows": [asdict(row) for row in rows],
        "counters": counters,
    }


def _loop_rate(loop: Loop, prepared: Prepared, seconds: float) -> float:
    passes, inside_s = 0, 0.0
    begin = time.perf_counter()
    while passes == 0 or time.perf_counter() - begin < seconds:
        inside_s += loop.measure()
        passes += 1
    return passes * prepared.pass_bytes / inside_s / 1e9


def _count(ours: Ours, prepared: Prepared, seconds: float) -> dict[str, Any]:
    with PerfCounters() as found:
        batches, _, _ = ours.take(seconds)
    gb = batches * prepared.batch_bytes / 1e9
    return {"per_gb": {name: count / gb for name, count in found.counts.items()}, "why_not": found.why_not}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the result."""
    task = Task(**json.loads(arguments[0]))
    if task.cpus is not None:
        os.sched_setaffinity(0, task.cpus)  # the engine's threads begin later, and are bound alike
    print(json.dumps(measure(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Time epochs of loaders, and read the store with zarr-python to know what they have to deliver."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.data.conversion import as_bits, expected
from benchmarks.data.stores import Store, read_store
from benchmarks.harness.checksum import ChecksumError, Hashes, hash_batches, verify
from benchmarks.loaders import LibraryCeiling, Loader, Yardstick, fields_of


@dataclass(frozen=True)
class Timing:
    """Whole epochs, one behind the other.

    Attributes
    ----------
    epochs, samples, decoded_bytes
        What was delivered; bytes are counted in the dtype that they are stored in, before any conversion.
    wall_s
        Clock time.
    cpu_s
        CPU time of this process and its workers; None if it would count more than the epochs.
    foreign_cores
        Cores that were busy for others, processes or virtual machines, on average; None where that is not known.
    """

    epochs: int
    samples: int
    decoded_bytes: int
    wall_s: float
    cpu_s: float | None
    foreign_cores: float | None

    @property
    def gb_per_s(self) -> float:
        """Decoded gigabytes (10**9 bytes) a second."""
        return self.decoded_bytes / self.wall_s / 1e9

    @property
    def cpu_s_per_gb(self) -> float | None:
        """Seconds of CPU per decoded gigabyte."""
        return None if self.cpu_s is None else self.cpu_s / self.decoded_bytes * 1e9


def expected_hashes(store: Store) -> Hashes:
    """Return the hashes of all samples by sample index, from what zarr-python reads, converted by NumPy."""
    layout = store.layout
    samples, *targets = read_store(store)
    step = max(16, layout.rows_per_chunk)
    hashes, _ = hash_batches(
        [expected(layout, samples[i : i + step]), *(t[i : i + step] for t in targets)]
        for i in range(0, layout.num_samples, step)
    )
    return hashes


def verify_loader(loader: Loader, store: Store, expected: Hashes) -> float:
    """Read epoch 0 and compare it with the store; return the chunks per batch.

    Raises
    ------
    ChecksumError
        If a sample is missing, came twice, or is none of the store's.
    """
    delivered, batch_rows = hash_batches(_as_numpy(loader))
    return verify(
        expected,
        delivered,
        samples_per_epoch=loader.samples_per_epoch,
        rows_per_chunk=store.layout.rows_per_chunk,
        batch_rows=batch_rows,
    )


def verify_library_ceiling(ceiling: LibraryCeiling, expected: Hashes) -> None:
    """Compare what the codecs' libraries and `memcpy` make of all chunks with the store.

    Raises
    ------
    ChecksumError
        If a sample differs.
    """
    delivered, _ = hash_batches([ceiling.read()])
    wrong = np.flatnonzero(delivered != expected)
    if len(wrong):
        raise ChecksumError(f"{len(wrong)} of {len(expected)} samples differ from the store's, the first is {wrong[0]}")


def _as_numpy(loader: Loader) -> Iterator[list[npt.NDArray[Any]]]:
    for batch in loader.epoch(0):
        yield [as_bits(tensor) for tensor in fields_of(batch)]


def time_loader(
    loader: Loader, store: Store, *, first_epoch: int, min_wall_s: float, waits: list[float] | None = None
) -> Timing:
    """Take all batches of whole epochs, at least one and for at least `min_wall_s`, and look at nothing in them.

    The start and the end of each epoch are inside the clock. Like a training loop, this holds a batch while it asks
    for the next one. `waits` gets the seconds in which each batch came after the one before, in the same epoch.
    """
    epochs = samples = 0
    wall_s = 0.0
    watch = CpuWatch()
    begin = time.perf_counter()
    while epochs == 0 or wall_s < min_wall_s:
        came_at = None
        for batch in loader.epoch(first_epoch + epochs):
            samples += len(fields_of(batch)[0])
            if waits is not None:
                now = time.perf_counter()
                if came_at is not None:
                    waits.append(now - came_at)
                came_at = now
        epochs += 1
        wall_s = time.perf_counter() - begin
    cpu_s, foreign_cores = watch.stop()
    return Timing(epochs, samples, samples * store.layout.sample_bytes, wall_s, cpu_s, foreign_cores)


def time_ceiling(ceiling: Yardstick, store: Store, *, min_wall_s: float) -> Timing:
    """Run whole passes, for about `min_wall_s` of clock time.

    Each pass begins with memory and threads of its own, outside its clock: CPU seconds would count that, hence are
    not given.
    """
    passes, inside_s = 0, 0.0
    watch = CpuWatch()
    begin = time.perf_counter()
    while passes == 0 or time.perf_counter() - begin < min_wall_s:
        inside_s += ceiling.measure()
        passes += 1
    layout = store.layout
    _, foreign_cores = watch.stop()
    return Timing(passes, passes * layout.num_samples, passes * layout.decoded_bytes, inside_s, None, foreign_cores)


class CpuWatch:
    """What the processors did since it was made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._own_s, self._busy_s = _own_cpu_s(), _busy_cpu_s()

    def stop(self) -> tuple[float, float | None]:
        """Return the CPU seconds of this process and its workers, and the cores that were busy for others."""
        own_s, busy_s = _own_cpu_s() - self._own_s, _busy_cpu_s()
        if busy_s is None or self._busy_s is None:
            return own_s, None
        # ticks are coarse: less than none is none
        return own_s, max(0.0, busy_s - self._busy_s - own_s) / (time.perf_counter() - self._begin)


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process, of its ended children, and (on Linux) of its living workers."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(process_cpu_s(child.pid) for child in multiprocessing.active_children() if child.pid is not None)
    return time.process_time() + ended.ru_utime + ended.ru_stime + living


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a living process; 0 if it has ended, or where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it ended just now, or this is no Linux
        return 0.0
    # proc(5): utime and stime are fields 14 and 15; the name before them may hold blanks, but ends with ")"
    user_ticks, system_ticks = text.rpartition(")")[2].split()[11:13]
    return (int(user_ticks) + int(system_ticks)) / os.sysconf("SC_CLK_TCK")


def _busy_cpu_s() -> float | None:
    """Return the seconds that all cores together were not idle, stolen ones included; None if this is no Linux."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    # proc(5): user nice system idle iowait irq softirq steal
    user, nice, system, _, _, irq, softirq, steal = (int(ticks) for ticks in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

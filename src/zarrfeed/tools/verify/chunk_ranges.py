"""Ranges of an array's chunks, which any process that can open the store checks: the tasks of executors.

Invariants: ranges partition the chunks of an array, and are counted in their order. The findings of a range depend on
the stored bytes alone, so any process may check it, and again. Thus the report is that of threads of one process,
whatever the ranges are. A process that opens another array than the caller did finds nothing: it is an error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError, ZarrfeedError
from zarrfeed.base.executors import host_name, run_in_order
from zarrfeed.base.waits import result_of
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.portable import as_location, from_bytes, to_bytes
from zarrfeed.tools.verify.chunks import ArrayCheck, SliceResult, prepare_check
from zarrfeed.tools.verify.find_arrays import find_arrays
from zarrfeed.tools.verify.progress_file import Checked, fingerprint

#: Slices of a range, at most: of 256 MiB decoded, if chunks are no larger than that.
_MOST_SLICES = 32
#: Ranges that a worker should have at least, so that none waits long for the last one.
_FOR_EACH = 4
#: The default number of threads of a task: executors count on tasks that use one core, and one thread waits for reads.
_USUAL_THREADS = 2


@dataclass(frozen=True)
class RangeJob:
    """The arguments of a process that checks ranges of one array.

    Attributes
    ----------
    source
        The store, pickled by `to_bytes`.
    path
        Path of the array in the store.
    fingerprint
        Fingerprint of the array's metadata, as the caller sees them.
    access
        The access to the store.
    num_threads, budget
        Threads, and bytes of memory, of a task.
    """

    source: bytes = field(repr=False)
    path: str
    fingerprint: str
    access: StoreAccess
    num_threads: int
    budget: int


@dataclass(frozen=True)
class Shared:
    """The executor that checks ranges, and the number of ranges that it is given at once."""

    executor: Executor
    at_once: int
    source: bytes
    access: StoreAccess
    num_threads: int | None
    budget: int

    def check(self, path: str, check: ArrayCheck, checked: Checked) -> Generator[Checked | ZarrfeedError, None, None]:
        """Yield the findings of the chunks that were not checked, range by range in their order."""
        options = self.access.storage_options
        job = RangeJob(
            self.source,
            path,
            checked.fingerprint,
            replace(self.access, storage_options=None if options is None else dict(options)),
            self.num_threads or _USUAL_THREADS,
            self.budget,
        )
        ranges = split_ranges(check, checked.next, self.at_once)
        return run_in_order(self.executor, partial(check_range, job), ranges, self.at_once)


def describe_store(source: Any) -> bytes:
    """Return the store as tasks get it.

    Raises
    ------
    ConfigError
        If other processes cannot open it.
    """
    return to_bytes(as_location(source))


def split_ranges(check: ArrayCheck, begin: int, at_once: int) -> list[tuple[int, int]]:
    """Return ranges of the chunks from `begin` on: of whole shards, where several fit."""
    end, each = check.numbering.num_numbers, check.numbering.per_object
    slices = -(-(end - begin) // check.step)
    size = check.step * max(1, min(_MOST_SLICES, slices // (_FOR_EACH * at_once)))
    size = max(1, size // each) * each if size >= each else size
    bounds = [begin, *range((begin // size + 1) * size, end, size), end]
    return list(pairwise(bounds)) if begin < end else []


def check_range(job: RangeJob, span: tuple[int, int]) -> Checked | ZarrfeedError:
    """Check a range of chunks in this process; return the findings, or the reason why the array cannot be checked.

    Raises
    ------
    ConfigError, StoreReadError
        If this process cannot open the array that the caller means.
    """
    access = job.access
    array, (begin, end) = _open(job), span
    checked = Checked(job.fingerprint, begin)
    try:
        check = prepare_check(array, job.path, access, num_threads=job.num_threads, budget=job.budget)
        assert check is not None
        try:
            check.start()
            for stop, result in slices_in_order(check, begin, end):
                checked.add(stop, result)
        finally:
            check.close()
    except ZarrfeedError as error:
        return error
    return checked


def slices_in_order(check: ArrayCheck, begin: int, end: int) -> Generator[tuple[int, SliceResult], None, None]:
    """Yield the end and the findings of each slice: they are checked side by side, and come in order."""
    pending: deque[tuple[int, Future[SliceResult]]] = deque()
    try:
        while begin < end or pending:
            while begin < end and len(pending) < check.ahead:
                stop = min(end, begin + check.step)
                pending.append((stop, check.submit(begin, stop)))
                begin = stop
            stop, future = pending[0]
            yield stop, result_of(future)
            pending.popleft()
    finally:
        for _, future in pending:
            future.cancel()


def _open(job: RangeJob) -> zarr.Array[Any]:
    source = from_bytes(job.source)
    if isinstance(source, zarr.Array):
        array = source
    else:
        found = find_arrays(source, [job.path] if job.path else None, job.access)
        if job.path not in found.arrays:
            problem = found.problems.get(job.path, "there is none")
            raise ConfigError(f"the worker on {host_name()} cannot open the array {job.path!r}: {problem}")
        array = found.arrays[job.path]
    if fingerprint(array) != job.fingerprint:
        raise ConfigError(
            f"the worker on {host_name()} (process {os.getpid()}) finds another array at {array.store_path}: all "
            "workers must see the same store"
        )
    return array

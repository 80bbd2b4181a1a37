"""`warm` by an executor: each task copies some objects, in any process that sees the directory of the cache.

Invariants: all tasks fill one cache, that of the caller. The caller leaves a token file in the directory; a task whose
worker does not see this file is an error and copies nothing, so that no worker on another machine fills a cache of its
own with a part of the store. Processes that copy at once lock each entry of the cache, so one of them copies it.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.executors import host_name, run_in_order
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.access.portable import as_location
from zarrfeed.tools.cache.warm import ArrayInStore, WarmedArray, Warming
from zarrfeed.tools.verify import Progress
from zarrfeed.tools.verify.find_arrays import find_arrays

#: Limits of a task: stored bytes, if no object is larger than that, and number of objects.
_TASK_BYTES, _TASK_OBJECTS = 256 << 20, 4096
#: Tasks that a worker should have at least, so that none waits long for the last one.
_FOR_EACH = 4
#: Arrays that a process has open: to open one costs a listing of its objects.
_MOST_OPEN = 8


@dataclass(frozen=True)
class WarmJob:
    """The arguments of a process that copies objects of a store.

    Attributes
    ----------
    store
        The store's path or URL.
    access
        The access to the store, with the cache.
    memory_budget
        Bytes for the objects that a task copies at once.
    token
        Name of a file in the directory of the cache that the caller made.
    """

    store: str
    access: StoreAccess
    memory_budget: int
    token: str

    @classmethod
    def of(cls, store: str, access: StoreAccess, memory_budget: int) -> WarmJob:
        """Return a job with a token of its own."""
        return cls(as_location(store), access, memory_budget, f"warming-{uuid.uuid4().hex}")

    @property
    def cache(self) -> CacheOptions:
        """Options of the cache that is warmed."""
        assert self.access.cache is not None
        return self.access.cache

    @property
    def token_file(self) -> Path:
        """The file that says that a directory is this cache."""
        return Path(self.cache.path) / self.token


@contextmanager
def token_in(job: WarmJob) -> Iterator[None]:
    """Keep the token file of a job in the directory of its cache, while the context lasts.

    Raises
    ------
    ConfigError
        If the token file cannot be written.
    """
    try:
        os.close(os.open(job.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigError(f"cache {job.cache.path}: cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        job.token_file.unlink(missing_ok=True)


def warm_by(
    executor: Executor,
    at_once: int,
    job: WarmJob,
    warming: Warming,
    array: zarr.Array[Any],
    name: str,
    on_progress: Callable[[Progress], None],
) -> WarmedArray:
    """Let an executor copy one array, which is opened here for the keys of its objects.

    Raises
    ------
    ConfigError
        If a worker does not see the cache.
    StoreReadError
        If the store cannot be read.
    LostWorkerError
        If workers died, again and again.
    """
    found, keys, warmed = warming.begin(array, name)
    if found is None:
        return warmed
    objects = found.cached.objects
    mean = max(1, objects.stored_bytes // objects.count) if objects and objects.count else found.spec.decoded_bytes
    each = max(1, min(_TASK_OBJECTS, _TASK_BYTES // mean, len(keys) // (_FOR_EACH * at_once)))
    tasks = (keys[begin : begin + each] for begin in range(0, len(keys), each))
    with closing(run_in_order(executor, partial(warm_keys, job, name), tasks, at_once)) as done:
        for part, is_full in done:
            warmed.extend(part)
            on_progress(Progress(name, warmed.objects, warmed.of, 0, 0, warmed.hit_bytes + warmed.added_bytes))
            if is_full:
                warmed.problem = part.problem
                break
    return warmed


def warm_keys(job: WarmJob, name: str, keys: list[str]) -> tuple[WarmedArray, bool]:
    """Copy some objects of an array; return the result, and whether the copying of others would be in vain.

    Raises
    ------
    ConfigError
        If this process does not see the cache.
    StoreReadError
        If the store cannot be read.
    """
    if not job.token_file.exists():  # before anything here makes the directory
        raise ConfigError(
            f"the worker on {host_name()} does not see the cache {job.cache.path}: run `zarrfeed cache warm` on each "
            "node without --executor, or give a directory that all workers share"
        )
    warming = Warming(job.access, memory_budget=job.memory_budget, on_progress=lambda _: None)
    warmed = WarmedArray(name)
    is_full = warming.copy(_open(job, name, warming), keys, warmed)
    return warmed, is_full


def _open(job: WarmJob, name: str, warming: Warming) -> ArrayInStore:
    """Return an array of a job, which a process opens once."""
    with _lock:
        known = _opened.get((job.token, name))
        if known is None:
            array = find_arrays(job.store, [name] if name else None, replace(job.access, cache=None)).arrays.get(name)
            found = None if array is None else warming.find(array)
            if not isinstance(found, ArrayInStore):
                raise ConfigError(
                    f"the worker on {host_name()} cannot read {name or job.store}: {found or 'not there'}"
                )
            known = _opened[job.token, name] = found
            while len(_opened) > _MOST_OPEN:
                _opened.pop(next(iter(_opened)))
        return known


_opened: dict[tuple[str, str], ArrayInStore] = {}
_lock = threading.Lock()

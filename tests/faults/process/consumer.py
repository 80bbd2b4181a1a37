"""Rows: what the consumer does: a transform that raises, a long pause; and a budget that has no room for a chunk."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import random
import re
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from torch.utils.data import DataLoader
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process.census import Census, Surroundings, session_processes
from tests.faults.process.stores import KINDS, NUM_BATCHES, check, check_epoch, make, rows_of, write_stores
from tests.support.flat import iterable_dataset
from tests.support.proc import living, resident_bytes
from zarrfeed import MemoryBudgetError, ZarrDataLoader, ZarrIterableDataset

_ITERABLE = tuple(kind for kind in KINDS if kind != "access")
_ALONE_S = 20.0


class OwnError(BaseException):
    """Neither an `Exception` nor made of one argument."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)


#: What a transform raises.
_EXCEPTIONS: tuple[BaseException, ...] = (
    ValueError("on purpose"),
    KeyError("on purpose"),
    StopIteration("on purpose"),
    StopAsyncIteration("on purpose"),
    MemoryError("on purpose"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "on purpose"),
    asyncio.CancelledError("on purpose"),
    KeyboardInterrupt("on purpose"),
    SystemExit("on purpose"),
    GeneratorExit("on purpose"),
    OwnError("on purpose", 1),
)
#: What torch hands over from a worker. Others end it: that is in kills.py.
_OF_WORKERS = tuple(error for error in _EXCEPTIONS if isinstance(error, Exception))
#: Of these tries each has DataLoader workers, which take longer.
_WORKERS_EVERY = 4


class _Raising:
    """A transform that raises at its n-th call, and at no other."""

    def __init__(self) -> None:
        self.calls_left = -1
        self.error: BaseException = ValueError()

    def __call__(self, batch: Any) -> Any:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise self.error
        return batch


@functools.cache
def _raising(kind: str, folder: Path) -> tuple[ZarrIterableDataset, _Raising]:
    write_stores(folder)
    transform = _Raising()
    return make(kind, folder, transform=transform), transform


def transform_raises(attempt: Try) -> str:
    """Raise in `transform`, in this process or in workers."""
    choose = attempt.random
    kind = _ITERABLE[attempt.number % len(_ITERABLE)]
    dataset, transform = _raising(kind, attempt.shared)
    with_workers = attempt.number % _WORKERS_EVERY == 1
    error = transform.error = choose.choice(_OF_WORKERS if with_workers else _EXCEPTIONS)
    transform.calls_left = choose.randint(1, NUM_BATCHES // 2)
    warnings.simplefilter("ignore", DeprecationWarning)
    if with_workers:
        return _raises_in_worker(dataset, transform, choose)
    census = Census.take()
    caught = _caught(dataset)
    raised = RuntimeError if isinstance(error, StopIteration) else type(error)
    if type(caught) is not raised or not (caught is error or caught.__cause__ is error):
        raise UnspecifiedError(f"{error!r} came as {caught!r}")
    caught.__traceback__ = error.__traceback__ = None
    check_epoch(dataset)
    gc.collect()
    _check_apart_from_reader(census)
    return "the exception"


def _check_apart_from_reader(before: Census) -> None:
    """Compare with before the first epoch: a reader is kept for the next one, with the two ends of a pipe."""
    Census(before.threads, before.files + 2).check()


def _raises_in_worker(dataset: Any, transform: _Raising, choose: random.Random) -> str:
    census, surroundings = Census.take(), Surroundings.look()
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 30}
    error = transform.error
    loader: Any = ZarrDataLoader(dataset, **settings)
    if choose.random() < 0.5:
        loader = DataLoader(dataset, batch_size=None, **settings)
    # torch makes a new exception of the class, with the worker's traceback as its text, or a RuntimeError.
    caught = _caught(loader)
    if type(caught) not in (type(error), RuntimeError) or "on purpose" not in str(caught):
        raise UnspecifiedError(f"{error!r} in a worker came as {caught!r}")
    transform.calls_left = -1
    del loader, caught  # which has, by its frames, the workers
    gc.collect()
    surroundings.check(_ALONE_S)
    check_epoch(dataset)
    _check_apart_from_reader(census)
    return "the exception, of a worker"


def _caught(batches: Any) -> BaseException:
    """Return what a loop over batches raises."""
    try:
        for batch in batches:
            check(batch)
    except BaseException as error:  # noqa: BLE001 (whatever was raised)
        return error
    raise UnspecifiedError("nothing was raised")


#: What a reader that waits may take, all processes and readers together: a hundredth of a core.
_CORE_SHARE = 0.01
_GROWTH_BYTES = 4 << 20
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
#: All that may be read ahead is, when processors were idle in two looks of this length.
_LOOK_S, _MOST_LOOKS = 0.75, 80


def pause(attempt: Try) -> str:
    """Stop reading for a minute, in the first try for three seconds: datasets of all kinds at once."""
    seconds = 60.0 if attempt.number else 3.0
    write_stores(attempt.shared)
    surroundings = Surroundings.look()
    with _feeds(attempt) as feeds:
        taken = [[check(next(feed)) for _ in range(attempt.random.randint(1, 5))] for feed in feeds]
        workers = session_processes() - surroundings.processes
        _settle(workers)
        memory, cpu_s = _memory_bytes(workers), _cpu_s(workers)
        time.sleep(seconds)
        grown, busy_s = _memory_bytes(workers) - memory, _cpu_s(workers) - cpu_s
        if grown > _GROWTH_BYTES:
            raise UnspecifiedError(f"memory grew by {grown} bytes in {seconds} s")
        if busy_s > 0.05 + _CORE_SHARE * seconds:
            raise UnspecifiedError(f"processors were used for {busy_s:.2f} s of {seconds} s")
        for feed, before in zip(feeds, taken, strict=True):
            check_epoch(feed, before)
    surroundings.check(_ALONE_S)
    return f"right after {seconds:.0f} s"


@contextmanager
def _feeds(attempt: Try) -> Iterator[list[Iterator[Any]]]:
    """Begin epochs of all kinds, and one with DataLoader workers."""
    seed = attempt.random.randrange(1 << 32)
    first = make("zstd", attempt.shared, seed=seed)
    loader = ZarrDataLoader(first, num_workers=2, multiprocessing_context="fork", timeout=90)
    datasets = [make(kind, attempt.shared, seed=seed) for kind in _ITERABLE]
    # Workers are forked before there is anything else to inherit.
    feeds: list[Iterator[Any]] = [iter(loader)]
    yield [*feeds, *map(iter, datasets)]
    for dataset in datasets:
        dataset.close()


def _settle(workers: set[int]) -> None:
    """Wait until nothing more is read ahead, which takes longer on a busy machine."""
    idle, before = 0, _cpu_s(workers)
    for _ in range(_MOST_LOOKS):
        time.sleep(_LOOK_S)
        now = _cpu_s(workers)
        idle, before = (idle + 1 if now - before <= _CORE_SHARE * _LOOK_S + _TICK_S else 0), now
        if idle == 2:
            return


def _memory_bytes(workers: set[int]) -> int:
    return sum(map(resident_bytes, (os.getpid(), *workers)))


def _cpu_s(workers: set[int]) -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + sum(found.cpu_s for found in map(living, workers) if found)


def budget(attempt: Try) -> str:
    """Offer less memory than a chunk takes, and then what the error asks for."""
    choose = attempt.random
    rows, chunk_rows = choose.randint(20, 200), choose.randint(2, 40)
    item_shape = (choose.randint(1, 40), 512)
    chunks = (chunk_rows, choose.randint(1, item_shape[0]), choose.choice((512, 512, 128)))
    where: Any = MemoryStore() if choose.random() < 0.4 else attempt.directory / "a.zarr"
    options: dict[str, Any] = {
        "compressors": choose.choice((None, ZstdCodec(level=1), BloscCodec(), GzipCodec(level=1)))
    }
    if choose.random() < 0.4:
        options["shards"] = (2 * chunks[0], *(-(-n // c) * c for n, c in zip(item_shape, chunks[1:], strict=True)))
    elif choose.random() < 0.3:
        options = {"compressors": None, "filters": [zarr.codecs.TransposeCodec(order=(2, 1, 0))]}
    array = zarr.create_array(where, shape=(rows, *item_shape), chunks=chunks, dtype="i8", **options)
    samples = np.broadcast_to(rows_of(np.arange(rows))[:, None], (rows, *item_shape))
    array[...] = samples
    how: dict[str, Any] = {
        "batch_size": choose.randint(1, 32),
        "shuffle": choose.random() < 0.8,
        "num_threads": choose.randint(1, 4),
        "return_index": True,
    }
    source = zarr.open_array(where, mode="r")
    chunk_bytes = 8 * int(np.prod(chunks))
    offered = choose.randint(1, chunk_bytes - 1)
    try:
        iterable_dataset(source, memory_budget=offered, **how)
    except MemoryBudgetError as error:
        needed = re.search(r"memory_budget = .*, must be at least ([0-9.]+ \w+):", str(error))
        if needed is None:
            raise UnspecifiedError(f"the error does not say what is needed: {error}") from error
    else:
        raise UnspecifiedError(f"{offered} bytes were accepted for chunks of {chunk_bytes}")
    with iterable_dataset(source, memory_budget=needed[1], **how) as dataset:
        seen = []
        for batch, index in dataset:
            if not np.array_equal(batch.numpy(), samples[index.numpy()]):
                raise UnspecifiedError(f"samples {index.tolist()} are wrong")
            seen += index.tolist()
        if dataset.explain().memory_bytes > dataset.explain().memory.budget:
            raise UnspecifiedError(f"more than the budget is planned: {dataset.explain()}")
    if sorted(seen) != list(range(rows)):
        raise UnspecifiedError(f"{len(seen)} samples in place of {rows}")
    return "refused, and read with what was asked for"


ROWS = (
    Row(
        "transform",
        "`transform` raises anything at a random batch, in the training process or a worker",
        "the exception (for StopIteration a RuntimeError; from workers as torch hands it over), then a right epoch, no "
        "thread or file left",
        transform_raises,
        runs=400,
        short_runs=3,
    ),
    Row(
        "pause",
        "the consumer stops reading for a minute (in one try for 3 s), with datasets of all kinds and with workers",
        "memory as it was, processors idle, right batches afterwards",
        pause,
        runs=4,
        short_runs=1,
        timeout_s=150,
    ),
    Row(
        "budget",
        "a memory budget smaller than one chunk, random layouts",
        "`MemoryBudgetError` at construction, which names what suffices; with that, a right epoch",
        budget,
        runs=500,
        short_runs=3,
    ),
)

"""Stores that grow while ranks read them: samples hold their index, so that what is torn or lost shows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed
import zarr

import zarrfeed
from zarrfeed import StoreReadError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.spec.description.version import Version

CHUNK_ROWS = 8


def create(path: Path, samples: int) -> Path:
    """Make an array of int64 whose fill value is no index."""
    array = zarr.create_array(path, shape=(samples, 3), chunks=(CHUNK_ROWS, 3), dtype="i8", fill_value=-1)
    array[:] = np.arange(samples)[:, None].repeat(3, 1)
    return path


def grow(path: Path, more: int) -> None:
    """Append samples as zarr-python does: the shape first."""
    array = zarr.open_array(path, mode="r+")
    begin = array.shape[0]
    array.append(np.arange(begin, begin + more)[:, None].repeat(3, 1))


def values(batches: Any) -> list[int]:
    """Return what was delivered, in order; each sample must be whole."""
    delivered: list[int] = []
    for batch in batches:
        assert (batch == batch[:, :1]).all(), batch
        delivered += batch[:, 0].tolist()
    return delivered


def dataset_of(path: Path, **options: Any) -> ZarrIterableDataset:
    """Return a shuffled dataset of a store that grows."""
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "num_threads": 1} | options
    return ZarrIterableDataset(zarrfeed.open(path, refresh="epoch"), **settings)


def read_growing(path: Path, *, num_workers: int, epochs: int) -> list[list[int]]:
    """Read epochs on a rank; the store grows right after rank 0 looked, and again while the epoch is read."""
    rank = torch.distributed.get_rank()
    look = Growth.look

    def look_and_grow(growth: Growth, known: Version | None = None) -> Version:
        found = look(growth, known)
        if rank == 0:  # whoever looks after this finds more
            grow(path, 16)
        return found

    dataset = dataset_of(path)
    loader = ZarrDataLoader(dataset, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None)
    delivered = []
    with mock.patch.object(Growth, "look", look_and_grow):
        for _ in range(epochs):
            running = iter(loader)
            got = values([next(running)])
            if rank == 1:
                grow(path, 8)
            torch.distributed.barrier()  # so that one appends at a time
            delivered.append(got + values(running))
            torch.distributed.barrier()
    dataset.close()
    return delivered


def stop_and_resume(
    path: Path, *, num_workers: int, batches: int, **options: Any
) -> tuple[list[int], list[int], list[int]]:
    """Read some batches, let the store grow, and return them, the rest of the epoch by a new dataset, and the next."""
    context = "fork" if num_workers else None
    loader = ZarrDataLoader(dataset_of(path, **options), num_workers=num_workers, multiprocessing_context=context)
    running = iter(loader)
    before = values(next(running) for _ in range(batches))
    state = json.loads(json.dumps(loader.state_dict()))
    del running
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        grow(path, 24)
    torch.distributed.barrier()
    again = ZarrDataLoader(dataset_of(path, **options), num_workers=num_workers, multiprocessing_context=context)
    again.load_state_dict(state)
    return before, values(again), values(again)


def look_at_what_is_gone(path: Path) -> str:
    """Return the error that a rank gets when rank 0 finds no store."""
    dataset = dataset_of(path)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        (path / "zarr.json").unlink()
    try:
        next(iter(dataset))
    except StoreReadError as error:
        return str(error)
    raise AssertionError("no error")


def other_number_of_ranks(path: Path) -> str:
    """Return the error for ranks that are not those of the process group."""
    try:
        next(iter(dataset_of(path, rank=0, world_size=3)))
    except zarrfeed.ConfigError as error:
        return str(error)
    raise AssertionError("no error")


def read_while_rank_0_evicts(path: Path) -> tuple[list[int], list[int]]:
    """On rank 1, end an epoch after rank 0 evicted for the next one; return the samples of both epochs."""
    rank, flag = torch.distributed.get_rank(), path.with_name("looked")
    data = zarrfeed.open(path, refresh="epoch", window=32, evict=True)
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, num_threads=1, memory_budget="8MiB")
    running = iter(dataset)
    got = values([next(running)])
    torch.distributed.barrier()
    if rank == 0:
        with zarrfeed.Appender(path) as appender:
            appender.append(np.arange(64, 96)[:, None].repeat(3, 1))
        got += values(running)
        evict = Growth.evict

        def evict_and_tell(growth: Growth, version: Version) -> None:
            evict(growth, version)
            flag.touch()

        with mock.patch.object(Growth, "evict", evict_and_tell):
            following = values(dataset)
    else:
        deadline = time.monotonic() + 60
        while not flag.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        got += values(running)
        following = values(dataset)
    torch.distributed.barrier()
    return got, following


def make_disposable(path: Path) -> Path:
    """Make a store of 64 samples that may be evicted."""
    with zarrfeed.Appender(path, chunk_rows=CHUNK_ROWS, disposable=True) as appender:
        appender.append(np.arange(64)[:, None].repeat(3, 1))
    return path

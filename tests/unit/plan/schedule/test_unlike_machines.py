"""Ranks on unlike machines read one order: it depends on no machine, or samples are lost and come twice."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr
from zarr.codecs import GzipCodec
from zarr.storage import MemoryStore

import zarrfeed
from zarrfeed.plan.schedule import schedule_options
from zarrfeed.torch.passes import session

GIB = 1 << 30
#: Cores that a process may use, memory of its job, and decode threads that the user names.
MACHINES = [(1, GIB, None), (2, 24 * GIB, 64), (64, 4000 * GIB, None), (256, 0, 1)]


def stored(rows: tuple[int, ...], of_chunk: int, samples: int, **options: Any) -> Any:
    """Return an array of which nothing is written."""
    chunks = (of_chunk, *rows)
    return zarr.create_array(MemoryStore(), shape=(samples, *rows), chunks=chunks, dtype="f4", **options)


def layouts() -> Iterator[tuple[str, Any]]:
    gzip = {"compressors": GzipCodec(level=1)}
    large, middle = stored((1024, 1024), 24, 480, **gzip), stored((64, 1024), 16, 100_000)
    for name, array in (("large", large), ("middle", middle), ("one", stored((256, 1024), 1, 3000, **gzip))):
        yield f"{name}, alone", zarrfeed.open(array)
        yield f"{name}, windows", zarrfeed.open(array).window((0, 1, 5))
        yield f"{name}, targets", zarrfeed.open(array, array).window({"samples": (-1, 0), "targets": 4})
        yield f"{name}, mixture", zarrfeed.mix([array, array], weights=[1, 3], stop="all")
    yield "patches", zarrfeed.open(stored((128, 128), 32, 512)).patch({0: 48, 1: 48, 2: 48})


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    monkeypatch.setattr(session, "warn_of_shuffle", lambda *_: None)  # it tries other options for each order: seconds

    def become(cores: int, memory: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr(schedule_options, "job_bytes", lambda: memory)

    return become


def order_of(made: Any, **options: Any) -> dict[str, Any]:
    """Return all that a state says of the order of a dataset."""
    dataset = zarrfeed.ZarrIterableDataset(made, batch_size=8, shuffle=True, **options)
    order = dataset.session.schedule.order
    return {"lanes": order.lanes, "mix": order.mix, "strip": order.strip, "state": dataset.state_dict()}


@pytest.mark.parametrize("budget", [None, "3GiB"])
def test_the_order_depends_on_cores_threads_or_memory(budget: str | None, on_machine: Callable[..., None]) -> None:
    for name, data in layouts():
        found = []
        for cores, memory, threads in MACHINES[:: 1 if budget is None else 2]:
            on_machine(cores, memory)
            found.append(order_of(data, num_threads=threads, memory_budget=budget))
        assert all(one == found[0] for one in found), (name, found)


def test_slabs_depend_on_the_memory_of_a_machine(tmp_path: Path, on_machine: Callable[..., None]) -> None:
    array = zarr.create_array(  # of which nothing is written: chunks without codecs are cut all the same
        tmp_path / "x", shape=(1200, 1 << 20), chunks=(24, 1 << 20), dtype="f4", compressors=None
    )
    for data in (zarrfeed.open(array), zarrfeed.open(array).window((0, 1))):
        found = []
        for cores, memory, threads in MACHINES:
            on_machine(cores, memory)
            found.append(order_of(data, num_threads=threads))
        assert found[0]["state"]["slab_rows"] > 0
        assert all(one == found[0] for one in found), found


def test_two_ranks_on_unlike_machines_read_a_sample_twice(tmp_path: Path, on_machine: Callable[..., None]) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(96, 1 << 20), chunks=(4, 1 << 20), dtype="f4")
    array[:, 0] = np.arange(96)
    seen: list[float] = []
    for rank, (cores, memory) in enumerate([(1, 2 * GIB), (96, 2000 * GIB)]):
        on_machine(cores, memory)
        dataset = zarrfeed.ZarrIterableDataset(
            array, batch_size=4, shuffle=True, rank=rank, world_size=2, num_threads=2 - rank
        )
        seen += itertools.chain.from_iterable(batch[:, 0].tolist() for batch in dataset)
    assert sorted(seen) == list(range(96))


def test_rows_of_sparse_matrices_come_in_another_order(tmp_path: Path, on_machine: Callable[..., None]) -> None:
    matrix = scipy.sparse.random(4000, 50, density=0.2, format="csr", dtype="f4", random_state=0)
    group = zarr.create_group(tmp_path / "m", attributes={"encoding-type": "csr_matrix", "shape": [4000, 50]})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(matrix, name), chunks=(1000,))
    found = []
    for cores, memory in [(1, GIB), (64, 500 * GIB)]:
        on_machine(cores, memory)
        found.append(order_of(tmp_path / "m", memory_budget="8MiB"))
    assert found[0] == found[1]


def test_a_layout_that_a_large_machine_has_room_for_is_refused(on_machine: Callable[..., None]) -> None:
    year = stored((256, 1024), 365, 5000, compressors=GzipCodec(level=1))
    on_machine(2, 24 * GIB)
    assert zarrfeed.ZarrIterableDataset(year, batch_size=8, shuffle=True).explain().lanes == 1
    on_machine(2, 2 * GIB)
    with pytest.raises(zarrfeed.MemoryBudgetError, match=r"memory_budget = 1.0 GiB, must be at least 1.5 GiB"):
        zarrfeed.ZarrIterableDataset(year, batch_size=8, shuffle=True)
    on_machine(2, 24 * GIB)
    with pytest.raises(zarrfeed.MemoryBudgetError, match=r"memory_budget = 1.0 GiB, must be at least 1.5 GiB"):
        zarrfeed.ZarrIterableDataset(year, batch_size=8, shuffle=True, memory_budget="1GiB")


def test_readers_of_one_machine_have_more_than_their_part_of_it(
    on_machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    array = stored((64, 1024), 16, 10_000)
    on_machine(8, 64 * GIB)
    alone = zarrfeed.ZarrIterableDataset(array, batch_size=8).explain().memory
    assert alone.budget == 16 * GIB
    for name, value in (("RANK", 3), ("WORLD_SIZE", 8), ("LOCAL_RANK", 3), ("LOCAL_WORLD_SIZE", 8)):
        monkeypatch.setenv(name, str(value))
    one_of_many = zarrfeed.ZarrIterableDataset(array, batch_size=8, rank=3, world_size=8)
    assert one_of_many.explain().memory.budget == 2 * GIB

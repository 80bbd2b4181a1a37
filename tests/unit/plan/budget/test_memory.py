"""The memory budget: no plan exceeds it, nothing measured exceeds the plan, and what is given up where it is short."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from tests.support.examples import examples
from tests.support.flat import iterable_dataset
from zarrfeed import CorruptChunkError, MemoryBudgetError, ZarrIterableDataset, _core
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import MemoryPlan, plan_memory
from zarrfeed.plan.schedule import schedule_options
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import EVEN_MODES, Consumer, Even, RankInfo
from zarrfeed.spec.fields.field import Field, IndexField, StoredField, VlenField

MIB = 1 << 20

N, ROW = 96, (4, 32, 33)
CHUNK = 16 * 4 * 32 * 33 * 4  # 270 336 bytes


def blosc(**options: Any) -> BloscCodec:
    return BloscCodec(cname="lz4", typesize=4, **{"shuffle": "shuffle", **options})


#: Name -> how an array of chunks of 16 samples is written.
LAYOUTS: dict[str, dict[str, Any]] = {
    "uncompressed": {"compressors": None},
    "zstd": {"compressors": ZstdCodec()},
    "two compressors": {"compressors": [ZstdCodec(), GzipCodec(level=1)]},
    "blosc": {"compressors": blosc()},
    "blosc, bits": {"compressors": blosc(shuffle="bitshuffle")},
    "blosc, block = chunk": {"compressors": blosc(blocksize=CHUNK)},
    "blosc, bits, block = chunk": {"compressors": blosc(shuffle="bitshuffle", blocksize=CHUNK)},
    "blosc, cells": {"compressors": blosc(blocksize=CHUNK), "chunks": (16, 4, 32, 11)},
    "big-endian": {"compressors": blosc(blocksize=CHUNK), "dtype": ">f4"},
    "sharded": {"compressors": blosc(), "shards": (32, *ROW)},
    "two compressors, sharded": {"compressors": [ZstdCodec(), GzipCodec(level=1)], "shards": (32, *ROW)},
}

#: Of these all is used that is planned; others have smaller blocks than they may, or put items in order on the way.
FILLED = {"uncompressed", "zstd", "two compressors", "two compressors, sharded", "blosc, bits, block = chunk"}


def numbered(seed: int = 0) -> np.ndarray[Any, Any]:
    """Return samples that hold their index, and hardly compress."""
    rows = np.random.default_rng(seed).random((N, *ROW), dtype="f4")
    rows[:, 0, 0, 0] = np.arange(N)
    return rows


def write(target: Any, layout: str, data: np.ndarray[Any, Any]) -> None:
    options = {"chunks": (16, *ROW), "dtype": "f4", **LAYOUTS[layout]}
    array = zarr.create_array(target, shape=data.shape, **options)
    array[...] = data


def least_budget(source: Any, **options: Any) -> int:
    """Return the smallest budget that is accepted: with less, fewer lanes are chosen, which need less."""
    before, budget = 0, 1 << 30
    while budget != before:
        before = budget
        with iterable_dataset(source, memory_budget=budget, **options) as dataset:
            budget = dataset.explain().memory.least_budget
    with pytest.raises(MemoryBudgetError, match="memory_budget"):
        iterable_dataset(source, memory_budget=budget - 1, **options)
    return budget


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_at_the_smallest_budget_that_is_accepted_all_arrives_within_the_plan(
    layout: str, shuffle: bool, tmp_path: Path
) -> None:
    data = numbered()
    write(tmp_path / "a", layout, data)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": shuffle, "return_index": True, "num_threads": 3}
    budget = least_budget(tmp_path / "a", **options)
    with iterable_dataset(tmp_path / "a", memory_budget=budget, **options) as dataset:
        predicted = dataset.explain()
        seen = []
        for _ in range(2):
            for samples, index in dataset:
                assert np.array_equal(samples.numpy(), data[index.numpy()])
                seen += index.tolist()
        stats = dataset.stats()
    memory = predicted.memory
    assert sorted(seen) == sorted(2 * list(range(N)))
    assert (memory.num_threads, memory.num_fetch_threads, memory.least_budget) == (1, 0, budget)
    assert predicted.memory_bytes <= budget
    assert stats.scratch_bytes <= memory.scratch_bytes
    if layout in FILLED:
        assert stats.scratch_bytes > memory.scratch_bytes - CHUNK // 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_all_threads_the_plan_holds_as_well(layout: str, tmp_path: Path) -> None:
    data = numbered()
    write(tmp_path / "a", layout, data)
    with ZarrIterableDataset(tmp_path / "a", batch_size=8, shuffle=True, return_index=True, num_threads=3) as dataset:
        memory = dataset.explain().memory
        for samples, index in dataset:
            assert np.array_equal(samples.numpy(), data[index.numpy()])
        assert dataset.stats().scratch_bytes <= memory.scratch_bytes + memory.fetch_bytes
    assert memory.num_threads == 3
    assert memory.num_fetch_threads > 0


def test_a_store_that_python_reads_keeps_one_request_when_memory_is_short() -> None:
    store, data = MemoryStore(), numbered()
    write(store, "sharded", data)
    array = zarr.open_array(store, mode="r")
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "return_index": True, "num_threads": 3}
    budget = least_budget(array, **options)
    with iterable_dataset(array, memory_budget=budget, **options) as dataset:
        memory = dataset.explain().memory
        index = [i for _, batch in dataset for i in batch.tolist()]
    assert sorted(index) == list(range(N))
    assert (memory.num_threads, memory.max_requests, memory.fetch_bytes) == (1, 1, CHUNK)


@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
def test_the_error_names_what_suffices_and_the_chunk_that_asks_for_it(tmp_path: Path) -> None:
    # 8 chunks of 64 MiB, none of which exists
    zarr.create_array(
        tmp_path / "f", shape=(2048, 4, 128, 128), chunks=(256, 4, 128, 128), dtype="f4", compressors=blosc()
    )
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_threads": 2}
    with pytest.raises(MemoryBudgetError, match=r"to decode one chunk of 64\.0 MiB at a time") as caught:
        iterable_dataset(tmp_path / "f", memory_budget="64MiB", **options)
    needed = re.search(r"must be at least ([0-9.]+ \w+):", str(caught.value))
    assert needed is not None
    with iterable_dataset(tmp_path / "f", memory_budget=needed[1], **options) as dataset:
        text = str(dataset.explain())
        resources = dataset.session.schedule.resources(
            dataset.session.schedule.order, RankInfo(), RankInfo().consumer()
        )
    assert resources.short_of_memory
    assert re.search(r"threads +1 decode\n +as memory has no room for 2: [0-9.]+ MiB has\n", text)
    assert "which wait for what is not in the page cache, as memory has no room for others" in text
    with iterable_dataset(tmp_path / "f", memory_budget="256MiB", **options) as dataset:
        assert dataset.explain().num_threads == 2
        assert dataset.explain().memory_bytes <= 256 * MIB
    with iterable_dataset(tmp_path / "f", **options) as dataset:
        assert "no room" not in str(dataset.explain())


def test_without_a_budget_threads_are_kept_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_options, "job_bytes", lambda: 4 << 30)
    zarr.create_array(tmp_path / "a", shape=(64, 1 << 22), chunks=(16, 1 << 22), dtype="f4", compressors=None)
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=1, num_threads=2)  # 256 MiB a chunk
    assert dataset.explain().num_threads == 2
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=1, num_threads=16)
    assert dataset.explain().num_threads == 2
    assert dataset.explain().memory.budget == 1 << 30


def test_blocks_for_which_no_memory_was_planned_are_an_error(tmp_path: Path) -> None:
    size = 9 * MIB
    codec = BloscCodec(cname="zstd", clevel=1, typesize=4, shuffle="bitshuffle", blocksize=size)
    path = tmp_path / "a"
    array = zarr.create_array(path, shape=(4, size // 8), chunks=(2, size // 8), dtype="f4", compressors=codec)
    array[...] = np.arange(4, dtype="f4")[:, None]
    with ZarrIterableDataset(path, batch_size=2, num_threads=1) as dataset:
        assert dataset.explain().memory.block_bytes == size
        assert [batch[:, -1].tolist() for batch in dataset] == [[0, 1], [2, 3]]
        # in whole huge pages: what is stored, hardly one, and what is in no order yet
        assert 10 * MIB < dataset.stats().scratch_bytes <= dataset.explain().memory.scratch_bytes
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["codecs"][-1]["configuration"]["blocksize"] = 0
    (path / "zarr.json").write_text(json.dumps(metadata))
    with (
        ZarrIterableDataset(path, batch_size=2, num_threads=1) as dataset,
        pytest.raises(CorruptChunkError, match=rf"blocks of {size} bytes, at most {8 * MIB} are plausible"),
    ):
        next(iter(dataset))


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> list[Field]:
    """One field of each kind, without data."""
    path = tmp_path_factory.mktemp("fields")
    big: dict[str, Any] = {"shape": (2048, 64, 64), "dtype": "f4"}
    arrays = [
        zarr.create_array(path / "a", chunks=(256, 64, 64), compressors=blosc(), **big),
        zarr.create_array(path / "b", chunks=(3, 5, 64), compressors=[ZstdCodec(), GzipCodec()], **big),
        zarr.create_array(MemoryStore(), chunks=(1, 64, 64), shards=(64, 64, 64), **big),
        zarr.create_array(path / "d", chunks=(1, 64, 64), shards=(64, 64, 64), **big),
        zarr.create_array(MemoryStore(), chunks=(100, 64, 64), **big),
    ]
    stored: list[Field] = [StoredField(f"field {i}", read_layout(array)) for i, array in enumerate(arrays)]
    text = read_layout(zarr.create_array(path / "t", shape=(2048,), chunks=(16,), dtype=str))
    return [*stored, VlenField("text", text), VlenField("more", text), VlenField("even more", text), IndexField(2048)]


@given(
    n=st.integers(5, 150),
    rows=st.integers(1, 20),
    lanes=st.sampled_from([1, 2, 3, 4, 6]),
    mix=st.integers(1, 3),
    runs=st.booleans(),
    legs=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 4),
            st.integers(1, 9),
            st.sampled_from(EVEN_MODES),
            st.floats(0, 1, exclude_max=True),
        ),
        min_size=1,
        max_size=3,
    ),
)
@examples(400)
def test_the_batches_of_the_least_budget_suffice_for_every_worker_and_after_every_stop(
    n: int, rows: int, lanes: int, mix: int, runs: bool, legs: list[tuple[int, int, int, Even, float]]
) -> None:
    """A worker's share ends with a batch of the tail, and one that resumed may begin with a comb's positions."""
    base = ZarrIterableDataset(
        np.arange(n), batch_size=1, shuffle=not runs, mixing={"lanes": None if runs else 1}
    ).session.schedule
    order = replace(base.order, block_rows=rows, lanes=min(lanes, n), mix=1 if runs else min(mix, -(-n // rows)))
    state = EpochState(0)
    for world_size, num_workers, batch_size, even, stop in legs:
        schedule = replace(base, order=order).with_options(batch_size=batch_size, even=even, whole_blocks=runs)
        consumers = [Consumer(r, world_size, w, num_workers) for r in range(world_size) for w in range(num_workers)]
        state = schedule.settle(state, consumers[0])
        for consumer in consumers:
            plan = schedule.plan(state, consumer)
            if plan.steps:
                needed = _core.required_open_batches(plan.to_core(), schedule.engine_batch_size)
                assert needed <= schedule.planner.required_batches(plan.order, consumer)
        division = schedule.division(state, consumers[0])
        stopped = int(stop * division.batches(0))
        state = replace(state, run=None, progress=state.progress.then(division.cut(stopped)))
        if state.progress.used >= n:
            return


def test_the_batches_of_the_least_budget_are_no_more_than_some_worker_needs() -> None:
    schedule = ZarrIterableDataset(np.arange(62), batch_size=4, shuffle=True, mixing={"lanes": 4}).session.schedule
    schedule = replace(schedule, order=replace(schedule.order, block_rows=10))
    consumer = Consumer(0, 1, 1, 2)
    plan = schedule.plan(schedule.settle(EpochState(0), consumer), consumer)
    assert schedule.planner.required_batches(plan.order, consumer) == 6
    assert _core.required_open_batches(plan.to_core(), 4) == 6


def assert_all_is_counted(plan: MemoryPlan, fields: list[Field], batch_size: int, required: int, budget: int) -> None:
    """Add up what an engine may hold at once; the plan counts as much, and stays within the budget."""
    specs = [f.spec for f in fields if isinstance(f, StoredField)]
    fed = [spec for spec in specs if spec.source is not None]
    local_chunk = max((spec.decoded_bytes for spec in specs if spec.source is None), default=0)
    fed_chunk = max((spec.decoded_bytes for spec in fed), default=0)
    # Each decode thread takes one merged answer apart, and one more may have arrived.
    merged = (plan.num_threads + 1) * plan.coalesce.limit if any(spec.shard for spec in fed) else 0
    fetching = plan.num_fetch_threads * local_chunk + plan.max_requests * fed_chunk + merged
    assert fetching <= plan.fetch_bytes
    assert plan.num_threads * max(local_chunk, fed_chunk) <= plan.scratch_bytes
    assert plan.batch_bytes == batch_size * sum(f.sample_bytes for f in fields)
    kept = sum(plan.index_cache_bytes) + plan.list_cache_bytes * sum(isinstance(f, VlenField) for f in fields)
    assert plan.scratch_bytes + plan.fetch_bytes + kept + required * plan.batch_bytes <= budget


def test_requests_for_several_inner_chunks_are_counted(fields: list[Field]) -> None:
    """The case in which they weigh most: chunks of 16 KiB in requests of 8 MiB, for each thread and one more."""
    plan = plan_memory(FieldNeeds.of(fields[2:3]), batch_size=8, num_threads=4, budget=1 << 30, min_open_batches=2)
    assert plan.coalesce.limit >= 1 << 20
    assert plan.fetch_bytes >= 5 * plan.coalesce.limit + plan.max_requests * 16384
    assert plan.max_requests > 1


@given(
    which=st.sets(st.integers(0, 8), min_size=1),
    threads=st.integers(1, 40),
    batch_size=st.integers(1, 100),
    required=st.integers(1, 9),
    more=st.one_of(st.integers(0, 1000), st.integers(0, 1 << 31)),
)
@examples(300)
def test_a_budget_that_suffices_suffices_with_more_and_is_never_exceeded(
    fields: list[Field], which: set[int], threads: int, batch_size: int, required: int, more: int
) -> None:
    def plan(budget: int) -> Any:
        return plan_memory(
            FieldNeeds.of([fields[i] for i in which]),
            batch_size=batch_size,
            num_threads=threads,
            budget=budget,
            min_open_batches=required,
        )

    def suffices(budget: int) -> bool:
        return bool(plan(budget).batch_room >= required * plan(budget).batch_bytes)

    least, ample = plan(1).least_budget, plan(1).ample_budget
    assert not suffices(least - 1)
    assert suffices(least)
    assert suffices(least + more)
    made = plan(least + more)
    assert_all_is_counted(made, [fields[i] for i in which], batch_size, required, least + more)
    assert (made.least_budget, made.ample_budget) == (least, ample)
    assert 1 <= made.num_threads <= threads
    assert 0 <= made.coalesce.gap <= made.coalesce.limit
    full = plan(ample + more)
    assert full.num_threads == threads
    assert not full.lacks_threads
    assert (full.num_fetch_threads > 0) == full.reads_local

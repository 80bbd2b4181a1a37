"""What an epoch decodes of arrays that fields share: counted once, and as the engine counts it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import assume, example, given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed import MemoryBudgetError, ZarrIterableDataset
from zarrfeed.report.field_reads import FieldReads

CHUNK, ROWS = 16, 2048
BUDGET = "34 MiB"  # a sixteenth of it has no room for an array


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two variables of 2 MiB."""
    path = tmp_path_factory.mktemp("reads") / "s.zarr"
    group = zarr.create_group(path)
    for name in ("t", "u"):
        array = group.create_array(name, shape=(ROWS, 300), chunks=(CHUNK, 300), dtype="f4")
        array[:] = np.arange(ROWS, dtype="f4")[:, None]
    return path


def forecast(store: Path, **options: Any) -> ZarrIterableDataset:
    data = zarrfeed.open(store, targets=store).window({"samples": (-1, 0), "targets": 4})
    return ZarrIterableDataset(data, **{"batch_size": 32, "memory_budget": BUDGET, **options})


def decoded(dataset: ZarrIterableDataset) -> int:
    before = dataset.stats().chunks_read
    for _ in dataset:
        pass
    return dataset.stats().chunks_read - before


@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_and_targets_of_one_store_are_decoded_once_and_explained_so(store: Path, shuffle: bool) -> None:
    with forecast(store, shuffle=shuffle) as dataset:
        fields = {one.name: one for one in dataset.explain().fields}
        assert [one.decoded_with for one in fields.values()] == ["", "", "samples['t']", "samples['u']"]
        assert [one.chunks for one in fields.values()] == [ROWS // CHUNK, ROWS // CHUNK, 0, 0]
        reads = sum(one.chunk_reads for one in fields.values())
        assert reads >= 2 * ROWS // CHUNK
        assert decoded(dataset) <= 1.05 * 2 * ROWS // CHUNK
        page = str(dataset.explain())
        assert "its chunks are those of samples['t'], and are decoded once for both" in page
        assert "for chunks that strips share" in page or not shuffle


def test_memory_counts_an_array_once_however_many_fields_draw_from_it(store: Path) -> None:
    whole = "1 GiB"  # has room for both variables in memory
    with forecast(store, memory_budget=whole) as dataset:
        explained = dataset.explain()
        resident = [one for one in explained.fields if one.choice == "kept in memory"]
        assert {one.name for one in resident} == {"samples['u']", "targets['u']"}
        assert explained.memory.resident_bytes == ROWS * 300 * 4
        assert decoded(dataset) <= 2 * ROWS // CHUNK


def test_a_smaller_budget_decodes_again_and_says_so(store: Path) -> None:
    """Where nothing is left to cache chunks, blocks decode the ones that they share."""
    with forecast(store, shuffle=True, memory_budget="6 MiB", mixing={"lanes": 4}) as dataset:
        explained = dataset.explain()
        assert explained.memory.keep_bytes < 2 << 20
        reads = sum(one.chunk_reads for one in explained.fields)
        assert 1.15 * reads >= decoded(dataset) >= 2 * ROWS // CHUNK  # threads hold memory for longer than is counted


def test_ranks_together_decode_what_one_of_them_says_times_their_number(store: Path) -> None:
    each, said = [], []
    for rank in range(3):
        with forecast(store, shuffle=True, rank=rank, world_size=3) as dataset:
            said.append(sum(one.chunk_reads for one in dataset.explain().fields))
            each.append(decoded(dataset))
    assert all(count <= 1.15 * figure for count, figure in zip(each, said, strict=True))


def test_amplification_is_over_all_consumers() -> None:
    assert FieldReads(30, 20, 40).amplification(1) == 1.5
    assert FieldReads(30, 20, 40).amplification(4) == 3.0
    assert FieldReads(10, 10, 40).amplification(4) == 1.0
    assert FieldReads().amplification(4) == 1.0


@st.composite
def setups(draw: st.DrawFn) -> tuple[tuple[int, int, int], dict[str, Any], dict[str, Any], float]:
    """Return a store's rows, rows of a chunk and chunks across; windows; options; and a budget over the least one."""
    chunk, world_size = draw(st.sampled_from([4, 8, 16])), draw(st.integers(1, 3))
    shape = draw(st.integers(100, 600)), chunk, draw(st.sampled_from([1, 2, 4]))
    offsets = st.integers(-chunk, chunk)
    windows = {
        "samples": tuple(draw(st.lists(offsets, min_size=1, max_size=3, unique=True))),
        "targets": draw(st.integers(1, chunk)),
    }
    options = {
        "batch_size": draw(st.sampled_from([4, 16, 32])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
        "rank": draw(st.integers(0, world_size - 1)),
        "world_size": world_size,
        "num_threads": draw(st.integers(1, 3)),
        "mixing": {"lanes": draw(st.sampled_from([None, 1, 2, 4, 8]))},
    }
    return shape, windows, options, draw(st.floats(1, 4))


@examples(60, deadline=None)
@example(
    setup=(
        (300, 4, 2),
        {"samples": (13,), "targets": 4},
        {"batch_size": 32, "shuffle": True, "mixing": {"mix": 4}},
        1.1,
    )
)
@example(setup=((400, 8, 4), {"samples": (0, 8), "targets": 8}, {"batch_size": 32, "num_threads": 1}, 1.0))
@given(setup=setups())
def test_no_epoch_decodes_more_than_is_said_at_most(
    setup: tuple[tuple[int, int, int], dict[str, Any], dict[str, Any], float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    (rows, chunk, across), windows, options, factor = setup
    path = tmp_path_factory.mktemp("reads") / "x"
    zarr.create_array(path, shape=(rows, 256), chunks=(chunk, 256 // across), dtype="f4", compressors=None)[:] = (
        np.repeat(np.arange(rows, dtype="f4")[:, None], 256, axis=1)
    )
    data = zarrfeed.open(path, targets=path).window(windows)
    with ZarrIterableDataset(data, memory_budget="1 GiB", **options) as ample:
        for one in ample.explain().fields[:1]:
            assert one.most_chunk_reads is None, one
        least = ample.explain().memory.least_budget
    try:
        dataset = ZarrIterableDataset(data, memory_budget=round(least * factor), **options)
    except MemoryBudgetError:
        assume(False)
    with dataset:
        fields = dataset.explain().fields
        for one in fields:
            most = one.most_chunk_reads
            assert most is None or most > one.chunk_reads
            assert (f"at most {most} if threads are late" in str(dataset.explain())) == (most is not None)
        assert decoded(dataset) <= sum(one.most_chunk_reads or one.chunk_reads for one in fields)
    shutil.rmtree(path)

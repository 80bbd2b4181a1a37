"""What `explain()` predicts is what `stats()` then counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from zarrfeed import ZarrIterableDataset

N = 1000


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "samples.zarr")
    zarr.create_array(path, data=np.zeros((N, 6), dtype=np.float32) + 1, chunks=(16, 4))
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "lanes": 1},
        {"shuffle": True, "lanes": 40},
        {"shuffle": True, "lanes": 7, "mix": 3},
        {"drop_last": True, "batch_size": 300, "shuffle": True},
    ],
)
def test_predicted_chunk_reads_are_what_is_counted(store: str, options: dict[str, Any]) -> None:
    dataset = iterable_dataset(store, **{"batch_size": 50, **options})
    predicted = dataset.explain().fields[0]
    for _ in dataset:
        pass
    assert dataset.stats().chunks_read == predicted.chunk_reads
    assert predicted.chunks == 126
    assert predicted.amplification >= 1


def test_amplification_of_targets_with_longer_chunks_is_shown(store: str, tmp_path: Path) -> None:
    path = str(tmp_path / "targets.zarr")
    zarr.create_array(path, data=np.arange(1, N + 1), chunks=(100,))
    streamed = ZarrIterableDataset(store, path, batch_size=50, memory_budget="64KB").explain().fields[1]
    resident = ZarrIterableDataset(store, path, batch_size=50).explain().fields[1]
    assert (streamed.chunk_reads, streamed.chunks) == (70, 10)  # 63 blocks, 7 of which lie over two chunks
    assert streamed.amplification == pytest.approx(7.0)
    assert (resident.chunk_reads, resident.amplification) == (10, 1.0)
    assert resident.choice == "kept in memory"


def test_the_quality_of_the_shuffle_is_measured_against_a_perfect_one(store: str) -> None:
    ordered = ZarrIterableDataset(store, batch_size=32).explain()
    shuffled = ZarrIterableDataset(store, batch_size=32, shuffle=True, mixing={"lanes": 32}).explain()
    assert ordered.chunks_per_batch == pytest.approx(2, abs=0.2)
    assert shuffled.chunks_per_batch > 25
    # 62 blocks of 16 and one of 8, 32 draws: each is left out with probability (1 - 32 / 1000) ** rows
    assert shuffled.ideal_chunks_per_batch == pytest.approx(62 * (1 - 0.968**16) + 1 - 0.968**8)
    rng = np.random.default_rng(0)
    drawn = [len(np.unique(rng.permutation(N)[:32] // 16)) for _ in range(500)]
    assert shuffled.ideal_chunks_per_batch == pytest.approx(np.mean(drawn), rel=0.02)


@pytest.mark.parametrize("budget", ["1MiB", "16MiB", "1GiB"])
def test_predicted_memory_stays_within_the_budget(store: str, budget: str) -> None:
    explanation = ZarrIterableDataset(store, batch_size=32, shuffle=True, memory_budget=budget).explain()
    assert 0 < explanation.memory_bytes <= explanation.memory.budget


def held_up(layout: str, path: Path) -> ZarrIterableDataset:
    """Return a dataset of 16 batches of 1 MiB, in 16 blocks that are all open from the first batch to the last."""
    rows = np.arange(256, dtype="f4")[:, None] + np.zeros(1 << 14, dtype="f4")
    chunks: dict[str, Any] = {"chunks": (16, 1 << 14)}
    if layout == "packed":
        attributes: dict[str, Any] = {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1}
        zarr.create_array(path, data=rows.astype("i2"), **chunks, attributes=attributes)
    else:
        more: dict[str, dict[str, Any]] = {"cells": {"chunks": (16, 5000)}, "sharded": {"shards": (64, 1 << 14)}}
        zarr.create_array(path, data=rows, **chunks | more.get(layout, {}))
    return ZarrIterableDataset(
        str(path), batch_size=16, shuffle=True, num_threads=2, return_index=True, mixing={"lanes": 16}
    )


@pytest.mark.parametrize("layout", ["plain", "packed", "cells", "sharded"])
def test_predicted_reads_and_memory_hold_for_what_is_measured(layout: str, tmp_path: Path) -> None:
    dataset = held_up(layout, tmp_path / "a.zarr")
    predicted = dataset.explain()
    for _ in range(2):
        before = dataset.stats()
        for samples, index in dataset:
            assert samples[:, 0].tolist() == (index / 2 + 1 if layout == "packed" else index).tolist()
        read = dataset.stats() - before
        assert read.chunks_read + read.chunks_missing == predicted.fields[0].chunk_reads
    memory, slab = predicted.memory, 8 << 20
    assert memory.batch_bytes == (1 << 20) + 16 * 8
    # All batches must be open at once; the loop holds one more, and takes another. Memory is mapped in slabs,
    # up to three for samples and one for indices.
    assert predicted.max_open_batches >= 16
    assert 16 * memory.batch_bytes <= read.batch_memory_bytes <= 4 * slab
    assert 0 < read.scratch_bytes <= memory.scratch_bytes + memory.fetch_bytes
    assert predicted.memory_bytes <= memory.budget


def test_the_page_names_arrays_codecs_and_order(store: str) -> None:
    text = str(
        ZarrIterableDataset(
            store, np.arange(N), batch_size=32, shuffle=True, return_index=True, mixing={"lanes": 8}
        ).explain()
    )
    for part in (
        "samples.zarr",
        "(1000, 6) float32, Zarr v3, read chunks (16, 4) (256 B), zstd",
        "targets     in memory",
        "index       computed",
        "shuffled: 63 blocks of 16 samples in 8 lanes, mix 1",
        "native",
        "amplification 1.11",
    ):
        assert part in text


def test_a_dtype_that_torch_hardly_computes_with_is_named_with_the_cast_that_loses_nothing() -> None:
    for dtype, lossless in (("uint16", ("int32", "float32")), ("uint32", ("int64", "float64"))):
        data = zarrfeed.open({"x": np.array([0, 1, np.iinfo(dtype).max], dtype=dtype)})
        (field,) = ZarrIterableDataset(data, batch_size=3).explain().fields
        assert f"torch hardly computes with {dtype}" in field.cast_advice
        for cast in lossless:
            assert repr(cast) in field.cast_advice
            dataset = ZarrIterableDataset(data.cast(cast), batch_size=3)
            assert next(iter(dataset))["x"].tolist() == [0, 1, np.iinfo(dtype).max]
            assert "hardly" not in str(dataset.explain())
        with pytest.raises(RuntimeError):  # what the advice says of torch
            torch.tensor([1], dtype=getattr(torch, dtype)) + torch.tensor([1], dtype=getattr(torch, dtype))
    for dtype in ("uint8", "int16", "float32", "bool"):
        dataset = ZarrIterableDataset(zarrfeed.open({"x": np.zeros(3, dtype=dtype)}), batch_size=3)
        assert "hardly" not in str(dataset.explain())

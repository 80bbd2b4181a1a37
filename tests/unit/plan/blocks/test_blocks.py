"""Blocks: which field makes them, how long they are, which fields are kept in memory, and what `explain()` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.oracle import Layout, raw_rows, read_all
from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.blocks.blocks import choose_primary, plan_blocks
from zarrfeed.spec.fields.field import HostRows, ResidentField, StoredField

N = 20


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Write 20 samples in chunks of 6."""
    Layout(shape=(N, 3), chunks=(6, 3)).write(tmp_path / "x")
    return tmp_path / "x"


MIB = 1 << 20


def stored(name: str, chunk_rows: int, row_bytes: int, template: StoredField, *, n: int = 100_000) -> StoredField:
    """Describe an array of `n` samples of `row_bytes` bytes in chunks of `chunk_rows` of them; it need not exist."""
    spec = replace(
        template.spec, shape=(n, row_bytes), chunk_shape=(chunk_rows, row_bytes), dtype=np.dtype("u1"), name=name
    )
    return StoredField(name, spec)


def in_rows(name: str, row_bytes: int, *, n: int = 100_000) -> ResidentField:
    rows = HostRows(np.broadcast_to(np.zeros(1, np.uint8), (n, row_bytes)))
    return ResidentField(name, rows, "uint8", (row_bytes,), 1)


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ([(16, 1000)], 0),
        ([(1, 1000), (24, 1000)], 1),  # else the second would be decoded 24 times
        ([(1, 4000), (24, 1000)], 1),
        ([(1, 4001), (24, 1000)], 0),  # too light to decide
        ([(16, 1000), (16, 1000)], 0),  # a draw
        ([(16, 1000), (16, 2000)], 0),
        ([(8, MIB), (16, MIB)], 1),
        ([(8, MIB), (17, MIB)], 0),  # blocks of 34 MiB: the shorter chunks
        ([(60, MIB), (40, MIB), (50, MIB)], 1),  # no block is short: the shortest
    ],
)
def test_the_longest_chunks_of_a_heavy_field_make_the_blocks(
    fields: list[tuple[int, int]], chosen: int, samples: Path
) -> None:
    template = zarrfeed.open(samples).resolved.fields[0]
    assert isinstance(template, StoredField)
    described = [stored(str(i), rows, size, template) for i, (rows, size) in enumerate(fields)]
    assert choose_primary(described, described) == chosen


def test_targets_make_the_blocks_only_if_no_field_of_the_samples_is_stored(samples: Path) -> None:
    template = zarrfeed.open(samples).resolved.fields[0]
    assert isinstance(template, StoredField)
    light, heavy, memory = stored("a", 2, 10, template), stored("b", 8, 1000, template), in_rows("c", 5000)
    assert choose_primary([light], [light, heavy]) == 0
    assert choose_primary([memory, light], [memory, light, heavy]) == 1
    assert choose_primary([memory], [memory, light, heavy]) == 2
    assert choose_primary([memory], [memory]) is None


@pytest.mark.parametrize(
    ("shape", "rows"), [((1000,), 64), ((1000, 4), 64), ((50, 4), 50), ((100, 4 << 10), 63), ((9, 1 << 18), 1)]
)
def test_blocks_in_memory_are_64_rows_but_not_more_than_a_mebibyte(shape: tuple[int, ...], rows: int) -> None:
    both, _ = zarrfeed.open(torch.zeros(shape, dtype=torch.int32), np.zeros(shape[0], "i8")).resolved.planned()
    assert both.primary is None
    assert both.block_rows == rows
    assert both.cells == 1


# --- alignment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ([(16, 1000)], 16),
        ([(16, 1000), (4, 1000)], 16),  # nests already
        ([(6, 1000), (4, 1000)], 12),
        ([(6, 1000), (4, 1000), (5, 1000)], 60),
        ([(16, 1000), (64, 10)], 64),  # light, and so without a say before
        ([(1024, 1000), (1023, 1000)], 1024),  # a common multiple of a million samples is too long
        ([(6, MIB), (4, MIB)], 12),
        ([(6, 2 * MIB), (4, 2 * MIB)], 6),  # 48 MiB are too much
        ([(100, 10), (4000, 1)], 100),  # 25 blocks would be too few to mix
    ],
)
def test_blocks_grow_until_the_chunks_of_other_fields_nest(
    fields: list[tuple[int, int]], rows: int, samples: Path
) -> None:
    template = zarrfeed.open(samples).resolved.fields[0]
    assert isinstance(template, StoredField)
    described = [stored(str(i), chunk, size, template) for i, (chunk, size) in enumerate(fields)]
    assert plan_blocks(described, len(described)).rows == rows
    primary = choose_primary(described, described)
    assert primary is not None
    assert plan_blocks(described, len(described), aligns=False).rows == fields[primary][0]


def test_aligned_fields_are_read_once_and_explained(tmp_path: Path) -> None:
    n = 600
    Layout(shape=(n, 300), chunks=(6, 300)).write(tmp_path / "x")
    Layout(shape=(n, 280), chunks=(4, 280), codec="zstd").write(tmp_path / "y")
    Layout(shape=(n, 1), chunks=(7, 1), dtype="i8").write(tmp_path / "z")
    sources: Any = {name: tmp_path / name for name in "xyz"}
    dataset = ZarrIterableDataset(
        sources, batch_size=10, shuffle=True, return_index=True, memory_budget="1MiB", mixing={"lanes": 1}
    )
    explained = {f.name: f for f in dataset.explain().fields}
    assert dataset.explain().block_rows == 12
    expected = {name: raw_rows(read_all(tmp_path / name)) for name in "xyz"}
    for batch, index in dataset:
        for name in "xyz":
            assert (raw_rows(batch[name]) == expected[name][index.numpy()]).all()
    assert explained["samples['x']"].choice == "makes the blocks, 2 chunks each"
    assert explained["samples['y']"].choice == "nests in the blocks"
    assert explained["samples['z']"].choice == "kept in memory"
    assert [f.amplification for f in explained.values()][:3] == [1.0, 1.0, 1.0]
    assert dataset.stats().chunks_read == n // 6 + n // 4 + -(-n // 7)
    text = str(dataset.explain())
    for f in explained.values():
        assert f.choice in text


def test_fields_that_neither_nest_nor_fit_are_decoded_again_and_explained(tmp_path: Path) -> None:
    Layout(shape=(60, 300), chunks=(6, 300)).write(tmp_path / "x")
    Layout(shape=(60, 300), chunks=(7, 300)).write(tmp_path / "y")
    dataset = ZarrIterableDataset(
        {"x": tmp_path / "x", "y": tmp_path / "y"}, batch_size=10, memory_budget="200kB", num_threads=1
    )
    other = min(dataset.explain().fields, key=lambda f: f.choice == "makes the blocks")
    assert other.choice == "decoded once for each block that a chunk lies over"
    for _ in dataset:
        pass
    assert other.amplification > 1
    assert dataset.stats().chunks_read == sum(f.chunk_reads for f in dataset.explain().fields)


def test_blocks_that_are_named_stay_chunks(tmp_path: Path) -> None:
    Layout(shape=(600, 300), chunks=(6, 300)).write(tmp_path / "x")
    Layout(shape=(600, 300), chunks=(4, 300)).write(tmp_path / "y")
    sources: Any = {name: tmp_path / name for name in "xy"}
    options: dict[str, Any] = {"memory_budget": "1MiB", "return_index": True, "batch_size": 6}
    assert iterable_dataset(sources, **options).explain().block_rows == 12
    picked = iterable_dataset(sources, blocks=[3], **options)
    assert [index.tolist() for _, index in picked] == [list(range(18, 24))]

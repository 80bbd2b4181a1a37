"""Bytes that an epoch decodes, against those that `explain()` says: in tight memory, and in stores that are not cached.

Rows of windows that several groups want are decoded once while the memory of the lanes has room for them. So a group
that waits for a decoded chunk must get its rows before other chunks are decoded into that memory.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import zarrfeed
from tests.support.decodes import check_decodes
from tests.support.examples import tries
from zarrfeed import MemoryBudgetError, ZarrIterableDataset

BLOSC = BloscCodec(cname="lz4", clevel=1, blocksize=2048)
ROW_ITEMS = 2048
#: Rows of a chunk, and items of a row, of three stores.
LAYOUTS = ((12, 4096), (25, 2048), (40, 3000))


def create(store: Any, num_rows: int, chunk_rows: int, items: int = ROW_ITEMS, codec: Any = BLOSC) -> zarr.Array[Any]:
    values = np.random.default_rng(num_rows).integers(0, 100, (num_rows, items)).astype("f4")
    array = zarr.create_array(
        store, shape=values.shape, chunks=(chunk_rows, items), dtype=values.dtype, compressors=codec
    )
    array[:] = values
    return array


def decodes(dataset: ZarrIterableDataset, num_rows: int, items: int = ROW_ITEMS) -> float:
    """Read an epoch; return the decoded bytes as a multiple of those of the array."""
    for _ in dataset:
        pass
    return dataset.stats().bytes_decoded / (num_rows * items * 4)


@pytest.mark.parametrize("offsets", [(0, 1), (-1, 0, 1, 2), (0, 7)])
def test_chunks_of_a_store_that_is_not_cached_are_handed_on_before_others_are_decoded(offsets: tuple[int, ...]) -> None:
    """Fetched chunks once came before the groups that waited for them: each of these then decoded the chunk again."""
    array = create(zarr.storage.MemoryStore(), 300, 6)  # which Python reads, so that each chunk is fetched
    for _ in range(3):
        with ZarrIterableDataset(
            zarrfeed.open(array).window(offsets),
            batch_size=16,
            shuffle=True,
            seed=5,
            memory_budget="20MiB",
            num_threads=1,
            mixing={"block": "chunk"},
        ) as dataset:
            said = dataset.explain()
            assert said.memory.carry_bytes < 300 * ROW_ITEMS * 4
            # a block that the end of a lane cuts may want fewer chunks than it could
            assert said.fields[0].amplification - 0.03 < decodes(dataset, 300) <= said.fields[0].amplification


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decodes")
    for number, (chunk_rows, items) in enumerate(LAYOUTS):
        create(path / str(number), 480, chunk_rows, items)
    create(path / "raw", 480, 25, 600, None)
    create(path / "zstd", 480, 25, 600, ZstdCodec())
    create(path / "short rows", 480, 60, 600)
    return path


def test_slabs_decode_within_two_per_cent_of_what_is_said_in_any_memory(folder: Path) -> None:
    draw = random.Random(41)
    tried = 0
    while tried < tries(12, 60):
        number = draw.randrange(3)
        offsets = draw.choice([(0,), (0, 1), (-2, 0, 3), tuple(range(6))])
        data = zarrfeed.open(folder / str(number))
        mixing: dict[str, Any] = {"block": draw.choice((1, 1, 2, 3, 5)), **draw.choice(({}, {"lanes": 2}, {"mix": 2}))}
        options: dict[str, Any] = {
            "batch_size": draw.choice((4, 16, 32)),
            "memory_budget": f"{draw.choice((9, 10, 12, 16, 24, 60))}MiB",
            "num_threads": draw.choice((1, 2)),
            "seed": draw.randrange(9),
        }
        try:
            dataset = ZarrIterableDataset(data.window(offsets), shuffle=True, mixing=mixing, **options)
        except MemoryBudgetError:
            continue
        tried += 1
        with dataset:
            field = dataset.explain().fields[0]
            chunk_rows, items = LAYOUTS[number]
            said = field.amplification * field.chunks * chunk_rows / 480
            assert decodes(dataset, 480, items) == pytest.approx(said, rel=0.02), (number, offsets, mixing, options)


def read_all(dataset: ZarrIterableDataset) -> None:
    for _ in dataset:
        pass


#: Store, rows of a sample, options, ranks: chunks that lanes cut, windows handed on by nobody, blocks that ranks share.
CASES: list[tuple[str, tuple[int, ...], dict[str, Any], int]] = [
    ("1", (0,), {"lanes": 24, "block": "chunk"}, 1),
    ("1", (0, 1), {"lanes": 48, "block": "chunk"}, 1),
    ("1", (-2, 0, 3), {"lanes": 12, "block": "chunk"}, 2),
    ("short rows", (0,), {"lanes": 12, "block": "chunk", "mix": 2}, 3),
    ("short rows", (0, 1), {"lanes": 24, "block": "chunk"}, 1),
    ("zstd", (0, 1), {"lanes": 48, "block": "chunk"}, 2),
    ("raw", (0,), {"lanes": 24, "block": "chunk"}, 1),
    ("raw", (0, 1, 2, 3, 4, 5), {"lanes": 24, "block": "chunk"}, 1),
    ("raw", (0, 1), {"lanes": 2, "block": 3}, 2),
    ("raw", (-1, 0, 1, 2), {"block": 2, "lanes": 24}, 1),
]


@pytest.mark.parametrize(("name", "offsets", "mixing", "ranks"), CASES)
def test_bytes_are_decoded_as_is_said_where_blocks_are_cut_and_shared(
    folder: Path, name: str, offsets: tuple[int, ...], mixing: dict[str, Any], ranks: int
) -> None:
    """The rows of each piece of a block are known from the order, so decodes are counted and not estimated."""
    data = zarrfeed.open(folder / name).window(offsets)
    for budget in ("9MiB", "40MiB"):
        with ZarrIterableDataset(
            data,
            batch_size=16,
            shuffle=True,
            seed=4,
            memory_budget=budget,
            num_threads=1,
            mixing=mixing,
            rank=ranks - 1,
            world_size=ranks,
        ) as dataset:
            explained = dataset.explain()
            (field,) = explained.fields
            assert field.decodes is not None
            assert field.decodes <= field.amplification * 1.001
            chunk_bytes = explained.memory.chunk_bytes
            most = None if field.most_chunk_reads is None else field.most_chunk_reads * chunk_bytes
            said = field.decodes * field.chunks * chunk_bytes / ranks
            check_decodes(dataset, read_all, said, most, 0.02 if most is None else 0.3)


def test_rows_of_windows_count_once_where_nothing_has_to_be_decoded(folder: Path) -> None:
    """Copies of a row to several samples once counted as bytes that were decoded."""
    data = zarrfeed.open(folder / "raw").window(tuple(range(6)))
    with ZarrIterableDataset(data, batch_size=16, memory_budget="9MiB", num_threads=1) as dataset:
        assert decodes(dataset, 480, 600) < 1.5
        assert dataset.stats().bytes_scattered > 5 * 480 * 600 * 4


def test_chunks_of_stores_that_differ_count_by_their_bytes(folder: Path) -> None:
    data = zarrfeed.concat([zarrfeed.open(folder / name) for name in ("raw", "short rows")])
    with ZarrIterableDataset(
        data, batch_size=16, shuffle=True, memory_budget="40MiB", mixing={"lanes": 12, "block": "chunk"}
    ) as dataset:
        (field,) = dataset.explain().fields
        assert field.decodes is not None
        assert decodes(dataset, 500 + 480, 600) == pytest.approx(field.decodes, rel=0.02)  # 25 rows x 20 and 60 x 8

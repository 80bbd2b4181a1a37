"""What `explain()` says of sparse matrices is what is then read, and what is then in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.sparse import numbered_rows, put_csr
from zarrfeed import MemoryBudgetError, ZarrIterableDataset
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.spec.fields.sparse import CsrField


def stored(rows: int = 600, columns: int = 40, **options: Any) -> zarr.Group:
    return put_csr(zarr.create_group(MemoryStore()), numbered_rows(rows, columns), **options)


@pytest.mark.parametrize("layout", [{}, {"data_chunks": 70}, {"shards": (200,)}])
def test_predicted_reads_and_chunks_in_memory_are_those_of_an_epoch(layout: dict[str, Any]) -> None:
    dataset = ZarrIterableDataset(zarrfeed.open(stored(**layout)), batch_size=32, shuffle=True, seed=1)
    (predicted,) = dataset.explain().fields
    list(dataset)
    assert dataset.stats().chunks_read == predicted.chunk_reads
    (reader,) = dataset.session.readers._idle
    (matrix,) = reader._vlen_readers.values()  # type: ignore[attr-defined]
    sides = matrix._ahead_of_time
    held = [len(one.arrays[0]) // one._items for one in sides for _ in one.arrays]
    size = sum(array.nbytes for one in sides for array in one.arrays)
    text = f"at most {held[0]} chunks of indices and {held[1]} of data in memory at once, {size / 1024:.1f} KiB"
    assert text in predicted.details[-1]
    assert predicted.is_sparse
    assert dataset.stats().sparse_s > 0
    assert dataset.stats().list_s == 0


def test_the_page_shows_arrays_density_and_the_second_engine(tmp_path: Path) -> None:
    matrix = numbered_rows(600, 40)
    count = int(np.count_nonzero(matrix))
    put_csr(zarr.create_group(tmp_path / "x.zarr"), matrix, chunks=100, data_chunks=50, shards=(500,))
    page = str(ZarrIterableDataset(zarrfeed.open(tmp_path / "x.zarr"), batch_size=32, shuffle=True).explain())
    chunks, shards = -(-count // 100) + -(-count // 50), 2 * -(-count // 500)
    for line in (
        f"csr_matrix of 600 rows of 40 columns, {count} stored values ({count / 600:.3g} a row, {count / 240:.3g} %)",
        "indices: int32, read chunks of 100 (400 B) in shards of 500, zstd",
        "data: float32, read chunks of 50 (200 B) in shards of 500, zstd",
        f"of indices, {-(-count // 50)} of data), {chunks} chunks stored in {shards} shards: amplification 1.00",
        "makes the blocks: the rows that begin in about 3 chunks of indices; native",
        "since they share chunks",
        "of resident fields and indptr",
        "for cached chunks of sparse matrices",
        "to read chunks of sparse matrices",
        "more decode chunks of sparse matrices, 1 copies their rows",
    ):
        assert line in page
    assert "text" not in page
    assert "window" not in page


@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
def test_memory_of_the_second_engine_is_within_the_budget(tmp_path: Path) -> None:
    """A larger budget gives it more, none more than the budget; and what is measured is no more than was planned."""
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), numbered_rows(4000, 60), chunks=20_000))
    fields = data.resolved.fields
    (field,) = fields
    assert isinstance(field, CsrField)
    planned = [
        plan_memory(FieldNeeds.of(fields), batch_size=8, num_threads=4, budget=budget, min_open_batches=2)
        for budget in (2_000_000, 4_000_000, 64 << 20)
    ]
    least = planned[0].least_budget
    for memory in (
        plan_memory(FieldNeeds.of(fields), batch_size=8, num_threads=4, budget=least, min_open_batches=2),
        *planned,
    ):
        assert memory.least_budget == least
        assert memory.element_bytes >= 2 * field.block_bytes
        assert memory.batch_room >= 2 * memory.batch_bytes
    assert [memory.element_bytes for memory in planned] == sorted({memory.element_bytes for memory in planned})
    with pytest.raises(MemoryBudgetError, match="to read chunks of sparse matrices"):
        ZarrIterableDataset(data, batch_size=8, memory_budget=least - 100_000)
    for budget in (4 * least, 1 << 30):
        dataset = ZarrIterableDataset(data, batch_size=8, shuffle=True, memory_budget=budget)
        memory = dataset.explain().memory
        assert sum(len(batch) for batch in dataset) == 4000
        assert 0 < dataset.stats().scratch_bytes <= memory.element_bytes

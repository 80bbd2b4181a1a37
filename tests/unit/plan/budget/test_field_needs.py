"""What fields ask for of memory: each array and each set of rows counts once, whatever draws from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.budget import field_needs
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.spec.fields.field import Field, IndexField, StoredField
from zarrfeed.spec.samples.window import Window

N, CHUNK_BYTES = 24, 4 * 3 * 4


def array_of(**layout: Any) -> zarr.Array[Any]:
    array = zarr.create_array(MemoryStore(), shape=(N, 3), chunks=(4, 3), dtype="i4", **layout)
    array[:] = np.arange(N * 3).reshape(N, 3)
    return array


def stored(name: str = "x", **layout: Any) -> StoredField:
    return StoredField(name, read_layout(array_of(**layout)))


def test_an_array_that_two_fields_draw_from_is_decoded_in_the_memory_of_one() -> None:
    plain = stored(shards=(8, 3))
    targets = replace(plain, name="targets", window=Window((0, 1)))
    one, both = FieldNeeds.of([plain]), FieldNeeds.of([plain, targets])
    assert both.sample_bytes == plain.sample_bytes + targets.sample_bytes == 3 * one.sample_bytes
    assert (both.fed_bytes, both.fed_together_bytes) == (CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert both.index_bytes == (one.index_bytes[0], (0, 0))
    assert both.least_index_bytes == one.least_index_bytes > 0
    assert (both.num_indexed, both.num_fields) == (1, 2)
    assert (both.scratch_bytes, both.chunk_bytes) == (one.scratch_bytes, CHUNK_BYTES)


def test_rows_in_memory_count_once_for_fields_that_have_the_same() -> None:
    resident = replace(stored(), resident=True)
    again, other = replace(resident, name="again"), replace(stored("other"), resident=True)
    assert FieldNeeds.of([resident, again]).resident_bytes == resident.resident_bytes == N * 3 * 4
    assert FieldNeeds.of([resident, again, other]).resident_bytes == 2 * N * 3 * 4


def test_fields_without_a_stored_array_need_their_batches_alone() -> None:
    needs = FieldNeeds.of([IndexField(N)])
    assert needs == FieldNeeds(1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, ((0, 0),), 0, ())
    plan = plan_memory(needs, batch_size=4, num_threads=2, budget=1 << 20, min_open_batches=2)
    assert (plan.least_budget, plan.batch_bytes, plan.fetch_bytes) == (64, 32, 0)


def test_a_budget_is_divided_again_without_a_look_at_the_fields(monkeypatch: Any) -> None:
    fields: list[Field] = [stored(), IndexField(N)]
    needs = FieldNeeds.of(fields)
    expected = plan_memory(needs, batch_size=4, num_threads=2, budget=1 << 20, min_open_batches=2)
    for name in ("array_sources", "loaded_with", "element_fields"):
        monkeypatch.delattr(field_needs, name)
    assert plan_memory(needs, batch_size=4, num_threads=2, budget=1 << 20, min_open_batches=2) == expected

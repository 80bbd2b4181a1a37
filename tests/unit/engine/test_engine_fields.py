"""What the engine is told of fields: an array that several of them draw from is one source."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import zarr
from zarr.storage import MemoryStore

from zarrfeed.base.native import core
from zarrfeed.engine.engine_fields import EngineFields
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.fields.field import Field, IndexField, ResidentField, StoredField
from zarrfeed.spec.samples.window import Window

N = 24


def array_of(sign: int) -> zarr.Array[Any]:
    array = zarr.create_array(MemoryStore(), shape=(N, 3), chunks=(4, 3), dtype="i4", shards=(8, 3))
    array[:] = sign * np.arange(N * 3).reshape(N, 3)
    return array


def fields_of() -> list[Field]:
    one, other = read_layout(array_of(1)), read_layout(array_of(-1))
    memory = field_in_memory("memory", torch.zeros(N, 1), 0)
    assert isinstance(memory, ResidentField)
    again = ResidentField("again", memory.rows, memory.dtype, memory.row_shape, memory.item_bytes)
    return [
        IndexField(N),
        StoredField("samples", one, window=Window((-1, 0))),
        memory,
        StoredField("other", other),
        StoredField("targets", one, window=Window((1,))),
        again,
    ]


def test_every_output_has_the_number_of_the_first_one_that_draws_from_its_array() -> None:
    fields = EngineFields(fields_of())
    assert [number for number, _ in fields.outputs] == list(range(6))
    assert fields.source_numbers == [0, 1, 2, 3, 1, 2]
    assert list(fields.python_sources()) == [1, 3]
    assert fields.cached_sources() == {}
    assert fields.cache_troubles() == []


def test_the_engine_asks_for_the_objects_of_a_source_once_under_its_number() -> None:
    whole = fields_of()
    fields = [replace(f, window=None) if isinstance(f, StoredField) else f for f in whole]
    options = core.EngineOptions(batch_size=N, num_threads=1, num_fetch_threads=1, max_requests=64)
    order = Order(num_samples=N, block_rows=N, shuffle=False, seed=0, lanes=1)
    for index_sizes in ((), (0, 4096, 0, 4096, 4096, 0)):
        engine = core.Engine(EngineFields(fields).to_cores(None, index_sizes), options)
        engine.start(order.plan(0).to_core(), 1)
        asked: list[tuple[int, str]] = []
        deadline = time.monotonic() + 60
        while len(asked) < 6 and time.monotonic() < deadline:
            asked += [(number, key) for number, key, is_index, _ in engine.take_requests()[0] if is_index]
        engine.stop()
        assert sorted(asked) == [(number, f"c/{shard}/0") for number in (1, 3) for shard in range(3)]

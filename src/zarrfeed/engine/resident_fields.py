"""Small arrays in memory: read once, by the same engine, for all fields that draw from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.base.native import core
from zarrfeed.engine.batch_arrays import ByteArrays
from zarrfeed.engine.engine_fields import EngineFields, stats_of
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.store_bridge import StoreBridge
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import (
    BadRows,
    HostRows,
    ResidentField,
    StoredField,
)
from zarrfeed.spec.values.conversion import Conversion

_DEFAULT_POLICY = Faults()


def load_resident(field: StoredField, policy: Faults = _DEFAULT_POLICY) -> tuple[ResidentField, Stats]:
    """Read a whole (small) stored field into memory, as `load_residents` does."""
    (loaded,), read = load_residents([field], policy)
    return loaded, read


def load_residents(
    fields: Sequence[StoredField], policy: Faults = _DEFAULT_POLICY
) -> tuple[list[ResidentField], Stats]:
    """Read whole (small) stored fields into memory, with the same engine; return them, and the counters of reading.

    Fields of the same arrays are read together, so that each chunk is read once. Those of them that convert items alike
    share their rows.

    Raises
    ------
    CorruptChunkError, StoreReadError
        For a chunk that cannot be decoded or read, unless these are skipped: then its rows are `bad_rows`.
    """
    stored = [replace(field, resident=False) for field in fields]
    sources = {draw: source.number for source in array_sources(stored) for draw in source.draws}
    together: dict[tuple[int, ...], list[int]] = {}  # by the sources of the layouts, in their order
    for number, field in enumerate(fields):
        of_layouts = tuple(sources[number, layout] for layout in range(len(field.layouts)))
        together.setdefault(of_layouts, []).append(number)
    loaded: dict[int, ResidentField] = {}
    read = Stats()
    for numbers in together.values():
        residents, stats = _load_together([fields[number] for number in numbers], policy)
        loaded.update(zip(numbers, residents, strict=True))
        read = read + stats
    return [loaded[number] for number in range(len(fields))], read


def _load_together(fields: Sequence[StoredField], policy: Faults) -> tuple[list[ResidentField], Stats]:
    """Return fields that draw from the same arrays in memory, and the counters of reading them."""
    spec = fields[0].spec
    n = spec.num_samples
    unlike: dict[tuple[Conversion | None, ...], int] = {}
    of_field = [unlike.setdefault(tuple(one.conversion for one in f.layouts), len(unlike)) for f in fields]
    stored = [
        replace(fields[of_field.index(one)], window=None, rows=None, resident=False, stack=None)
        for one in unlike.values()
    ]
    order = Order(num_samples=n, block_rows=min(n, spec.rows_per_chunk), shuffle=False, seed=0, lanes=1)
    options = policy.engine_options(batch_size=n, num_threads=1, num_fetch_threads=1, max_requests=16)
    fields_of_engine = EngineFields(stored)
    engine = core.Engine(fields_of_engine.to_cores(), options, cached=fields_of_engine.cached_sources())
    bridge = StoreBridge(engine, fields_of_engine.python_sources(), policy=policy)
    try:
        engine.start(order.plan(0).to_core(), 1)
        bridge.start()
        batch = engine.next()
    except (StoreReadError, CorruptChunkError) as error:
        bridge.explain(error)
        raise
    finally:
        bridge.stop_engine()
    assert batch is not None
    rows = [
        HostRows(ByteArrays().from_capsule(capsule).reshape(n, one.sample_bytes).copy())
        for one, capsule in zip(stored, batch[1], strict=True)
    ]
    read = stats_of(engine, bridge)
    bad_rows: dict[int, BadRows] = {}  # of chunks side by side one is enough
    for number, chunk, key, name, code, message in sorted(batch[2][2]) if batch[2] is not None else ():
        first, end = stored[0].layouts[number].rows_of(chunk)  # the sources are those of the first field's layouts
        bad_rows.setdefault(first, (first, end, first, key, name, code, message))
    loaded = [
        ResidentField(
            field.name,
            rows[number],
            field.dtype_name,
            field.row_shape,
            field.batch_item_bytes,
            window=field.window,
            bad_rows=tuple(bad_rows[first] for first in sorted(bad_rows)),
            row_map=field.rows,
            stack=field.stack,
        )
        for field, number in zip(fields, of_field, strict=True)
    ]
    read = replace(read, batches=0, samples=0, batch_memory_bytes=0, scratch_bytes=0, concurrency=0)
    return loaded, replace(read, idle_storage_s=0.0, idle_other_s=0.0, consumer_wait_s=0.0, consumer_busy_s=0.0)

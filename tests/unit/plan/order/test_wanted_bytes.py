"""The bytes that segments of a plan decode, against marks on the rows that their samples have."""

from __future__ import annotations

import pytest
import zarr

import zarrfeed
from zarrfeed.base.native import core
from zarrfeed.plan.blocks.decoded_bytes import WHOLE_CHUNK, Grain
from zarrfeed.plan.order import wanted_bytes
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.order.wanted_bytes import SegmentSamples, WantedBytes
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import Field

ROWS, ITEMS, CHUNK = 90, 10, 12


def fields_of(offsets: tuple[int, ...]) -> tuple[Field, ...]:
    array = zarr.create_array({}, shape=(ROWS, ITEMS), chunks=(CHUNK, ITEMS), dtype="i2")
    opened = zarrfeed.open(array)
    return (opened.window(offsets) if len(offsets) > 1 else opened).resolved.fields


def plan_of(stride: int, lanes: int) -> EpochPlan:
    order = Order(ROWS, CHUNK, shuffle=True, seed=3, lanes=lanes)
    return order.plan(0, Portion(0, stride, -(-ROWS // stride)))


def wanted_of(plan: EpochPlan, fields: tuple[Field, ...], grain: Grain, rows: int) -> WantedBytes:
    (source,) = array_sources(fields)
    return SegmentSamples(plan).wanted(source, fields, grain, RowRuns(source.layout, rows))


@pytest.mark.parametrize(("stride", "lanes", "rows"), [(1, 4, 0), (2, 3, 0), (1, 4, 5)])
def test_a_segment_decodes_the_grains_of_the_rows_that_its_own_samples_have(stride: int, lanes: int, rows: int) -> None:
    fields, grain = fields_of((0, 3)), 8  # bytes; a row has 20
    plan = plan_of(stride, lanes)
    got = wanted_of(plan, fields, Grain(grain, True), rows)
    samples, segments = core.sample_order(plan.to_core()), plan.to_core().segments()
    marked: dict[tuple[int, int], set[int]] = {}
    for sample, segment in zip(samples.tolist(), segments.tolist(), strict=True):
        for row in (sample, sample + 3):
            if row >= ROWS:
                continue
            chunk, within = divmod(row, CHUNK)
            run = chunk if not rows else chunk * -(-CHUNK // rows) + within // rows
            grains = range(within * 20 // grain, (within * 20 + 19) // grain + 1)
            marked.setdefault((segment, run), set()).update(grains)
    assert list(zip(got.segment.tolist(), got.run.tolist(), strict=True)) == sorted(marked)
    assert got.nbytes.tolist() == [grain * len(marked[pair]) for pair in sorted(marked)]


def test_a_longer_plan_is_taken_to_want_a_share_of_the_rows_of_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = fields_of((0,))
    plan = plan_of(1, 4)
    listed = wanted_of(plan, fields, Grain(2, True), 0)
    monkeypatch.setattr(wanted_bytes, "MOST_ROWS", 1)
    estimated = wanted_of(plan, fields, Grain(2, True), 0)
    assert estimated.nbytes.tolist() == listed.nbytes.tolist()  # of single items, the share is exact
    assert estimated.segment.tolist() == listed.segment.tolist()
    assert set(wanted_of(plan, fields, WHOLE_CHUNK, 0).nbytes.tolist()) == {CHUNK * ITEMS * 2}

"""Slabs against runs of rows that are listed one by one; and orders of slabs, which must be orders of the samples."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed import _core
from zarrfeed.plan.blocks.blocks import find_edges
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.order.unfolding import unfold
from zarrfeed.plan.samples.selection import Int64, Select, Selection, make_selection, select_samples, selection_of
from zarrfeed.spec.fields.field import Field


def field_of(n: int, rows: int) -> Field:
    return zarrfeed.open(zarr.create_array({}, shape=(n,), chunks=(rows,), dtype="i4")).resolved.fields[0]


def stores_of(lengths: list[int], rows: int) -> Field:
    stores = [zarr.create_array({}, shape=(n,), chunks=(rows,), dtype="i4") for n in lengths]
    return zarrfeed.concat([zarrfeed.open(one) for one in stores]).resolved.fields[0]


def chosen_of(n: int, chosen: Select | None) -> Int64:
    """Return the samples that a selection names, ascending."""
    if isinstance(chosen, slice):
        return np.arange(n)[chosen]
    return np.arange(n) if chosen is None else np.sort(np.asarray(chosen, dtype=np.int64))


def listed(lengths: list[int], rows: int, slab: int) -> list[list[int]]:
    """Return the samples of each slab: of each chunk of each store, so many at a time."""
    found, begin = [], 0
    for n in lengths:
        for chunk in range(0, n, rows):
            end = min(chunk + rows, n)
            found += [list(range(begin + a, begin + min(a + slab, end))) for a in range(chunk, end, slab)]
        begin += n
    return found


@st.composite
def selections(draw: st.DrawFn, n: int) -> Select | None:
    kind = draw(st.sampled_from(("all", "slice", "steps", "list")))
    if kind == "all":
        return None
    if kind == "list":
        return draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    start = draw(st.integers(0, n - 1))
    return slice(start, draw(st.integers(start + 1, n)), 1 if kind == "slice" else draw(st.integers(2, 9)))


@examples(300)
@given(st.data())
def test_slabs_partition_the_rows_of_each_chunk_and_cross_no_end_of_one(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 12))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    slab, n = data.draw(st.integers(1, rows - 1)), sum(lengths)
    field = field_of(n, rows) if len(lengths) == 1 else stores_of(lengths, rows)
    slabs = Slabs.of(field.layouts, n, slab)
    chosen = data.draw(selections(n))
    chosen_samples = range(n) if chosen is None else select_samples(chosen, n)
    edges = find_edges(field, rows, "chunk")
    selection = selection_of(chosen_samples, None, num_samples=n, block_rows=rows, edges=edges)
    cut = slabs.cut(selection, n)
    samples = set(chosen_of(n, chosen).tolist())
    wanted = [of_slab for one in listed(lengths, rows, slab) if (of_slab := [i for i in one if i in samples])]
    got = np.split(cut.listed(), np.cumsum(cut.rows)[:-1])
    assert [one.tolist() for one in got] == wanted
    assert len(set(cut.blocks.tolist())) == len(wanted)  # numbers are keys of the order of rows
    assert slabs.cut(selection, n) is cut


def test_chunks_of_stores_that_differ_are_cut_into_slabs_of_as_many_rows() -> None:
    lengths = [(10, 10), (3, 3), (12, 10), (7, 4)]
    arrays = [zarr.create_array({}, shape=(n,), chunks=(rows,), dtype="i4") for n, rows in lengths]
    (field,) = zarrfeed.concat([zarrfeed.open(one) for one in arrays]).resolved.fields
    assert len(field.layouts) == 3
    cut = Slabs.of(field.layouts, 32, 4).cut(Selection.of_range(range(32), 10, find_edges(field, 10, "chunk")), 32)
    wanted = [range(4), range(4, 8), range(8, 10), range(10, 13), range(13, 17), range(17, 21), range(21, 23)]
    wanted += [range(23, 25), range(25, 29), range(29, 32)]
    assert [(first, first + rows) for first, rows in zip(cut.first.tolist(), cut.rows.tolist(), strict=True)] == [
        (one.start, one.stop) for one in wanted
    ]


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, Int64]:
    n, rows = draw(st.integers(2, 300)), draw(st.integers(2, 31))
    slabs = Slabs.of(field_of(n, rows).layouts, n, draw(st.integers(1, rows - 1)))
    chosen = draw(selections(n))
    selection = make_selection(chosen, None, num_samples=n, block_rows=rows)
    order = Order(n, rows, shuffle=True, seed=draw(st.integers(0, 99)), lanes=1, selection=selection, slabs=slabs)
    lanes, mix = draw(st.integers(1, min(12, order.length))), draw(st.integers(1, 4))
    samples = chosen_of(n, chosen)
    return replace(order, lanes=lanes, mix=mix), samples


@examples(200)
@given(orders(), st.integers(1, 9))
def test_an_order_of_slabs_has_each_sample_once_listed_or_unfolded(found: tuple[Order, Int64], stride: int) -> None:
    order, samples = found
    whole = _core.sample_order(order.plan(2).to_core())
    assert np.array_equal(np.sort(whole), samples)
    assert np.array_equal(_core.sample_order(unfold(order, 2).to_core()), whole)
    for first in range(stride):
        portion = Portion(first=first, stride=stride)
        assert np.array_equal(_core.sample_order(order.plan(2, portion).to_core()), whole[first::stride])
    held_index, rows = order.locate(samples)
    assert np.array_equal(order.samples_in(held_index, rows), samples)
    assert (rows < order.rows_at(held_index)[1]).all()


def test_what_is_dealt_by_blocks_knows_no_slabs() -> None:
    order = Order(100, 24, shuffle=True, seed=1, lanes=1, slabs=Slabs.of(field_of(100, 24).layouts, 100, 5))
    whole = replace(order, slabs=None)
    assert (order.num_blocks, whole.num_blocks, order.max_rows) == (21, 5, 5)
    assert order.describe() == whole.describe()
    assert (order.selection, order.block_rows) == (None, 24)


def test_slabs_are_pickled_without_what_they_remember() -> None:
    slabs = Slabs.of(field_of(1000, 24).layouts, 1000, 5)
    cut = slabs.cut(None, 1000)
    again = pickle.loads(pickle.dumps(slabs))
    assert again == slabs
    assert np.array_equal(again.cut(None, 1000).first, cut.first)
    assert len(pickle.dumps(slabs)) < 2500


@pytest.mark.parametrize("slab", [1, 5, 8, 12])
def test_slabs_that_are_even_need_no_number_for_each_chunk(slab: int) -> None:
    edges = Slabs.of(field_of(24 * 1000, 24).layouts, 24 * 1000, slab).edges
    assert len(edges.begin) == (2 if 24 % slab == 0 else 1001)

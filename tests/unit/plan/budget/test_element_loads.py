"""Rows of sparse matrices that are cut at the ends of blocks, and the blocks that batches need, against plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import zarr
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.budget.element_loads import plan_loads, split_rows
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.sparse import Elements


def elements_of(counts: list[int], block: int) -> Elements:
    """Return the elements of one store, in blocks of so many; the last one may be shorter."""
    total = max(1, sum(counts))
    spec = read_layout(zarr.create_array({}, shape=(1, total), chunks=(1, block), dtype="i4"))
    zero = np.zeros(1, np.int64)
    return Elements((Layout(spec),), zero, zero, np.array([0, total]))


def ends_of(counts: list[int]) -> Int64:
    return np.concatenate(([0], np.cumsum(np.array(counts, np.int64))))


rows = st.lists(st.integers(0, 30), min_size=1, max_size=20)


@examples(200)
@given(counts=rows, block=st.integers(1, 25))
def test_rows_are_cut_at_the_ends_of_blocks(counts: list[int], block: int) -> None:
    indptr = ends_of(counts)
    found = split_rows(elements_of(counts, block), indptr[:-1], indptr[1:])
    expected = []
    for row, (begin, end) in enumerate(pairwise(indptr.tolist())):
        while begin < end:
            stop = min(end, (begin // block + 1) * block)
            expected.append((row, begin // block, begin % block, stop - begin))
            begin = stop
    assert list(zip(*(one.tolist() for one in found), strict=True)) == expected


@examples(200)
@given(
    counts=rows, block=st.integers(1, 25), batch_size=st.integers(1, 7), keep=st.integers(0, 4), seed=st.integers(0, 9)
)
def test_blocks_are_there_when_a_batch_needs_them(
    counts: list[int], block: int, batch_size: int, keep: int, seed: int
) -> None:
    indptr, order = ends_of(counts), np.random.default_rng(seed).permutation(len(counts))
    loads = plan_loads(elements_of(counts, block), indptr, order, batch_size, keep)
    needed: dict[int, list[int]] = {}
    for step, row in enumerate(order.tolist()):
        for one in range(int(indptr[row]), int(indptr[row + 1])):
            needed.setdefault(one // block, []).append(step // batch_size)
    expected = []
    for one, batches in needed.items():
        first = last = batches[0]
        for batch in batches[1:]:
            if batch - last > keep:
                expected.append((first, one, last))
                first = batch
            last = batch
        expected.append((first, one, last))
    found = zip(loads.first_batch.tolist(), loads.block.tolist(), loads.last_batch.tolist(), strict=True)
    assert list(found) == sorted(expected)
    most = max((sum(a <= b <= c for a, _, c in expected) for b in range(len(counts))), default=0)
    assert loads.most_at_once == most

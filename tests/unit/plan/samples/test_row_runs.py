"""Runs of rows against the definition, row by row; `test_slabs.py` in tests/parity reads them with the engine."""

from __future__ import annotations

import numpy as np
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed.plan.blocks.decoded_bytes import Grain, bytes_in_runs, bytes_of_runs
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.array_sources import array_sources


@examples(100)
@given(st.data())
def test_runs_partition_the_rows_of_each_chunk(data: st.DataObject) -> None:
    chunk, cut = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 11))
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    stores = [
        zarrfeed.open(zarr.create_array({}, shape=(length, 2), chunks=(chunk, 2), dtype="i2")) for length in lengths
    ]
    (field,) = (stores[0] if len(stores) == 1 else zarrfeed.concat(stores)).resolved.fields
    (layout,) = field.layouts
    runs, whole = RowRuns(layout, cut), RowRuns(layout)
    rows = np.arange(sum(lengths))
    in_chunk = np.concatenate([np.arange(length) % chunk for length in lengths])
    of_rows = list(zip(layout.chunk_of(rows).tolist(), (in_chunk // runs.rows).tolist(), strict=True))
    numbers = runs.of(rows)
    assert numbers.tolist() == [chunk * runs.of_chunk + run for chunk, run in of_rows]
    assert np.array_equal(whole.of(rows), layout.chunk_of(rows))
    assert runs.are_chunks == (not 0 < cut < chunk)
    low, high = runs.rows_in_chunk(numbers)
    assert ((low <= in_chunk) & (in_chunk <= high)).all()
    lengths_of_runs = np.diff(np.append(runs.rows_in_chunk(np.arange(runs.of_chunk))[0], chunk))
    assert (lengths_of_runs.sum(), lengths_of_runs.max()) == (chunk, runs.rows)
    assert lengths_of_runs.min() == runs.fewest_rows
    assert runs.nbytes == runs.rows * 4


@examples(150)
@given(st.data())
def test_a_block_decodes_the_grains_of_the_rows_that_it_needs_of_each_run(data: st.DataObject) -> None:
    rows, n, cut = data.draw(st.integers(2, 9)), data.draw(st.integers(10, 30)), data.draw(st.integers(0, 9))
    offsets = data.draw(st.sampled_from([(0, 1), (-1, 0, 1), (0, 4), (2, 3, 7)]))
    array = zarr.create_array({}, shape=(n, 5), chunks=(rows, 5), dtype="i2")
    fields = zarrfeed.open(array).window(offsets).resolved.fields
    (source,) = array_sources(fields)
    chosen = data.draw(st.sets(st.integers(max(0, -min(offsets)), n - 1 - max(offsets)), min_size=1))
    selection = Selection.of_samples(np.array(sorted(chosen)), data.draw(st.integers(1, 6)))
    grain, runs = Grain(data.draw(st.sampled_from([2, 3, 7, 16])), True), RowRuns(source.layout, cut)

    def grains_of(begin: int, end: int) -> set[int]:
        return set(range(begin * 10 // grain.nbytes, (end * 10 - 1) // grain.nbytes + 1))

    def bytes_of(grains: set[int]) -> int:
        return sum(min(grain.nbytes, rows * 10 - one * grain.nbytes) for one in grains)

    expected: dict[tuple[int, int], set[int]] = {}
    for number, samples in enumerate(np.split(selection.listed(), np.cumsum(selection.rows)[:-1])):
        for row in np.unique(samples[:, None] + np.array(offsets)).tolist():
            pair = number, int(runs.of(np.array([row]))[0])
            expected.setdefault(pair, set()).update(grains_of(row % rows, row % rows + 1))
    held_index, run, nbytes = (one.tolist() for one in bytes_in_runs(selection, source, fields, grain, runs))
    found = dict(zip(zip(held_index, run, strict=True), nbytes, strict=True))
    assert list(found) == sorted(expected)
    for pair, grains in expected.items():
        assert found[pair] == bytes_of(grains)
    whole = (
        [rows * 10] if runs.are_chunks else [bytes_of(grains_of(b, min(rows, b + cut))) for b in range(0, rows, cut)]
    )
    assert bytes_of_runs(runs, grain).tolist() == whole

"""Decoded bytes against marks on every byte of every chunk."""

from __future__ import annotations

import numpy as np
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed.plan.blocks.decoded_bytes import WHOLE_CHUNK, Grain, decoded_bytes, rows_of_grain
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.array_sources import array_sources


@examples(150)
@given(st.data())
def test_a_block_decodes_the_grains_that_its_rows_lie_in_each_once(data: st.DataObject) -> None:
    rows, n, axis = data.draw(st.integers(1, 7)), data.draw(st.integers(8, 30)), data.draw(st.integers(0, 1))
    others = data.draw(st.integers(1, 5))
    shape, chunks = ((n, others), (rows, others)) if axis == 0 else ((others, n), (others, rows))
    array = zarr.create_array(
        {}, shape=shape, chunks=chunks, dtype="i2", dimension_names=("t", "x") if axis == 0 else ("x", "t")
    )
    offsets = data.draw(st.sampled_from([(0,), (0, 1), (-1, 0, 1), (0, 4), (2, 3, 7)]))
    low, high = max(0, -min(offsets)), n - max(0, max(offsets))
    opened = zarrfeed.open(array, sample_dim="t")
    fields = (opened if offsets == (0,) else opened.window(offsets)).resolved.fields
    (source,) = array_sources(fields)
    block = data.draw(st.integers(1, 6))
    chosen = sorted(data.draw(st.sets(st.integers(low, high - 1), min_size=1)))
    selection = Selection.of_samples(np.array(chosen), block)
    size, is_fused = rows * others * 2, data.draw(st.booleans())
    grain = data.draw(st.sampled_from([0, 2, 3, 4, 7, 16, size]))
    got = decoded_bytes(selection, source, fields, Grain(grain, is_fused))

    position = np.arange(rows * others * 2).reshape((rows, others * 2) if axis == 0 else (others, rows, 2))
    for number, samples in enumerate(np.split(selection.listed(), np.cumsum(selection.rows)[:-1])):
        wanted, grains = np.unique(samples[:, None] + np.array(offsets)), 0
        for chunk in np.unique(wanted // rows):
            inside = wanted[wanted // rows == chunk] % rows
            marked = position[inside] if axis == 0 else position[:, inside]
            touched = np.unique(marked // (grain or size))
            whole = -(-size // (grain or size))
            if not is_fused and 2 * len(touched) > whole:
                grains += size
            else:
                grains += sum(min(grain or size, size - int(one) * (grain or size)) for one in touched)
        assert got[number] == grains, (chunk, samples)


def test_a_grain_has_bytes_of_some_rows_on_average() -> None:
    array = zarr.create_array({}, shape=(64, 100), chunks=(16, 100), dtype="f4")
    spec = array_sources(zarrfeed.open(array).resolved.fields)[0].spec
    assert rows_of_grain(spec, Grain(4, True)) == 1
    assert rows_of_grain(spec, Grain(3200)) == 8
    assert rows_of_grain(spec, Grain(500)) == 2  # mostly the end of one, and the next
    assert rows_of_grain(spec, WHOLE_CHUNK) == rows_of_grain(spec, Grain(6400)) == np.inf

"""Row maps in the engine: a sample has the row that its map names, in its windows too, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import zarrfeed
from zarrfeed import ZarrIterableDataset
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.plan.blocks.blocks import find_edges
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.samples.row_map import NO_ROW, RowMap

ROWS = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.zarr"
    array = zarr.create_array(path, shape=(ROWS, 2), chunks=(8, 1), dtype="f4")
    array[:] = np.repeat(np.arange(ROWS)[:, None], 2, axis=1)
    return path


def mapped(store: Path, rows: npt.NDArray[np.int64] | range) -> zarrfeed.Data:
    """Return a description whose samples have other rows than those with their indices."""
    data = zarrfeed.open(store)
    (column,) = data.resolved.columns
    assert isinstance(column.field, StoredField)
    mapped_column = column.with_field(replace(column.field, rows=RowMap(rows)))
    choice = SampleChoice.all_of(len(rows))
    return replace(data, resolved=ResolvedData((mapped_column,), data.resolved.origin, choice))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_sample_has_the_row_that_its_map_names(store: Path, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(NO_ROW, ROWS - 1), min_size=1, max_size=50)), dtype=np.int64)
    described = mapped(store, rows)
    offsets = data.draw(st.sampled_from([None, (0,), (-1, 0, 2)]))
    expected = np.where(rows == NO_ROW, np.nan, rows).astype("f4")
    if offsets is not None:
        described = described.window(offsets, pad="edge")
        at = np.clip(np.arange(len(rows))[:, None] + offsets, 0, len(rows) - 1)
        expected = expected[at]
    batch = data.draw(st.integers(1, 9))
    seen = []
    for samples, index in ZarrIterableDataset(described, batch_size=batch, shuffle=True, return_index=True):
        assert np.array_equal(samples[..., 0].numpy(), expected[index.numpy()], equal_nan=True)
        seen += index.tolist()
    assert sorted(seen) == list(range(len(rows)))


@pytest.mark.parametrize("rows", [range(5, 45), range(3, 60, 6), range(59, -1, -1)])
def test_rows_that_are_evenly_spaced_need_no_list_and_each_chunk_is_decoded_once(store: Path, rows: range) -> None:
    described = mapped(store, rows)
    with ZarrIterableDataset(described, batch_size=4, return_index=True) as dataset:
        for samples, index in dataset:
            assert samples[:, 0].tolist() == [rows[i] for i in index.tolist()]
        assert dataset.stats().chunks_read == 2 * len({row // 8 for row in rows})


def test_blocks_end_where_the_rows_go_on_to_another_chunk(store: Path) -> None:
    rows = np.array([NO_ROW, 3, 4, 5, 6, 7, 8, 9, NO_ROW, 10, 40, 41])
    field = mapped(store, rows).resolved.columns[0].field
    assert isinstance(field, StoredField)
    edges = find_edges(field, 8, "chunk")
    assert edges is not None
    assert np.asarray(edges).tolist() == [0, 6, 10, 12], "a sample without a row belongs to the block before it"

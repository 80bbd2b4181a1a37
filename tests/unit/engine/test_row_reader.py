"""Samples by their positions, in NumPy: what zarr-python reads there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed import CorruptChunkError
from zarrfeed.engine.row_reader import RowReader
from zarrfeed.plan.schedule.batch_request import RowRequests

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

N = 97


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("rows") / "rows.zarr"
    group = zarr.create_group(path)
    group.create_array("x", data=np.arange(N * 6, dtype="f4").reshape(N, 2, 3), chunks=(10, 1, 3))
    group.create_array("y", data=np.arange(N, dtype="i8"), chunks=(7,), shards=(21,))
    name: Any = group.create_array("name", shape=(N,), chunks=(9,), dtype="string")
    name[:] = np.array([f"n{n}" for n in range(N)], dtype=object)
    return path


def reader_of(path: Path) -> RowReader:
    fields, selection = zarrfeed.open(path, decode_cf=False).resolved.planned(room=0)
    return RowReader(fields, RowRequests(fields.num_samples, fields.block_rows, selection))


@examples(15)
@given(requests=st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=40), min_size=1, max_size=4))
def test_requests_get_the_samples_that_zarr_python_has(store: Path, requests: list[list[int]]) -> None:
    reader, group = reader_of(store), zarr.open_group(store, mode="r")
    for positions in requests:
        name, x, y = reader.read(np.array(positions))
        for values, key in ((x, "x"), (y, "y"), (name, "name")):
            array: Any = group[key]
            assert np.array_equal(values, array[...][positions])
    reader.close()
    assert reader.read(np.array([5]))[2].tolist() == [5]  # memory is taken again


def test_a_corrupt_chunk_is_an_error_and_the_reader_goes_on(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(20), chunks=(10,))
    (tmp_path / "x.zarr" / "c" / "1").write_bytes(b"no chunk")
    reader = reader_of(tmp_path / "x.zarr")
    with pytest.raises(CorruptChunkError, match="c/1"):
        reader.read(np.arange(8, 12))
    assert reader.read(np.arange(3))[0].tolist() == [0, 1, 2]

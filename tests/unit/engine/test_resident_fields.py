"""Small arrays in memory: read once for all fields, which have their own rows of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.engine.resident_fields import load_resident, load_residents
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.samples.window import Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.value_step import Numbers, ValueStep

N, CHUNKS = 24, 6
ROWS = np.arange(N * 3, dtype="f4").reshape(N, 3)
HALVED = Conversion("float32", "float32", steps=(ValueStep("normalize", Numbers.of(0.0), Numbers.of(2.0)),))


def write(path: Path, *, sign: int = 1) -> StoredField:
    zarr.create_array(path, data=sign * ROWS, chunks=(4, 3))
    return StoredField(path.name, read_layout(path), resident=True)


def test_an_array_is_read_once_for_all_fields_that_draw_from_it(tmp_path: Path) -> None:
    x, y = write(tmp_path / "x"), write(tmp_path / "y", sign=-1)
    fields = [x, replace(x, name="halved", conversion=HALVED), y, replace(x, name="later", window=Window((1,)))]
    loaded, read = load_residents(fields)
    assert [one.name for one in loaded] == ["x", "halved", "y", "later"]
    assert read.chunks_read == 2 * CHUNKS
    for one, wanted in zip(loaded, (ROWS, ROWS / 2, -ROWS, ROWS), strict=True):
        assert np.array_equal(one.rows.array.view("f4"), wanted)
    assert loaded[3].rows is loaded[0].rows  # memory for one
    assert loaded[3].window == Window((1,))
    assert loaded[1].rows is not loaded[0].rows


def test_a_field_is_loaded_whether_or_not_it_is_marked(tmp_path: Path) -> None:
    for resident in (False, True):
        field = replace(write(tmp_path / str(resident)), resident=resident)
        loaded, read = load_resident(field)
        assert np.array_equal(loaded.rows.array.view("f4"), ROWS)
        assert read.chunks_read == CHUNKS


def test_rows_of_a_bad_chunk_are_bad_for_all_fields(tmp_path: Path) -> None:
    x = write(tmp_path / "x")
    (tmp_path / "x" / "c" / "2" / "0").write_bytes(b"no chunk")
    fields = [x, replace(x, conversion=HALVED)]
    with pytest.raises(CorruptChunkError, match="c/2/0"):
        load_residents(fields)
    loaded, _ = load_residents(fields, Faults(on_error="skip"))
    for one in loaded:
        ((first, end, *_),) = one.bad_rows
        assert (first, end) == (8, 12)

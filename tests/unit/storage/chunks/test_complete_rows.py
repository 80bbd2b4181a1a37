"""Rows count up to the first stored object that does not exist; `test_growth.py` has more cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.chunks.complete_rows import complete_rows


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("lost", [0, 1, 300, 599])
def test_the_first_missing_chunk_is_found_among_many(tmp_path: Path, axis: int, lost: int) -> None:
    shape, chunks = ((1200, 3), (2, 3)) if axis == 0 else ((3, 1200), (3, 2))
    array = zarr.create_array(tmp_path / "a", shape=shape, chunks=chunks, dtype="u1")
    array[:] = np.ones(shape, "u1")
    (tmp_path / "a" / "c" / (f"{lost}/0" if axis == 0 else f"0/{lost}")).unlink()
    access = StoreAccess()
    assert complete_rows(array, chunks, axis, known=0, access=access) == 2 * lost
    assert complete_rows(array, chunks, axis, known=2 * lost + 2, access=access) == 1200

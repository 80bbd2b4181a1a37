"""metadata/array/values.py: a chunk that the store lacks is told apart from one that holds the fill value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.oracle import ZARR_FORMATS, ZarrFormat
from zarrfeed.base.errors import StoreReadError
from zarrfeed.metadata.array.values import find_absent, read_distinct, read_stored, read_values

pytestmark = pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")

COUNT, CHUNK = 12, 4
#: dtype -> fill value, and another value.
ITEMS: dict[Any, tuple[Any, Any]] = {
    "i4": (0, 7),
    "i2": (-5, 0),
    "u1": (255, 0),
    "f8": (float("nan"), 0.0),
    "f4": (0.0, float("nan")),
    "bool": (False, True),
    "M8[s]": (np.datetime64("NaT"), np.datetime64(3, "s")),
    "S3": (b"", b"a"),
    str: ("", "a"),
}


def put(folder: Path, dtype: Any, zarr_format: ZarrFormat, *, is_sharded: bool = False) -> zarr.Array[Any]:
    """Write two chunks of the fill value and one of another value. The store lacks the first; of shards, both."""
    fill, other = ITEMS[dtype]
    array = zarr.create_array(
        folder,
        shape=(COUNT,),
        chunks=(CHUNK,),
        shards=(COUNT,) if is_sharded else None,
        dtype=dtype,
        zarr_format=zarr_format,
        fill_value=None if dtype == "M8[s]" else fill,
        config={"write_empty_chunks": not is_sharded},
    )
    array[:] = np.array([fill] * (2 * CHUNK) + [other] * CHUNK, dtype=object if dtype is str else dtype)
    if not is_sharded:
        (folder / ("0" if zarr_format == 2 else "c/0")).unlink()
    return zarr.open_array(folder, mode="r")


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("dtype", ITEMS, ids=str)
def test_a_chunk_that_the_store_lacks_is_told_apart_from_one_that_holds_the_fill_value(
    tmp_path: Path, dtype: Any, zarr_format: ZarrFormat
) -> None:
    array = put(tmp_path / "a", dtype, zarr_format)
    assert find_absent(array, read_values(array)).tolist() == [True] * CHUNK + [False] * (2 * CHUNK)
    with pytest.raises(StoreReadError, match="a: chunk 0 is missing from the store"):
        read_stored(array)
    with pytest.raises(StoreReadError, match="stand for several different ones"):
        read_distinct(array)


def test_an_inner_chunk_that_a_shard_lacks_is_found(tmp_path: Path) -> None:
    array = put(tmp_path / "a", "i4", 3, is_sharded=True)
    assert find_absent(array, read_values(array)).tolist() == [True] * (2 * CHUNK) + [False] * CHUNK


def test_whole_arrays_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = zarr.create_array(tmp_path / "a", data=np.arange(COUNT), chunks=(CHUNK,))  # which begins with a 0
    monkeypatch.setattr("zarrfeed.metadata.array.values.with_fill", None)
    assert read_stored(array).tolist() == list(range(COUNT))


def test_one_value_that_is_the_fill_value_may_have_been_left_out(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a", data=np.arange(3), chunks=(1,), config={"write_empty_chunks": False})
    assert not (tmp_path / "a" / "c" / "0").exists()
    assert read_distinct(array).tolist() == [0, 1, 2]

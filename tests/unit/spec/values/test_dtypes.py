"""Stored dtypes that torch does not have: numbers where nothing is lost, or a refusal that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BytesCodec, TransposeCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.oracle import ZARR_FORMATS, AnyArray, ZarrFormat, assert_parity, read_all
from zarrfeed import UnsupportedError, ZarrIterableDataset
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.values.dtypes import read_items

#: No v3 specification yet: zarr says so when such an array is made or opened.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in:zarr.errors.ZarrUserWarning"),
]

N = 23
TIMES = ("M8[ns]", "M8[D]", "M8[10s]", "m8[s]", "m8[25us]")
INT64_MIN = np.iinfo(np.int64).min


def write(where: Any, data: AnyArray, zarr_format: ZarrFormat, chunks: tuple[int, ...], **options: Any) -> Any:
    array = zarr.create_array(
        where, shape=data.shape, chunks=chunks, dtype=data.dtype, zarr_format=zarr_format, **options
    )
    array[...] = data
    return array


def times(dtype: str) -> AnyArray:
    """Return times that encode their sample, with some that are none. Shape (N, 4)."""
    numbers = np.arange(N)[:, None] * 1000 + np.arange(4) - 7
    numbers[3, 1] = numbers[22, 3] = INT64_MIN
    return numbers.astype(np.int64).view(dtype)


@pytest.mark.parametrize("dtype", TIMES)
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_times_are_int64_in_their_own_unit_and_no_time_is_the_least(
    dtype: str, zarr_format: ZarrFormat, byte_order: Literal["<", ">"], tmp_path: Path
) -> None:
    data = times(dtype)
    options: dict[str, Any] = {"serializer": BytesCodec(endian="little" if byte_order == "<" else "big")}
    if zarr_format == 2:
        data, options = data.astype(data.dtype.newbyteorder(byte_order)), {"order": "F"}
    array = write(tmp_path / "a", data, zarr_format, (5, 3), **options)
    expected = read_all(array).view(np.int64)
    assert expected[3, 1] == INT64_MIN
    dataset = assert_parity(tmp_path / "a", expected)
    assert dataset.explain().fields[0].native
    unit = dtype.removeprefix("M8").removeprefix("m8")
    assert f"{unit} as int64" in str(dataset.explain())


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_times_that_are_missing_are_the_fill_value(zarr_format: ZarrFormat) -> None:
    for fill in (None, np.datetime64("NaT", "s"), np.datetime64(1234, "s")):
        array: Any = zarr.create_array(
            MemoryStore(), shape=(N,), chunks=(5,), dtype="M8[s]", fill_value=fill, zarr_format=zarr_format
        )
        array[5:10] = np.arange(5).astype("M8[s]")
        expected = read_all(array).view(np.int64)
        assert expected[0] == (INT64_MIN if fill is None else fill.astype(np.int64))
        assert_parity(array, expected)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_times_go_through_zarr_pythons_codecs_too(zarr_format: ZarrFormat) -> None:
    codec: Any = numcodecs.BZ2() if zarr_format == 2 else zarr_numcodecs.BZ2()
    array = write(MemoryStore(), times("M8[ms]"), zarr_format, (5, 3), compressors=codec)
    assert_parity(array, read_all(array).view(np.int64))


def words(dtype: str) -> AnyArray:
    """Return fixed-length bytes that encode their sample, some shorter than the others. Shape (N, 4)."""
    size = np.dtype(dtype).itemsize
    raw = np.random.default_rng(5).integers(1, 256, (N, 4, size), dtype=np.uint8)
    raw[..., 0] = np.arange(N)[:, None]
    raw[2, 1, size // 2 :] = raw[7, 3, -1:] = 0
    return raw.view(dtype)[..., 0]


@pytest.mark.parametrize("dtype", ["S1", "S5", "V3", "V16"])
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("slow", [False, True])
def test_fixed_length_bytes_are_uint8_with_an_axis_of_their_own(
    dtype: str, zarr_format: ZarrFormat, slow: bool, tmp_path: Path
) -> None:
    data = words(dtype)
    options: dict[str, Any] = {"order": "F"} if zarr_format == 2 else {"filters": TransposeCodec(order=(1, 0))}
    if slow:
        options["compressors"] = numcodecs.BZ2() if zarr_format == 2 else zarr_numcodecs.BZ2()
    array = write(tmp_path / "a", data, zarr_format, (5, 3), **options)
    size = data.dtype.itemsize
    expected = np.ascontiguousarray(read_all(array)).view(np.uint8).reshape(N, 4, size)
    for shuffle in (False, True):
        dataset = assert_parity(tmp_path / "a", expected, shuffle=shuffle)
    field = dataset.explain().fields[0]
    assert field.native is not slow
    assert f"|{dtype} as uint8" in field.description
    along_1 = np.ascontiguousarray(expected.swapaxes(0, 1))
    assert_parity(tmp_path / "a", along_1, sample_axis=1)
    with pytest.raises(ValueError, match=r"sample_axis = 2, must be in \[-2, 1\]"):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "a", sample_axis=2))


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_one_fixed_length_text_a_sample(zarr_format: ZarrFormat) -> None:
    data = np.array([b"cat", b"bird", b"", b"dog"] * 5, "S4")
    array = write(MemoryStore(), data, zarr_format, (3,))
    expected = data.view(np.uint8).reshape(20, 4)
    assert_parity(array, expected)
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        rows = next(iter(dataset))
    assert rows.dtype == torch.uint8
    assert [bytes(row.tolist()).rstrip(b"\0") for row in rows] == [b"cat", b"bird", b"", b"dog"]


@pytest.mark.parametrize(("dtype", "fill"), [("S3", b""), ("S3", b"aaa"), ("S3", b"0"), ("S5", b"ab"), ("V2", b"xy")])
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_bytes_that_are_missing_are_the_fill_value(dtype: str, fill: bytes, zarr_format: ZarrFormat) -> None:
    """Chunks that are missing, and at the edges of the array, along both axes and for each sample axis."""
    stored = np.dtype(dtype)
    options: dict[str, Any] = {"order": "F"} if zarr_format == 2 else {}
    array: Any = zarr.create_array(
        MemoryStore(),
        shape=(N, 7),
        chunks=(5, 3),
        dtype=stored,
        fill_value=np.array([fill], "S").astype(stored)[0] if dtype[0] == "S" else np.void(fill),
        zarr_format=zarr_format,
        **options,
    )
    array[5:10, 2:4] = np.frombuffer(b"xyzzy"[: stored.itemsize], stored)[0]
    expected = np.ascontiguousarray(read_all(array)).view(np.uint8).reshape(N, 7, stored.itemsize)
    assert bytes(expected[0, 0]) == fill.ljust(stored.itemsize, b"\0")
    assert_parity(array, expected)
    assert_parity(array, expected.swapaxes(0, 1), sample_axis=1)


def test_the_fill_value_of_bytes_that_xarray_wrote_masks_nothing() -> None:
    array: Any = zarr.create_array(
        MemoryStore(),
        shape=(N,),
        chunks=(5,),
        dtype="S2",
        fill_value=b"0",
        zarr_format=2,
        attributes={"_ARRAY_DIMENSIONS": ["n"]},
    )
    array[5:10] = b"xy"
    assert_parity(array, read_all(array).view(np.uint8).reshape(N, 2))


def test_the_fill_value_of_bytes_is_that_of_missing_inner_chunks_too() -> None:
    array: Any = zarr.create_array(
        MemoryStore(), shape=(N, 7), chunks=(2, 3), shards=(8, 6), dtype="S4", fill_value=b"0", zarr_format=3
    )
    array[9, 4] = b"word"  # every other inner chunk of its shard is missing
    expected = np.ascontiguousarray(read_all(array)).view(np.uint8).reshape(N, 7, 4)
    assert_parity(array, expected)


def test_the_fill_value_of_bytes_is_converted_as_the_bytes_are() -> None:
    array: Any = zarr.create_array(MemoryStore(), shape=(N, 300), chunks=(5, 200), dtype="S4", fill_value=b"ab")
    array[5:10] = b"xyz"
    expected = np.ascontiguousarray(read_all(array)).view(np.uint8).reshape(N, 300, 4)
    with ZarrIterableDataset(zarrfeed.open(array).cast("float32"), batch_size=N) as dataset:
        (batch,) = dataset
    assert batch.dtype == torch.float32
    assert np.array_equal(batch.numpy(), expected.astype(np.float32))


def test_subarrays_and_empty_items_are_refused() -> None:
    for dtype in (np.dtype(("<f4", (2,))), np.dtype("S0"), np.dtype("V0"), np.dtype("O")):
        with pytest.raises(UnsupportedError, match=r"x: dtype .* has no torch equivalent"):
            read_items(dtype, swapped=False, name="x")


def test_bool_is_bool() -> None:
    data = np.arange(N * 4).reshape(N, 4) % 3 == 0
    array = write(MemoryStore(), data, 3, (5, 4))
    assert_parity(array, data)
    assert read_layout(array).dtype == np.dtype("bool")

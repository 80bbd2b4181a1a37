"""Any array that zarr-python's own test strategies make is read as zarr-python reads it, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, VLenBytesCodec, VLenUTF8Codec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.examples import CHARACTERS
from tests.support.oracle import NUMCODECS_WARNING, AnyArray, assert_parity, assert_rows_equal, read_all
from zarrfeed import ConfigError, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.torch.batches.tensors import TORCH_DTYPES

strategies = pytest.importorskip("zarr.testing.strategies")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:UserWarning"),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
]

generous = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


def reason_to_refuse(array: zarr.Array[Any]) -> str:
    try:
        ZarrIterableDataset(array).close()
    except UnsupportedError as error:
        with pytest.raises(UnsupportedError):
            ZarrDataset(array)
        return str(error)
    return ""


def check(array: zarr.Array[Any], data: st.DataObject) -> None:
    """Fail unless the array is read as zarr-python reads it, along any axis, or refused for what it is."""
    dtype = array.dtype
    if array.ndim == 0 or 0 in array.shape:
        for kind in (ZarrIterableDataset, ZarrDataset):
            with pytest.raises(ConfigError):
                kind(array)
        return
    refusal = reason_to_refuse(array)
    readable = dtype.kind in "MmSTUO" or dtype.name in TORCH_DTYPES
    assert (refusal == "") == readable or "fill value" in refusal, refusal
    if refusal:
        return
    axis = data.draw(st.integers(0, array.ndim - 1), label="sample axis")
    shuffle = data.draw(st.booleans(), label="shuffle")
    if dtype.kind in "TUO":
        check_vlen(array, axis, shuffle, data)
        return
    expected = read_all(array, sample_axis=axis)
    if dtype.kind in "Mm":
        expected = expected.view(np.int64)
    elif dtype.kind == "S":
        expected = np.ascontiguousarray(expected).view(np.uint8).reshape(*expected.shape, dtype.itemsize)
    assert_parity(array, expected, sample_axis=axis, shuffle=shuffle)
    access, request = random_access(array, axis, data)
    for indices in (request, request[::-1]):
        assert_rows_equal(access[indices], torch.tensor(indices) % len(expected), expected)


def random_access(array: zarr.Array[Any], axis: int, data: st.DataObject) -> tuple[ZarrDataset, list[int]]:
    """Return a dataset of any cache, and indices to ask for, in any order and some of them many times."""
    n = array.shape[axis]
    indices = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=12), label="indices")
    cache: Any = data.draw(st.sampled_from([0, 600, "1MiB"]), label="cache")
    return ZarrDataset(zarrfeed.open(array, sample_axis=axis), num_threads=2, cache=cache), indices


def check_vlen(array: zarr.Array[Any], axis: int, shuffle: bool, data: st.DataObject) -> None:
    expected = np.moveaxis(np.asarray(array[...]).astype(object), axis, 0).tolist()
    with ZarrIterableDataset(
        zarrfeed.open(array, sample_axis=axis), batch_size=3, shuffle=shuffle, return_index=True
    ) as dataset:
        batches = [(values, index.tolist()) for values, index in dataset]
    assert sorted(i for _, index in batches for i in index) == list(range(len(expected)))
    for values, index in batches:
        assert values == [expected[i] for i in index]
    access, request = random_access(array, axis, data)
    for indices in (request, request[::-1]):
        assert access[indices] == [expected[i] for i in indices]
        assert access[indices[0]] == expected[indices[0]]


@generous
@given(data=st.data())
def test_generated_arrays_are_read_as_zarr_python_does_or_refused(data: st.DataObject) -> None:
    check(data.draw(strategies.simple_arrays()), data)


def items_codec(values: AnyArray) -> Any:
    if values.dtype.kind == "T":
        return VLenUTF8Codec()
    return VLenBytesCodec() if values.dtype.kind == "O" else BytesCodec()


@st.composite
def sharded_arrays(draw: st.DrawFn) -> zarr.Array[Any]:
    """Draw an array in one to three levels of shards, with native and general codecs in and around them."""
    shapes = array_shapes(max_dims=3, min_side=1, max_side=6)
    values: AnyArray = draw(strategies.numpy_arrays(shapes=shapes))
    if draw(st.integers(0, 3)) == 0:  # text, which NumPy's strategies lack
        words = draw(st.lists(st.text(CHARACTERS, max_size=4), min_size=values.size, max_size=values.size))
        values = np.array(words, dtype=np.dtypes.StringDType()).reshape(values.shape)
    codec = items_codec(values)
    compressors: list[list[Any]] = [
        [],
        [ZstdCodec()],
        [zarr_numcodecs.BZ2()],
        [zarr_numcodecs.LZMA(), GzipCodec()],
        [zarr_numcodecs.Adler32()],
    ]
    chain: list[Any] = [codec, *draw(st.sampled_from(compressors), label="inside")]
    if values.dtype.kind in "iu" and draw(st.booleans()):
        chain = [zarr_numcodecs.Delta(dtype=values.dtype.str), *chain]
    chunk = draw(strategies.chunk_shapes(shape=values.shape))
    for _ in range(draw(st.integers(1, 3), label="levels")):
        chain = [ShardingCodec(chunk_shape=chunk, codecs=chain, index_location=draw(st.sampled_from(["start", "end"])))]
        chunk = draw(strategies.shard_shapes(shape=values.shape, chunk_shape=chunk))
    array: zarr.Array[Any] = zarr.create_array(
        MemoryStore(),
        shape=values.shape,
        chunks=chunk,
        dtype=values.dtype,
        filters=None,
        serializer=chain[0],
        compressors=draw(st.sampled_from([None, None, GzipCodec(), zarr_numcodecs.BZ2()]), label="around"),
    )
    array[...] = values
    return array


@generous
@given(data=st.data())
def test_generated_shards_are_read_as_zarr_python_does_or_refused(data: st.DataObject) -> None:
    check(data.draw(sharded_arrays()), data)

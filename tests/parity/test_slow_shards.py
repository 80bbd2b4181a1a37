"""Shards that need zarr-python: general codecs in them, shards in shards, indices and chains that the engine lacks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from torch.utils.data import DataLoader
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import zarrfeed
from tests.support.examples import examples
from tests.support.oracle import (
    NUMCODECS_WARNING,
    AnyArray,
    assert_parity,
    assert_rows_equal,
    chunk_files,
    numbered,
    read_all,
)
from zarrfeed import CorruptChunkError, StoreReadError, UnsupportedError, ZarrIterableDataset
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.storage.chunks.location import StoreSource

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:UserWarning"),
]

RELEASE = Version(zarr.__version__)
#: Whether zarr-python reads shards in shards in every case: an assertion of its own failed in some.
READS_NESTED = Version("3.1.6") <= RELEASE

SHAPE, INNER, SHARD = (23, 4, 5), (3, 2, 5), (6, 4, 5)


def serializer(inner: tuple[int, ...], *codecs: Any, **options: Any) -> ShardingCodec:
    return ShardingCodec(chunk_shape=inner, codecs=codecs or (BytesCodec(),), **options)


def write(store: Any, data: AnyArray, shard: tuple[int, ...], codec: ShardingCodec, **options: Any) -> zarr.Array[Any]:
    """Store `data` with zarr-python."""
    array: zarr.Array[Any] = zarr.create_array(
        store,
        shape=data.shape,
        chunks=shard,
        dtype=data.dtype,
        serializer=codec,
        **({"filters": None, "compressors": None} | options),
    )
    array[...] = data
    return array


#: Chains of inner codecs that are not native: what `explain()` names, and how they are made.
GENERAL: dict[str, Callable[[], list[Any]]] = {
    "numcodecs.bz2": lambda: [BytesCodec(), zarr_numcodecs.BZ2()],
    "numcodecs.astype": lambda: [
        zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4"),
        BytesCodec(),
        ZstdCodec(),
    ],
    "numcodecs.fixedscaleoffset": lambda: [
        zarr_numcodecs.FixedScaleOffset(offset=0, scale=1, dtype="<i4", astype="<i8"),
        BytesCodec(),
    ],
    "numcodecs.lzma": lambda: [TransposeCodec(order=(2, 0, 1)), BytesCodec(endian="big"), zarr_numcodecs.LZMA()],
    "numcodecs.adler32": lambda: [BytesCodec(), zarr_numcodecs.Adler32(), GzipCodec(), Crc32cCodec()],
    "sharding_indexed inside of shards": lambda: [serializer((1, 2, 5), BytesCodec(), ZstdCodec())],
}


@pytest.mark.parametrize("codec", GENERAL)
@pytest.mark.parametrize("where", ["local", "memory"])
def test_inner_chunks_are_read_one_by_one_and_decoded_by_zarr_python(codec: str, where: str, tmp_path: Path) -> None:
    data = numbered(SHAPE, "<i4")
    array = write(
        tmp_path / "a" if where == "local" else MemoryStore(), data, SHARD, serializer(INNER, *GENERAL[codec]())
    )
    for options in ({"shuffle": False}, {"block": "shard"}, {"coalesce_limit": 0}):
        dataset = assert_parity(array, data, **options)
    field = dataset.explain().fields[0]
    assert not field.native
    assert field.slow_codecs == (codec,)
    assert f"through zarr-python, slow (codec {codec})" in str(dataset.explain())
    assert "read chunks (3, 2, 5)" in field.description
    assert field.shards == 4
    stats = dataset.stats()
    assert stats.indices_read == 4
    assert stats.chunks_read == 8 * 2  # each once in an epoch


#: What stands in the metadata -> shards that are decoded as a whole, and the reason that `explain()` gives.
WHOLE: dict[str, tuple[Callable[[], ShardingCodec], dict[str, Any]]] = {
    "beside gzip": (lambda: serializer(INNER), {"compressors": GzipCodec()}),
    "beside transpose": (lambda: serializer((2, 2, 5)), {"filters": TransposeCodec(order=(1, 0, 2))}),
    "with the index codecs bytes, crc32c, crc32c": (
        lambda: serializer(INNER, index_codecs=[BytesCodec(), Crc32cCodec(), Crc32cCodec()]),
        {},
    ),
    "with the index codecs bytes, numcodecs.crc32": (
        lambda: serializer(INNER, index_codecs=[BytesCodec(), zarr_numcodecs.CRC32()]),
        {},
    ),
    "with the index codecs bytes, numcodecs.fletcher32": (
        lambda: serializer(INNER, index_codecs=[BytesCodec(), zarr_numcodecs.Fletcher32()]),
        {},
    ),
    "with the index codecs transpose, bytes": (
        lambda: serializer(INNER, index_codecs=[TransposeCodec(order=(3, 0, 1, 2)), BytesCodec()]),
        {},
    ),
}


@pytest.mark.parametrize("reason", WHOLE)
@pytest.mark.parametrize("where", ["local", "memory"])
def test_shards_that_cannot_be_read_in_part_are_decoded_whole(reason: str, where: str, tmp_path: Path) -> None:
    make, options = WHOLE[reason]
    data = numbered(SHAPE, "<i4")
    data[6:12] = 0  # a missing shard
    data[0:3, 0:2] = 0  # missing inner chunks
    array = write(tmp_path / "a" if where == "local" else MemoryStore(), data, SHARD, make(), fill_value=0, **options)
    for sample_axis in (0, 1):
        expected = read_all(array, sample_axis=sample_axis)
        assert_parity(array, expected, sample_axis=sample_axis)
        dataset = assert_parity(array, expected, sample_axis=sample_axis, shuffle=False)
    explanation = dataset.explain()
    assert explanation.fields[0].slow_codecs[-1] == f"sharding_indexed {reason}"
    assert f"sharding_indexed {reason}" in str(explanation)
    assert "read chunks (6, 4, 5)" in explanation.fields[0].description
    assert dataset.stats().chunks_read == 3


def test_three_levels_of_shards() -> None:
    data = numbered((40, 6), "<u2")
    innermost = serializer((1, 3), BytesCodec(), zarr_numcodecs.BZ2())
    array = write(MemoryStore(), data, (16, 6), serializer((8, 6), serializer((2, 3), innermost)))
    dataset = assert_parity(array, data)
    assert "read chunks (8, 6)" in str(dataset.explain())


@pytest.mark.parametrize("dtype", ["S5", "S1"])
@pytest.mark.parametrize("slow", [False, True])
def test_fixed_length_bytes_in_shards(dtype: str, slow: bool, tmp_path: Path) -> None:
    size = np.dtype(dtype).itemsize
    data = np.random.default_rng(3).integers(1, 256, (23, 4, size), np.uint8).view(dtype)[..., 0]
    data[6:9] = np.zeros((), dtype)
    codecs = [BytesCodec(), zarr_numcodecs.BZ2() if slow else ZstdCodec()]
    for store in (tmp_path / "a", MemoryStore()):
        array = write(store, data, (6, 4), serializer((3, 2), *codecs))
        expected = np.ascontiguousarray(read_all(array)).view(np.uint8).reshape(23, 4, size)
        for options in ({}, {"block": "shard"}):
            dataset = assert_parity(array, expected, **options)  # type: ignore[arg-type]
        field = dataset.explain().fields[0]
        assert field.native is not slow
        assert f"in shards (6, 4, {size})" in field.description
        assert_parity(array, np.ascontiguousarray(expected.swapaxes(0, 1)), sample_axis=1)


def test_raw_bytes_in_shards_that_zarr_python_decodes_are_read_or_refused_where_it_cannot() -> None:
    """Before 3.3.0 it cannot: their fill value has no hash."""
    for codec in (serializer((4, 2), serializer((2, 2))), serializer((4, 2), index_codecs=[BytesCodec()])):
        options: dict[str, Any] = {"compressors": GzipCodec()} if codec.codecs == (BytesCodec(),) else {}
        array: Any = zarr.create_array(
            MemoryStore(), shape=(8, 2), chunks=(8, 2), dtype="V3", serializer=codec, **options
        )
        if Version("3.3.0") > RELEASE:
            with pytest.raises(UnsupportedError, match=r"zarr-python cannot decode shards of .*V3 as a whole"):
                ZarrIterableDataset(array)
            continue
        data = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
        array[:] = data.view("V3")[..., 0]
        assert_parity(array, data)


@pytest.mark.parametrize("slow", [False, True])
def test_times_in_shards(slow: bool) -> None:
    data = np.arange(46).reshape(23, 2).astype("M8[s]")
    codecs = [BytesCodec(endian="big"), zarr_numcodecs.BZ2() if slow else ZstdCodec()]
    array = write(MemoryStore(), data, (8, 2), serializer((2, 2), *codecs))
    assert_parity(array, data.view(np.int64))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of 1 to 3 axes in one to three levels of shards."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 13)) for _ in range(ndim))
    levels = [tuple(draw(st.integers(1, 3)) for _ in range(ndim))]
    for _ in range(draw(st.integers(1, 3))):
        levels.append(tuple(n * draw(st.integers(1, 3)) for n in levels[-1]))
    return {
        "shape": shape,
        "levels": levels,
        "codec": draw(st.sampled_from(["none", "zstd", "bz2", "astype"])),
        "around": draw(st.sampled_from(["none", "gzip", "transpose"])),
        "locations": [draw(st.sampled_from(["start", "end"])) for _ in levels],
        "sample_axis": draw(st.integers(0, ndim - 1)),
        "holes": draw(st.booleans()),
        "read": {
            "shuffle": draw(st.booleans()),
            "batch_size": draw(st.sampled_from([None, 1, 5])),
            "coalesce_gap": draw(st.sampled_from([0, 100, "1MiB"])),
        },
    }


@examples(40)
@given(case=cases())
def test_any_levels_of_shards_read_as_zarr_python_reads_them(case: dict[str, Any], tmp_path_factory: Any) -> None:
    axis, ndim = case["sample_axis"], len(case["shape"])
    data = numbered(case["shape"], "<i4", sample_axis=axis)
    if case["holes"]:
        data[tuple(slice(0, 1 + n // 2) for n in data.shape)] = 0
    codec: Any = {"none": [], "zstd": [ZstdCodec()], "bz2": [zarr_numcodecs.BZ2()]}.get(case["codec"])
    astype = [zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4"), BytesCodec()]
    chain: list[Any] = astype if codec is None else [BytesCodec(), *codec]
    for level, location in zip(case["levels"][:-1], case["locations"], strict=False):
        chain = [serializer(level, *chain, index_location=location)]
    options: dict[str, Any] = {}
    if case["around"] == "gzip":
        options["compressors"] = GzipCodec()
    elif case["around"] == "transpose" and len({n for level in case["levels"] for n in level}) == 1:
        options["filters"] = TransposeCodec(order=tuple(reversed(range(ndim))))
    for store in (tmp_path_factory.mktemp("shards") / "a", MemoryStore()):
        array = write(store, data, case["levels"][-1], chain[0], fill_value=0, **options)
        expected = read_all(array, sample_axis=axis) if READS_NESTED else np.moveaxis(data, axis, 0)
        assert_parity(array, expected, sample_axis=axis, **case["read"])


def test_missing_inner_chunks_and_shards_are_the_fill_value() -> None:
    data = np.full((24, 4), 7, "<i4")
    data[:5] = 3
    chain = [BytesCodec(), zarr_numcodecs.BZ2()]
    for codec, read, missing in (
        (serializer((2, 4), *chain), 3, 9),
        (serializer((4, 4), serializer((2, 4), *chain)), 2, 4),
    ):
        array = write(MemoryStore(), data, (8, 4), codec, fill_value=7)
        dataset = assert_parity(array, data, shuffle=False)
        assert (dataset.stats().chunks_read, dataset.stats().chunks_missing) == (read, missing)


# --- damage -----------------------------------------------------------------------------------------------------


def bz2_shards(path: Path) -> tuple[zarr.Array[Any], Path]:
    """Write 4 shards of 4 inner chunks of 2 samples; return the array and the file of the second shard."""
    write(path, numbered((32, 5), "<i4"), (8, 5), serializer((2, 5), BytesCodec(), zarr_numcodecs.BZ2()))
    return zarr.open_array(path, mode="r"), chunk_files(path)[1]


def read(array: zarr.Array[Any]) -> None:
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        list(dataset)


def test_an_inner_chunk_that_does_not_decode_is_an_error_with_its_index_and_cause(tmp_path: Path) -> None:
    array, file = bz2_shards(tmp_path / "a")
    shard = bytearray(file.read_bytes())
    begin = int(np.frombuffer(shard[-68:-4], "<u8").reshape(4, 2)[2, 0])
    shard[begin : begin + 8] = b"\xff" * 8
    file.write_bytes(shard)
    message = "a chunk c/1/0: inner chunk 2/0: zarr-python cannot decode it: OSError"
    with pytest.raises(CorruptChunkError, match=message) as caught:
        read(array)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_index_that_is_damaged_is_an_error_at_each_level(tmp_path: Path) -> None:
    array, file = bz2_shards(tmp_path / "a")
    good = file.read_bytes()
    for bad in (good[:-1] + b"\0", good[:40], b""):
        file.write_bytes(bad)
        with pytest.raises((CorruptChunkError, StoreReadError), match="a chunk c/1/0: "):
            read(array)
    nested = [serializer((2, 5), BytesCodec(), ZstdCodec())]
    write(tmp_path / "b", numbered((32, 5), "<i4"), (8, 5), serializer((4, 5), *nested))
    file = chunk_files(tmp_path / "b")[1]
    shard = bytearray(file.read_bytes())
    begin, size = np.frombuffer(shard[-36:-4], "<u8").reshape(2, 2)[1].tolist()
    shard[begin + size - 1] ^= 0xFF  # the checksum of the inner index
    file.write_bytes(shard)
    with pytest.raises(CorruptChunkError, match="b chunk c/1/0: inner chunk 1/0: zarr-python cannot decode it"):
        read(zarr.open_array(tmp_path / "b", mode="r"))


def test_a_whole_shard_that_does_not_decode_is_an_error_with_its_key(tmp_path: Path) -> None:
    data = numbered((32, 5), "<i4")
    write(tmp_path / "a", data, (8, 5), serializer((2, 5)), compressors=GzipCodec())
    file = chunk_files(tmp_path / "a")[1]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptChunkError, match="a chunk c/1/0: zarr-python cannot decode it"):
        read(zarr.open_array(tmp_path / "a", mode="r"))


def test_an_array_that_was_deleted_is_an_error_and_never_fill_values(tmp_path: Path) -> None:
    array, _ = bz2_shards(tmp_path / "a")
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(StoreReadError, match=r"zarr\.json is gone"):
            list(dataset)


# --- what is read, and by whom ----------------------------------------------------------------------------------


def test_inner_chunks_that_nobody_wants_are_not_read() -> None:
    asked: list[tuple[str, Any]] = []

    class Recording(WrapperStore[Any]):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if not key.endswith("zarr.json"):
                asked.append((key, byte_range))
            return await super().get(key, prototype, byte_range)

    data = numbered((32, 50), "<i4")
    memory = MemoryStore()
    write(memory, data, (8, 50), serializer((2, 50), BytesCodec(), zarr_numcodecs.BZ2()))
    array = zarr.open_array(Recording(memory.with_read_only(True)), mode="r")
    asked.clear()
    with ZarrIterableDataset(
        zarrfeed.open(array).blocks([5, 7]), batch_size=2, requests={"coalesce_gap": 0}
    ) as dataset:
        rows = torch.cat(list(dataset))
    assert torch.equal(rows, torch.from_numpy(np.concatenate([data[10:12], data[14:16]])))
    assert {key for key, _ in asked} == {"c/1/0"}
    assert len(asked) == 3  # the index, and two inner chunks that are not neighbours
    assert all(part is not None for _, part in asked)


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_decode_inner_chunks_too(context: str, tmp_path: Path) -> None:
    data = numbered((40, 6), "<i4")
    chain = [zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4"), BytesCodec()]
    write(tmp_path / "a", data, (16, 6), serializer((8, 6), serializer((4, 6), *chain)))
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=8, shuffle=True, return_index=True, num_threads=1)
    seen: list[int] = []
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=240)
    for rows, index in loader:
        assert_rows_equal(rows, index, data)
        seen += index.tolist()
    assert sorted(seen) == list(range(40))
    dataset.close()


@pytest.mark.parametrize("whole", [False, True])
def test_a_description_can_be_pickled(whole: bool, tmp_path: Path) -> None:
    options = {"compressors": GzipCodec()} if whole else {}
    codec = serializer((2, 6), BytesCodec(), zarr_numcodecs.BZ2())
    write(LocalStore(tmp_path / "a"), numbered((8, 6), "<i4"), (4, 6), codec, **options)
    spec = read_layout(tmp_path / "a")
    assert isinstance(spec.source, StoreSource)
    assert spec.source.decoder is not None
    assert spec.source.decoder.in_shards is not whole
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.source.decoder == spec.source.decoder

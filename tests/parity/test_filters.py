"""Filters of the engine, alone and in chains with compressors and checksums, against numcodecs and zarr-python."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.checksum32 import CRC32C
from zarr.buffer import cpu
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import zarrfeed as zf
from tests.support.cases import case
from tests.support.examples import examples, tries
from tests.support.oracle import (
    DTYPES,
    NUMCODECS_WARNING,
    AnyArray,
    assert_parity,
    chunk_files,
    decode,
    numbered,
    raw_rows,
    read_all,
)
from zarrfeed import CorruptChunkError, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.array.array import read_layout

pytestmark = pytest.mark.filterwarnings(NUMCODECS_WARNING)


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def is_native(path: Path | zarr.Array[Any]) -> bool:
    with ZarrIterableDataset(path) as dataset:
        return dataset.explain().fields[0].native


# --- one filter -------------------------------------------------------------------------------------------------


def shuffle(element_bytes: int) -> dict[str, Any]:
    return {"name": "shuffle", "element_bytes": element_bytes}


@pytest.mark.parametrize("count", [1, 33, 1021])
def test_shuffled_elements_of_every_size_equal_numcodecs(count: int) -> None:
    for element in (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 32, 255, 256, 257, 1000):
        data = noise(count * element, element)
        encoded = bytes(numcodecs.Shuffle(element).encode(data))
        assert bytes(numcodecs.Shuffle(element).decode(encoded)) == data
        with case(element):
            assert decode(encoded, len(data), shuffle(element)) == data


def test_a_chunk_that_has_no_whole_elements_is_an_error_as_in_numcodecs() -> None:
    for size, element in ((1001, 2), (1001, 4), (1001, 1000), (3, 4)):
        with pytest.raises(ValueError, match="not an integer multiple"):
            numcodecs.Shuffle(element).decode(noise(size))
        with pytest.raises(CorruptChunkError, match=f"shuffle of elements of {element} bytes"):
            decode(noise(size), size, shuffle(element))


@pytest.mark.parametrize("byte", [None, 0, 255], ids=["noise", "zeros", "ones"])
def test_fletcher32_of_every_length_equals_numcodecs(byte: int | None) -> None:
    """Sums of 65535 are not taken for sums of 0; blocks of 5760 words are summed up at once."""
    for size in (*range(1, 70), 719, 720, 721, 11_519, 11_520, 11_521, 23_043, 100_001):
        data = noise(size, size) if byte is None else bytes([byte]) * size
        with case(size):
            assert decode(bytes(numcodecs.Fletcher32().encode(data)), size, "fletcher32") == data


def test_a_wrong_fletcher32_is_an_error_that_names_array_and_chunk(tmp_path: Path) -> None:
    values = numbered((20, 6), "<f4")
    write_v2(tmp_path / "a", values, (4, 6), [numcodecs.Shuffle(4), numcodecs.Zlib(4)], numcodecs.Fletcher32())
    file = tmp_path / "a" / "2.0"
    good = file.read_bytes()
    for at in (0, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(CorruptChunkError, match=r"a chunk 2\.0: fletcher32 is \d+, the chunk says \d+"):
            list(ZarrIterableDataset(tmp_path / "a", batch_size=4))
        report = zf.verify(tmp_path / "a", progress_file="none")
        assert not report.ok
        assert "2.0" in str(report)
    in_memory = MemoryStore()
    for name in (".zarray", *(file.name for file in chunk_files(tmp_path / "a"))):
        sync(in_memory.set(name, cpu.Buffer.from_bytes((tmp_path / "a" / name).read_bytes())))
    with pytest.raises(CorruptChunkError, match=r"chunk 2\.0: fletcher32 is"):  # and where Python reads the store
        list(ZarrIterableDataset(zarr.open_array(in_memory), batch_size=4))
    for other in range(5):
        if other != 2:
            assert len(ZarrDataset(zf.open(tmp_path / "a"))[[4 * other]]) == 1


# --- chains -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A codec of a chain: as numcodecs has it, and as the engine is told."""

    codec: Any
    spec: str | dict[str, Any]


COMPRESSORS = {
    "zlib": Link(numcodecs.Zlib(1), "zlib"),
    "gzip": Link(numcodecs.GZip(1), "gzip"),
    "zstd": Link(numcodecs.Zstd(1), "zstd"),
    "lz4": Link(numcodecs.LZ4(), "lz4"),
    "blosc": Link(numcodecs.Blosc("lz4", shuffle=2, blocksize=400), "blosc"),
}
CHECKSUMS = {
    "crc32c": Link(CRC32C(), "crc32c"),
    "fletcher32": Link(numcodecs.Fletcher32(), "fletcher32"),
    "crc32c-at-start": Link(CRC32C("start"), {"name": "crc32c", "checksum_at_start": True}),
}

INTEGERS = [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]


def delta(dtype: str) -> Link:
    """Return differences of integers of either byte order."""
    spec = {"name": "delta", "element_bytes": np.dtype(dtype).itemsize, "big_endian": dtype.startswith(">")}
    return Link(numcodecs.Delta(dtype), spec)


def draw_filter(draw: st.DrawFn, size: int, item_sizes: Sequence[int] = (1, 2, 4, 8)) -> Link:
    """Draw a filter that takes `size` bytes; differences are of integers of one of these sizes."""
    integers = [one for one in INTEGERS if np.dtype(one).itemsize in item_sizes and size % np.dtype(one).itemsize == 0]
    is_delta = draw(st.booleans(), label="delta")
    if integers and is_delta:
        return delta(draw(st.sampled_from(integers)))
    element = draw(st.sampled_from([n for n in range(1, min(size, 40) + 1) if size % n == 0]))
    return Link(numcodecs.Shuffle(element), shuffle(element))


@st.composite
def chains(draw: st.DrawFn) -> tuple[bytes, bytes, list[Link]]:
    """Draw a chunk, what it is stored as, and its codecs in the order of encoding."""
    size = draw(st.integers(2, 3000))
    data = noise(size, draw(st.integers(0, 99))) if draw(st.booleans()) else bytes(i // 7 % 256 for i in range(size))
    stored, links = data, []
    for kind in draw(st.lists(st.sampled_from(["filter", "compressor", "checksum"]), min_size=1, max_size=6)):
        if kind == "filter":
            links.append(draw_filter(draw, len(stored)))
        else:
            named = COMPRESSORS if kind == "compressor" else CHECKSUMS
            links.append(named[draw(st.sampled_from(sorted(named)))])
        stored = bytes(links[-1].codec.encode(stored))
    return data, stored, links


@examples(300)
@given(chain=chains())
def test_any_chain_of_native_codecs_is_decoded_as_numcodecs_does(chain: tuple[bytes, bytes, list[Link]]) -> None:
    data, stored, links = chain
    assert decode(stored, len(data), *(link.spec for link in reversed(links))) == data
    for wrong in (len(data) - 1, len(data) + 1):
        with pytest.raises(CorruptChunkError):
            decode(stored, wrong, *(link.spec for link in reversed(links)))


# --- arrays -----------------------------------------------------------------------------------------------------


def write_v2(
    folder: Path, values: AnyArray, chunks: Sequence[int], filters: list[Any], compressor: Any = None, order: Any = "C"
) -> zarr.Array[Any]:
    array: zarr.Array[Any] = zarr.create_array(
        folder,
        shape=values.shape,
        chunks=tuple(chunks),
        dtype=values.dtype,
        zarr_format=2,
        order=order,
        filters=filters or None,
        compressors=compressor,
    )
    array[...] = values
    return array


@st.composite
def filtered_arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of either byte order with filters that fit its chunks, and a compressor."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES))).newbyteorder(draw(st.sampled_from("<>")))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, 3))))
    shape = tuple(draw(st.integers(1, 12)) for _ in chunks)
    size = int(np.prod(chunks)) * dtype.itemsize
    filters: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        is_checksum = draw(st.booleans())
        checksum = draw(st.sampled_from([CRC32C(), numcodecs.Fletcher32()]))
        filters.append(checksum if is_checksum else draw_filter(draw, size, [dtype.itemsize]).codec)
        size += 4 * is_checksum
    compressor = draw(st.sampled_from([None, *(link.codec for link in COMPRESSORS.values())]))
    order = draw(st.sampled_from("CF")) if len(chunks) > 1 else "C"
    return {
        "values": numbered(shape, dtype.newbyteorder("=").str).astype(dtype),
        "chunks": chunks,
        "filters": filters,
        "compressor": compressor,
        "order": order,
    }


@examples(150)
@given(made=filtered_arrays(), data=st.data())
def test_any_filtered_array_is_native_and_equals_zarr_python(made: dict[str, Any], data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp(prefix="zarrfeed-filters-"))
    try:
        array = write_v2(folder / "a", **made)
        for file in chunk_files(folder / "a"):
            if data.draw(st.integers(0, 4), label="missing if 0") == 0:
                file.unlink()
        axis = data.draw(st.integers(0, len(made["chunks"]) - 1))
        shuffled = data.draw(st.booleans())
        dataset = assert_parity(folder / "a", read_all(array, sample_axis=axis), sample_axis=axis, shuffle=shuffled)
        assert dataset.explain().fields[0].native
        assert zf.verify(folder / "a", progress_file="none").ok
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("compressor", [None, numcodecs.Zlib(1), numcodecs.GZip(1)], ids=repr)
def test_a_damaged_chunk_is_an_error_or_what_zarr_python_reads(compressor: Any, tmp_path: Path) -> None:
    values = numbered((6, 50), "<i4")
    random = np.random.default_rng(4)
    for number, filters in enumerate(
        (
            [numcodecs.Shuffle(4)],
            [numcodecs.Shuffle(8), CRC32C()],
            [CRC32C(), numcodecs.Shuffle(2)],
            [numcodecs.Fletcher32(), numcodecs.Shuffle(2)],
            [numcodecs.Shuffle(4), numcodecs.Fletcher32()],
            [numcodecs.Delta(">i4")],
            [numcodecs.Delta("<u4"), numcodecs.Shuffle(2), CRC32C()],
        )
    ):
        folder = tmp_path / str(number)
        array = write_v2(folder, values, (6, 50), filters, compressor)
        (file,) = chunk_files(folder)
        good = file.read_bytes()
        wrong = 0
        for _ in range(tries(15, 60)):
            bad = bytearray(good[: int(random.integers(len(good) + 1))] if random.random() < 0.4 else good)
            if random.random() < 0.3:
                bad += random.bytes(int(random.integers(1, 9)))
            for at in random.integers(len(bad), size=random.integers(3)).tolist() if bad else ():
                bad[at] ^= int(random.integers(1, 256))
            file.write_bytes(bad)
            expected = None
            with suppress(Exception):
                expected = np.asarray(array[...])
            got = None
            with suppress(CorruptChunkError):
                got = ZarrDataset(zf.open(folder, decode_cf=False))[list(range(6))].numpy()
            wrong += got is None
            with case(filters, bytes(bad)):
                assert got is None or (expected is not None and np.array_equal(got, expected))
                assert zf.verify(folder, progress_file="none").ok == (got is not None)
        assert wrong > 1


@pytest.mark.parametrize("dtype", ["|u1", "<i2", ">i2", "<f4", ">f8"])
def test_what_netcdf_c_writes_of_the_size_of_elements_is_native(dtype: str, tmp_path: Path) -> None:
    values = numbered((30, 8), np.dtype(dtype).newbyteorder("=").str).astype(dtype)
    write_v2(tmp_path / "a", values, (7, 8), [numcodecs.Shuffle(values.itemsize)], numcodecs.Zlib(4))
    document = json.loads((tmp_path / "a" / ".zarray").read_text())
    for stored in (0, "0", str(values.itemsize), None, values.itemsize):
        document["filters"] = [{"id": "shuffle", "elementsize": stored}]
        (tmp_path / "a" / ".zarray").write_text(json.dumps(document))
        assert is_native(tmp_path / "a")
        assert_parity(tmp_path / "a", values)
    (spec,) = [codec for codec in read_layout(tmp_path / "a").codecs if codec.name == "shuffle"]
    assert (spec.element_bytes, spec.label) == (values.itemsize, f"shuffle({values.itemsize})")


@pytest.mark.parametrize("big", [False, True])
def test_shuffle_of_format_3_is_native_behind_transposes_and_in_shards(big: bool, tmp_path: Path) -> None:
    values = numbered((24, 6, 4), "f4")
    inner: list[Any] = [
        TransposeCodec(order=(2, 0, 1)),
        BytesCodec(endian="big" if big else "little"),
        zarr_numcodecs.Shuffle(elementsize=4),
        ZstdCodec(),
        Crc32cCodec(),
    ]
    options: dict[str, dict[str, Any]] = {
        "chunks": {"chunks": (5, 6, 2), "filters": inner[:1], "serializer": inner[1], "compressors": inner[2:]},
        "shards": {"chunks": (12, 6, 4), "serializer": ShardingCodec(chunk_shape=(3, 6, 2), codecs=inner)},
    }
    for name, one in options.items():
        one = {"filters": None, "compressors": None} | one
        array = zarr.create_array(tmp_path / name, shape=values.shape, dtype="f4", **one)
        array[...] = values
        for shuffled, threads in itertools.product((False, True), (1, 2)):
            assert_parity(tmp_path / name, read_all(tmp_path / name), shuffle=shuffled, num_threads=threads)
        assert is_native(tmp_path / name)
        document = json.loads((tmp_path / name / "zarr.json").read_text())
        assert '"numcodecs.shuffle"' in json.dumps(document)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8"])
@pytest.mark.parametrize("sharded", [False, True])
def test_delta_of_format_3_is_native_and_wraps_as_in_zarr_python(sharded: bool, dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(3).integers(limits.min, limits.max, (24, 6), dtype, endpoint=True)
    filters: list[Any] = [zarr_numcodecs.Delta(dtype=values.dtype.str)]
    chain = [*filters, BytesCodec(), zarr_numcodecs.Shuffle(elementsize=values.itemsize), ZstdCodec()]
    options: dict[str, Any] = {"filters": filters, "serializer": chain[1], "compressors": chain[2:], "chunks": (5, 4)}
    if sharded:
        shards = ShardingCodec(chunk_shape=(3, 6), codecs=chain)
        options = {"filters": None, "serializer": shards, "compressors": None, "chunks": (12, 6)}
    array = zarr.create_array(tmp_path / "a", shape=values.shape, dtype=dtype, **options)
    array[...] = values
    assert is_native(tmp_path / "a")
    assert_parity(tmp_path / "a", values, shuffle=True)


@pytest.mark.parametrize(
    ("dtype", "options", "order", "endian"),
    [
        ("<i4", {"dtype": "<i4"}, (0, 1), "big"),
        ("<i4", {"dtype": ">i4"}, (0, 1), "little"),
        ("<i4", {"dtype": "<i4"}, (1, 0), "little"),
        ("<i4", {"dtype": "<i4", "astype": "<i8"}, (0, 1), "little"),
        ("<f4", {"dtype": "<f4"}, (0, 1), "little"),
    ],
    ids=["big endian", "other byte order", "transpose", "wider", "floats"],
)
def test_delta_of_format_3_that_depends_on_memory_is_what_zarr_python_reads(
    dtype: str, options: dict[str, Any], order: tuple[int, int], endian: Any, tmp_path: Path
) -> None:
    """zarr-python adds up items as they lie in its memory: of big-endian chunks, it reads other values than written."""
    transpose = [] if order == (0, 1) else [TransposeCodec(order=order)]
    array = zarr.create_array(
        tmp_path / "a",
        shape=(12, 6),
        chunks=(4, 6),
        dtype=dtype,
        filters=[*transpose, zarr_numcodecs.Delta(**options)],
        serializer=BytesCodec(endian=endian),
    )
    array[...] = np.arange(72).reshape(12, 6) ** 2
    assert not is_native(tmp_path / "a")
    assert_parity(tmp_path / "a", read_all(tmp_path / "a"))


def test_elements_without_a_size_in_format_3_are_those_of_zarr_python(tmp_path: Path) -> None:
    values = numbered((8, 3), "f8")
    array = zarr.create_array(
        tmp_path / "a", shape=(8, 3), chunks=(4, 3), dtype="f8", compressors=[zarr_numcodecs.Shuffle(elementsize=8)]
    )
    array[...] = values
    document = json.loads((tmp_path / "a" / "zarr.json").read_text())
    document["codecs"][-1]["configuration"] = {}
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(document))
    assert_parity(tmp_path / "a", read_all(tmp_path / "a"))
    np.testing.assert_array_equal(raw_rows(read_all(tmp_path / "a")), raw_rows(values))


def test_records_are_shuffled_by_any_size_that_divides_them(tmp_path: Path) -> None:
    records = np.zeros(20, dtype=[("a", "<i4"), ("b", "<f8")])
    records["a"], records["b"] = np.arange(20), np.arange(20) / 3
    for element in (1, 2, 3, 4, 6, 12, 24):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = tmp_path / str(element)
            write_v2(folder, records, (4,), [numcodecs.Shuffle(element)], numcodecs.Zlib(1))
            got = ZarrDataset(zf.open(folder))[list(range(20))]
        for name in ("a", "b"):
            np.testing.assert_array_equal(got[name].numpy(), records[name])


@pytest.mark.parametrize("chain", ["shuffle behind Blosc", "Blosc behind shuffle", "shuffle alone"])
def test_chunks_with_filters_are_decoded_whole_whatever_is_wanted_of_them(chain: str, tmp_path: Path) -> None:
    """Parts of chunks are read and decoded where Blosc is the only codec, or none is there."""
    values = numbered((32, 64, 64), "f4")
    blosc = numcodecs.Blosc("lz4", shuffle=1, blocksize=4096)
    filters, compressor = {
        "shuffle behind Blosc": ([blosc], numcodecs.Shuffle(1)),
        "Blosc behind shuffle": ([numcodecs.Shuffle(4)], blosc),
        "shuffle alone": ([], numcodecs.Shuffle(4)),
    }[chain]
    write_v2(tmp_path / "a", values, (16, 64, 64), filters, compressor)
    data = zf.open(tmp_path / "a")
    chosen = data.isel({1: slice(3, 5), 2: [1, 40]})
    got = ZarrDataset(chosen)[[17, 2, 30]].numpy()
    np.testing.assert_array_equal(raw_rows(got), raw_rows(values[[17, 2, 30]][:, 3:5][:, :, [1, 40]]))
    one = ZarrDataset(data)
    np.testing.assert_array_equal(raw_rows(one[[5]].numpy()), raw_rows(values[[5]]))
    patches = data.patch({0: 2, 1: 8, 2: 8}, sampling="grid")
    with ZarrIterableDataset(patches, batch_size=4, shuffle=True, seed=1, return_index=True) as dataset:
        seen = {tuple(row.numpy().ravel().view("u4").tolist()) for batch, _ in dataset for row in batch}
    tiles = values.view("u4").reshape(16, 2, 8, 8, 8, 8).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 128)
    assert seen == {tuple(tile) for tile in tiles.tolist()}
    with ZarrIterableDataset(data, batch_size=4, shuffle=True, memory_budget="64MiB") as dataset:
        assert dataset.explain().fields[0].native
    assert_parity(tmp_path / "a", values, lanes=4)


@pytest.mark.parametrize("dtype", ["<i2", ">f4", "<f8", "<c16", "S3", "i1,<i2", "<f4,<i2", "<f4,<i4,<f4", "S19"])
def test_rows_are_unshuffled_one_by_one_as_zarr_python_reads_them(dtype: str, tmp_path: Path) -> None:
    """Long rows of chunks go from the filter to their slots without a decoded chunk between."""
    size = np.dtype(dtype).itemsize
    unshuffle = [numcodecs.Shuffle(size)]
    chains = {
        "alone": (unshuffle, None),
        "zlib": (unshuffle, numcodecs.Zlib(1)),
        "checked": ([*unshuffle, numcodecs.Fletcher32()], numcodecs.Zlib(1)),
    }
    for items, (name, chain) in itertools.product((4096 // size, 4096 // size + 1, 8200 // size), chains.items()):
        values = np.frombuffer(noise(22 * items * size), dtype).reshape(22, items)
        folder = tmp_path / f"{name}{items}"
        write_v2(folder, values, (4, items), *chain)
        assert is_native(folder)
        members = [values[name] for name in values.dtype.names] if values.dtype.names else [values]
        for is_shuffled in (False, True):
            seen = []
            with ZarrIterableDataset(folder, batch_size=5, shuffle=is_shuffled, seed=1, return_index=True) as dataset:
                for batch, rows in dataset:
                    fields = batch.values() if isinstance(batch, dict) else [batch]
                    for field, member in zip(fields, members, strict=True):
                        np.testing.assert_array_equal(raw_rows(field), raw_rows(member[rows.numpy()]))
                    seen += rows.tolist()
            assert sorted(seen) == list(range(22))

"""Codecs that the engine does not have: chunks come through zarr-python's own pipeline, and say so."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.registry
from numcodecs.abc import Codec as Numcodec
from numcodecs.checksum32 import CRC32, JenkinsLookup3
from torch.utils.data import DataLoader
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.buffer import cpu
from zarr.codecs import BytesCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

from tests.support.oracle import AnyArray, ZarrFormat, assert_parity, assert_rows_equal, chunk_files, numbered, read_all
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError, ZarrIterableDataset
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.storage.chunks.location import StoreSource

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in:zarr.errors.ZarrUserWarning")

SHAPE, CHUNKS = (23, 4, 5), (5, 3, 2)
N = SHAPE[0]


class Inverted(Numcodec):  # type: ignore[misc]  # numcodecs has no types
    """A codec that nobody but these tests knows."""

    codec_id = "zarrfeed-inverted"
    failing: ClassVar[BaseException | None] = None
    decoding: ClassVar[int] = 0
    most: ClassVar[int] = 0
    threads: ClassVar[set[int]] = set()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def encode(self, buf: Any) -> Any:
        return (~np.frombuffer(np.ascontiguousarray(buf), np.uint8)).tobytes()

    def decode(self, buf: Any, out: Any = None) -> Any:
        assert out is None
        with Inverted._lock:
            Inverted.decoding += 1
            Inverted.most = max(Inverted.most, Inverted.decoding)
            Inverted.threads.add(threading.get_ident())
        try:
            if Inverted.failing is not None:
                raise Inverted.failing
            return (~np.frombuffer(buf, np.uint8)).tobytes()
        finally:
            with Inverted._lock:
                Inverted.decoding -= 1


class InvertedV3(BytesBytesCodec):
    """The same for v3, which decodes on the event loop and waits there."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> InvertedV3:
        del data
        return cls()

    def to_dict(self) -> Any:
        return {"name": Inverted.codec_id, "configuration": {}}

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: Any) -> int:
        return input_byte_length

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: Any) -> Buffer:
        await asyncio.sleep(0)
        return chunk_spec.prototype.buffer.from_bytes((~chunk_data.as_numpy_array()).tobytes())  # type: ignore[no-any-return]

    _encode_single = _decode_single


numcodecs.registry.register_codec(Inverted)
zarr.registry.register_codec(Inverted.codec_id, InvertedV3)


def write(
    where: Any, data: AnyArray, zarr_format: ZarrFormat, *, chunks: tuple[int, ...] = CHUNKS, **options: Any
) -> zarr.Array[Any]:
    array: zarr.Array[Any] = zarr.create_array(
        where,
        shape=data.shape,
        chunks=chunks,
        zarr_format=zarr_format,
        **({"dtype": data.dtype} | {"compressors": None} | options),
    )
    array[...] = data
    return array


#: name of the codec -> v2 (filters, compressor), v3 options, and the dtype it is for
V2: dict[str, tuple[list[Any], Any, str]] = {
    "delta": ([numcodecs.Delta("<f4")], None, "<f4"),
    "delta of another type": ([numcodecs.Delta("<i4", astype="<i8")], numcodecs.Blosc(), "<i4"),
    "fixedscaleoffset": ([numcodecs.FixedScaleOffset(10, 4, "<f8", "<i4")], numcodecs.Zstd(), "<f8"),
    "packbits": ([numcodecs.PackBits()], None, "|b1"),
    "quantize": ([numcodecs.Quantize(3, "<f4")], numcodecs.Zlib(), "<f4"),
    "bitround": ([numcodecs.BitRound(9)], numcodecs.Blosc(), "<f4"),
    "astype": ([numcodecs.AsType("<i2", "<f4")], None, "<f4"),
    "bz2": ([], numcodecs.BZ2(), ">f4"),
    "lzma": ([numcodecs.AsType(">i2", ">i2")], numcodecs.LZMA(), ">i2"),
    "adler32": ([], numcodecs.Adler32(), "<u2"),
    "crc32": ([], CRC32(), "<u2"),
    "jenkins_lookup3": ([], JenkinsLookup3(), "<u2"),
    "base64": ([], numcodecs.Base64(), "<f4"),
    "zarrfeed-inverted": ([], Inverted(), "<f4"),
}

V3: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "numcodecs.delta": (lambda: {"filters": [zarr_numcodecs.Delta(dtype="<f4")]}, "<f4"),
    "numcodecs.fixedscaleoffset": (
        lambda: {"filters": [zarr_numcodecs.FixedScaleOffset(offset=10, scale=4, dtype="<f8", astype="<i4")]},
        "<f8",
    ),
    "numcodecs.quantize": (lambda: {"filters": [zarr_numcodecs.Quantize(digits=3, dtype="<f4")]}, "<f4"),
    "numcodecs.bitround": (
        lambda: {"filters": [zarr_numcodecs.BitRound(keepbits=9)], "compressors": ZstdCodec()},
        "<f4",
    ),
    "numcodecs.bz2": (lambda: {"compressors": [zarr_numcodecs.BZ2()], "serializer": BytesCodec(endian="big")}, "<f4"),
    "numcodecs.lzma": (
        lambda: {"compressors": [zarr_numcodecs.LZMA()], "filters": [TransposeCodec(order=(2, 0, 1))]},
        "<f4",
    ),
    "numcodecs.packbits": (lambda: {"filters": [zarr_numcodecs.PackBits()]}, "|b1"),
    "numcodecs.astype": (lambda: {"filters": [zarr_numcodecs.AsType(encode_dtype="<i2", decode_dtype="<f4")]}, "<f4"),
    "numcodecs.adler32": (lambda: {"compressors": [zarr_numcodecs.Adler32()]}, "<u2"),
    "numcodecs.crc32": (lambda: {"compressors": [zarr_numcodecs.CRC32()]}, "<u2"),
    "numcodecs.jenkins_lookup3": (lambda: {"compressors": [zarr_numcodecs.JenkinsLookup3()]}, "<u2"),
    "zarrfeed-inverted": (lambda: {"compressors": [InvertedV3()]}, "<f4"),
}


def data_for(dtype: str) -> AnyArray:
    if np.dtype(dtype).kind == "f":  # what codecs that round can round
        return np.arange(np.prod(SHAPE), dtype=dtype).reshape(SHAPE) / 7
    return numbered(SHAPE, dtype)


def check(array: zarr.Array[Any], codec: str, path: Path | None = None) -> None:
    expected = read_all(array)
    for shuffle in (True, False):
        dataset = assert_parity(array if path is None else path, expected, shuffle=shuffle)
    field = dataset.explain().fields[0]
    assert not field.native
    assert codec in field.slow_codecs
    assert f"through zarr-python, slow (codec {codec})" in str(dataset.explain()) or len(field.slow_codecs) > 1
    stats = dataset.stats()
    assert stats.chunks_read + stats.chunks_missing == 5 * 2 * 3  # each once, in order


@pytest.mark.parametrize("codec", V2)
@pytest.mark.parametrize("order", ["C", "F"])
def test_v2_filters_and_compressors_give_what_zarr_python_reads(codec: str, order: Any, tmp_path: Path) -> None:
    filters, compressor, dtype = V2[codec]
    array = write(
        tmp_path / "a", data_for(dtype), 2, dtype=dtype, filters=filters or None, compressors=compressor, order=order
    )
    check(array, codec.split()[0], tmp_path / "a")


@pytest.mark.parametrize("codec", V3)
def test_v3_codecs_give_what_zarr_python_reads(codec: str, tmp_path: Path) -> None:
    options, dtype = V3[codec]
    check(write(tmp_path / "a", data_for(dtype), 3, **options()), codec, tmp_path / "a")


@pytest.mark.parametrize("name", ["pcodec", "zfpy"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_codecs_of_optional_libraries(name: str, zarr_format: ZarrFormat) -> None:
    pytest.importorskip(name)
    module = pytest.importorskip(f"numcodecs.{name}")
    if zarr_format == 2:
        codec = module.PCodec() if name == "pcodec" else module.ZFPY()
        array = write(MemoryStore(), data_for("<f4"), 2, compressors=codec)
    else:
        serializer = zarr_numcodecs.PCodec() if name == "pcodec" else zarr_numcodecs.ZFPY(mode=4, tolerance=1e-3)
        array = write(MemoryStore(), data_for("<f4"), 3, serializer=serializer)
    check(array, name if zarr_format == 2 else f"numcodecs.{name}")


@pytest.mark.parametrize(
    ("name", "configuration", "library"),
    [
        ("scale_offset", {"offset": 5.0, "scale": 2.0}, "zarr"),
        ("cast_value", {"data_type": "float32"}, "cast_value_rs"),
    ],
)
def test_codecs_of_newer_releases_of_zarr_python(name: str, configuration: dict[str, Any], library: str) -> None:
    pytest.importorskip(f"zarr.codecs.{name}")
    pytest.importorskip(library)
    filters = [{"name": name, "configuration": configuration}]
    check(write(MemoryStore(), data_for("<f8"), 3, filters=filters), name)


def test_other_sample_axes_and_fields_beside_native_ones(tmp_path: Path) -> None:
    data = numbered(SHAPE, "<i4", sample_axis=1)
    array = write(tmp_path / "a", data, 3, filters=[zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")])
    assert_parity(array, read_all(array, sample_axis=1), sample_axis=1)
    targets = write(tmp_path / "y", numbered((N, 3)), 3, chunks=(4, 3))
    assert_parity(array, data, tmp_path / "y", numbered((N, 3)))
    assert_parity(targets, numbered((N, 3)), array, data)
    assert_parity(targets, numbered((N, 3)), array, data, memory_budget="64MiB", num_threads=1)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("make_store", [LocalStore, lambda _: MemoryStore()])
def test_missing_chunks_are_the_fill_value(zarr_format: ZarrFormat, make_store: Any, tmp_path: Path) -> None:
    codec: dict[str, Any] = {"filters": [numcodecs.AsType("<i4", "<i4")]}
    if zarr_format == 3:
        codec = {"filters": [zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")]}
    array: zarr.Array[Any] = zarr.create_array(
        make_store(tmp_path / "a"),
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="<i4",
        fill_value=7,
        zarr_format=zarr_format,
        **codec,
    )
    array[5:10, :3] = 1
    assert_parity(array, read_all(array))
    dataset = assert_parity(array, read_all(array), shuffle=False)
    assert dataset.stats().chunks_missing == 5 * 2 * 3 - 3
    assert dataset.stats().chunks_read == 3


def test_an_array_that_was_deleted_is_an_error_and_never_fill_values(tmp_path: Path) -> None:
    array = write(tmp_path / "a", data_for("<f4"), 3, compressors=[zarr_numcodecs.BZ2()])
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(StoreReadError, match=r"zarr\.json is gone"):
            list(dataset)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_damaged_chunk_is_an_error_with_array_key_and_cause(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    compressor: Any = numcodecs.BZ2() if zarr_format == 2 else zarr_numcodecs.BZ2()
    array = write(tmp_path / "a", data_for("<f4"), zarr_format, compressors=compressor)
    file = chunk_files(tmp_path / "a")[4]
    key = file.relative_to(tmp_path / "a").as_posix()
    good = file.read_bytes()
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        for bad in (b"", good[:-9], b"\xff" * len(good)):
            file.write_bytes(bad)
            with pytest.raises(CorruptChunkError, match=f"a chunk {key}: zarr-python cannot decode it: ") as caught:
                list(dataset)
            assert isinstance(caught.value.__cause__, Exception)
            assert type(caught.value.__cause__).__name__ in str(caught.value)
        file.write_bytes(good)
        assert len(list(dataset)) == 6  # the next epoch is not touched by it


def test_a_chunk_that_decodes_to_another_size_is_an_error() -> None:
    for zarr_format, key in ((2, "1.0.0"), (3, "c/1/0/0")):
        store = MemoryStore()
        codec: Any = Inverted() if zarr_format == 2 else InvertedV3()
        array = write(store, data_for("<f4"), zarr_format, compressors=codec)  # type: ignore[arg-type]
        size = 4 * int(np.prod(CHUNKS))
        for wrong in (size - 4, size + 4, size * 2, 0):
            sync(store.set(key, cpu.Buffer.from_bytes(bytes(wrong))))
            with ZarrIterableDataset(array, batch_size=4) as dataset, pytest.raises(CorruptChunkError, match=key):
                list(dataset)


@pytest.mark.parametrize("error", [RuntimeError("no luck"), OSError(5, "odd"), KeyError("x")], ids=repr)
def test_whatever_a_codec_raises_is_a_corrupt_chunk(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    array = write(MemoryStore(), data_for("<f4"), 2, compressors=Inverted())
    monkeypatch.setattr(Inverted, "failing", error)
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        with pytest.raises(CorruptChunkError, match="chunk 0") as caught:
            list(dataset)
        assert caught.value.__cause__ is error


def test_memory_that_is_exhausted_is_no_damage_of_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    array = write(MemoryStore(), data_for("<f4"), 2, compressors=Inverted())
    monkeypatch.setattr(Inverted, "failing", MemoryError("too much"))
    with ZarrIterableDataset(array, batch_size=4) as dataset, pytest.raises(StoreReadError, match="too much"):
        list(dataset)


def test_decoding_leaves_the_event_loop_and_keeps_to_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbered((400, 64))
    array = write(MemoryStore(), data, 2, chunks=(1, 64), compressors=Inverted())
    monkeypatch.setattr(Inverted, "most", 0)
    monkeypatch.setattr(Inverted, "threads", set())

    async def loop_thread() -> int:
        return threading.get_ident()

    assert_parity(array, data, num_threads=2)
    assert 1 <= Inverted.most <= 2
    assert sync(loop_thread()) not in Inverted.threads
    assert threading.get_ident() not in Inverted.threads


def test_a_small_array_that_is_kept_in_memory_goes_the_same_way(tmp_path: Path) -> None:
    x, y = numbered((N, 6)), numbered((N, 2), "<i4")
    write(tmp_path / "x", x, 3, chunks=(4, 6))
    write(tmp_path / "y", y, 3, chunks=(7, 2), filters=[zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")])
    dataset = assert_parity(tmp_path / "x", x, tmp_path / "y", y)
    assert "kept in memory" in str(dataset.explain())


def test_workers_that_were_forked_decode_too(tmp_path: Path) -> None:
    data = numbered((40, 6), "<i4")
    write(
        tmp_path / "a", data, 3, chunks=(4, 6), filters=[zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")]
    )
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=8, shuffle=True, return_index=True, num_threads=1)
    next(iter(dataset))  # engine, loop and pipeline exist in the parent
    seen: list[int] = []
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=240)
    for rows, index in loader:
        assert_rows_equal(rows, index, data)
        seen += index.tolist()
    assert sorted(seen) == list(range(40))
    dataset.close()


def test_a_description_can_be_pickled(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        codec: Any = (
            numcodecs.AsType("<i4", "<i4")
            if zarr_format == 2
            else zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")
        )
        write(tmp_path / str(zarr_format), data_for("<i4"), zarr_format, filters=[codec])
        spec = read_layout(tmp_path / str(zarr_format))
        assert isinstance(spec.source, StoreSource)
        assert spec.source.decoder is not None
        again = pickle.loads(pickle.dumps(spec))
        assert again == spec
        assert again.source.decoder == spec.source.decoder


# --- what is refused --------------------------------------------------------------------------------------------


class Pickled(numcodecs.Pickle):  # type: ignore[misc]  # numcodecs has no types
    """Code that the store names must not run."""

    def decode(self, *_: Any) -> Any:
        raise AssertionError("code from the store was run")


@pytest.mark.parametrize("member", ["filters", "compressor"])
@pytest.mark.parametrize("dtype", ["<f4", "|O"])
def test_a_codec_that_runs_code_from_the_store_is_refused(
    member: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = write(tmp_path / "a", data_for("<f4"), 2)
    monkeypatch.setitem(numcodecs.registry.codec_registry, "pickle", Pickled)
    named = {"id": "pickle", "protocol": 5}
    metadata: dict[str, Any] = array.metadata.to_dict() | {"dtype": dtype, "fill_value": None}
    metadata |= {member: [named] if member == "filters" else named}
    (tmp_path / "a" / ".zarray").write_text(json.dumps(metadata))
    # zarr-python has no dtype for such metadata, and does not open it
    with pytest.raises((UnsupportedError, ConfigError), match=r"a: .*pickle"):
        ZarrIterableDataset(tmp_path / "a", batch_size=4)


def test_a_codec_that_runs_code_is_refused_where_zarr_python_opens_it() -> None:
    array = write(MemoryStore(), data_for("<f4"), 2, filters=[numcodecs.Delta("<f4")])
    object.__setattr__(array.metadata, "filters", (Pickled(),))
    with pytest.raises(UnsupportedError, match="codec 'pickle' is not supported, it runs code that is in the store"):
        ZarrIterableDataset(array, batch_size=4)


def test_a_codec_whose_library_is_missing_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    write(store, data_for("<f4"), 3, compressors=[zarr_numcodecs.BZ2()])
    array = zarr.open_array(store, mode="r")

    def missing(_: Any) -> None:
        raise ImportError("bz2 is not there")

    monkeypatch.setattr("zarr.codecs.numcodecs._codecs.get_numcodec", missing)
    with pytest.raises(UnsupportedError, match=r"BZ2.* cannot be loaded: ImportError\('bz2 is not there'\)"):
        ZarrIterableDataset(array, batch_size=4)

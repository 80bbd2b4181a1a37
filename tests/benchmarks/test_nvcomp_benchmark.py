"""benchmarks/suites/nvcomp.py: the streams of stored chunks, and the steps on a device beside a library's stand-in."""

from __future__ import annotations

import ctypes
import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ShardingCodec, ZstdCodec

from benchmarks.data.streams import Chunk, UnknownLayoutError, blosc_chunk, decode_on_host, stored_chunks, survey
from benchmarks.harness.nvcomp import NoNvcompError, Nvcomp
from benchmarks.suites import nvcomp
from benchmarks.suites.nvcomp_device import OnDevice, time_on_device, unshuffle_rows

CPU = torch.device("cpu")


def smooth(count: int, dtype: str) -> Any:
    """Return numbers that compress, with a part that does not."""
    values = np.cumsum(np.random.default_rng(0).integers(0, 9, count))
    return (values + np.random.default_rng(1).random(count)).astype(dtype)


def test_streams_of_blosc_chunks_decode_to_what_was_compressed() -> None:
    for cname in ("lz4", "lz4hc", "zstd", "zlib"):
        for shuffle in (0, 1, 2):
            for dtype, count in (("u1", 5000), ("i2", 70_001), ("f4", 40_000), ("f8", 13), ("f8", 30_003)):
                data = smooth(count, dtype)
                chunk = blosc_chunk(numcodecs.Blosc(cname, 5, shuffle, blocksize=32768).encode(data))
                what = f"{cname}, shuffle {shuffle}, {count} items of {dtype}"
                assert decode_on_host(chunk) == data.tobytes(), what
                assert chunk.decoded_bytes == data.nbytes, what
    noise = np.random.default_rng(2).bytes(4096)
    chunk = blosc_chunk(numcodecs.Blosc("lz4", 5, 1).encode(np.frombuffer(noise, "u1")))  # stored as it is
    assert (decode_on_host(chunk), chunk.is_raw.tolist(), chunk.offsets.tolist()) == (noise, [True], [16])
    chunk = blosc_chunk(numcodecs.Blosc("blosclz", 5, 1, blocksize=32768).encode(smooth(40_000, "f4")))
    assert (chunk.codec, chunk.decoded_bytes) == ("blosclz", 160_000)
    assert blosc_chunk(numcodecs.Blosc("lz4").encode(np.zeros(0, "f4"))).decoded_bytes == 0


def test_a_chunk_that_ends_too_early_is_refused() -> None:
    stored = numcodecs.Blosc("lz4", 5, 1, blocksize=32768).encode(smooth(40_000, "f4"))
    for length in (0, 15, 20, 40, len(stored) // 2, len(stored) - 1):
        with pytest.raises(ValueError, match=r"chunk|header|stream"):
            blosc_chunk(stored[:length])
    with pytest.raises(ValueError, match="compressor 7"):
        blosc_chunk(stored[:2] + bytes([7 << 5]) + stored[3:])


@pytest.mark.parametrize(
    ("compressor", "shards"),
    [
        (BloscCodec(cname="lz4"), (16, 20)),
        (ZstdCodec(), None),
        (GzipCodec(), (8, 20)),
        (BloscCodec(cname="zstd"), None),
    ],
    ids=("blosc-lz4 in shards", "zstd", "gzip in shards", "blosc-zstd"),
)
def test_chunks_of_an_array_decode_to_what_zarr_reads(tmp_path: Path, compressor: Any, shards: Any) -> None:
    data = smooth(32 * 20, "f4").reshape(32, 20)
    array = zarr.create_array(
        tmp_path / "x", shape=data.shape, chunks=(4, 10), shards=shards, dtype="f4", compressors=compressor
    )
    array[:] = data
    expected = {data[i : i + 4, j : j + 10].tobytes() for i in range(0, 32, 4) for j in range(0, 20, 10)}
    chunks = list(stored_chunks(tmp_path / "x"))
    assert len(chunks) == 16
    assert {decode_on_host(chunk) for chunk in chunks} == expected


def test_inner_chunks_that_are_absent_have_no_streams(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(16,), chunks=(2,), shards=(8,), dtype="f4", fill_value=0)
    array[4:6] = 1.0
    assert len(list(stored_chunks(tmp_path / "x"))) == 1


def test_arrays_that_are_stored_otherwise_are_named(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old", shape=(4,), dtype="f4", zarr_format=2)[:] = 1.0
    two = [ZstdCodec(), GzipCodec()]
    zarr.create_array(tmp_path / "two", shape=(4,), dtype="f4", compressors=two)[:] = 1.0
    zarr.create_array(tmp_path / "none", shape=(4,), dtype="f4", compressors=None)[:] = 1.0
    first = ShardingCodec(chunk_shape=(2,), codecs=[BytesCodec(), ZstdCodec()], index_location="start")
    zarr.create_array(tmp_path / "first", shape=(4,), chunks=(4,), dtype="f4", serializer=first, compressors=None)
    for name, reason in {"old": "format 2", "two": "alone", "none": "alone", "first": "at the beginning"}.items():
        with pytest.raises(UnknownLayoutError, match=reason):
            list(stored_chunks(tmp_path / name))


def test_rows_are_unshuffled_into_their_slots() -> None:
    rng = np.random.default_rng(3)
    cases = (
        ("several rows a block", 24, 8, 4, 72),
        ("several blocks a row", 8, 24, 4, 72),
        ("rows across blocks", 16, 24, 4, 96),
        ("a shorter block at the end", 32, 8, 4, 72),
        ("items across rows", 24, 4, 8, 72),
        ("no shuffle", 24, 8, 1, 72),
    )
    for what, block_bytes, row_bytes, typesize, size in cases:
        plain = rng.integers(0, 256, size, dtype=np.uint8)
        blocks = [plain[begin : begin + block_bytes] for begin in range(0, size, block_bytes)]
        shuffled = np.concatenate([block.reshape(-1, typesize).T.ravel() for block in blocks])
        slots = rng.permutation(size // row_bytes)
        rows = torch.zeros(size // row_bytes, row_bytes, dtype=torch.uint8)
        unshuffle_rows(torch.from_numpy(shuffled), block_bytes, typesize, torch.from_numpy(slots), rows)
        assert np.array_equal(rows.numpy()[slots], plain.reshape(-1, row_bytes)), what


class Library:
    """Stands in for libnvcomp: its functions take the arguments in the order of nvCOMP's headers, and decode here.

    `wrong` flips a byte of each stream; `status` is that of each stream.
    """

    def __init__(self, *, wrong: bool = False, status: int = 0) -> None:
        self.wrong, self.status = wrong, status
        self.misaligned = 0

    def nvcompGetProperties(self, found: Any) -> int:  # noqa: N802 (the library's name)
        found._obj.version = 6123
        return 0

    def __getattr__(self, name: str) -> Any:
        algorithm, _, what = name.removeprefix("nvcompBatched").partition("Decompress")
        alignment = 4 if algorithm == "Deflate" else 1

        def function(*arguments: Any) -> int:
            if what == "GetRequiredAlignments":
                arguments[1]._obj.input = alignment
            elif what == "GetTempSize":
                arguments[3]._obj.value = 64
            else:
                self.decode(algorithm, alignment, *arguments)
            return 0

        function.__name__ = name
        return function

    def decode(
        self,
        algorithm: str,
        alignment: int,
        sources: int,
        source_sizes: int,
        target_sizes: int,
        actual_sizes: int,
        count: int,
        _temp: int,
        temp_bytes: int,
        targets: int,
        options: Any,
        statuses: int,
        _stream: int,
    ) -> None:
        assert (temp_bytes, bytes(options)) == (64, bytes(64))
        numbers = ctypes.c_int64 * count
        table = [numbers.from_address(address) for address in (sources, source_sizes, targets, target_sizes)]
        for i, (source, size, target, room) in enumerate(zip(*table, strict=True)):
            self.misaligned += source % alignment != 0
            stream = ctypes.string_at(source, size)
            decoded = {
                "LZ4": lambda: bytes(numcodecs.LZ4().decode(room.to_bytes(4, "little") + stream)),  # noqa: B023
                "Zstd": lambda: bytes(numcodecs.Zstd().decode(stream)),  # noqa: B023
                "Deflate": lambda: zlib.decompress(stream, wbits=-15),  # noqa: B023
                "Gzip": lambda: gzip.decompress(stream),  # noqa: B023
            }[algorithm]()
            assert len(decoded) <= room
            decoded = bytes([decoded[0] ^ self.wrong]) + decoded[1:]
            ctypes.memmove(target, decoded, len(decoded))
            numbers.from_address(actual_sizes)[i] = len(decoded)
            (ctypes.c_int32 * count).from_address(statuses)[i] = self.status


def chunks_of(cname: str, shuffle: int, dtype: str = "f4") -> list[Chunk]:
    encode = numcodecs.Blosc(cname, 5, shuffle, blocksize=32768).encode
    return [blosc_chunk(encode(smooth(16384, dtype) + np.array(i, dtype))) for i in range(3)]


def test_every_codec_comes_out_of_the_steps_on_a_device() -> None:
    plain = smooth(16384, "f4").tobytes()
    one = np.zeros(1, np.int64)
    as_one = (one, np.array([len(plain)]), np.array([False]))
    stored = gzip.compress(plain)
    zipped = Chunk("gzip", "", 1, len(plain), stored, one, np.array([len(stored)]), *as_one[1:])
    noise = np.frombuffer(np.random.default_rng(2).bytes(65536), "u1")
    raw = blosc_chunk(numcodecs.Blosc("lz4", 5, 0).encode(noise))
    copied = blosc_chunk(numcodecs.Blosc("lz4", 5, 1).encode(noise.view("f4")))  # with the flag for memcpy, unshuffled
    assert (copied.filtering, len(copied.offsets)) == ("", 1)
    first, second, third = chunks_of("lz4", 1)
    cases = {
        "LZ4 and byte shuffle": [first, second, third],
        "chunks that are copied among others": [first, copied, second, third, copied],
        "LZ4": chunks_of("lz4", 0),
        "Zstandard and bit shuffle": chunks_of("zstd", 2),
        "zlib at offsets that are multiples of 4": chunks_of("zlib", 1, "i2"),
        "gzip": [zipped, zipped],
        "nothing to decompress": [raw, raw],
    }
    for what, chunks in cases.items():
        library = Library()
        found = time_on_device(chunks, 256, Nvcomp(library), CPU, repeats=2)
        assert library.misaligned == 0, what
        assert found["streams"] == sum(len(chunk.offsets) for chunk in chunks), what
        assert ("scatter" in found["ms"]) == ("bit" not in what), what
        assert found["gb_per_s"] > 0, what


def test_chunks_that_end_in_a_shorter_block_come_out_as_well() -> None:
    encode = numcodecs.Blosc("lz4", 5, 1, blocksize=32768).encode
    chunks = [blosc_chunk(encode(smooth(50_000, "f4") + np.float32(i))) for i in range(3)]
    assert chunks[0].decoded_bytes % chunks[0].block_bytes
    assert time_on_device(chunks, 400, Nvcomp(Library()), CPU, repeats=1)["chunks"] == 3


def test_streams_that_fail_or_decode_to_other_values_are_found() -> None:
    chunks = chunks_of("lz4", 1)
    for library, message in ((Library(wrong=True), "other values"), (Library(status=12), "streams failed")):
        with pytest.raises(AssertionError, match=message):
            time_on_device(chunks, 256, Nvcomp(library), CPU, repeats=1)
    on_device = OnDevice(chunks, 256, Nvcomp(Library()), CPU)
    on_device.copy()
    on_device.decompress()
    on_device.slots = on_device.slots.flip(0)
    on_device.scatter()
    on_device.check()
    on_device.slots = on_device.slots.flip(0)
    with pytest.raises(AssertionError, match="not in their slots"):
        on_device.check()


def test_a_survey_counts_what_would_be_copied() -> None:
    chunks = chunks_of("lz4", 1)
    found = survey("x", chunks)
    # a block of 64 KiB has a stream for each byte of its items
    assert (found.chunks, found.streams, found.middle) == (3, 12, 16384)
    assert found.copied_share == (sum(len(chunk.stored) for chunk in chunks) + 12 * 32) / (3 * 65536)
    assert (found.codec, found.filtering) == ("lz4", "shuffle")


def test_a_run_without_a_gpu_surveys_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folders = ["--data", str(tmp_path / "data"), "--out", str(tmp_path), "--repeats", "1"]
    assert nvcomp.main(["--layouts", "A,B-gzip", "--scale", "small", *folders]) == 0
    document = json.loads((tmp_path / "nvcomp.json").read_text())
    shares = {found["streams"]["name"]: found["copied_share"] for found in document["arrays"]}
    assert list(shares) == ["A", "B-gzip"]
    assert all(0.3 < share < 0.6 for share in shares.values()), shares
    assert "Nothing was measured: there is no GPU" in capsys.readouterr().out
    zarr.create_array(tmp_path / "two", shape=(4,), dtype="f4", compressors=None)[:] = 1.0
    arrays = f"{tmp_path}/two,{tmp_path}/data/A-small.zarr/samples"
    assert nvcomp.main(["--arrays", arrays, *folders]) == 0
    written = (tmp_path / "nvcomp.md").read_text()
    assert "| samples | lz4 | shuffle |" in written
    assert "two: codecs ['bytes'], not blosc, zstd or gzip alone" in written


def test_figures_of_a_gpu_stand_beside_the_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = iter([Library(), Library(wrong=True)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(Nvcomp, "find", lambda: Nvcomp(next(libraries)))
    monkeypatch.setattr(
        nvcomp, "time_on_device", lambda chunks, row_bytes, library, _, repeats: time_on_device(
            chunks, row_bytes, library, CPU, repeats
        )
    )  # fmt: skip
    array = zarr.create_array(tmp_path / "x", shape=(100, 64), chunks=(32, 64), dtype="f4", compressors=BloscCodec())
    array[:] = smooth(6400, "f4").reshape(100, 64)
    options = ["--arrays", str(tmp_path / "x"), "--repeats", "1", "--data", str(tmp_path), "--out", str(tmp_path)]
    assert nvcomp.main(options) == 0
    written = (tmp_path / "nvcomp.md").read_text()
    assert "a device, nvCOMP 6.1.23." in written
    assert "| x | 4 | " in written
    assert nvcomp.main(options) == 1
    assert "a chunk decoded to other values than on the host" in (tmp_path / "nvcomp.md").read_text()


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Nvcomp(Library()).version() == "6.1.23"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(NoNvcompError, match="not installed"):
        Nvcomp.find()
    folder = tmp_path / "nvidia" / "libnvcomp" / "lib64"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "libnvcomp.so.6").write_bytes(b"no library")
    with pytest.raises(NoNvcompError, match="cannot be loaded"):
        Nvcomp.find()

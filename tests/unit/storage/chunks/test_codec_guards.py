"""storage/chunks/codec_guards.py: damaged bytes are refused or decoded, never read beyond the end, by any codec."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import MemoryStore

from tests.support import guarded
from tests.support.examples import tries
from tests.support.oracle import blosc_buffer, craft_blosc, zstd_bomb, zstd_frame
from zarrfeed.base.errors import DecodeError
from zarrfeed.storage.access.zarr_internals import chunk_spec
from zarrfeed.storage.chunks.codec_guards import MAX_TEXT_BYTES, Expected, decode_guarded, measure_zstd
from zarrfeed.storage.chunks.guarded_chain import encoded, guard_v3

CASES = {name: case for name, case in guarded.cases().items() if name != "reads-on"}
DATA = np.arange(4000, dtype="<i4").tobytes()


def exactly(size: int, dtype: str = "u1") -> Expected:
    return Expected(size, is_exact=True, items=size // np.dtype(dtype).itemsize, dtype=np.dtype(dtype))


def at_most(size: int) -> Expected:
    return Expected(size, is_exact=False, items=size, dtype=np.dtype("u1"))


def expected_of(data: Any) -> Expected:
    if data.dtype == object:
        return Expected(MAX_TEXT_BYTES, is_exact=False, items=data.size, dtype=data.dtype)
    return Expected(data.nbytes, is_exact=True, items=data.size, dtype=data.dtype)


def in_child(allocator: str, changes: int, *names: str) -> subprocess.CompletedProcess[str]:
    script = Path(guarded.__file__)
    variables = os.environ | {"PYTHONMALLOC": allocator}
    command = [sys.executable, str(script), str(changes), *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=variables)


@pytest.mark.parametrize("allocator", ["malloc", "debug"])
def test_no_damage_makes_a_codec_read_or_write_beyond_its_buffers(allocator: str) -> None:
    changes = tries(25, 3000)
    done = in_child(allocator, changes)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result.pop("name") for result in results] == list(CASES)
    total = sum(map(Counter, results), Counter[str]())
    assert min(total["refused"], total["refused by the codec"], total["decoded"]) > 16 * changes


def test_the_child_ends_by_a_signal_where_a_codec_reads_one_byte_too_many() -> None:
    assert in_child("malloc", 10, "reads-on").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", CASES)
def test_whole_chunks_decode_as_without_a_guard(name: str) -> None:
    codec, data = CASES[name]
    stored = np.asarray(memoryview(codec.encode(data)))
    for form in (stored, stored.tobytes()):
        got = decode_guarded(codec, form, expected_of(data))
        assert guarded.to_bytes(got) == guarded.to_bytes(codec.decode(form))
        assert type(got) in (type(codec.decode(form)), bytes, np.ndarray)


@pytest.mark.parametrize("name", CASES)
def test_the_size_that_a_codec_encodes_to_is_known_or_bounded(name: str) -> None:
    codec, data = CASES[name]
    made = codec.encode(data)
    stored = np.asarray(memoryview(made)).nbytes
    after = encoded(codec, expected_of(data))
    assert stored == after.limit if after.is_exact else stored <= after.limit
    if isinstance(made, np.ndarray) and made.dtype != np.uint8:
        assert made.dtype == after.dtype


def test_streams_that_follow_each_other_and_what_is_behind_them_are_read_as_numcodecs_does() -> None:
    two = DATA + DATA[:100]
    rest: tuple[bytes, ...] = (b"", b"\0", b"\0" * 9, b"junk", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0")
    packed: dict[str, tuple[Any, bytes]] = {
        "gzip": (numcodecs.GZip(), gzip.compress(DATA) + gzip.compress(DATA[:100])),
        "bz2": (numcodecs.BZ2(), bz2.compress(DATA) + bz2.compress(DATA[:100])),
        "lzma": (numcodecs.LZMA(), lzma.compress(DATA) + lzma.compress(DATA[:100])),
        "zlib": (numcodecs.Zlib(), zlib.compress(two)),
        "zlib twice": (numcodecs.Zlib(), zlib.compress(two) + zlib.compress(b"more")),
        "zstd": (numcodecs.Zstd(), numcodecs.zstd.compress(DATA) + numcodecs.zstd.compress(DATA[:100])),
    }
    for name, (codec, stored) in packed.items():
        for behind in rest:
            try:
                theirs = bytes(codec.decode(stored + behind))
            except Exception:  # noqa: BLE001 (of any class)
                with pytest.raises(Exception):  # noqa: B017, PT011 (of any class)
                    decode_guarded(codec, stored + behind, exactly(len(two)))
            else:
                assert theirs == two, name
                assert bytes(decode_guarded(codec, stored + behind, exactly(len(two)))) == two, (name, behind)


@pytest.mark.parametrize("codec", ["gzip", "bz2", "lzma", "zlib"])
def test_a_bomb_is_stopped_at_the_size_that_is_implied(codec: str) -> None:
    decoder = numcodecs.get_codec({"id": codec})
    bomb = bytes(decoder.encode(bytes(50_000_000)))
    with pytest.raises(DecodeError, match="decodes to more than the 1000 bytes that the metadata implies"):
        decode_guarded(decoder, bomb, exactly(1000))
    with pytest.raises(EOFError):
        decode_guarded(decoder, bomb[:-1], exactly(50_000_000))


def test_a_dictionary_of_lzma_is_bounded() -> None:
    header = bytearray(numcodecs.LZMA(format=lzma.FORMAT_ALONE).encode(DATA))
    header[1:5] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(lzma.LZMAError, match="limit"):
        decode_guarded(numcodecs.LZMA(format=lzma.FORMAT_ALONE), bytes(header), exactly(len(DATA)))
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**31 - 1}]
    raw = numcodecs.LZMA(format=lzma.FORMAT_RAW, filters=filters)
    with pytest.raises(DecodeError, match="have a dictionary of more than"):
        decode_guarded(raw, DATA, exactly(len(DATA)))


# --- Blosc ------------------------------------------------------------------------------------------------------

LZ4 = blosc_buffer(DATA, cname="lz4")
RAW = blosc_buffer(np.random.default_rng(2).bytes(16000))


def set_int(stored: bytes, at: int, number: int) -> bytes:
    return stored[:at] + struct.pack("<i", number) + stored[at + 4 :]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (LZ4[:15], "a Blosc header has 16 bytes, the chunk holds 15"),
        (b"\x03" + LZ4[1:], "Blosc format version = 3, must be 2"),
        (set_int(LZ4, 4, 16001), "Blosc header declares 16001 decoded bytes, the metadata implies 16000"),
        (set_int(LZ4, 4, -1), "Blosc header declares -1 decoded bytes"),
        (LZ4[:-1], f"Blosc header declares {len(LZ4)} stored bytes, the chunk holds {len(LZ4) - 1}"),
        (set_int(LZ4, 12, len(LZ4) + 1), f"Blosc header declares {len(LZ4) + 1} stored bytes"),
        (set_int(LZ4, 12, 15), "Blosc header declares 15 stored bytes"),
        (set_int(LZ4, 12, -(2**31)), "Blosc header declares -2147483648 stored bytes"),
        (LZ4[:3] + b"\0" + LZ4[4:], "Blosc typesize = 0, must be at least 1"),
        (set_int(LZ4, 8, 0), "Blosc blocksize = 0, must be between 1 and nbytes = 16000"),
        (set_int(LZ4, 8, 16001), "Blosc blocksize = 16001, must be between 1 and nbytes = 16000"),
        (set_int(LZ4, 8, 1), "Blosc header implies 16000 blocks, more than the chunk has room for"),
        (set_int(set_int(RAW, 4, 15999), 8, 15999), "Blosc header declares 15999 raw bytes, the chunk holds 16000"),
        (RAW[:8000], "Blosc header declares 16016 stored bytes, the chunk holds 8000"),
        (
            craft_blosc(DATA, typesize=3, blocksize=4000, flags=0x21),
            "Blosc blocksize 4000 is no multiple of its 3 streams",
        ),
    ],
)
def test_a_blosc_header_that_is_not_so_is_refused(stored: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=f"^{message}"):
        decode_guarded(numcodecs.Blosc(), stored, exactly(16000))


def test_bytes_behind_a_blosc_container_are_ignored_as_numcodecs_does() -> None:
    assert bytes(decode_guarded(numcodecs.Blosc(), LZ4 + b"junk", exactly(16000))) == DATA


def test_more_than_a_blosc_container_has_room_for_is_refused_where_the_size_is_not_known() -> None:
    small = blosc_buffer(b"text" * 100, typesize=1)
    huge = set_int(set_int(small, 4, 2**31 - 1), 8, 2**31 - 1)
    with pytest.raises(DecodeError, match=r"declares 2147483647 decoded bytes, more than .* stored bytes can make"):
        decode_guarded(numcodecs.Blosc(), huge, at_most(MAX_TEXT_BYTES))
    for cname in numcodecs.blosc.list_compressors():  # what compresses best is not refused
        zeros = bytes(numcodecs.Blosc(cname, clevel=9, shuffle=0).encode(bytes(1 << 24)))
        assert decode_guarded(numcodecs.Blosc(), zeros, at_most(1 << 24)) == bytes(1 << 24)
    zeros = bytes(numcodecs.LZ4().encode(bytes(1 << 24)))
    assert decode_guarded(numcodecs.LZ4(), zeros, at_most(1 << 24)) == bytes(1 << 24)


# --- Zstandard --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [-5, 1, 22])
@pytest.mark.parametrize("size", [1, 255, 256, 65791, 65792, 1 << 20])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstandard_frames_are_measured(level: int, size: int, checksum: bool) -> None:
    data = (b"some text, " * (size // 10 + 1))[:size]
    frame = bytes(numcodecs.zstd.compress(data, level, checksum))
    known, most = measure_zstd(np.frombuffer(frame, np.uint8))
    assert known == size <= most
    skipped = b"\x53\x2a\x4d\x18" + struct.pack("<I", 5) + b"12345"
    assert measure_zstd(np.frombuffer(skipped + frame + frame, np.uint8)) == (2 * size, 2 * most)
    for length in {*range(1, min(30, len(frame))), len(frame) - 1}:
        with pytest.raises(DecodeError):
            measure_zstd(np.frombuffer(frame[:length], np.uint8))


def test_a_zstandard_frame_that_does_not_say_its_size_is_decoded_and_bounded() -> None:
    codec = numcodecs.Zstd()
    frame = zstd_frame(DATA, block_bytes=1000)
    assert measure_zstd(np.frombuffer(frame, np.uint8)) == (None, 16000)
    for expected in (exactly(16000), at_most(20000)):
        assert bytes(decode_guarded(codec, frame, expected)) == DATA
    for size in (15999, 16001):
        with pytest.raises(RuntimeError):
            decode_guarded(codec, frame, exactly(size))
    with pytest.raises(DecodeError, match="Zstandard frames hold up to 4294967296 bytes, must be at most 2147483647"):
        decode_guarded(codec, zstd_bomb(2**32), at_most(16000))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**50) + b"\x01\x00\x00", "declares 1125899906842624 decoded"),
        (b"\x22\xb5\x2f\xfd\xe0\0\0\0\0\0\0\0", "is no Zstandard frame"),  # of version 0.1
        (bytes(numcodecs.zstd.compress(bytes(20000))), "declare 20000 decoded bytes, the metadata implies 16000"),
    ],
)
def test_a_zstandard_frame_that_is_not_so_is_refused(stored: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_guarded(numcodecs.Zstd(), stored, exactly(16000))


# --- others -----------------------------------------------------------------------------------------------------


def test_lz4_is_refused_for_what_its_header_declares() -> None:
    stored = bytes(numcodecs.LZ4().encode(DATA))
    for declared in (16001, 2**31 - 1, 2**31, 2**32 - 1):
        with pytest.raises(DecodeError, match=f"LZ4 header declares {declared} decoded bytes, the metadata implies"):
            decode_guarded(numcodecs.LZ4(), struct.pack("<I", declared) + stored[4:], exactly(16000))
    with pytest.raises(DecodeError, match=r"more than .* stored bytes can make"):
        decode_guarded(numcodecs.LZ4(), struct.pack("<I", 10**9) + stored[4:], at_most(MAX_TEXT_BYTES))


def test_objects_that_json_or_msgpack_declare_are_counted() -> None:
    words = np.array(["a", "b"], dtype=object)
    codecs: tuple[tuple[Any, Callable[[Any], bytes]], ...] = (
        (numcodecs.JSON(), lambda items: json.dumps(items).encode()),
        (numcodecs.MsgPack(), msgpack_of),
    )
    for codec, encode in codecs:
        for bad in (["a", "b", "|O", [10**9]], ["a", "b", "|V2000000000", [2]]):
            with pytest.raises(DecodeError, match="it declares"):
                decode_guarded(codec, encode(bad), expected_of(words))


def msgpack_of(items: Any) -> bytes:
    msgpack = pytest.importorskip("msgpack")
    return bytes(msgpack.packb(items))


def test_filters_do_not_make_more_of_a_chunk_than_its_size() -> None:
    wide = numcodecs.AsType("<i1", "<U100000")
    with pytest.raises(DecodeError, match="AsType makes 400000000 decoded bytes, the metadata implies 16000"):
        decode_guarded(wide, bytes(1000), exactly(16000))
    with pytest.raises(DecodeError, match="PackBits makes 7992 decoded bytes, the metadata implies 100"):
        decode_guarded(numcodecs.PackBits(), bytes(1000), exactly(100))


def test_pcodec_holds_exactly_the_items_that_are_implied() -> None:
    pcodec = pytest.importorskip("numcodecs.pcodec").PCodec()
    stored = bytes(pcodec.encode(np.arange(1000, dtype="<f4")))
    assert (decode_guarded(pcodec, stored, exactly(4000, "<f4")) == np.arange(1000)).all()
    for count in (999, 1001):
        with pytest.raises(DecodeError, match=f"Pcodec holds other than the {count} items"):
            decode_guarded(pcodec, stored, exactly(4 * count, "<f4"))


def test_zfp_is_not_read_beyond_its_end() -> None:
    pytest.importorskip("zfpy")
    codec = numcodecs.get_codec({"id": "zfpy", "mode": 4, "tolerance": 1e-3})
    stored = bytes(codec.encode(np.random.default_rng(1).random((9, 10)).astype("<f4")))
    for length in (12, 20, len(stored) // 2, len(stored) - 16):
        with pytest.raises(DecodeError, match="is truncated: the ZFP stream needs more than"):
            decode_guarded(codec, stored[:length], exactly(360, "<f4"))
    with pytest.raises(DecodeError, match="declares 90 items, the metadata implies 91"):
        decode_guarded(codec, stored, exactly(364, "<f4"))
    with pytest.raises(DecodeError, match="declares items of float32, the metadata implies float64"):
        decode_guarded(codec, stored, exactly(720, "<f8"))
    other = numcodecs.get_codec({"id": "zfpy", "mode": 2, "rate": 8})
    with pytest.raises(DecodeError, match="other parameters"):
        decode_guarded(other, stored, exactly(360, "<f4"))


class PanicException(BaseException):
    """As pyo3 names what a panic in Rust becomes."""


@pytest.mark.parametrize(
    ("raised", "comes"),
    [(PanicException("index out of bounds"), DecodeError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_panic_is_an_error_of_the_chunk_and_an_interrupt_is_not(
    raised: BaseException, comes: type[BaseException]
) -> None:
    class Raising:
        def decode(self, *_: Any) -> Any:
            raise raised

    with pytest.raises(comes):
        decode_guarded(Raising(), b"", exactly(1))


def test_a_codec_that_somebody_registered_is_called_as_it_is() -> None:
    class Longer(numcodecs.Blosc):  # type: ignore[misc]  # numcodecs has no types
        """The same identifier, and another format."""

        def decode(self, buf: Any, out: Any = None) -> Any:
            assert out is None
            return bytes(buf) * 2

    decode: Callable[..., Any] = decode_guarded
    assert decode(Longer(), b"abc", exactly(1)) == b"abcabc"
    assert encoded(Longer(), exactly(1000)).limit > 10_000


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_a_guard_has_a_fixed_size_where_its_codec_has() -> None:
    """zarr-python asks it of the codecs of a shard's index since 3.4."""
    array = zarr.create_array(MemoryStore(), shape=(4,), chunks=(4,), dtype="u8")
    chain: list[Any] = [BytesCodec(), zarr_numcodecs.CRC32(), GzipCodec(), Crc32cCodec()]
    guarded, _ = guard_v3(chain, chunk_spec(array.metadata, (4,)))
    sizes = [bool(getattr(codec, "is_fixed_size", False)) for codec in chain]
    assert [codec.is_fixed_size for codec in guarded] == sizes
    object.__setattr__(chain[1], "is_fixed_size", True)  # as that of zarr-python 3.4 has it
    assert guarded[1].is_fixed_size
    assert sizes[0]
    assert not guarded[2].is_fixed_size

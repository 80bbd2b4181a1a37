"""The engine's codecs alone, against numcodecs on the same bytes."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from functools import cache
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.checksum32 import CRC32C

from tests.support.cases import case
from tests.support.examples import is_large
from tests.support.oracle import BLOSC_COMPRESSORS, blosc_buffer, craft_blosc, decode, zstd_frame
from zarrfeed import ConfigError, CorruptChunkError, UnsupportedError

MEMCPYED = 0x2
DONT_SPLIT = 0x10


def compressible(size: int, seed: int = 0) -> bytes:
    """Return bytes of short random runs: every compressor gains, and no two places look alike."""
    noise = np.random.default_rng(seed)
    return bytes(np.repeat(noise.integers(0, 256, size // 5 + 1, np.uint8), 6)[:size])


def smooth(size: int, item_bytes: int = 4) -> bytes:
    return np.arange(size // item_bytes + 1, dtype=f"u{item_bytes}").tobytes()[:size]


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def check_blosc(data: bytes, **options: Any) -> bytes:
    """Fail unless a buffer that c-blosc 1 made decodes to what numcodecs decodes it to; return the buffer."""
    stored = blosc_buffer(data, **options)
    assert numcodecs.blosc.decompress(stored) == data
    assert decode(stored, len(data), "blosc") == data
    return stored


def header(stored: bytes) -> dict[str, int]:
    names = ("version", "codec_version", "flags", "typesize", "nbytes", "blocksize", "cbytes")
    return dict(zip(names, struct.unpack("<BBBBiii", stored[:16]), strict=True))


# --- Blosc ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clevel", [0, 1, 5, 9])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", BLOSC_COMPRESSORS)
def test_blosc_of_every_compressor_shuffle_and_level_equals_numcodecs(cname: str, shuffle: int, clevel: int) -> None:
    for data in (smooth(40_000), compressible(40_000), noise(40_000), bytes(40_000)):
        stored = check_blosc(data, cname=cname, shuffle=shuffle, clevel=clevel)
        if data == smooth(40_000) and clevel == 5 and shuffle:
            assert not header(stored)["flags"] & MEMCPYED, "this test should see compressed data"


@pytest.mark.parametrize("typesize", range(1, 18))
def test_blosc_sizes_that_are_no_multiple_of_typesize_equal_numcodecs(typesize: int) -> None:
    """blosc2 4.14.1 decodes the bit-shuffled ones of these to other bytes, without an error."""
    for size in (*range(1, 12), *range(8 * typesize - 2, 8 * typesize + 3), *range(997, 1013), 4093, 4096, 4099):
        for shuffle in (0, 1, 2):  # of one size, which makes an engine
            with case(size, shuffle):
                check_blosc(compressible(size), shuffle=shuffle, typesize=typesize)
                check_blosc(bytes(size), shuffle=shuffle, typesize=typesize)


@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 7, 8, 16, 17])
def test_blosc_of_one_to_forty_items_equals_numcodecs(typesize: int) -> None:
    for items in range(1, 41):
        for data in (compressible(items * typesize, items), bytes(items * typesize)):
            for cname, shuffle in itertools.product(BLOSC_COMPRESSORS, (0, 1, 2)):
                with case(items, cname, shuffle):
                    check_blosc(data, cname=cname, shuffle=shuffle, typesize=typesize)


@cache
def block_of(shuffle: int, typesize: int, blocksize: int) -> int:
    """Return the bytes of a block, which c-blosc rounds."""
    buffer = blosc_buffer(smooth(200_000), shuffle=shuffle, typesize=typesize, blocksize=blocksize)
    return header(buffer)["blocksize"]


@pytest.mark.parametrize("blocksize", [128, 200, 256, 1000, 4096, 65536])
def test_blosc_of_several_blocks_equals_numcodecs(blocksize: int) -> None:
    ways: dict[int, set[tuple[int, int]]] = {}  # by size, which makes an engine
    for shuffle, typesize in itertools.product((0, 1, 2), (1, 2, 3, 4, 8, 16, 17, 255)):
        block = block_of(shuffle, typesize, blocksize)
        for blocks in (1, 2, 3):
            for more in (-1, 0, 1, typesize, 8 * typesize, block // 2 + 1):
                size = blocks * block + more
                if 0 < size <= 200_000:
                    ways.setdefault(size, set()).add((shuffle, typesize))
    others = [name for name in BLOSC_COMPRESSORS if name != "zstd"]
    turn = itertools.cycle([["zstd"], others[::2], others[1::2]] if not is_large() else [BLOSC_COMPRESSORS])
    for size, of_size in ways.items():
        data = smooth(size)
        for (shuffle, typesize), cnames in zip(sorted(of_size), turn, strict=False):
            for cname in cnames:
                with case(cname, shuffle, typesize, size):
                    # levels have a test of their own; at level 5, zstd and lz4hc take ten times as long
                    check_blosc(data, cname=cname, shuffle=shuffle, typesize=typesize, blocksize=blocksize, clevel=1)


@pytest.mark.parametrize("typesize", [2, 4, 8, 16])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib"])
def test_blosc_blocks_that_are_split_by_typesize_equal_numcodecs(cname: str, typesize: int, shuffle: int) -> None:
    for size in (
        128 * typesize,
        128 * typesize + 1,
        128 * typesize - 1,
        65536,
        65537,
        3 * 65536 + 7 * typesize,
        200_000,
    ):
        stored = check_blosc(smooth(size), cname=cname, shuffle=shuffle, typesize=typesize, blocksize=4096)
        if size >= 65536:
            assert not header(stored)["flags"] & DONT_SPLIT, "this test should see split blocks"


@pytest.mark.whole_product
@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 5, 8, 12, 15, 16])
@pytest.mark.parametrize("flags", [0x0, 0x1, 0x4, 0x10, 0x11, 0x14])
def test_blosc_blocks_of_raw_streams_equal_numcodecs(typesize: int, flags: int) -> None:
    """Split blocks that are small: c-blosc 1 reads them though no version of it writes them."""
    for blocksize, size in itertools.product(
        (128 * typesize, 128 * typesize - typesize, 131 * typesize), (1, 700, 9001)
    ):
        block = min(blocksize, size)
        stored = craft_blosc(noise(size), typesize=typesize, blocksize=block, flags=flags)
        expected = numcodecs.blosc.decompress(stored)
        assert decode(stored, size, "blosc") == expected


@pytest.mark.parametrize("cname", BLOSC_COMPRESSORS)
def test_blosc_of_items_that_do_not_compress_is_stored_raw(cname: str) -> None:
    for size in (1, 15, 16, 17, 127, 128, 129, 5000):
        for typesize in (1, 4, 7):
            stored = check_blosc(noise(size), cname=cname, typesize=typesize)
            assert header(stored)["flags"] & MEMCPYED


@pytest.mark.parametrize("tail", [b"\0", b"trailing bytes", bytes(1000), b"\xff" * 40])
def test_bytes_behind_a_blosc_buffer_are_ignored_as_zarr_python_does(tail: bytes) -> None:
    for data in (smooth(5000), noise(5000)):
        stored = blosc_buffer(data) + tail
        assert numcodecs.Blosc().decode(stored) == data
        assert decode(stored, 5000, "blosc") == data


def test_an_empty_blosc_buffer_is_no_chunk() -> None:
    with pytest.raises(CorruptChunkError, match="0 bytes"):
        decode(blosc_buffer(b""), 10, "blosc")


def test_the_engine_refuses_chunks_without_elements() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        decode(blosc_buffer(b""), 0, "blosc")


def test_blosc_with_snappy_is_refused_by_name() -> None:
    stored = bytearray(blosc_buffer(smooth(5000)))
    stored[2] = stored[2] & 0x1F | 2 << 5
    with pytest.raises(UnsupportedError, match="snappy"):
        decode(bytes(stored), 5000, "blosc")


@given(
    data=st.one_of(
        st.binary(min_size=1, max_size=3000),
        st.builds(compressible, st.integers(1, 300_000), st.integers(0, 99)),
        st.builds(smooth, st.integers(1, 300_000), st.sampled_from([1, 2, 4, 8])),
    ),
    cname=st.sampled_from(BLOSC_COMPRESSORS),
    clevel=st.integers(0, 9),
    shuffle=st.integers(0, 2),
    typesize=st.one_of(st.integers(1, 20), st.integers(1, 255)),
    blocksize=st.one_of(st.just(0), st.integers(1, 5000)),
)
def test_any_blosc_buffer_equals_numcodecs(
    data: bytes, cname: str, clevel: int, shuffle: int, typesize: int, blocksize: int
) -> None:
    check_blosc(data, cname=cname, clevel=clevel, shuffle=shuffle, typesize=typesize, blocksize=blocksize)


# --- zstd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", [-5, 1, 3, 9, 22])
def test_zstd_of_every_level_equals_numcodecs(level: int, checksum: bool) -> None:
    codec = numcodecs.Zstd(level=level, checksum=checksum)
    for data in (b"\7", smooth(70_000), noise(70_000), bytes(300_000)):
        assert decode(bytes(codec.encode(data)), len(data), "zstd") == data


def test_zstd_frames_without_a_content_size_are_decoded() -> None:
    data = noise(5000)
    stored = zstd_frame(data, block_bytes=700)
    assert bytes(numcodecs.Zstd().decode(stored)) == data
    assert decode(stored, len(data), "zstd") == data


def test_several_zstd_frames_are_one_chunk() -> None:
    parts = [smooth(3000), noise(1000), b"", bytes(2000)]
    stored = b"".join(bytes(numcodecs.zstd.compress(part, 1)) for part in parts if part) + zstd_frame(b"")
    assert decode(stored, 6000, "zstd") == b"".join(parts)
    mixed = zstd_frame(parts[0]) + bytes(numcodecs.zstd.compress(parts[1], 1)) + zstd_frame(parts[3])
    assert decode(mixed, 6000, "zstd") == b"".join(parts)


def test_skippable_zstd_frames_are_skipped() -> None:
    data = smooth(3000)
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"notes"
    stored = bytes(numcodecs.zstd.compress(data, 1))
    for chunk in (skippable + stored, stored + skippable, skippable + stored + skippable):
        assert decode(chunk, len(data), "zstd") == data


def test_a_zstd_checksum_that_does_not_match_is_corrupt() -> None:
    stored = bytearray(numcodecs.Zstd(level=1, checksum=True).encode(noise(1000)))
    stored[-1] ^= 1
    with pytest.raises(CorruptChunkError, match="zstd"):
        decode(bytes(stored), 1000, "zstd")


# --- gzip and zlib ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_gzip_and_zlib_of_every_level_equal_numcodecs(level: int) -> None:
    for data in (b"\7", smooth(70_000), noise(70_000), bytes(300_000)):
        assert decode(bytes(numcodecs.GZip(level=level).encode(data)), len(data), "gzip") == data
        assert decode(bytes(numcodecs.Zlib(level=level).encode(data)), len(data), "zlib") == data


def test_several_gzip_members_are_one_chunk() -> None:
    parts = [smooth(3000), b"", noise(1000), bytes(2000)]
    stored = b"".join(gzip.compress(part) for part in parts)
    assert bytes(numcodecs.GZip().decode(stored)) == b"".join(parts)
    assert decode(stored, 6000, "gzip") == b"".join(parts)


@pytest.mark.parametrize("padding", [1, 7, 512])
def test_zeros_behind_and_between_gzip_members_are_padding(padding: int) -> None:
    first, second = smooth(3000), noise(500)
    stored = gzip.compress(first) + bytes(padding) + gzip.compress(second) + bytes(padding)
    assert bytes(numcodecs.GZip().decode(stored)) == first + second
    assert decode(stored, 3500, "gzip") == first + second


def test_a_gzip_header_with_name_comment_extra_and_checksum_is_read() -> None:
    data = smooth(3000)
    flags = 0x02 | 0x04 | 0x08 | 0x10
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\x00\x03"
    head += struct.pack("<H", 6) + b"AB\x02\x00xy" + b"name\0" + b"comment\0"
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    stored = head + gzip.compress(data)[10:]
    assert gzip.decompress(stored) == data
    assert decode(stored, len(data), "gzip") == data


def test_what_is_no_gzip_member_behind_one_is_corrupt_as_in_python() -> None:
    stored = gzip.compress(smooth(3000)) + b"garbage"
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(stored)
    with pytest.raises(CorruptChunkError, match="gzip"):
        decode(stored, 3000, "gzip")


def test_bytes_behind_a_zlib_stream_are_ignored_as_numcodecs_does() -> None:
    stored = zlib.compress(smooth(3000)) + b"behind"
    assert bytes(numcodecs.Zlib().decode(stored)) == smooth(3000)
    assert decode(stored, 3000, "zlib") == smooth(3000)


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_deflate_checksum_that_does_not_match_is_corrupt(kind: str) -> None:
    data = noise(1000)
    stored = bytearray(gzip.compress(data) if kind == "gzip" else zlib.compress(data))
    stored[-5 if kind == "gzip" else -1] ^= 1
    with pytest.raises(CorruptChunkError, match=kind):
        decode(bytes(stored), 1000, kind)


@pytest.mark.parametrize("window_bits", [9, 12, 15])
def test_deflate_windows_of_every_size_are_read(window_bits: int) -> None:
    data = smooth(70_000)
    for kind, more in (("zlib", 0), ("gzip", 16)):
        encoder = zlib.compressobj(6, zlib.DEFLATED, window_bits + more)
        assert decode(encoder.compress(data) + encoder.flush(), len(data), kind) == data


def test_one_inflate_stream_serves_zlib_and_gzip_one_after_the_other() -> None:
    data = smooth(3000)
    stored = gzip.compress(zlib.compress(data))
    assert decode(stored, len(data), "gzip", "zlib") == data
    assert decode(zlib.compress(gzip.compress(data)), len(data), "zlib", "gzip") == data


# --- lz4 --------------------------------------------------------------------------------------------------------


def test_lz4_equals_numcodecs() -> None:
    for size in (1, 11, 12, 13, 64, 1000, 70_000):
        for data in (smooth(size), noise(size), bytes(size), compressible(size)):
            assert decode(bytes(numcodecs.LZ4().encode(data)), size, "lz4") == data


# --- crc32c -----------------------------------------------------------------------------------------------------

#: RFC 3720 appendix B.4, and the check value of the catalogue of CRC algorithms.
CRC32C_VECTORS = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "checksum"), CRC32C_VECTORS)
def test_crc32c_is_the_checksum_of_rfc_3720(data: bytes, checksum: int) -> None:
    word = struct.pack("<I", checksum)
    assert decode(data + word, len(data), "crc32c") == data
    assert decode(word + data, len(data), {"name": "crc32c", "checksum_at_start": True}) == data
    assert (
        decode(
            zlib.compress(data) + struct.pack("<I", google_crc32c.value(zlib.compress(data))),
            len(data),
            "crc32c",
            "zlib",
        )
        == data
    )
    with pytest.raises(CorruptChunkError, match="crc32c"):
        decode(data + struct.pack("<I", checksum ^ 1), len(data), "crc32c")
    with pytest.raises(CorruptChunkError, match="crc32c"):
        decode(data + struct.pack(">I", checksum), len(data), "crc32c")


def test_crc32c_of_every_length_equals_numcodecs() -> None:
    for size in (*range(1, 70), 4095, 4096, 4097):
        data = noise(size, size)
        assert decode(bytes(CRC32C().encode(data)), size, "crc32c") == data
        at_start = {"name": "crc32c", "checksum_at_start": True}
        assert decode(bytes(CRC32C(location="start").encode(data)), size, at_start) == data


# --- chains -----------------------------------------------------------------------------------------------------

ENCODERS: dict[str, Any] = {
    "blosc": numcodecs.Blosc(cname="lz4", shuffle=2),
    "zstd": numcodecs.Zstd(level=1, checksum=True),
    "gzip": numcodecs.GZip(level=1),
    "zlib": numcodecs.Zlib(level=1),
    "lz4": numcodecs.LZ4(),
    "crc32c": CRC32C(),
}


@pytest.mark.parametrize("chain", list(itertools.product(ENCODERS, repeat=2)), ids="-".join)
def test_every_chain_of_two_codecs_is_decoded_in_reverse(chain: tuple[str, ...]) -> None:
    """A checksum inside of a compressor was refused: four bytes more than the chunk."""
    for data in (smooth(20_000), noise(20_000), noise(3)):
        stored = data
        for name in chain:
            stored = bytes(ENCODERS[name].encode(stored))
        assert decode(stored, len(data), *reversed(chain)) == data


@pytest.mark.parametrize("first", ENCODERS)
def test_chains_of_many_codecs_are_decoded_in_reverse(first: str) -> None:
    chain = [first, "crc32c", "lz4", "blosc", "crc32c", "crc32c", "gzip", "zstd", "zlib", "crc32c"]
    for data in (smooth(20_000), noise(200_000)):
        stored = data
        for name in chain:
            stored = bytes(ENCODERS[name].encode(stored))
        assert decode(stored, len(data), *reversed(chain)) == data


@pytest.mark.parametrize("codec", ["zstd", "gzip", "zlib", "lz4", "blosc", "crc32c"])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_chunk_of_another_size_than_the_metadata_implies_is_corrupt(codec: str, difference: int) -> None:
    stored = bytes(ENCODERS[codec].encode(smooth(5000)))
    with pytest.raises(CorruptChunkError):
        decode(stored, 5000 + difference, codec)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="lzma"):
        decode(b"", 10, "lzma")

"""Damaged chunks that zarr-python's codecs decode: an error that names the chunk, soon, in little memory; no signal."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.checksum32 import CRC32
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from tests.support import warm
from tests.support.examples import slow
from tests.support.oracle import NUMCODECS_WARNING, AnyArray, chunk_files
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

WAYS = ("stream", "at_random", "verify", "command")
Damage = Callable[[bytes], bytes]


def noise(count: int) -> AnyArray:
    return np.random.default_rng(1).integers(-(2**31), 2**31, count, np.int32)


def words(count: int) -> AnyArray:
    found = np.empty(count, dtype=object)
    found[:] = [f"sample {i} {'ä☃' * (i % 3)}" for i in range(count)]
    return found


def cut(length: int) -> Damage:
    return lambda good: good[:length]


def flip(position: int, pattern: int = 0x80) -> Damage:
    return lambda good: good[:position] + bytes([good[position] ^ pattern]) + good[position + 1 :]


def shorter_inner_chunk(good: bytes) -> bytes:
    """Return a shard of two inner chunks whose index, with a valid checksum, says that the first one is shorter."""
    index = struct.unpack("<4Q", good[-36:-4])
    changed = struct.pack("<4Q", index[0], index[1] - 50, *index[2:])
    return good[:-36] + changed + struct.pack("<I", google_crc32c.value(changed))


def v2(*filters: Any, compressor: Any, **options: Any) -> dict[str, Any]:
    return {"zarr_format": 2, "filters": list(filters) or None, "compressors": compressor} | options


def astype_v3() -> list[Any]:
    return [zarr_numcodecs.AsType(encode_dtype="<i4", decode_dtype="<i4")]


def nested(*compressors: Any) -> ShardingCodec:
    inner = ShardingCodec(chunk_shape=(1000,), codecs=[BytesCodec(), *compressors])
    return ShardingCodec(chunk_shape=(2000,), codecs=[inner])


def unchecked(*compressors: Any) -> ShardingCodec:
    """Return shards whose index stands in front, without a checksum."""
    codecs = [*astype_v3(), BytesCodec(), *compressors]
    return ShardingCodec(chunk_shape=(2000,), codecs=codecs, index_codecs=[BytesCodec()], index_location="start")


BLOSC = numcodecs.Blosc(cname="lz4")
NUMBERS, TEXT = np.arange(4000, dtype="<i4"), words(300)
U7 = np.array([f"{i}ä" for i in range(3000)], "<U7")

#: Name -> data, what the array is made with (new each time), what is done to the first chunk.
CASES: dict[str, tuple[AnyArray, Callable[[], dict[str, Any]], Damage]] = {
    "16 MB cut to 100 bytes": (
        np.arange(4_000_000, dtype="<i4"),
        lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=numcodecs.Blosc(shuffle=0)),
        cut(100),
    ),
    "16 MB cut to 100 bytes, v3": (
        np.arange(4_000_000, dtype="<i4"),
        lambda: {"filters": astype_v3(), "compressors": BloscCodec(typesize=4)},
        cut(100),
    ),
    "16016 bytes cut to 8000": (noise(4000), lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=BLOSC), cut(8000)),
    "16016 bytes cut to 8000, v3": (
        noise(4000),
        lambda: {"filters": astype_v3(), "compressors": BloscCodec(typesize=4)},
        cut(8000),
    ),
    "16016 bytes cut to 8000, v3 numcodecs": (
        noise(4000),
        lambda: {"filters": astype_v3(), "compressors": zarr_numcodecs.Blosc(cname="lz4", shuffle=1)},
        cut(8000),
    ),
    "Blosc that is a filter": (
        NUMBERS,
        lambda: v2(BLOSC, compressor=CRC32()),
        lambda good: with_crc32(good[4:-40]),
    ),
    "an inner size that is too small": (
        noise(4000),
        lambda: {"chunks": (2000,), "shards": (4000,), "filters": astype_v3(), "compressors": BloscCodec(typesize=4)},
        shorter_inner_chunk,
    ),
    "an inner size that is too small, in a shard of shards": (
        noise(4000),
        lambda: {"serializer": nested(BloscCodec(typesize=4)), "filters": None, "compressors": None},
        lambda good: shorter_in_first_shard(good),
    ),
    **{
        f"an offset of 2**{56 + bit}, no checksum": (
            noise(4000),
            lambda: {"serializer": unchecked(BloscCodec(typesize=4)), "filters": None, "compressors": None},
            flip(7, 1 << bit),
        )
        for bit in (0, 6, 7)
    },
    "LZ4 of 2 GB": (NUMBERS, lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=numcodecs.LZ4()), flip(3, 0x7F)),
    "Zstandard of 2**60": (
        NUMBERS,
        lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=numcodecs.Zstd()),
        lambda good: good[:4] + b"\xe0" + struct.pack("<Q", 2**60) + good[7:],
    ),
    "a bomb in bz2": (NUMBERS, lambda: v2(compressor=numcodecs.BZ2()), lambda _: bomb(numcodecs.BZ2(9))),
    "a bomb in lzma": (NUMBERS, lambda: v2(compressor=numcodecs.LZMA()), lambda _: bomb(numcodecs.LZMA(preset=0))),
    "a bomb in zlib": (
        NUMBERS,
        lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=numcodecs.Zlib()),
        lambda _: bomb(numcodecs.Zlib(1)),
    ),
    "a bomb in gzip": (
        NUMBERS,
        lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=numcodecs.GZip()),
        lambda _: bomb(numcodecs.GZip(1)),
    ),
    "a file of 40 GiB": (
        NUMBERS,
        lambda: v2(numcodecs.AsType("<i4", "<i4"), compressor=BLOSC),
        lambda good: good + bytes(1),
    ),
    "a file of 40 GiB, text": (TEXT, lambda: {"dtype": "str", "compressors": None}, lambda good: good + bytes(1)),
    "U7 cut": (U7, lambda: v2(compressor=BLOSC, dtype="<U7"), lambda good: good[:-20]),
    "U7 cut, v3": (U7, lambda: {"compressors": BloscCodec(typesize=4), "dtype": "<U7"}, lambda good: good[:-20]),
    "vlen-utf8 in Blosc, cut": (
        TEXT,
        lambda: v2(numcodecs.VLenUTF8(), compressor=BLOSC, dtype="str"),
        lambda good: good[:-20],
    ),
    "vlen-utf8 in Blosc, cut, v3": (
        TEXT,
        lambda: {"dtype": "str", "compressors": BloscCodec(typesize=1)},
        lambda good: good[:-20],
    ),
    **{
        f"vlen-utf8, {what}, {version}": (TEXT, options, damage)
        for version, options in (
            ("v2", lambda: v2(numcodecs.VLenUTF8(), compressor=None, dtype="str")),
            ("v3", lambda: {"dtype": "str", "compressors": None}),
        )
        for what, damage in (
            ("cut", lambda good: good[:-5]),
            ("cut in its header", cut(3)),
            ("more items", flip(3, 0xFF)),
            ("fewer items", flip(0, 0x08)),
            ("a longer item", flip(7, 0xFF)),
            ("a longer last item", lambda good: good + b"\0"),
        )
    },
    "vlen-utf8 in Zstandard, more items": (
        TEXT,
        lambda: {"dtype": "str", "compressors": ZstdCodec()},
        lambda _: bytes(numcodecs.Zstd().encode(struct.pack("<I", 0xFFFFFF00) + bytes(100_000))),
    ),
}


#: Cases that differ from another one in the format of Zarr or in a number; they run with --large alone.
ALIKE = {
    *("16 MB cut to 100 bytes, v3", "16016 bytes cut to 8000", "16016 bytes cut to 8000, v3 numcodecs"),
    *("an offset of 2**62, no checksum", "an offset of 2**63, no checksum", "U7 cut", "vlen-utf8 in Blosc, cut, v3"),
    *("vlen-utf8, cut, v3", "vlen-utf8, more items, v2", "vlen-utf8, fewer items, v3", "vlen-utf8, a longer item, v2"),
}

#: Those whose file is made 40 GiB long, most of it a hole.
GROWN = ("a file of 40 GiB", "a file of 40 GiB, text")


def bomb(codec: Any) -> bytes:
    return bytes(codec.encode(bytes(64 << 20)))


def with_crc32(payload: bytes) -> bytes:
    return bytes(CRC32().encode(payload))


def shorter_in_first_shard(good: bytes) -> bytes:
    """Return a shard of two shards, the first of which has an index as of `shorter_inner_chunk`."""
    begin, size, *_ = struct.unpack("<4Q", good[-36:-4])
    return good[:begin] + shorter_inner_chunk(good[begin : begin + size]) + good[begin + size :]


def file_of(name: str) -> str:
    return name.replace("/", "_").replace("*", "_")


@cache
def outcomes(directory: Path, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Damage and read some of them, by name; each in a process of its own, forked from one."""
    for name in names:
        data, options, damage = CASES[name]
        path = directory / file_of(name)
        settings: dict[str, Any] = {"chunks": data.shape, "dtype": data.dtype} | options()
        array = zarr.create_array(path, shape=data.shape, **settings)
        array[...] = data
        file, *_ = chunk_files(path)
        good = file.read_bytes()
        if name.startswith("16016"):
            assert len(good) == 16016
        damaged = damage(good)
        assert damaged != good
        file.write_bytes(damaged)
        if name in GROWN:
            os.truncate(file, 40 << 30)
    command = [*warm.command(), "-W", "ignore", "-m", "tests.support.damaged", str(directory), *map(file_of, names)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=190, check=False)
    assert done.returncode == 0, done.stderr
    return {result["name"]: result for result in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, dict[str, Any]]:
    names = tuple(name for name in CASES if pytestconfig.getoption("--large") or name not in ALIKE)
    return outcomes(tmp_path_factory.mktemp("damaged"), names)


@pytest.mark.parametrize("name", [slow(name) if name in ALIKE else name for name in CASES])
def test_a_damaged_chunk_is_an_error_that_names_it(name: str, damaged: dict[str, dict[str, Any]]) -> None:
    """A signal, other values, a bare MemoryError, or 10 s were the outcome once."""
    result = damaged[file_of(name)]
    _, options, _ = CASES[name]
    key = "0" if options().get("zarr_format") == 2 else "c/0"
    for way in WAYS:
        assert result[way].startswith("CorruptChunkError: "), (way, result[way])
        assert key in result[way].split("CorruptChunkError: ")[1], (way, result[way])
    assert f"{file_of(name)} chunk {key}" in result["stream"]
    assert "verify corrupt: " in result["verify"]
    assert "status 1, " in result["command"]
    assert result["mib"] < 512


def test_cases_are_different_files() -> None:
    assert len(set(map(file_of, CASES))) == len(CASES)
    assert set(CASES) >= ALIKE

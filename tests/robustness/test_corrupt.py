"""Hostile bytes in the place of a chunk: one clear error or the right number of bytes, never a crash or a hang."""

from __future__ import annotations

import gzip
import itertools
import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from numcodecs.checksum32 import CRC32C

from tests.support import warm
from tests.support.cases import case
from tests.support.examples import slow
from tests.support.oracle import (
    BLOSC_COMPRESSORS,
    AnyArray,
    Layout,
    assert_rows_equal,
    blosc_buffer,
    chunk_files,
    craft_blosc,
    decode,
    drop_from_page_cache,
    encoded_array,
    no_thread_left,
    read_all,
    zstd_bomb,
    zstd_frame,
)
from zarrfeed import CorruptChunkError, StoreReadError, UnsupportedError, ZarrIterableDataset
from zarrfeed.base.native import core

SIZE = 3000


def content(size: int = SIZE) -> bytes:
    """Return bytes that every compressor makes smaller, however they are shuffled."""
    runs = np.repeat(np.random.default_rng(5).integers(0, 4, size // 30 + 1, np.uint8), 32)
    return bytes((runs + np.arange(len(runs), dtype=np.uint8) // 64)[:size])


#: A codec as `decode` takes it.
Named = str | dict[str, Any]
SHUFFLE: Named = {"name": "shuffle", "element_bytes": 4}

#: name -> (stored bytes, codecs in the order of decoding, the same with numcodecs)
CHUNKS: dict[str, tuple[bytes, tuple[Named, ...], Callable[[bytes], Any]]] = {
    **{
        f"blosc-{cname}-{shuffle}": (
            blosc_buffer(content(), cname=cname, shuffle=shuffle, typesize=4),
            ("blosc",),
            numcodecs.blosc.decompress,
        )
        for cname, shuffle in itertools.product(BLOSC_COMPRESSORS, (0, 1, 2))
    },
    **{
        f"blosc-blocks-{cname}": (
            blosc_buffer(content(), cname=cname, shuffle=2, typesize=3, blocksize=200),
            ("blosc",),
            numcodecs.blosc.decompress,
        )
        for cname in BLOSC_COMPRESSORS
    },
    "blosc-split": (
        craft_blosc(content(), typesize=4, blocksize=1024, flags=0x21),
        ("blosc",),
        numcodecs.blosc.decompress,
    ),
    "blosc-typesize1": (blosc_buffer(content(), shuffle=1, typesize=1), ("blosc",), numcodecs.blosc.decompress),
    "blosc-raw": (blosc_buffer(content(), clevel=0), ("blosc",), numcodecs.blosc.decompress),
    "zstd": (bytes(numcodecs.zstd.compress(content(), 1)), ("zstd",), numcodecs.zstd.decompress),
    "zstd-checksum": (
        bytes(numcodecs.Zstd(level=1, checksum=True).encode(content())),
        ("zstd",),
        numcodecs.zstd.decompress,
    ),
    "zstd-unknown-size": (zstd_frame(content(), block_bytes=500), ("zstd",), numcodecs.zstd.decompress),
    "gzip": (gzip.compress(content(), mtime=0), ("gzip",), gzip.decompress),
    "gzip-members": (
        gzip.compress(content()[:1000], mtime=0) + gzip.compress(content()[1000:], mtime=0),
        ("gzip",),
        gzip.decompress,
    ),
    "zlib": (zlib.compress(content()), ("zlib",), zlib.decompress),
    "lz4": (bytes(numcodecs.LZ4().encode(content())), ("lz4",), numcodecs.LZ4().decode),
    "crc32c": (bytes(CRC32C().encode(content())), ("crc32c",), CRC32C().decode),
    "none": (content(), (), bytes),
    "lz4-zstd": (
        bytes(numcodecs.zstd.compress(numcodecs.LZ4().encode(content()), 1)),
        ("zstd", "lz4"),
        lambda stored: numcodecs.LZ4().decode(numcodecs.zstd.decompress(stored)),
    ),
    "blosc-gzip": (
        gzip.compress(blosc_buffer(content()), mtime=0),
        ("gzip", "blosc"),
        lambda stored: numcodecs.blosc.decompress(gzip.decompress(stored)),
    ),
    "shuffle": (bytes(numcodecs.Shuffle(4).encode(content())), (SHUFFLE,), numcodecs.Shuffle(4).decode),
    "shuffle-zlib": (
        zlib.compress(numcodecs.Shuffle(4).encode(content())),
        ("zlib", SHUFFLE),
        lambda stored: numcodecs.Shuffle(4).decode(zlib.decompress(stored)),
    ),
    "fletcher32": (bytes(numcodecs.Fletcher32().encode(content())), ("fletcher32",), numcodecs.Fletcher32().decode),
    "blosc-shuffle": (  # with zeros behind what Blosc made, so that it consists of whole elements
        bytes(numcodecs.Shuffle(4).encode(blosc_buffer(content()) + bytes(-len(blosc_buffer(content())) % 4))),
        (SHUFFLE, "blosc"),
        lambda stored: numcodecs.blosc.decompress(bytes(numcodecs.Shuffle(4).decode(stored))),
    ),
}

BLOSC_CHUNKS = [name for name, (_, codecs, _) in CHUNKS.items() if codecs == ("blosc",)]


def decode_or_refuse(stored: bytes, codecs: tuple[Named, ...], size: int = SIZE) -> bytes | None:
    """Return what the engine makes of `stored`, or None if it refuses; anything else fails the test."""
    try:
        decoded = decode(stored, size, *codecs)
    except (CorruptChunkError, UnsupportedError):
        return None
    assert len(decoded) == size
    return decoded


def check(stored: bytes, name: str) -> None:
    """Decode hostile bytes; where numcodecs also makes a chunk of the right size of them, it is the same."""
    _, codecs, reference = CHUNKS[name]
    decoded = decode_or_refuse(stored, codecs)
    if decoded is None:
        return
    if codecs == ("blosc",) and struct.unpack("<i", stored[12:16])[0] > len(stored):
        return  # c-blosc would read behind the buffer
    expected = None
    with suppress(Exception):
        expected = bytes(reference(stored))
    if expected is not None and len(expected) == SIZE:
        assert decoded == expected


@pytest.mark.parametrize("name", CHUNKS)
def test_the_chunks_that_are_about_to_be_damaged_are_right(name: str) -> None:
    stored, codecs, reference = CHUNKS[name]
    assert decode(stored, SIZE, *codecs) == bytes(reference(stored))
    if codecs == ("blosc",) and name != "blosc-raw":
        assert not stored[2] & 2, "stored raw: the compressor would not be tested"


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_cut_off_at_any_byte_is_corrupt(name: str, tmp_path: Path) -> None:
    stored, codecs, _ = CHUNKS[name]
    checker = core.ChunkChecker(encoded_array(SIZE, codecs, tmp_path))
    for length in range(len(stored)):
        with pytest.raises(CorruptChunkError):
            checker.check_bytes(np.frombuffer(stored[:length], np.uint8))
    # The engine, which also decodes parts of a chunk, takes a hundred times as long: headers, the end, some between.
    for length in sorted({*range(min(48, len(stored))), *range(0, len(stored), 11), len(stored) - 1}):
        with pytest.raises(CorruptChunkError):
            decode(stored[:length], SIZE, *codecs)


@pytest.mark.parametrize("tail", [b"\0", b"\xff", bytes(100), b"x" * 1000])
def test_bytes_behind_a_chunk_never_change_it(tail: bytes) -> None:
    for name, (stored, codecs, _) in CHUNKS.items():
        with case(name):
            assert decode_or_refuse(stored + tail, codecs) in (None, content(), decode(stored, SIZE, *codecs))


@pytest.mark.parametrize("name", CHUNKS)
def test_random_bits_that_flip_are_an_error_or_what_numcodecs_reads(name: str, pytestconfig: pytest.Config) -> None:
    stored, _, _ = CHUNKS[name]
    noise = np.random.default_rng(list(CHUNKS).index(name))
    for _ in range(900 if pytestconfig.getoption("--large") else 100):
        damaged = bytearray(stored)
        for _ in range(noise.integers(1, 4)):
            damaged[noise.integers(len(damaged))] ^= 1 << noise.integers(8)
        check(bytes(damaged), name)


@pytest.mark.parametrize("name", CHUNKS)
def test_random_bytes_at_a_random_offset_are_an_error_or_what_numcodecs_reads(
    name: str, pytestconfig: pytest.Config
) -> None:
    stored, _, _ = CHUNKS[name]
    noise = np.random.default_rng(list(CHUNKS).index(name) + 1000)
    for _ in range(600 if pytestconfig.getoption("--large") else 70):
        damaged = bytearray(stored)
        begin = int(noise.integers(len(damaged)))
        length = int(noise.integers(1, 20))
        damaged[begin : begin + length] = noise.bytes(length)
        check(bytes(damaged), name)


@pytest.mark.parametrize("codec", ["blosc", "zstd", "gzip", "zlib", "lz4", "crc32c"])
def test_what_is_no_chunk_at_all_is_corrupt(codec: str) -> None:
    noise = np.random.default_rng(9)
    for size in (*range(40), 100, 5000):
        for stored in (noise.bytes(size), bytes(size), b"\xff" * size, b"<html>404 not found</html>"[:size]):
            if size == 0 or codec != "crc32c" or stored != bytes(4):
                assert decode_or_refuse(stored, (codec,)) is None


# --- Blosc headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "blosc-lz4-1",
        slow("blosc-zstd-2"),
        "blosc-blocks-lz4",
        slow("blosc-split"),
        slow("blosc-typesize1"),
        slow("blosc-raw"),
    ],
)
def test_every_value_of_every_blosc_header_byte_is_an_error_or_what_numcodecs_reads(name: str) -> None:
    stored, _, _ = CHUNKS[name]
    for position, value in itertools.product(range(16), range(256)):
        with case(position, value):
            check(stored[:position] + bytes([value]) + stored[position + 1 :], name)


LIES = [-(2**31), -1, 0, 1, 15, 16, 17, SIZE - 1, SIZE + 1, 65536, 2**24, 2**30, 2**31 - 1]


@pytest.mark.parametrize("offset", [4, 8, 12], ids=["nbytes", "blocksize", "cbytes"])
def test_a_blosc_header_that_lies_about_a_size_is_corrupt_or_harmless(offset: int) -> None:
    for name, lie in itertools.product(BLOSC_CHUNKS, LIES):
        stored, codecs, _ = CHUNKS[name]
        damaged = stored[:offset] + struct.pack("<i", lie) + stored[offset + 4 :]
        with case(name, lie):
            if offset == 4:
                with pytest.raises(CorruptChunkError):
                    decode(damaged, SIZE, *codecs)
            check(damaged, name)


@pytest.mark.parametrize("version", [0, 1, 3, 4, 5, 255])
def test_a_blosc_format_version_that_is_not_blosc_1_is_corrupt(version: int) -> None:
    stored, codecs, _ = CHUNKS["blosc-lz4-1"]
    with pytest.raises(CorruptChunkError, match="version"):
        decode(bytes([version]) + stored[1:], SIZE, *codecs)


@pytest.mark.parametrize("name", ["blosc-lz4-1", "blosc-blocks-lz4", "blosc-blocks-zstd", "blosc-split"])
def test_a_blosc_block_offset_that_points_anywhere_is_corrupt_or_harmless(name: str) -> None:
    stored, _, _ = CHUNKS[name]
    ends = (len(stored), len(stored) - 1, len(stored) - 4)
    _, _, _, _, nbytes, blocksize, _ = struct.unpack("<BBBBiii", stored[:16])
    for number in (-(2**31), -1, 0, 1, 15, 16, 20, 2**16, 2**30, 2**31 - 1, *ends):
        for block in range(-(-nbytes // blocksize)):
            at = 16 + 4 * block
            with case(block, number):
                check(stored[:at] + struct.pack("<i", number) + stored[at + 4 :], name)


def test_blosc_block_offsets_out_of_range_are_named() -> None:
    stored, codecs, _ = CHUNKS["blosc-blocks-lz4"]
    for value in (-1, 0, 15, len(stored), 2**31 - 1):
        with pytest.raises(CorruptChunkError, match="block begins outside"):
            decode(stored[:16] + struct.pack("<i", value) + stored[20:], SIZE, *codecs)


def test_blosc_blocks_that_overlap_are_read_as_numcodecs_reads_them() -> None:
    stored, codecs, reference = CHUNKS["blosc-blocks-lz4"]
    overlapping = stored[:20] + stored[16:20] + stored[24:]
    assert decode(overlapping, SIZE, *codecs) == reference(overlapping)


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 1, 2**30, 2**31 - 1])
@pytest.mark.parametrize("name", ["blosc-lz4-1", "blosc-blocks-zlib", "blosc-split", "blosc-zstd-1", "blosc-blosclz-0"])
def test_a_blosc_stream_that_lies_about_its_size_is_corrupt(name: str, value: int) -> None:
    stored, codecs, _ = CHUNKS[name]
    at = struct.unpack("<i", stored[16:20])[0]
    with pytest.raises(CorruptChunkError):
        decode(stored[:at] + struct.pack("<i", value) + stored[at + 4 :], SIZE, *codecs)


def test_a_blosc_header_of_one_byte_blocks_does_not_read_behind_the_table() -> None:
    header = struct.pack("<BBBBiii", 2, 1, 0x21, 4, SIZE, 1, 16 + 40)
    with pytest.raises(CorruptChunkError, match="blocks"):
        decode(header + bytes(40), SIZE, "blosc")


@pytest.mark.parametrize("compressor", [5, 6, 7])
def test_a_blosc_compressor_that_does_not_exist_is_corrupt(compressor: int) -> None:
    stored = bytearray(CHUNKS["blosc-lz4-1"][0])
    stored[2] = stored[2] & 0x1F | compressor << 5
    with pytest.raises(CorruptChunkError, match="does not exist"):
        decode(bytes(stored), SIZE, "blosc")


# --- bombs ------------------------------------------------------------------------------------------------------

_BOMB_SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from zarrfeed import CorruptChunkError
from zarrfeed.base.native import core

def status(name):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
    return int(line.split()[1]) << 10

folder, size = Path(sys.argv[1]), int(sys.argv[2])

def attempt(name):
    codecs = name.rpartition(".")[0].split("-")
    checker = core.ChunkChecker(core.ArraySpec(
        name="a", shape=(size,), chunk_shape=(size,), storage_order=(0,), sample_axis=0, item_bytes=1, swap_bytes=0,
        fill=bytes(1), root=b"/", metadata_key="", codecs=[core.CodecSpec(codec) for codec in codecs],
        key_prefix="c", key_separator="/",
    ))
    stored = np.fromfile(folder / name, np.uint8)
    before = status("VmHWM")
    try:
        checker.check_bytes(stored)
    except CorruptChunkError as error:
        result = "corrupt"
    except BaseException as error:
        result = repr(error)
    else:
        result = "decoded"
    print(name, result, status("VmHWM") - before)

names = sorted(p.name for p in folder.iterdir())
attempt(names[0])  # what an error imports is not the bomb's
print("measure")
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (64 << 20), before[1]))
for name in names:
    attempt(name)
resource.setrlimit(resource.RLIMIT_AS, before)  # what sanitizers do at exit takes more
"""


def bombs() -> Iterator[tuple[str, bytes]]:
    declared = 2**31 - 1
    huge = 256 << 20
    zeros = bytes(1 << 20)
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield "gzip.real", b"".join(deflate.compress(zeros) for _ in range(huge >> 20)) + deflate.flush()
    deflate = zlib.compressobj(9)
    inner = b"".join(deflate.compress(zeros) for _ in range(huge >> 20)) + deflate.flush()
    yield "zlib.real", inner
    yield "gzip-zlib.nested", gzip.compress(inner)
    yield "zstd.real", zstd_bomb(huge)
    yield "zstd-zstd.nested", bytes(numcodecs.zstd.compress(zstd_bomb(huge), 1))
    yield "zstd.declared", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\x00\x00"
    yield "zstd.window", b"\x28\xb5\x2f\xfd\x00\x88" + b"\x01\x00\x00"  # a window of 128 MiB
    stored = blosc_buffer(content())
    for flags in (0x21, 0x23):
        for blocksize in (declared, 1 << 20, 1):
            head = struct.pack("<BBBBiii", 2, 1, flags, 4, declared, blocksize, len(stored))
            yield f"blosc.declared{flags}-{blocksize}", head + stored[16:]
    yield "blosc.blocksize", stored[:8] + struct.pack("<i", declared) + stored[12:]
    yield "blosc.lz4", craft_blosc(bytes(numcodecs.LZ4().encode(zeros)), typesize=1, blocksize=SIZE, flags=0x30)
    yield "lz4.declared", struct.pack("<I", declared) + bytes(numcodecs.LZ4().encode(content()))[4:]
    yield "lz4.unsigned", struct.pack("<I", 2**32 - 1) + bytes(numcodecs.LZ4().encode(content()))[4:]
    yield "lz4.real", bytes(numcodecs.LZ4().encode(bytes(huge)))


def test_decompression_bombs_are_refused_without_memory_for_what_they_declare(tmp_path: Path) -> None:
    names = []
    for name, stored in bombs():
        (tmp_path / name).write_bytes(stored)
        names.append(name)
    script = [*warm.command(), "-c", _BOMB_SCRIPT, str(tmp_path), str(SIZE)]
    # a process of its own: the peak of this one is that of all tests before
    output = subprocess.run(script, capture_output=True, text=True, timeout=250, check=False)
    assert output.returncode == 0, output.stderr
    results = output.stdout.split("measure\n")[1].splitlines()
    assert [line.split()[0] for line in results] == sorted(names)
    for line in results:
        name, result, growth = line.rsplit(maxsplit=2)
        assert result == "corrupt", line
        assert int(growth) < 8 << 20, f"{name} made {growth} bytes of memory"


# --- through the dataset ----------------------------------------------------------------------------------------


def truncate(stored: bytes) -> bytes:
    return stored[: len(stored) // 2]


def empty(_: bytes) -> bytes:
    return b""


def garbage(stored: bytes) -> bytes:
    return np.random.default_rng(1).bytes(len(stored))


def text(_: bytes) -> bytes:
    return json.dumps({"error": "quota exceeded"}).encode()


DAMAGE_CASES = [
    (codec, damage)
    for codec in ("none", "blosc-lz4-shuffle", "zstd", "gzip", "zstd-crc32c", "lz4")
    for damage in (truncate, empty, garbage, text)
    if (codec, damage) != ("none", garbage)  # nothing says that those bytes are wrong
]


@pytest.mark.parametrize(("codec", "damage"), DAMAGE_CASES)
def test_a_corrupt_chunk_is_one_error_with_array_and_key_and_the_dataset_lives_on(
    codec: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    layout = Layout(2, (64, 6, 8), (4, 3, 8), codec=codec)
    array = layout.write(tmp_path / "a")
    expected = read_all(array)
    victim = tmp_path / "a" / "7.1.0"
    healthy = victim.read_bytes()
    with ZarrIterableDataset(tmp_path / "a", batch_size=5, shuffle=True, return_index=True, num_threads=3) as dataset:
        run_epoch(dataset, expected)
        with no_thread_left():
            victim.write_bytes(damage(healthy))
            for _ in range(2):
                with pytest.raises(CorruptChunkError) as caught:
                    run_epoch(dataset, expected)
                assert f"{tmp_path / 'a'} chunk 7.1.0: " in str(caught.value)
                assert isinstance(caught.value, ValueError)
        victim.write_bytes(healthy)
        assert run_epoch(dataset, expected) == len(expected)


def run_epoch(dataset: ZarrIterableDataset, expected: AnyArray) -> int:
    """Read an epoch; every batch that arrives is right. Return the samples."""
    samples = 0
    for batch in dataset:
        assert isinstance(batch, tuple)
        assert_rows_equal(batch[0], batch[-1], expected)
        samples += len(batch[-1])
    return samples


def test_batches_before_a_corrupt_chunk_are_delivered_and_nothing_after_the_error(tmp_path: Path) -> None:
    layout = Layout(shape=(400, 8), chunks=(4, 8), codec="zstd")
    array = layout.write(tmp_path / "a")
    expected = read_all(array)
    (tmp_path / "a" / "c" / "90" / "0").write_bytes(b"no chunk")
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=4, return_index=True, num_threads=2)
    batches = iter(dataset)
    delivered: list[int] = []

    def read() -> None:
        for batch in batches:
            assert isinstance(batch, tuple)
            assert_rows_equal(batch[0], batch[1], expected)
            delivered.extend(batch[1].tolist())

    with pytest.raises(CorruptChunkError, match="c/90/0"):
        read()
    assert delivered == list(range(len(delivered)))
    assert len(delivered) <= 360
    with pytest.raises(StopIteration):
        next(batches)
    dataset.close()


@pytest.mark.parametrize("batch_size", [None, 3])
def test_an_error_reaches_the_consumer_in_whichever_way_it_reads(batch_size: int | None, tmp_path: Path) -> None:
    layout = Layout(shape=(20, 8), chunks=(4, 8), codec="blosc-lz4-shuffle")
    layout.write(tmp_path / "a")
    for file in chunk_files(tmp_path / "a"):
        file.write_bytes(truncate(file.read_bytes()))
    with no_thread_left():
        dataset = ZarrIterableDataset(tmp_path / "a", batch_size=batch_size, shuffle=True)
        with pytest.raises(CorruptChunkError, match="chunk c/"):
            next(iter(dataset))
        dataset.close()


@pytest.mark.parametrize("budget", ["1GiB", "6MiB"], ids=["resident", "streamed"])
def test_a_corrupt_chunk_of_the_targets_names_the_targets(budget: str, tmp_path: Path) -> None:
    Layout(shape=(64, 6), chunks=(8, 6)).write(tmp_path / "x")
    Layout(shape=(64, 16, 64), chunks=(3, 16, 64), dtype="f8", codec="zstd").write(tmp_path / "y")
    (tmp_path / "y" / "c" / "3" / "0" / "0").write_bytes(b"no chunk")
    with no_thread_left():
        dataset = ZarrIterableDataset(tmp_path / "x", tmp_path / "y", batch_size=5, shuffle=True, memory_budget=budget)
        for _ in range(2):
            with pytest.raises(CorruptChunkError, match=r"y chunk c/3/0/0: "):
                list(dataset)
        dataset.close()


def test_a_corrupt_chunk_that_is_not_in_the_page_cache_is_an_error_too(disk_path: Path) -> None:
    Layout(shape=(64, 600), chunks=(4, 600), codec="zstd").write(disk_path / "a")
    victim = disk_path / "a" / "c" / "9" / "0"
    victim.write_bytes(truncate(victim.read_bytes()))
    drop_from_page_cache(chunk_files(disk_path / "a"))
    with (
        no_thread_left(),
        ZarrIterableDataset(disk_path / "a", batch_size=4) as dataset,
        pytest.raises(CorruptChunkError, match="c/9/0"),
    ):
        list(dataset)


def test_many_corrupt_chunks_at_once_are_one_error(tmp_path: Path) -> None:
    Layout(shape=(200, 3, 8), chunks=(1, 1, 8), codec="zstd").write(tmp_path / "a")
    for file in chunk_files(tmp_path / "a"):
        file.write_bytes(b"no chunk")
    with no_thread_left(), ZarrIterableDataset(tmp_path / "a", batch_size=4, num_threads=8) as dataset:
        for _ in range(20):
            with pytest.raises(CorruptChunkError, match=r"a chunk c/\d+/\d/0: "):
                list(dataset)


def test_a_chunk_longer_than_the_metadata_implies_is_no_chunk_of_this_array(tmp_path: Path) -> None:
    """An uncompressed chunk of another array in this place: zarr-python refuses it as well."""
    Layout(shape=(20, 8), chunks=(4, 8)).write(tmp_path / "a")
    victim = tmp_path / "a" / "c" / "2" / "0"
    victim.write_bytes(victim.read_bytes() + bytes(4))
    message = r"c/2/0: decodes to 132 bytes, the metadata implies 128"
    with ZarrIterableDataset(tmp_path / "a", batch_size=4) as dataset, pytest.raises(CorruptChunkError, match=message):
        list(dataset)


def test_a_corrupt_chunk_is_not_a_store_error_and_the_other_way_round() -> None:
    assert not issubclass(CorruptChunkError, OSError)
    assert not issubclass(StoreReadError, ValueError)

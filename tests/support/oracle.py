"""What the tests compare with: zarr-python and numcodecs on the same store, byte for byte."""

from __future__ import annotations

import gc
import json
import math
import os
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numcodecs
import numpy as np
import numpy.typing as npt
import torch
import zarr
from numcodecs.checksum32 import CRC32C
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from tests.support.flat import iterable_dataset
from tests.support.proc import open_files, thread_ids
from zarrfeed import ZarrIterableDataset
from zarrfeed.base.native import core
from zarrfeed.engine.batch_arrays import ByteArrays
from zarrfeed.plan.order.order import Order

AnyArray: TypeAlias = npt.NDArray[Any]
ZarrFormat: TypeAlias = Literal[2, 3]

ZARR_FORMATS: tuple[ZarrFormat, ...] = (2, 3)

#: pytest filter: zarr warns of every v3 codec that it takes from numcodecs, when written and when opened.
NUMCODECS_WARNING = "ignore:Numcodecs codecs are not in the Zarr version 3:zarr.errors.ZarrUserWarning"

# --- data -------------------------------------------------------------------------------------------------------

#: Every dtype that zarr 3.1.6 and torch share, without byte order.
DTYPES = (
    *("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"),
    *("f2", "f4", "f8", "c8", "c16"),
)


def numbered(shape: tuple[int, ...], dtype: str = "f4", *, sample_axis: int = 0, period: int | None = None) -> AnyArray:
    """Make an array in which every sample says which one it is, and every item where it is.

    Bits are set as integers, so floats hold denormals, infinities and NaNs with payloads. With `period`, items repeat
    inside a sample (and still differ between samples), so that the array compresses.
    """
    native = np.dtype(dtype).newbyteorder("=")
    n = shape[sample_axis]
    rest = shape[:sample_axis] + shape[sample_axis % len(shape) + 1 :]
    units = math.prod(rest) * (2 if native.kind == "c" else 1)
    unit_bytes = native.itemsize // (2 if native.kind == "c" else 1)
    # (n, 1) and (1, units)
    sample = np.arange(1, n + 1, dtype=np.uint64)[:, None]
    unit = np.arange(units, dtype=np.uint64)[None, :]
    words: AnyArray
    if native.kind == "b":
        words = ((sample >> (unit % 11)) & 1) ^ (unit // 11 % 2)
    elif unit_bytes == 1:
        words = np.where(unit == 1, sample >> 8, sample + unit % (period or 251))
    else:
        words = sample * 1009 + unit % (period or units or 1)
    words = words.astype(f"u{unit_bytes}", copy=False)
    if native.kind != "b" and unit_bytes > 1:
        noise = np.random.default_rng(7)
        where = noise.random((n, units)) < 1 / 32
        where[:, 0] = False  # the sample's own number stays
        words[where] = noise.integers(0, 2 ** (8 * unit_bytes), int(where.sum()), words.dtype, endpoint=False)
    return np.moveaxis(words.view(native).reshape(n, *rest), 0, sample_axis)


def raw_rows(rows: AnyArray | torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of each row, shape (rows, bytes of a row)."""
    if isinstance(rows, torch.Tensor):
        rows = rows.contiguous().view(torch.uint8).numpy() if rows.dtype == torch.bfloat16 else rows.numpy()
    flat = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder("="), copy=False))
    return flat.reshape(len(flat), -1).view(np.uint8).reshape(len(flat), -1)


# --- codecs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compression:
    """A chain of codecs of bytes, in the order of encoding, for items of some size. None: not in that format."""

    v2: Callable[[int], list[Any]] | None
    v3: Callable[[int], list[Any]] | None


def _blosc(cname: str, shuffle: int, *, typesize: int | None = None, blocksize: int = 0) -> Compression:
    name: Any = ("noshuffle", "shuffle", "bitshuffle")[shuffle]
    compressor: Any = cname
    return Compression(
        lambda _: [
            numcodecs.Blosc(cname=cname, shuffle=shuffle, blocksize=blocksize)
            if typesize is None
            else numcodecs.Blosc(cname=cname, shuffle=shuffle, blocksize=blocksize, typesize=typesize)
        ],
        lambda item: [BloscCodec(cname=compressor, shuffle=name, typesize=typesize or item, blocksize=blocksize)],
    )


BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")

CODECS: dict[str, Compression] = {
    "none": Compression(lambda _: [], lambda _: []),
    **{
        f"blosc-{cname}-{name}": _blosc(cname, shuffle)
        for cname in BLOSC_COMPRESSORS
        for shuffle, name in enumerate(SHUFFLES)
    },
    # the trap: nbytes is no multiple of such a typesize
    **{f"blosc-bitshuffle-typesize{n}": _blosc("lz4", 2, typesize=n) for n in (3, 7, 16)},
    "blosc-shuffle-typesize5": _blosc("zstd", 1, typesize=5),
    # c-blosc makes larger blocks where it would split them: of 128 items or more, by compressors that are fast
    "blosc-many-blocks": _blosc("lz4", 1, blocksize=400),
    "blosc-many-blocks-zstd": _blosc("zstd", 1, blocksize=4096),
    "zstd": Compression(lambda _: [numcodecs.Zstd(level=1)], lambda _: [ZstdCodec(level=1)]),
    "zstd-checksum": Compression(
        lambda _: [numcodecs.Zstd(level=1, checksum=True)], lambda _: [ZstdCodec(level=1, checksum=True)]
    ),
    "gzip": Compression(lambda _: [numcodecs.GZip(level=1)], lambda _: [GzipCodec(level=1)]),
    "zlib": Compression(lambda _: [numcodecs.Zlib(level=1)], lambda _: [zarr_numcodecs.Zlib(level=1)]),
    "lz4": Compression(lambda _: [numcodecs.LZ4()], lambda _: [zarr_numcodecs.LZ4()]),
    "crc32c": Compression(lambda _: [CRC32C()], lambda _: [Crc32cCodec()]),
    "crc32c-at-start": Compression(
        lambda _: [CRC32C(location="start")], lambda _: [zarr_numcodecs.CRC32C(location="start")]
    ),
    "zstd-crc32c": Compression(
        lambda _: [numcodecs.Zstd(level=1), CRC32C()], lambda _: [ZstdCodec(level=1), Crc32cCodec()]
    ),
    "crc32c-blosc-crc32c": Compression(
        lambda _: [CRC32C(), numcodecs.Blosc(cname="lz4"), CRC32C()],
        lambda n: [Crc32cCodec(), BloscCodec(cname="lz4", typesize=n), Crc32cCodec()],
    ),
    "blosc-zstd": Compression(
        lambda _: [numcodecs.Blosc(cname="lz4"), numcodecs.Zstd(level=1)],
        lambda n: [BloscCodec(cname="lz4", typesize=n), ZstdCodec(level=1)],
    ),
    "zlib-blosc": Compression(
        lambda _: [numcodecs.Zlib(level=1), numcodecs.Blosc(cname="zstd")],
        lambda _: [zarr_numcodecs.Zlib(level=1), BloscCodec(cname="zstd", typesize=1)],
    ),
    "gzip-lz4-zstd": Compression(
        lambda _: [numcodecs.GZip(level=1), numcodecs.LZ4(), numcodecs.Zstd(level=1)],
        lambda _: [GzipCodec(level=1), zarr_numcodecs.LZ4(), ZstdCodec(level=1)],
    ),
    "shuffle": Compression(lambda n: [numcodecs.Shuffle(n)], lambda n: [zarr_numcodecs.Shuffle(elementsize=n)]),
    "shuffle-zlib": Compression(
        lambda n: [numcodecs.Shuffle(n), numcodecs.Zlib(level=1)],
        lambda n: [zarr_numcodecs.Shuffle(elementsize=n), zarr_numcodecs.Zlib(level=1)],
    ),
    "shuffle-blosc": Compression(
        lambda n: [numcodecs.Shuffle(n), numcodecs.Blosc(cname="lz4", shuffle=2)],
        lambda n: [zarr_numcodecs.Shuffle(elementsize=n), BloscCodec(cname="lz4", typesize=n)],
    ),
    "blosc-shuffle": Compression(  # of one byte, which divides whatever Blosc makes
        lambda _: [numcodecs.Blosc(cname="lz4"), numcodecs.Shuffle(1)],
        lambda n: [BloscCodec(cname="lz4", typesize=n), zarr_numcodecs.Shuffle(elementsize=1)],
    ),
    "shuffle-crc32c-zstd": Compression(
        lambda n: [numcodecs.Shuffle(n), CRC32C(), numcodecs.Zstd(level=1)],
        lambda n: [zarr_numcodecs.Shuffle(elementsize=n), Crc32cCodec(), ZstdCodec(level=1)],
    ),
    "fletcher32": Compression(lambda _: [numcodecs.Fletcher32()], lambda _: [zarr_numcodecs.Fletcher32()]),
    "fletcher32-zlib": Compression(
        lambda _: [numcodecs.Fletcher32(), numcodecs.Zlib(level=1)],
        lambda _: [zarr_numcodecs.Fletcher32(), zarr_numcodecs.Zlib(level=1)],
    ),
    "shuffle-zlib-fletcher32": Compression(  # as h5py writes HDF5
        lambda n: [numcodecs.Shuffle(n), numcodecs.Zlib(level=1), numcodecs.Fletcher32()],
        lambda n: [zarr_numcodecs.Shuffle(elementsize=n), zarr_numcodecs.Zlib(level=1), zarr_numcodecs.Fletcher32()],
    ),
    # v3 arrays whose metadata says numcodecs.<name>
    "numcodecs-blosc": Compression(None, lambda _: [zarr_numcodecs.Blosc(cname="zstd", shuffle=1)]),
    "numcodecs-zstd": Compression(None, lambda _: [zarr_numcodecs.Zstd(level=1)]),
    "numcodecs-gzip": Compression(None, lambda _: [zarr_numcodecs.GZip(level=1)]),
    "numcodecs-crc32c": Compression(None, lambda _: [zarr_numcodecs.CRC32C()]),
}


def blosc_buffer(
    data: bytes,
    *,
    cname: str = "lz4",
    clevel: int = 5,
    shuffle: int = 1,
    typesize: int = 4,
    blocksize: int = 0,
) -> bytes:
    """Compress with c-blosc 1, as numcodecs does, with any typesize."""
    out: bytes = numcodecs.blosc.compress(data, cname.encode(), clevel, shuffle, blocksize, typesize)
    return out


def craft_blosc(data: bytes, *, typesize: int, blocksize: int, flags: int) -> bytes:
    """Make a Blosc 1 buffer whose streams are stored raw: any blocksize, split or not, shuffled as `flags` claim."""
    blocks = [data[i : i + blocksize] for i in range(0, len(data), blocksize)]
    offset = 16 + 4 * len(blocks)
    table, body = b"", b""
    for block in blocks:
        split = not flags & 0x10 and typesize <= 16 and blocksize // typesize >= 128 and len(block) == blocksize
        stream_bytes = len(block) // typesize if split else len(block)
        table += struct.pack("<i", offset + len(body))
        for i in range(0, len(block), stream_bytes):
            body += struct.pack("<i", stream_bytes) + block[i : i + stream_bytes]
    header = struct.pack("<BBBBiii", 2, 1, flags, typesize, len(data), blocksize, offset + len(body))
    return header + table + body


def zstd_frame(data: bytes, *, block_bytes: int = 100_000) -> bytes:
    """Make a Zstandard frame of raw blocks that does not declare its content size."""
    blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)] or [b""]
    body = b"".join(
        struct.pack("<I", (number == len(blocks) - 1) | len(block) << 3)[:3] + block
        for number, block in enumerate(blocks)
    )
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x40" + body  # a window of 256 KiB


def zstd_bomb(size: int) -> bytes:
    """Make a Zstandard frame of zeros that does not declare its content size: four bytes for every 128 KiB."""
    block = 128 << 10
    count = size // block
    blocks = [struct.pack("<I", (number == count - 1) | 1 << 1 | block << 3)[:3] + b"\0" for number in range(count)]
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x40" + b"".join(blocks)


def encoded_array(size: int, codecs: Sequence[str | dict[str, Any]], root: Path) -> core.ArraySpec:
    """Describe an array of one chunk of `size` bytes, below `root`, with codecs in the order of decoding."""
    described: list[dict[str, Any]] = [{"name": codec} if isinstance(codec, str) else codec for codec in codecs]
    return core.ArraySpec(
        name="array",
        shape=(1, size),
        chunk_shape=(1, size),
        storage_order=(0, 1),
        sample_axis=0,
        item_bytes=1,
        swap_bytes=0,
        fill=b"\0",
        codecs=[core.CodecSpec(**d) for d in described],
        root=os.fsencode(root),
        metadata_key="",
        key_prefix="c",
        key_separator=".",
    )


@cache
def _folder_of_chunk() -> tuple[tempfile.TemporaryDirectory[str], int, core.EpochPlan]:
    """Make, once, the folder of the chunk that `decode` reads, its file, which stays open, and the plan."""
    directory = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    file = os.open(Path(directory.name) / "c.0.0", os.O_RDWR | os.O_CREAT)
    return directory, file, Order(1, 1, shuffle=False, seed=0, lanes=1).plan(0).to_core()


@lru_cache(maxsize=1)  # each keeps a thread
def _engine_of_chunk(size: int, codecs: str) -> core.Engine:
    """Return the engine for chunks of a size with these codecs, as JSON: to start one takes longer than to decode."""
    field = core.FieldSpec.stored(encoded_array(size, json.loads(codecs), Path(_folder_of_chunk()[0].name)))
    return core.Engine([field], core.EngineOptions(batch_size=1, num_threads=1, num_fetch_threads=0))


def decode(stored: bytes, size: int, *codecs: str | dict[str, Any]) -> bytes:
    """Decode with the engine: `codecs` in the order of decoding, `size` the bytes that the metadata implies.

    The chunk is written over the one before, and calls in a row for the same size and codecs share an engine, which
    goes on after errors: a new file and a new thread for each took four fifths of the time.
    """
    _, file, plan = _folder_of_chunk()
    os.ftruncate(file, len(stored))
    assert os.pwrite(file, stored, 0) == len(stored)
    engine = _engine_of_chunk(size, json.dumps(codecs))
    engine.start(plan, 1)
    try:
        batch = engine.next()
    finally:
        engine.stop()
    assert batch is not None
    return ByteArrays().from_capsule(batch[1][0]).tobytes()


# --- stores -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How an array is stored."""

    zarr_format: ZarrFormat = 3
    shape: tuple[int, ...] = (23, 4, 5)
    chunks: tuple[int, ...] = (5, 3, 2)
    dtype: str = "f4"
    big_endian: bool = False
    codec: str | Compression = "none"
    sample_axis: int = 0
    order: str = "C"
    transposes: tuple[tuple[int, ...], ...] = ()
    keys: tuple[str, str] | None = None
    period: int | None = None

    def but(self, **changes: Any) -> Layout:
        """Return the same with some changes."""
        return replace(self, **changes)

    def data(self) -> AnyArray:
        """Return what is stored."""
        return numbered(self.shape, self.dtype, sample_axis=self.sample_axis, period=self.period)

    def write(self, path: Path | Store, data: AnyArray | None = None, **options: Any) -> zarr.Array[Any]:
        """Store `data`, or numbered samples, at `path` with zarr-python."""
        data = self.data() if data is None else data
        item_bytes = np.dtype(self.dtype).itemsize
        compression = CODECS[self.codec] if isinstance(self.codec, str) else self.codec
        byte_order: Literal[">", "<"] = ">" if self.big_endian and item_bytes > 1 else "<"
        if self.zarr_format == 2:
            assert compression.v2 is not None
            chain = compression.v2(item_bytes)
            options |= {
                "filters": chain[:-1] or None,
                "compressors": chain[-1] if chain else None,
                "order": self.order,
                "dtype": np.dtype(self.dtype).newbyteorder(byte_order),
            }
        else:
            assert compression.v3 is not None
            options |= {
                "filters": [TransposeCodec(order=order) for order in self.transposes] or None,
                "serializer": BytesCodec(endian=None if item_bytes == 1 else "big" if self.big_endian else "little"),
                "compressors": compression.v3(item_bytes) or None,
                "dtype": np.dtype(self.dtype),
            }
        if self.keys is not None:
            options["chunk_key_encoding"] = {"name": self.keys[0], "separator": self.keys[1]}
        array: zarr.Array[Any] = zarr.create_array(
            path, shape=self.shape, chunks=self.chunks, zarr_format=self.zarr_format, **options
        )
        array[...] = data
        return array


def chunk_files(path: Path) -> list[Path]:
    """List the chunk files of the array at `path`, sorted."""
    hidden = {"zarr.json", ".zarray", ".zattrs", ".zgroup"}
    return sorted(p for p in path.rglob("*") if not p.is_dir() and p.name not in hidden)


def drop_from_page_cache(files: Iterable[Path]) -> None:
    """Ask the kernel to forget the contents of files, so that the next read has to wait for the device."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_all(path: Path | zarr.Array[Any], *, sample_axis: int = 0) -> AnyArray:
    """Read an array with zarr-python: shape (samples, *sample_shape), in native byte order."""
    array = path if isinstance(path, zarr.Array) else zarr.open_array(path, mode="r")
    values = np.moveaxis(np.asarray(array[...]), sample_axis, 0)
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


def assert_rows_equal(rows: torch.Tensor, index: torch.Tensor, expected: AnyArray) -> None:
    """Fail unless row i of `rows` is exactly sample index[i] of `expected`."""
    assert tuple(rows.shape) == (len(index), *expected.shape[1:])
    assert rows.dtype == torch.empty(0, dtype=getattr(torch, expected.dtype.name)).dtype
    assert rows.is_contiguous()
    got, want = raw_rows(rows), raw_rows(expected)[index.numpy()]
    wrong = np.flatnonzero((got != want).any(axis=1))
    assert wrong.size == 0, (
        f"{wrong.size} of {len(index)} rows differ, the first is slot {wrong[0]}, sample {index[wrong[0]]}:\n"
        f"{rows[wrong[0]]}\nshould be\n{expected[int(index[wrong[0]])]}"
    )


def assert_parity(
    source: Any,
    expected: AnyArray,
    targets: Any = None,
    expected_targets: AnyArray | None = None,
    *,
    batch_size: int | None = 7,
    shuffle: bool = True,
    num_threads: int = 2,
    **options: Any,
) -> ZarrIterableDataset:
    """Read an epoch and fail unless every sample is delivered once, in the announced order, and byte for byte.

    Returns the dataset, closed, for its counters.
    """
    n = len(expected)
    seen: list[int] = []
    with iterable_dataset(
        source,
        targets,
        batch_size=batch_size,
        shuffle=shuffle,
        return_index=True,
        num_threads=num_threads,
        **options,
    ) as dataset:
        announced = dataset.sample_order(0)
        for batch in dataset:
            assert isinstance(batch, tuple)
            parts = batch if batch_size is not None else tuple(part.unsqueeze(0) for part in batch)
            index = parts[-1]
            assert_rows_equal(parts[0], index, expected)
            if expected_targets is not None:
                assert_rows_equal(parts[1], index, expected_targets)
            seen += index.tolist()
    assert sorted(seen) == list(range(n))
    assert seen == announced.tolist()
    if not shuffle:
        assert seen == list(range(n))
    return dataset


# --- threads ----------------------------------------------------------------------------------------------------


#: Names of zarr-python's loop and of its pools. A pool starts one more thread if those that it has are not idle yet.
_OF_ZARR = ("zarr_", "asyncio_")


def own_threads() -> set[int]:
    """Return the ids of the threads of this process but for zarr-python's, of which a busy machine has more."""
    return thread_ids() - {one.native_id for one in threading.enumerate() if one.name.startswith(_OF_ZARR)}


def assert_no_thread_beyond(before: set[int]) -> None:
    """Fail if there are other threads than before. A joined thread may be listed for another moment, so look again."""
    deadline = time.monotonic() + 240
    while own_threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not own_threads() - before


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Fail if threads that were started inside the block are alive after it."""
    before = own_threads()
    yield
    assert_no_thread_beyond(before)


# --- open files -------------------------------------------------------------------------------------------------


@contextmanager
def no_file_left() -> Iterator[None]:
    """Fail if files, pipes or memory that were opened inside the block are open after it.

    Sockets are not looked at: other tests may have left libraries whose threads open and close theirs.
    """
    gc.collect()  # what other tests left
    before = Counter(open_files().values())
    yield
    assert not {name for name in Counter(open_files().values()) - before if not name.startswith("socket:")}

"""Rows about damage to chunks that zarr-python's codecs decode: cut off, grown, or changed in a byte.

One try takes one chain of codecs that the engine leaves to zarr-python (filters and compressors of v2, codecs of v3,
text, inner chunks of shards, shards in shards) and damages the file of one chunk many times, one way after the other.
The array is read as a stream, by index, through a store that Python reads, and by `verify`. What must come of it:

- cut off or grown: an error that names the chunk, or the same values (as of bytes behind the end of a stream);
- a byte changed: the same; where the format has no checksum, also other values in samples of that chunk, which are
  those that zarr-python reads then.

Never anything else: the process may have 1.5 GiB of addresses more than it had, and one that a signal ends is counted
as not as specified by the harness.

python -m tests.faults.run --rows general-cut,general-flips --json counts.json
"""

from __future__ import annotations

import contextlib
import json
import resource
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numcodecs
import numpy as np
import torch
import zarr
from numcodecs.checksum32 import CRC32, CRC32C, JenkinsLookup3
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as v3
from zarr.core.dtype import VariableLengthBytes

from tests.faults.harness.oracle import ZarrFormat, chunk_files, raw_rows
from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.payload.common import AS_SPECIFIED, Check, check_verify, damaged, stream_of
from zarrfeed import CorruptChunkError, ZarrDataset

#: Addresses that the process may take while it reads damaged chunks.
_MEMORY_BYTES = 3 << 29
_VERIFY_EVERY = 5
_CHANGES_A_TRY = 40


@dataclass(frozen=True)
class Chain:
    """A way of storing an array that zarr-python has to decode.

    Attributes
    ----------
    name
        What it is called in counts.
    zarr_format
        2 or 3.
    options
        Returns the arguments of `zarr.create_array`; new ones each time, as codecs have state.
    data
        What is stored: a key of `_DATA`.
    check
        What a checksum covers.
    """

    name: str
    zarr_format: ZarrFormat
    options: Callable[[], dict[str, Any]]
    data: str = "i4"
    check: Check = "nothing"
    chunks: tuple[int, ...] = field(default=(8, 60), kw_only=True)

    @property
    def kind(self) -> str:
        """Name and format."""
        return f"{self.name}, v{self.zarr_format}"

    def write(self, path: Path) -> None:
        """Make the array: 24 samples, a third of which will be damaged."""
        data = _DATA[self.data]()
        options = {"chunks": self.chunks, "dtype": data.dtype} | self.options()
        array = zarr.create_array(path, shape=data.shape, zarr_format=self.zarr_format, **options)
        array[...] = data


def _words(kind: type) -> Any:
    texts = [f"sample {i // 60} item {i % 60} {'ä☃🙂' * (i % 3)}" for i in range(24 * 60)]
    found = np.empty(len(texts), dtype=object)
    found[:] = texts if kind is str else [text.encode() for text in texts]
    return found.reshape(24, 60)


#: Samples of 60 items that tell which one they are.
_DATA: dict[str, Callable[[], Any]] = {
    "i4": lambda: np.arange(24 * 60, dtype="<i4").reshape(24, 60) * 1009,
    "f4": lambda: np.arange(24 * 60, dtype="<f4").reshape(24, 60) / 7,
    "f8": lambda: np.arange(24 * 60, dtype="<f8").reshape(24, 60) / 8,
    "b1": lambda: (np.arange(24 * 60).reshape(24, 60) // (1 + np.arange(24)[:, None])) % 2 == 1,
    "U7": lambda: np.array([f"{i}ä" for i in range(24 * 60)], "<U7").reshape(24, 60),
    "str": lambda: _words(str),
    "bytes": lambda: _words(bytes),
}


def _blosc(**options: Any) -> Any:
    return numcodecs.Blosc(**{"cname": "lz4", "shuffle": 1} | options)


def _v2(name: str, filters: Callable[[], list[Any]], compressor: Callable[[], Any], *rest: Any, **more: Any) -> Chain:
    return Chain(name, 2, lambda: {"filters": filters() or None, "compressors": compressor(), **more}, *rest)


def _astype() -> list[Any]:
    return [numcodecs.AsType("<i4", "<i4")]


def _of_v2() -> Iterator[Chain]:
    for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            yield _v2(f"astype, blosc {cname} {shuffle}", _astype, partial(_blosc, cname=cname, shuffle=shuffle))
    yield _v2("astype, blosc in blocks", _astype, lambda: _blosc(blocksize=400))
    yield _v2("astype, blosc raw", _astype, lambda: _blosc(clevel=0))
    yield _v2("astype, lz4", _astype, numcodecs.LZ4)
    yield _v2("astype, zstd", _astype, numcodecs.Zstd)
    yield _v2("astype, zstd with checksum", _astype, lambda: numcodecs.Zstd(checksum=True), "i4", "content")
    for codec in (numcodecs.Zlib, numcodecs.GZip, numcodecs.BZ2, numcodecs.LZMA):
        yield _v2(f"astype, {codec.codec_id}", _astype, codec, "i4", "content")
    yield _v2("astype alone", _astype, lambda: None)
    yield _v2("astype, order F, blosc", _astype, _blosc, order="F")
    yield _v2("delta to i8, blosc", lambda: [numcodecs.Delta("<i4", astype="<i8")], _blosc)
    yield _v2("blosc as a filter, bz2", lambda: [_blosc()], numcodecs.BZ2, "i4", "content")
    yield _v2("bz2, blosc", lambda: [numcodecs.BZ2()], _blosc, "i4", "content")
    yield _v2("lz4, zstd, blosc, astype", lambda: [*_astype(), numcodecs.LZ4(), numcodecs.Zstd()], _blosc)
    yield _v2("fixedscaleoffset", lambda: [numcodecs.FixedScaleOffset(1, 8, "<f8", "<i4")], numcodecs.Zstd, "f8")
    yield _v2("quantize", lambda: [numcodecs.Quantize(3, "<f4")], _blosc, "f4")
    yield _v2("bitround", lambda: [numcodecs.BitRound(9)], _blosc, "f4")
    yield _v2("astype", lambda: [numcodecs.AsType("<f4", "<f8")], _blosc, "f8")
    yield _v2("packbits", lambda: [numcodecs.PackBits()], _blosc, "b1")
    yield _v2("packbits alone", lambda: [numcodecs.PackBits()], lambda: None, "b1")
    yield _v2("shuffle, bz2", lambda: [numcodecs.Shuffle(4)], numcodecs.BZ2, "i4", "content")
    yield _v2("base64", list, numcodecs.Base64)
    yield _v2("base64 of blosc", lambda: [_blosc()], numcodecs.Base64)
    for checksum in (numcodecs.Adler32, CRC32, JenkinsLookup3):
        yield _v2(checksum.codec_id, list, checksum, "i4", "stored bytes")
    yield _v2("astype, blosc, crc32c", lambda: [*_astype(), _blosc()], CRC32C, "i4", "stored bytes")
    yield _v2("pcodec", list, numcodecs.PCodec)
    for name, compressor in (("blosc", _blosc), ("lz4", numcodecs.LZ4), ("zstd", numcodecs.Zstd)):
        yield _v2(f"U7, {name}", list, compressor, "U7")
        yield _v2(f"vlen-utf8, {name}", lambda: [numcodecs.VLenUTF8()], compressor, "str", dtype="str")
        yield _v2(
            f"vlen-bytes, {name}", lambda: [numcodecs.VLenBytes()], compressor, "bytes", dtype=VariableLengthBytes()
        )
    yield _v2("vlen-utf8 alone", lambda: [numcodecs.VLenUTF8()], lambda: None, "str", dtype="str")
    yield _v2("vlen-utf8, bz2", lambda: [numcodecs.VLenUTF8()], numcodecs.BZ2, "str", "content", dtype="str")
    yield _v2("vlen-utf8, zlib", lambda: [numcodecs.VLenUTF8()], numcodecs.Zlib, "str", "content", dtype="str")
    if "zfpy" in numcodecs.registry.codec_registry:
        from numcodecs.zfpy import ZFPY

        yield _v2("zfpy", list, lambda: ZFPY(mode=4, tolerance=1e-3), "f4")


def _v3(name: str, options: Callable[[], dict[str, Any]], *rest: Any, **more: Any) -> Chain:
    return Chain(name, 3, options, *rest, **more)


def _blosc_v3(item: int = 4) -> BloscCodec:
    return BloscCodec(cname="lz4", shuffle="shuffle", typesize=item)


def _shards(*codecs: Any, rows: int = 4, **options: Any) -> ShardingCodec:
    return ShardingCodec(chunk_shape=(rows, 60), codecs=codecs, **options)


def _inner(codec: Any, *compressors: Any) -> dict[str, Any]:
    return {"serializer": codec, "filters": None, "compressors": list(compressors) or None}


def _of_v3() -> Iterator[Chain]:
    def astype() -> list[Any]:
        return [v3.AsType(encode_dtype="<i4", decode_dtype="<i4")]

    yield _v3("astype, blosc", lambda: {"filters": astype(), "compressors": _blosc_v3()})
    yield _v3("astype, numcodecs.blosc", lambda: {"filters": astype(), "compressors": [v3.Blosc(cname="zstd")]})
    yield _v3("astype, zstd", lambda: {"filters": astype(), "compressors": ZstdCodec()})
    yield _v3("astype, lz4", lambda: {"filters": astype(), "compressors": [v3.LZ4()]})
    yield _v3("astype, gzip", lambda: {"filters": astype(), "compressors": GzipCodec()}, "i4", "content")
    yield _v3("astype, zlib", lambda: {"filters": astype(), "compressors": [v3.Zlib()]}, "i4", "content")
    yield _v3("bz2", lambda: {"compressors": [v3.BZ2()]}, "i4", "content")
    yield _v3("lzma", lambda: {"compressors": [v3.LZMA()]}, "i4", "content")
    yield _v3("blosc, bz2", lambda: {"compressors": [_blosc_v3(), v3.BZ2()]}, "i4", "content")
    yield _v3("bz2, blosc", lambda: {"compressors": [v3.BZ2(), _blosc_v3(1)]}, "i4", "content")
    yield _v3("shuffle, bz2, blosc", lambda: {"compressors": [v3.Shuffle(elementsize=4), v3.BZ2(), _blosc_v3(1)]})
    yield _v3(
        "transpose, astype, blosc",
        lambda: {"filters": [TransposeCodec(order=(1, 0)), *astype()], "compressors": _blosc_v3()},
    )
    yield _v3("packbits, blosc", lambda: {"filters": [v3.PackBits()], "compressors": _blosc_v3(1)}, "b1")
    yield _v3("bitround, blosc", lambda: {"filters": [v3.BitRound(keepbits=9)], "compressors": _blosc_v3()}, "f4")
    yield _v3("blosc, adler32", lambda: {"compressors": [_blosc_v3(), v3.Adler32()]}, "i4", "stored bytes")
    yield _v3("pcodec", lambda: _inner(v3.PCodec()))
    yield _v3("pcodec, blosc", lambda: _inner(v3.PCodec(), _blosc_v3(1)), "f4")
    if "zfpy" in numcodecs.registry.codec_registry:
        yield _v3("zfpy", lambda: _inner(v3.ZFPY(mode=4, tolerance=1e-3)), "f4")
    for location in ("start", "end"):
        for name, make in _SHARDED.items():
            check: Check = "content" if name == "shards in bz2" else "nothing"
            yield _v3(f"{name}, index at {location}", partial(make, index_location=location), "i4", check)
    yield _v3("shards, index with crc32", lambda: _plain_shards(index_codecs=[BytesCodec(), v3.CRC32()]))
    for name, chain in _BEHIND_TEXT.items():
        check = "stored bytes" if name == "crc32c" else "nothing"
        yield _v3(f"string, {name}", partial(_compressed, chain, dtype="str"), "str", check)
        yield _v3(f"bytes, {name}", partial(_compressed, chain, dtype=VariableLengthBytes()), "bytes", check)
        yield _v3(f"U7, {name}", partial(_compressed, chain), "U7", check)
        in_shards = {"dtype": "str", "chunks": (4, 60), "shards": (8, 60)}
        yield _v3(f"string in shards, {name}", partial(_compressed, chain, **in_shards), "str")


def _compressed(chain: Callable[[], list[Any]], **options: Any) -> dict[str, Any]:
    return {"compressors": chain() or None} | options


def _plain_shards(**options: Any) -> dict[str, Any]:
    return _inner(_shards(BytesCodec(), _blosc_v3(), **options))


def _nested(**options: Any) -> dict[str, Any]:
    return _inner(_shards(_shards(BytesCodec(), _blosc_v3(), rows=2, **options), **options))


#: Name -> arguments of `zarr.create_array`, given those of the codec of shards.
_SHARDED: dict[str, Callable[..., dict[str, Any]]] = {
    "shards of astype, blosc": lambda **o: _inner(
        _shards(v3.AsType(encode_dtype="<i4", decode_dtype="<i4"), BytesCodec(), _blosc_v3(), **o)
    ),
    "shards in shards": _nested,
    "shards in shards, no checksums": lambda **o: _nested(**o, index_codecs=[BytesCodec()]),
    "shards in bz2": lambda **o: _inner(_shards(BytesCodec(), _blosc_v3(), **o), v3.BZ2()),
    "shards in blosc": lambda **o: _inner(_shards(BytesCodec(), _blosc_v3(), **o), _blosc_v3(1)),
}

_BEHIND_TEXT: dict[str, Callable[[], list[Any]]] = {
    "alone": list,
    "blosc": lambda: [_blosc_v3(1)],
    "zstd": lambda: [ZstdCodec()],
    "lz4": lambda: [v3.LZ4()],
    "crc32c": lambda: [Crc32cCodec()],
}


CHAINS: tuple[Chain, ...] = tuple(Random(5).sample(found := [*_of_v2(), *_of_v3()], len(found)))


class _Target:
    """An array on disk, the file of one chunk or shard of which is damaged again and again."""

    def __init__(self, chain: Chain, path: Path) -> None:
        self.chain, self.path = chain, path
        if not path.exists():
            chain.write(path)
        self.array = zarr.open_array(path, mode="r")
        self.right = _rows(np.asarray(self.array[...]))
        files = chunk_files(path)
        self.file = files[len(files) // 2]
        self.key = str(self.file.relative_to(path))
        self.good = self.file.read_bytes()
        first = int(self.key.removeprefix("c/").replace(".", "/").split("/")[0]) * 8
        self.samples = range(first, first + 8)

    def damage(self, number: int, content: bytes, *, is_cut: bool) -> str:
        """Store a damaged chunk and read; return "caught", "same values" or "other values"; raise for anything else."""
        with damaged(self.file, content, self.good):
            return self._judge(number, is_cut)

    def _judge(self, number: int, is_cut: bool) -> str:
        got: dict[int, Any] = {}
        is_caught = False
        try:
            for values, index in self._read(number % 4):
                got |= dict(zip(index.tolist(), _rows(values), strict=True))
        except CorruptChunkError as error:
            if f"{self.path.name} chunk {self.key}" not in str(error):
                raise UnspecifiedError(f"the error does not name {self.key}: {error}") from error
            is_caught = True
        other = [i for i, row in got.items() if row != self.right[i]]
        if not set(other) <= set(self.samples):
            raise UnspecifiedError(f"samples {other} of other chunks are wrong")
        if not is_caught and len(got) != len(self.right):
            raise UnspecifiedError(f"{len(got)} of {len(self.right)} samples came, without an error")
        if other and (is_cut or self.chain.check != "nothing"):
            raise UnspecifiedError(f"samples {other} are wrong, and nothing said so")
        if self.chain.check == "stored bytes" and not is_caught:
            raise UnspecifiedError("it has a checksum, and the change was not noticed")
        if number % _VERIFY_EVERY == 0:
            check_verify(self.path, is_caught=is_caught)
        if is_caught:
            return "caught"
        # No sooner: zarr-python alone does not survive what is caught.
        with contextlib.suppress(Exception):
            theirs = _rows(np.asarray(self.array[self.samples.start : self.samples.stop]))
            if theirs != [got[i] for i in self.samples]:
                raise UnspecifiedError("the values are not those of zarr-python")
        return "other values" if other else "same values"

    def _read(self, way: int) -> Iterator[tuple[Any, Any]]:
        """Read the array as a stream, shuffled or not, by index, or through a store that Python reads."""
        if way == 2:
            everything = np.arange(len(self.right))
            with contextlib.closing(ZarrDataset(self.path, return_index=True, num_threads=2, cache=0)) as dataset:
                yield dataset[everything[::-1]]
            return
        with stream_of(self.path, way) as dataset:
            yield from dataset


def _rows(values: Any) -> list[Any]:
    """Return what tells rows apart: their bytes, or lists of items."""
    if isinstance(values, list):
        return values
    if isinstance(values, torch.Tensor) or values.dtype.kind not in "OTU":
        return [row.tobytes() for row in raw_rows(values)]
    listed: list[Any] = values.astype(object).tolist()
    return listed


@cache
def _target(chain: Chain, shared: Path) -> _Target:
    return _Target(chain, shared / f"general-{CHAINS.index(chain)}")


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    lines = Path("/proc/self/status").read_text().splitlines()
    has = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (has + _MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _damage_all(attempt: Try, changes: Callable[[_Target], Iterable[tuple[str, bytes]]], *, is_cut: bool) -> str:
    found: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr-python, about codecs that are no part of the specification
        target = _target(CHAINS[attempt.number % len(CHAINS)], attempt.shared)
        for way in range(4):  # what is opened and started for good does not count
            if _by_index(target._read(way)) != target.right:
                raise UnspecifiedError(f"{target.chain.kind}: it is whole, and other values come")
        with _little_memory():
            for number, (what, content) in enumerate(changes(target)):
                try:
                    found[target.damage(number, content, is_cut=is_cut)] += 1
                except BaseException as error:
                    where = f"{target.chain.kind}, {what}, of {len(target.good)} bytes, reading {number % 4}"
                    raise UnspecifiedError(f"{where}: {error!r}") from error
    return f"{AS_SPECIFIED} | {target.chain.kind}: {json.dumps(found)}"


def _by_index(batches: Iterable[tuple[Any, Any]]) -> list[Any]:
    got: dict[int, Any] = {}
    for values, index in batches:
        got |= dict(zip(index.tolist(), _rows(values), strict=True))
    return [got[i] for i in sorted(got)]


def cut_and_grow(attempt: Try) -> str:
    """Cut a chunk off at short, random and nearly full lengths; append zeros, noise, or the chunk once more."""

    def changes(target: _Target) -> Iterator[tuple[str, bytes]]:
        good, r = target.good, attempt.random
        lengths = [*range(4), 15, 16, 17, 20, 24, len(good) // 2, *(len(good) - n for n in (16, 8, 4, 2, 1))]
        lengths += [r.randrange(len(good)) for _ in range(15)]
        for length in lengths:
            if 0 <= length < len(good):
                yield f"cut to {length}", good[:length]
        for more in (b"\0", bytes(4), bytes(4096), r.randbytes(1), r.randbytes(16), r.randbytes(5000), good):
            yield f"{len(more)} appended", good + more

    return _damage_all(attempt, changes, is_cut=True)


def change_bytes(attempt: Try) -> str:
    """Change a byte, of the first 32 every second time."""

    def changes(target: _Target) -> Iterator[tuple[str, bytes]]:
        r = attempt.random
        for number in range(_CHANGES_A_TRY):
            size = len(target.good)
            position = r.randrange(min(32, size) if number % 2 else size)
            changed = bytearray(target.good)
            pattern = r.choice((0xFF, 0x80, 0x01, r.randint(1, 255)))
            changed[position] ^= pattern
            yield f"byte {position} xor {pattern:#x}", bytes(changed)

    return _damage_all(attempt, changes, is_cut=False)


ROWS = (
    Row(
        "general-cut",
        "a chunk that zarr-python's codecs decode is cut off or grown, some 35 ways a try, for each chain",
        "caught, or the same values; never a signal, 1.5 GiB of memory at most",
        cut_and_grow,
        runs=2 * len(CHAINS),
        short_runs=3,
        timeout_s=300.0,
    ),
    Row(
        "general-flips",
        f"a byte of such a chunk is changed, {_CHANGES_A_TRY} times a try, half of them at its beginning",
        "caught, or no other values than zarr-python's, in that chunk alone; with a checksum, caught",
        change_bytes,
        runs=10 * len(CHAINS),
        short_runs=3,
        timeout_s=300.0,
    ),
)

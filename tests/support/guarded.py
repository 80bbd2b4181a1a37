"""Hand damaged bytes to codecs through their guards, in a process of its own: run by test_codec_guards.py.

    python -m tests.support.guarded CHANGES NAME...

Every buffer ends where a page begins that cannot be read, so that one byte too many ends the process. It may take
`MEMORY_BYTES` of addresses more than it had. With PYTHONMALLOC=debug Python looks whether anything was written beside
results; with PYTHONMALLOC=malloc memory is filled in two ways, and results must not differ. Prints a line of JSON a
name: how often the damage was refused, and how often something came.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pickle
import random
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
from numcodecs.checksum32 import CRC32, CRC32C, Adler32, JenkinsLookup3

from zarrfeed.storage.chunks.codec_guards import MAX_TEXT_BYTES, Expected, decode_guarded

MEMORY_BYTES = 1 << 30
PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
M_PERTURB = -6
#: Of memory that malloc returns: what is not written must not come out. Python's debug allocator has one of its own.
FILLINGS = (0x55,) if os.environ.get("PYTHONMALLOC") == "debug" else (0x55, 0xAA)


class Guarded:
    """Memory that ends at a page that cannot be read; `put` copies bytes to its end."""

    def __init__(self, size: int) -> None:
        self._room = -(-size // PAGE) * PAGE
        self._map = mmap.mmap(-1, self._room + PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        address = ctypes.c_void_p(self._bytes.ctypes.data + self._room)
        if LIBC.mprotect(address, ctypes.c_size_t(PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> npt.NDArray[np.uint8]:
        where = self._bytes[self._room - len(data) : self._room]
        where[:] = np.frombuffer(data, np.uint8)
        where.flags.writeable = False
        return where


class ReadsOn:
    """A codec that looks at the byte behind its input: what the guarded memory is there for."""

    codec_id = "reads-on"

    def encode(self, buf: Any) -> bytes:
        return bytes(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        assert out is None
        return ctypes.string_at(buf.ctypes.data, buf.size + 1)


NUMBERS = np.arange(3000, dtype="<i4") * 7
NOISE = np.frombuffer(random.Random(3).randbytes(12000), "<i4")
FLOATS = np.arange(3000, dtype="<f4") / 7
FLAGS = NUMBERS % 3 == 0
WORDS = np.array([f"item {i} {'ä☃' * (i % 3)}" for i in range(300)], dtype=object)
RAW_WORDS = np.array([word.encode() for word in WORDS], dtype=object)
ROWS = np.empty(100, dtype=object)
ROWS[:] = [np.arange(i % 7, dtype="<i4") for i in range(100)]


def cases() -> dict[str, tuple[Any, Any]]:
    """Name -> a codec, and what it encodes: for each of numcodecs that is installed."""
    found: dict[str, tuple[Any, Any]] = {"reads-on": (ReadsOn(), NUMBERS)}
    for cname in numcodecs.blosc.list_compressors():
        for shuffle in (0, 1, 2):
            found[f"blosc {cname} {shuffle}"] = (numcodecs.Blosc(cname, shuffle=shuffle), NUMBERS)
        found[f"blosc {cname} in blocks"] = (numcodecs.Blosc(cname, shuffle=1, blocksize=1024), NUMBERS)
        found[f"blosc {cname} split"] = (numcodecs.Blosc(cname, shuffle=1), np.tile(NUMBERS, 40))
        for typesize in (3, 7, 16):
            found[f"blosc {cname} typesize {typesize}"] = (
                numcodecs.Blosc(cname, shuffle=2, typesize=typesize),
                NUMBERS,
            )
    found["blosc raw"] = (numcodecs.Blosc("lz4"), NOISE)
    for kind in (numcodecs.LZ4, numcodecs.Zstd, numcodecs.Zlib, numcodecs.GZip, numcodecs.BZ2, numcodecs.LZMA):
        found[kind.codec_id] = (kind(), NUMBERS)
        found[f"{kind.codec_id} of noise"] = (kind(), NOISE)
    found["zstd with checksum"] = (numcodecs.Zstd(checksum=True), NUMBERS)
    for format_number in (2, 3):  # FORMAT_ALONE, FORMAT_RAW
        filters = [{"id": 0x21, "preset": 1}] if format_number == 3 else None
        found[f"lzma {format_number}"] = (numcodecs.LZMA(format=format_number, filters=filters), NUMBERS)
    found["delta"] = (numcodecs.Delta("<i4", astype="<i2"), NUMBERS)
    found["fixedscaleoffset"] = (numcodecs.FixedScaleOffset(1, 8, "<f4", "<i2"), FLOATS)
    found["quantize"] = (numcodecs.Quantize(3, "<f4", "<f2"), FLOATS)
    found["bitround"] = (numcodecs.BitRound(9), FLOATS)
    found["astype"] = (numcodecs.AsType("<f2", "<f4"), FLOATS)
    found["packbits"] = (numcodecs.PackBits(), FLAGS)
    found["categorize"] = (numcodecs.Categorize(["a", "b"], "<U1"), np.array(["a", "b", "c"] * 99))
    found["shuffle"] = (numcodecs.Shuffle(4), NUMBERS)
    found["base64"] = (numcodecs.Base64(), NUMBERS)
    for checksum in (CRC32, CRC32C, Adler32, numcodecs.Fletcher32, JenkinsLookup3):
        found[checksum.codec_id] = (checksum(), NUMBERS)
    found["vlen-utf8"] = (numcodecs.VLenUTF8(), WORDS)
    found["vlen-bytes"] = (numcodecs.VLenBytes(), RAW_WORDS)
    found["vlen-array"] = (numcodecs.VLenArray("<i4"), ROWS)
    found["json2"] = (numcodecs.JSON(), WORDS)
    if "msgpack2" in numcodecs.registry.codec_registry:
        found["msgpack2"] = (numcodecs.MsgPack(), WORDS)
    if "pcodec" in numcodecs.registry.codec_registry:
        found["pcodec"] = (numcodecs.PCodec(), FLOATS)
        found["pcodec of noise"] = (numcodecs.PCodec(), NOISE)
    if "zfpy" in numcodecs.registry.codec_registry:
        for mode, options in ((4, {"tolerance": 1e-3}), (2, {"rate": 9}), (3, {"precision": 16})):
            found[f"zfpy {mode}"] = (numcodecs.registry.get_codec({"id": "zfpy", "mode": mode} | options), FLOATS)
    return found


def damages(good: bytes, changes: int, r: random.Random) -> Iterator[bytes]:
    """Cut off at every short and many other lengths, grown, and with bytes changed."""
    for length in (*range(min(64, len(good))), *(r.randrange(len(good)) for _ in range(changes // 4))):
        yield good[:length]
    for count in (1, 2, 4, 8, 16):
        yield good[:-count]
        yield good + bytes(count)
        yield good + r.randbytes(count)
    yield good + good
    for position in range(min(24, len(good))):
        for pattern in (0xFF, 0x80, 0x01, 0x10):
            yield good[:position] + bytes([good[position] ^ pattern]) + good[position + 1 :]
    for at in range(0, min(24, len(good) - 4), 4):
        for number in (0, 1, 15, 16, 17, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, len(good), len(good) + 1):
            yield good[:at] + number.to_bytes(4, "little") + good[at + 4 :]
    for number in range(changes):
        changed = bytearray(good)
        for _ in range(r.choice((1, 1, 1, 2, 8))):
            changed[r.randrange(min(64, len(good)) if number % 2 else len(good))] = r.randrange(256)
        yield bytes(changed)


def to_bytes(decoded: Any) -> bytes:
    if isinstance(decoded, np.ndarray) and decoded.dtype == object:
        return pickle.dumps(decoded.tolist())
    return decoded.tobytes() if isinstance(decoded, np.ndarray) else bytes(decoded)


def try_all(name: str, changes: int) -> dict[str, int]:
    codec, data = cases()[name]
    good = np.asarray(memoryview(codec.encode(data))).tobytes()
    is_object = data.dtype == object
    limit = MAX_TEXT_BYTES if is_object else data.nbytes
    expected = Expected(limit, is_exact=not is_object, items=data.size, dtype=data.dtype)
    memory = Guarded(3 * len(good))
    outcomes: Counter[str] = Counter()
    for damaged in damages(good, changes, random.Random(name)):
        found: list[str | bytes] = []
        for filling in FILLINGS:
            LIBC.mallopt(M_PERTURB, filling)
            try:
                found.append(to_bytes(decode_guarded(codec, memory.put(damaged), expected)))
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (of any class: the pipeline makes a DecodeError of it)
                found.append("refused" if type(error).__name__ == "DecodeError" else "refused by the codec")
        first = found[0]
        assert found == [first] * len(found), "it depends on what was in memory before"
        outcomes[first if isinstance(first, str) else "decoded"] += 1
        # a checksum or a filter returns no more than it was given
        assert isinstance(first, str) or is_object or len(first) <= max(limit, len(damaged)), (len(first), limit)
    return dict(outcomes)


def main(changes: int, names: list[str]) -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    has = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY_BYTES,) * 2)
    for name in names:
        print(json.dumps({"name": name} | try_all(name, changes)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or [name for name in cases() if name != "reads-on"])

"""Rows about damaged payload: one byte of one stored chunk is changed, and the array is read in every way.

One try takes one way of storing an array (a codec or a chain of them, a Zarr format, a layout) and changes many bytes,
one after the other: all of the header, or random ones. What must come of a change depends on what the format checks:

- a checksum over the stored bytes: the change is an error that names the chunk, always;
- a checksum over the content: such an error, or the same values, as where a time stamp was hit;
- nothing: such an error, the same values, or others in samples of the changed chunk and nowhere else; where zarr-python
  reads the changed chunk too, its values.

python -m tests.faults.run --rows header-bytes,random-flips --json counts.json
python -m tests.faults.payload.native counts.json ...                  prints a table by codec of what that found
"""

from __future__ import annotations

import json
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import zarr

from tests.faults.harness.oracle import ALL_CODECS, Layout, ZarrFormat, chunk_files, raw_rows, read_all
from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.payload.common import AS_SPECIFIED, Check, check_verify, damaged, stream_of
from zarrfeed import CorruptChunkError, UnsupportedError, ZarrDataset, ZarrIterableDataset

Rows = npt.NDArray[np.uint8]

#: Codec -> what a checksum covers, of those that have one.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("crc32c", "crc32c-at-start", "zstd-crc32c", "crc32c-blosc-crc32c"), "stored bytes"),
    **dict.fromkeys(("numcodecs-crc32c", "bz2-crc32", "adler32"), "stored bytes"),
    **dict.fromkeys(("fletcher32", "shuffle-zlib-fletcher32"), "stored bytes"),
    **dict.fromkeys(("zstd-checksum", "gzip", "zlib", "zlib-blosc", "gzip-lz4-zstd", "numcodecs-gzip"), "content"),
    **dict.fromkeys(("bz2", "lzma", "delta-zlib"), "content"),
    **dict.fromkeys(("shuffle-zlib", "shuffle-crc32c-zstd", "fletcher32-zlib"), "content"),
}

#: Changes of a header's byte: all of it, and each bit.
PATTERNS = (0xFF, *(1 << bit for bit in range(8)))
FLIPS_A_TRY = 50
_VERIFY_EVERY = 10


@dataclass(frozen=True)
class Stored:
    """A way of storing an array.

    Attributes
    ----------
    codec
        A name in `ALL_CODECS`.
    zarr_format
        2 or 3.
    layout
        "plain"; "long rows", which the engine decodes block by block; "shards", whose index is at the "end" or the
        "start".
    """

    codec: str
    zarr_format: ZarrFormat
    layout: Literal["plain", "long rows", "index at start", "index at end"] = "plain"

    @property
    def kind(self) -> str:
        """What it is called in the table: the same in both formats."""
        return self.codec if self.layout == "plain" else f"{self.codec}, {self.layout}"

    @property
    def is_sharded(self) -> bool:
        """Whether chunks lie in shards."""
        return self.layout.startswith("index")

    @property
    def check(self) -> Check:
        """What a checksum covers."""
        return CHECKS.get(self.codec, "nothing")

    def write(self, path: Path) -> None:
        """Make the array: 24 samples, of which the second third will be damaged."""
        layout = Layout(self.zarr_format, (24, 6, 12), (8, 6, 12), "i4", period=24)
        options: dict[str, Any] = {}
        if self.layout == "long rows":
            layout = layout.but(shape=(12, 1500), chunks=(4, 1500))
        elif self.is_sharded:
            options["shards"] = {"shape": (8, 6, 12), "index_location": self.layout.removeprefix("index at ")}
            layout = layout.but(chunks=(4, 6, 6))
        layout.but(codec=ALL_CODECS[self.codec]).write(path, **options)


def _all_stored() -> Iterator[Stored]:
    blosc = [name for name in ALL_CODECS if name.startswith("blosc-")]
    others = [name for name in ALL_CODECS if not name.startswith("blosc-")]
    for layout in ("index at end", "index at start"):
        for codec in ("none", "blosc-lz4-shuffle", "zstd", "zstd-crc32c", "gzip"):
            yield Stored(codec, 3, layout)
    for codec in (
        "blosc-many-blocks",
        "blosc-many-blocks-zstd",
        "blosc-zstd-bitshuffle",
        "blosc-lz4-shuffle",
        "blosc-blosclz-noshuffle",
    ):
        yield Stored(codec, 3, "long rows")
    for pair in zip_longest(blosc, others):
        for codec in filter(None, pair):
            formats: tuple[ZarrFormat, ZarrFormat] = (2, 3)
            for version, encoder in zip(formats, (ALL_CODECS[codec].v2, ALL_CODECS[codec].v3), strict=True):
                if encoder is not None:
                    yield Stored(codec, version)


#: Mixed, so that the first few are of many kinds.
STORED: tuple[Stored, ...] = tuple(Random(2).sample(found := list(_all_stored()), len(found)))
#: Those of one format alone come twice, so that each codec is tried as often as the others.
_TURNS = (*STORED, *(one for one in STORED if sum(other.kind == one.kind for other in STORED) == 1))


class Target:
    """An array on disk, one chunk of which is changed again and again."""

    def __init__(self, stored: Stored, path: Path) -> None:
        self.stored, self.path = stored, path
        if not path.exists():
            stored.write(path)
        self.array = zarr.open_array(path, mode="r")
        values = read_all(path)
        self.right = raw_rows(values)
        files = chunk_files(path)
        self.file = files[len(files) // 2]
        self.key = str(self.file.relative_to(path))
        self.good = self.file.read_bytes()
        cell = int(re.findall(r"\d+", self.key)[0])
        length = (self.array.shards or self.array.chunks)[0]
        self.rows = slice(cell * length, (cell + 1) * length)
        self._streams: dict[int, ZarrIterableDataset] = {}

    def change(self, number: int, position: int, pattern: int) -> str:
        """Change one byte and read; return "caught", "same values" or "other values"; raise for anything else."""
        changed = bytearray(self.good)
        changed[position] ^= pattern
        with damaged(self.file, changed, self.good):
            try:
                return self._judge(number, position)
            except UnspecifiedError as error:
                where = f"{self.stored}, byte {position} of {len(changed)} xor {pattern:#x}, reading {number % 4}"
                raise UnspecifiedError(f"{where}: {error}") from error

    def _judge(self, number: int, position: int) -> str:
        got, came = np.zeros_like(self.right), np.zeros(len(self.right), dtype=bool)
        is_caught = False
        try:
            for values, index in self._read(number % 4):
                if came[index].any() and number % 4 != 2:
                    raise UnspecifiedError(f"samples {index.tolist()} came again")
                got[index], came[index] = raw_rows(values), True
        except (CorruptChunkError, UnsupportedError) as error:  # a Blosc header may name a compressor that we lack
            if f"chunk {self.key}" not in str(error):
                raise UnspecifiedError(f"the error does not name {self.key}: {error}") from error
            is_caught = True
        differ = (got != self.right).any(axis=1) & came
        outside = np.ones(len(came), dtype=bool)
        outside[self.rows] = False
        if (differ & outside).any():
            raise UnspecifiedError(f"samples {np.flatnonzero(differ & outside).tolist()} of other chunks are wrong")
        if not is_caught and not came.all():
            raise UnspecifiedError(f"samples {np.flatnonzero(~came).tolist()} did not come, without an error")
        if number % _VERIFY_EVERY == 0:
            check_verify(self.path, is_caught=is_caught)
        if self._must_be_caught(position) and not is_caught:
            raise UnspecifiedError("it has a checksum, and the change was not noticed")
        if differ.any() and self.stored.check != "nothing":
            raise UnspecifiedError("it has a checksum, and other values came")
        if is_caught:
            return "caught"
        theirs = self._read_by_zarr()
        if theirs is not None and not np.array_equal(theirs, got[self.rows]):
            raise UnspecifiedError("the values are not those of zarr-python")
        return "other values" if differ.any() else "same values"

    def _must_be_caught(self, position: int) -> bool:
        return self.stored.check == "stored bytes" or (self.stored.is_sharded and position in self.index_bytes)

    @property
    def index_bytes(self) -> range:
        """Where the index of the shard is, its checksum included."""
        assert self.array.shards is not None
        inner = math.prod(s // c for s, c in zip(self.array.shards, self.array.chunks, strict=True))
        length = 16 * inner + 4
        begin = 0 if self.stored.layout == "index at start" else len(self.good) - length
        return range(begin, begin + length)

    def header_bytes(self) -> Sequence[int]:
        """Where what is no payload is: headers, tables and trailers of the outermost codec."""
        if self.stored.is_sharded:
            return self.index_bytes
        size = len(self.good)
        outer = self.stored.codec
        if outer.startswith("blosc-") and outer != "blosc-zstd":
            return range(_blosc_header(self.good))
        if outer.endswith(("crc32c", "crc32", "adler32", "fletcher32")):
            return range(size - 4, size) if outer != "adler32" else range(4)
        if outer == "crc32c-at-start":
            return range(4)
        if "zstd" in outer:
            return range(_zstd_header(self.good))
        if outer.endswith("gzip"):
            return (*range(12), *range(size - 8, size))
        if outer.endswith("zlib"):
            return (*range(2), *range(size - 4, size))
        return {
            "lz4": range(4),
            "bz2": range(14),
            "lzma": (*range(24), *range(size - 12, size)),
            "zlib-blosc": range(_blosc_header(self.good)),
            "numcodecs-blosc": range(_blosc_header(self.good)),
        }.get(outer, range(0))

    def _read(self, way: int) -> Iterator[tuple[Any, Any]]:
        """Read the array as a stream, shuffled or not, by index, or through a store that Python reads."""
        if way == 2:
            with_index = ZarrDataset(self.path, return_index=True, num_threads=2, cache=0)
            try:
                everything = np.arange(len(self.right))
                yield from map(_in_numpy, (with_index[everything[::-1]], with_index[everything[self.rows][1:3]]))
            finally:
                with_index.close()
            return
        if self.stored.is_sharded:  # which keeps indices
            self.close()
        if way not in self._streams:
            self._streams[way] = stream_of(self.path, way)
        yield from map(_in_numpy, self._streams[way])

    def _read_by_zarr(self) -> Rows | None:
        try:
            rows: Rows = raw_rows(np.asarray(self.array[self.rows]))
        except Exception:  # noqa: BLE001 (codecs raise anything)
            return None
        return rows

    def close(self) -> None:
        """Close what reads it."""
        for dataset in self._streams.values():
            dataset.close()
        self._streams.clear()


def _in_numpy(batch: Any) -> tuple[Any, Any]:
    values, index = batch
    assert isinstance(values, torch.Tensor)
    return values, index.numpy()


def _blosc_header(stored: bytes) -> int:
    """Return the length of header and table of offsets."""
    size, block = (int.from_bytes(stored[at : at + 4], "little") for at in (4, 8))
    is_raw = stored[2] & 2
    return 16 if is_raw else 16 + 4 * -(-size // block)


def _zstd_header(stored: bytes) -> int:
    """Return the length of the frame's header and the first block's."""
    descriptor = stored[4]
    is_single = descriptor >> 5 & 1
    of_size = (is_single, 2, 4, 8)[descriptor >> 6]
    return 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3] + of_size + 3


@cache
def _target(stored: Stored, shared: Path) -> Target:
    return Target(stored, shared / str(STORED.index(stored)))


def change_header(attempt: Try) -> str:
    """Change every byte of a header, in each of its bits and in all of them."""
    target = _target(STORED[attempt.number % len(STORED)], attempt.shared)
    return _change(target, ((at, pattern) for at in target.header_bytes() for pattern in PATTERNS))


def change_some_of_header(attempt: Try) -> str:
    """Change every byte of a header, in all of its bits and in two of them, which are others in the next byte."""
    target = _target(STORED[attempt.number % len(STORED)], attempt.shared)
    return _change(
        target,
        ((at, pattern) for at in target.header_bytes() for pattern in (0xFF, 1 << at % 8, 1 << (3 * at + 5) % 8)),
    )


def change_at_random(attempt: Try) -> str:
    """Change random bytes anywhere."""
    r: Random = attempt.random
    target = _target(_TURNS[attempt.number % len(_TURNS)], attempt.shared)
    return _change(target, ((r.randrange(len(target.good)), r.randint(1, 255)) for _ in range(FLIPS_A_TRY)))


def _change(target: Target, changes: Iterable[tuple[int, int]]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr-python, about codecs that are no part of the specification
        try:
            found = Counter(target.change(number, *change) for number, change in enumerate(changes))
            mended = [raw_rows(values) for values, _ in target._read(1)]
            if not np.array_equal(np.concatenate(mended), target.right):
                raise UnspecifiedError(f"{target.stored}: it was mended, and other values come")
        finally:
            target.close()
    return f"{AS_SPECIFIED} | {target.stored.kind}: {json.dumps(found)}"


ROWS = (
    Row(
        "header-bytes",
        "each byte of the header, table or index of a chunk changed, in each bit and all, for each codec",
        "caught, or no other values than zarr-python's, in that chunk alone",
        change_header,
        runs=len(STORED),
        short_runs=2,
        timeout_s=900.0,  # a thousand changes, on a machine that is busy with other things
    ),
    Row(
        "random-flips",
        f"a random byte of a chunk changed at random, {FLIPS_A_TRY} times a try; 1,000 and more for each codec",
        "the same; with a checksum, caught",
        change_at_random,
        runs=10 * len(_TURNS),
        short_runs=5,
        timeout_s=900.0,
    ),
)

#: The rows that the tests run in their place: a third of the changes of headers.
SHORT = (replace(ROWS[0], attempt=change_some_of_header), *ROWS[1:])


def table(outcomes: Iterable[tuple[str, int]]) -> str:
    """Return the table by codec of what these rows found."""
    by_kind: dict[str, Counter[str]] = {}
    for outcome, times in outcomes:
        kind, found = outcome.partition(" | ")[2].split(": ", 1)
        for what, count in json.loads(found).items():
            by_kind.setdefault(kind, Counter())[what] += count * times
    titles = ("stored as", "checksum over", "changes", "caught", "same values", "other values")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for kind, counts in sorted(by_kind.items(), key=lambda item: (_ORDER.index(_check(item[0])), item[0])):
        cells = (counts.total(), *(counts[what] for what in titles[3:]))
        lines.append(f"| {kind} | {_check(kind)} | {' | '.join(f'{n:,}' for n in cells)} |")
    return "\n".join(lines)


_ORDER: tuple[Check, ...] = ("stored bytes", "content", "nothing")


def _check(kind: str) -> Check:
    return CHECKS.get(kind.partition(",")[0], "nothing")


if __name__ == "__main__":
    counts = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
    for row in ROWS:
        outcomes = [item for run in counts if row.name in run for item in run[row.name]["outcomes"].items()]
        print(f"{row.name}:\n\n{table(outcomes)}\n")

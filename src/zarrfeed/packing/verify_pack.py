"""The proof that a packed store is a permutation of its source: digests of both sides, read anew.

Both sides are read as a stranger would: the source through its library, and the packed store through `ZarrSource`. Each
sample is hashed with its number in the source, which the packed side works out from its position.

Invariant: decoded values are compared. Where stored numbers were copied, the digests compare them, and attributes that
decode them say the same on both sides. Where they were not, as times of several stores, each side is decoded by its own
attributes. Arrays without samples are compared, too. `Proof.not_compared` lists everything that is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.executors import run_all
from zarrfeed.metadata.array.cf import attributes_of
from zarrfeed.metadata.array.coordinate_values import decode_values
from zarrfeed.metadata.array.meaning import difference, meaning_of
from zarrfeed.packing.sources.file_runs import GROUP
from zarrfeed.packing.sources.same_meaning import differing_values
from zarrfeed.packing.sources.source import Constant, Source, SourceCall, SourceOptions
from zarrfeed.packing.targets.packed_values import as_packed
from zarrfeed.packing.work.digest import MODULUS, as_text, digest_rows
from zarrfeed.packing.work.finish import runs_of_part
from zarrfeed.packing.work.job import PackJob
from zarrfeed.packing.work.unit_worker import make_worker

#: Decoded bytes that are read at once.
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Piece:
    """Samples [begin, end) of the source, or of a part of the packed store, counted over all parts."""

    side: str
    part: int
    begin: int
    end: int


@dataclass
class Proof:
    """The findings of a comparison of a source with its packed store.

    Attributes
    ----------
    samples
        Number of samples that were compared.
    source, packed
        Digest of each array, by its name, as 32 hexadecimal digits.
    differing
        Names of arrays whose digests, decoded values or meanings differ, with samples or without.
    not_compared
        Sentences about the parts of the source that were not compared.
    """

    samples: int
    source: dict[str, str]
    packed: dict[str, str]
    differing: tuple[str, ...] = field(default=())
    not_compared: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """True if each sample of the source is in the packed store once, with the same content."""
        return not self.differing

    @property
    def by_digest(self) -> tuple[str, ...]:
        """Names of arrays whose digests differ."""
        return tuple(name for name in self.differing if self.source.get(name) != self.packed.get(name))

    @property
    def by_meaning(self) -> tuple[str, ...]:
        """Names of arrays that differ in their decoding, and of arrays without samples that differ."""
        return tuple(name for name in self.differing if name not in self.by_digest)


def prove(
    job: PackJob, executor: Executor, at_once: int, on_progress: Callable[[int, int], None] = lambda _a, _b: None
) -> Proof:
    """Read both sides, and compare their digests.

    Raises
    ------
    CorruptChunkError, StoreReadError, OSError
        If a side cannot be read.
    """
    pieces = _pieces(job)
    sums = {side: [0] * len(job.layouts) for side in ("source", "packed")}
    done = 0
    try:
        for piece, digests in run_all(executor, partial(_digest, job), pieces, at_once):
            of_side = sums[piece.side]
            for number, digest in enumerate(digests):
                of_side[number] = (of_side[number] + digest) % MODULUS
            done += piece.end - piece.begin
            on_progress(done, 2 * job.num_samples)
    finally:
        _forget_packed(job.run)
    names = [layout.name for layout in job.layouts]
    differing = [name for name, a, b in zip(names, sums["source"], sums["packed"], strict=True) if a != b]
    differing += [name for name in _described_otherwise(job) if name not in differing]
    source, packed = (
        {name: as_text(digest) for name, digest in zip(names, sums[side], strict=True)} for side in ("source", "packed")
    )
    return Proof(job.num_samples, source, packed, tuple(differing), tuple(make_worker(job).source.not_proved))


def _described_otherwise(job: PackJob) -> list[str]:
    """Return the names of arrays whose numbers mean something else in the packed store, and of other constants."""
    source, found = make_worker(job).source, dict[str, None]()
    decoded = {name: read() for name, read in source.by_value.items()}
    for part in job.parts:
        numbers = job.numbers(part.begin, part.end)
        for f in source.fields:
            packed = _packed_node(job, part.name, f.name)
            if f.csr is not None or not isinstance(packed, zarr.Array):
                continue  # a sparse matrix, whose attributes say nothing of its numbers
            attributes = attributes_of(packed)
            if f.kind == "number" and difference(
                meaning_of(f.attributes, f.dtype), meaning_of(attributes, packed.dtype)
            ):
                found[f.name] = None
            elif f.name in decoded:
                values = decode_values(np.asarray(packed[...]), attributes, f.name)
                if differing_values(decoded[f.name][numbers], values):
                    found[f.name] = None
        of_runs = runs_of_part(source, job, part) if source.fields[0].name else {}
        recorded = [Constant(f"{GROUP}/{name}", values) for name, values in of_runs.items()]
        for constant in (*source.constants, *recorded):
            packed = _packed_node(job, part.name, constant.name)
            if not isinstance(packed, zarr.Array) or not _is_same(constant, packed):
                found[constant.name] = None
    return list(found)


def _packed_node(job: PackJob, part: str, name: str) -> zarr.Array[Any] | zarr.Group | None:
    """Return the node of the packed store at a name; None if it has nothing there."""
    try:
        return zarr.open(Path(job.out, part, name), mode="r")
    except FileNotFoundError:
        return None


def _is_same(constant: Constant, packed: zarr.Array[Any]) -> bool:
    """Return whether an array without samples has the items and the attributes of that of the source."""
    values, stored = (
        one.astype(object) if one.dtype.kind in "OTU" else one for one in (np.asarray(packed[...]), constant.values)
    )
    has_attributes = json.dumps(dict(packed.attrs)) == json.dumps(dict(constant.attributes))
    return has_attributes and values.dtype == stored.dtype.newbyteorder("=") and not differing_values(values, stored)


def _pieces(job: PackJob) -> list[_Piece]:
    source = make_worker(job).source
    size = max(1, sum(f.mean_bytes for f in source.fields))
    rows = max(1, _PIECE_BYTES // size)
    of_source = -(-rows // source.block_samples) * source.block_samples
    of_packed = -(-rows // job.step_rows) * job.step_rows
    made = [
        _Piece("source", 0, begin, min(job.num_samples, begin + of_source))
        for begin in range(0, job.num_samples, of_source)
    ]
    for number, part in enumerate(job.parts):
        made += [
            _Piece("packed", number, begin, min(part.end, begin + of_packed))
            for begin in range(part.begin, part.end, of_packed)
        ]
    return made


def _digest(job: PackJob, piece: _Piece) -> tuple[_Piece, list[int]]:
    """Return the digests of the arrays of a piece; what executors are given."""
    if piece.side == "source":
        rows = make_worker(job).source.read(piece.begin, piece.end)
        packed = [as_packed(of_field, layout) for of_field, layout in zip(rows, job.layouts, strict=True)]
        numbers = np.arange(piece.begin, piece.end)
        return piece, [digest_rows(of_field, numbers) for of_field in packed]
    part = job.parts[piece.part]
    source = _open_packed(job, part.name)
    rows = source.read(piece.begin - part.begin, piece.end - part.begin)
    read = dict(zip((f.name for f in source.fields), rows, strict=True))
    numbers = job.numbers(piece.begin, piece.end)
    return piece, [digest_rows(read[layout.name], numbers) for layout in job.layouts]


def _open_packed(job: PackJob, part: str) -> Source:
    """Return a part of the packed store, opened once for the run that a job is of."""
    key = (job.run, part)
    with _lock:
        if key not in _opened:
            names = tuple(layout.name for layout in job.layouts)
            kind = "anndata" if job.source.kind == "anndata" else "zarr"
            dims = next((f.dims for f in make_worker(job).source.fields if f.dims), None)
            chooses = names != ("",) and kind == "zarr"
            options = SourceOptions(names if chooses else None, sample_dim=None if dims is None else dims[0])
            _opened[key] = SourceCall(kind, (str(Path(job.out, part)),), options).open()
            while len(_opened) > _MOST_OPEN:  # those of runs of other processes, which do not say that they ended
                _opened.pop(next(iter(_opened))).close()
        return _opened[key]


def _forget_packed(run: str) -> None:
    """Let go of the packed store of a run that is over."""
    with _lock:
        for key in [key for key in _opened if key[0] == run]:
            _opened.pop(key).close()


_lock = Lock()
_opened: dict[tuple[str, str], Source] = {}
#: Parts of packed stores that a process has open.
_MOST_OPEN = 32

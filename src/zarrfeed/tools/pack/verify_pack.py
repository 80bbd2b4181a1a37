"""The proof that a packed store is a permutation of its source: digests of both sides, read anew.

Both sides are read as a stranger would: the source through its library, and the packed store through `ZarrSource`. Each
sample is hashed with its number in the source, which the packed side works out from its position.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from zarrfeed.tools.executors import run_all
from zarrfeed.tools.pack.digest import MODULUS, as_text, digest_rows
from zarrfeed.tools.pack.job import PackJob
from zarrfeed.tools.pack.sources.source import Source, SourceCall, SourceOptions
from zarrfeed.tools.pack.units import as_packed, make_worker

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
    """What the comparison of a source with its packed store found.

    Attributes
    ----------
    samples
        How many were compared.
    source, packed
        Digest of each array, by its name, as 32 hexadecimal digits.
    differing
        Names of arrays whose digests differ.
    """

    samples: int
    source: dict[str, str]
    packed: dict[str, str]
    differing: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether each sample of the source is in the packed store once, with the same content."""
        return not self.differing


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
    differing = tuple(name for name, a, b in zip(names, sums["source"], sums["packed"], strict=True) if a != b)
    source, packed = (
        {name: as_text(digest) for name, digest in zip(names, sums[side], strict=True)} for side in ("source", "packed")
    )
    return Proof(job.num_samples, source, packed, differing)


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

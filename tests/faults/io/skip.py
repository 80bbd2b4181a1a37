"""Row of chunks that are skipped: what is delivered in their place, and that it depends on nothing but the faults."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.buffer import Buffer

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import SAMPLES, AnyArray, Epoch, chunk_files, copied, opened, read_batches
from tests.faults.io.local import cold
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from tests.faults.io.store import FaultyStore, in_memory
from zarrfeed import CorruptChunkError, StoreReadError

_LAYOUTS = ("raw", "blosc", "zstd", "crc32c", "shards", "shards-crc32c")


@dataclass(frozen=True)
class _Faults:
    """Files that are bad, of an array that may be changed, and with which error number; 0: damaged."""

    layout: str
    path: Path
    files: Mapping[Path, int]

    @classmethod
    def make(cls, attempt: Try) -> _Faults:
        layout = attempt.random.choice(_LAYOUTS)
        path = copied(attempt, layout)
        chosen = attempt.random.sample(chunk_files(path), attempt.random.randint(1, 3))
        files = {file: attempt.random.choice((errno.EIO, errno.ENOENT, 0)) for file in chosen}
        for file, code in files.items():
            if code == errno.ENOENT:
                file.unlink()
            elif code == 0:
                file.write_bytes(file.read_bytes()[:-1])
        return cls(layout, path, files)

    @property
    def keys(self) -> dict[str, int]:
        return {file.relative_to(self.path).as_posix(): code for file, code in self.files.items()}

    def hit(self, epoch: Epoch) -> AnyArray:
        """Return, for each row, whether it is stored in a bad file."""
        hit = np.zeros(len(epoch.index), bool)
        for file in self.files:
            hit |= epoch.lies_in(file, self.layout)
        return hit

    def open(self, stack: ExitStack, *, in_python: bool) -> Any:
        """Return a source with these faults, local or of a store that Python reads."""
        unreadable = [file for file, code in self.files.items() if code == errno.EIO]
        if not in_python:
            stack.enter_context(injected(*(Fault(Calls.READ, f, error=errno.EIO) for f in unreadable), cold(self.path)))
            return str(self.path)

        async def answer(_: Buffer | None) -> Buffer | None:
            raise OSError(errno.EIO, "Input/output error")

        store = FaultyStore(in_memory(self.path))
        store.keys = {file.relative_to(self.path).as_posix() for file in unreadable}
        store.times, store.answer = -1, answer
        return zarr.open_array(store, mode="r")


def _read(
    attempt: Try, faults: _Faults, configuration: dict[str, Any], **options: Any
) -> tuple[Epoch, AnyArray, list[Any]]:
    """Return what comes, the samples that come where nothing is bad, and what was skipped."""
    with ExitStack() as stack, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        source = faults.open(stack, in_python=attempt.random.random() < 0.4)
        options = {"on_error": "skip", "retries": 0, "missing": "raise"} | options
        with opened(source, attempt.random, **configuration, **options) as dataset:
            order = dataset.sample_order(0)
            epoch = read_batches(dataset)
            skipped = dataset.skipped_chunks()
            # On a rank there may be more: chunks of others, which it wanted in the place of its own.
            most = dataset.stats().chunks_skipped if "rank" not in configuration else SAMPLES
            if not (len(warned) == len(skipped) and dataset.stats().chunks_skipped <= len(skipped) <= most):
                raise UnspecifiedError(
                    f"{len(skipped)} skipped chunks are listed, {len(warned)} were warned of, "
                    f"{dataset.stats().chunks_skipped} are counted"
                )
    return epoch, order, skipped


def _check(faults: _Faults, epoch: Epoch, order: AnyArray) -> dict[int, int]:
    """Return which sample came in whose place, after checking that all others came in their own."""
    epoch.must(epoch.is_of(0), "right")
    epoch.must(~faults.hit(epoch), "of good chunks")
    hit = faults.hit(Epoch(order, epoch.rows))
    if len(order) != len(epoch.index) or not np.array_equal(epoch.index[~hit], order[~hit]):
        raise UnspecifiedError("good samples are not in their places")
    return dict(zip(order[hit].tolist(), epoch.index[hit].tolist(), strict=True))


def skips(attempt: Try) -> str:
    """Read past bad files: twice alike, on one rank and on two; then with fewer allowed than there are."""
    faults = _Faults.make(attempt)
    configuration = {
        "batch_size": attempt.random.choice((5, 16, 64)),
        "shuffle": attempt.random.random() < 0.75,
        "seed": attempt.random.randrange(1000),
        "lanes": 2,
    }
    epoch, order, skipped = _read(attempt, faults, configuration)
    replacements = _check(faults, epoch, order)
    if len(order) != SAMPLES:
        raise UnspecifiedError(f"{len(order)} samples, must be {SAMPLES}")
    named = {chunk.key.split(" ")[0] for chunk in skipped}
    if named != set(faults.keys):
        raise UnspecifiedError(f"skipped: {skipped}, must be {faults.keys}")
    for chunk in skipped:
        code = faults.keys[chunk.key.split(" ")[0]]
        kind = StoreReadError if code else CorruptChunkError
        if not isinstance(chunk.cause, kind) or (code and getattr(chunk.cause, "errno", None) != code):
            raise UnspecifiedError(f"{chunk.key} has errno {code}, 0: corrupt; it was skipped for {chunk.cause!r}")

    again, _, _ = _read(attempt, faults, configuration)
    if not np.array_equal(again.index, epoch.index):
        raise UnspecifiedError("a second time other samples come")
    lengths = set()
    for rank in range(2):
        share, order, _ = _read(attempt, faults, configuration | {"rank": rank, "world_size": 2})
        lengths.add(len(share.index))
        for sample, other in _check(faults, share, order).items():
            if replacements[sample] != other:
                raise UnspecifiedError(
                    f"in the place of {sample} comes {other} on rank {rank}, else {replacements[sample]}"
                )
    if len(lengths) > 1:
        raise UnspecifiedError(f"ranks have {lengths} samples")
    if len(skipped) > 1:
        try:
            _read(attempt, faults, configuration, max_errors=len(skipped) - 1)
        except (StoreReadError, CorruptChunkError) as error:
            if f"max_errors = {len(skipped) - 1}" not in str(error):
                raise UnspecifiedError(f"names not max_errors: {error!r}") from error
        else:
            raise UnspecifiedError(f"max_errors = {len(skipped) - 1} let {len(skipped)} pass")
    return "right, all others in their places"


ROWS = (
    Row(
        "skip",
        '1 to 3 chunks or shards that cannot be read (EIO), are missing or damaged, with `on_error="skip"`',
        "every batch full, right rows of good chunks in their places; the same again, with other threads, local "
        "or not, and on two ranks; listed, warned of and counted; past `max_errors` an error",
        skips,
        200,
        variables=preloaded,
    ),
)

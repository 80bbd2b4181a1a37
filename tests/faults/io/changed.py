"""Rows of local chunks that another process changes while they are read.

The change is made by the call of the engine that it is to hit: before it opens the file, after, or before it reads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import GzipCodec

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import (
    ITEMS,
    LAYOUTS,
    AnyArray,
    Epoch,
    check_errno,
    check_injected,
    check_names,
    check_right,
    chunk_files,
    copied,
    opened,
    read_epoch,
    rows_of,
    stored,
)
from tests.faults.io.local import cold
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from zarrfeed import CorruptChunkError, StoreReadError

_CALLS = (Calls.OPEN, Calls.OPENED, Calls.READ)


def _files(attempt: Try) -> tuple[str, Path, Path, Path]:
    """Return layout, array, the file that is changed, and the same file of version 1."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = copied(attempt, layout)
    file = attempt.random.choice(chunk_files(path))
    return layout, path, file, stored(attempt.shared, layout, 1) / file.relative_to(path)


def _moment(attempt: Try, layout: str) -> tuple[Calls, int]:
    """Return at which call the file is changed, and how many such calls come before it."""
    return attempt.random.choice(_CALLS), attempt.random.randint(0, 3) if "shards" in LAYOUTS[layout] else 0


def truncated(attempt: Try) -> str:
    """Cut a file off while it is read."""
    layout, path, file, _ = _files(attempt)
    calls, skip = _moment(attempt, layout)
    size = attempt.random.randrange(file.stat().st_size)

    def cut(_: Path) -> None:
        with file.open("r+b") as handle:
            handle.truncate(size)

    outcome = "right, then error"
    with opened(str(path), attempt.random, retries=1) as dataset:
        with injected(Fault(calls, file, skip=skip, times=1, hook=cut), cold(path)) as acted:
            try:
                check_right(dataset)
            except (StoreReadError, CorruptChunkError) as error:
                check_names(error, path, file)
                if isinstance(error, StoreReadError):
                    check_errno(error, errno.EIO)
                outcome = "error"
        check_injected(acted[0])
        try:
            read_epoch(dataset)
        except CorruptChunkError as error:
            check_names(error, path, file)
        else:
            raise UnspecifiedError(f"{size} bytes of {file.name} decoded")
    return outcome


def replaced(attempt: Try) -> str:
    """Replace files by others with `rename` while they are read, a third of them, or one again and again."""
    layout, path, file, _ = _files(attempt)
    newer = stored(attempt.shared, layout, 1)
    once = attempt.random.random() < 0.5
    versions: dict[Path, int] = {}

    one_at_a_time = threading.Lock()

    def replace(opened_file: Path) -> None:
        with one_at_a_time:
            version = versions[opened_file] = 1 - versions.get(opened_file, 0)
            source = (newer if version else stored(attempt.shared, layout)) / opened_file.relative_to(path)
            temporary = attempt.directory / "newer"
            temporary.write_bytes(source.read_bytes())
            temporary.replace(opened_file)

    fault = (
        Fault(attempt.random.choice(_CALLS), file, skip=attempt.random.randint(0, 1), times=3, hook=replace)
        if once
        else Fault(attempt.random.choice(_CALLS), path / "c", chance=0.3, seed=attempt.number, hook=replace)
    )
    with opened(str(path), attempt.random) as dataset:
        with injected(fault, cold(path)) as acted:
            epoch = read_epoch(dataset)
            if acted[0] == 0:  # the file was opened once, and the first time was let through
                epoch = read_epoch(dataset)
        check_injected(acted[0])
        epoch.must(epoch.is_of(0) | epoch.is_of(1), "old or new")
        epoch = read_epoch(dataset)
        new = np.zeros(len(epoch.index), bool)
        for changed, version in versions.items():
            new |= epoch.lies_in(changed, layout) & (version == 1)
        epoch.must(np.where(new, epoch.is_of(1), epoch.is_of(0)), "as they are stored now")
    return "right"


def _old_or_new_bytes(epoch: Epoch) -> AnyArray:
    """Return, for each row, whether each byte is that of one version or the other."""
    read = epoch.rows.view(np.uint8).reshape(-1, ITEMS, 4)
    old, new = (rows_of(epoch.index, version).view(np.uint8).reshape(-1, ITEMS, 4) for version in (0, 1))
    right: AnyArray = ((read == old) | (read == new)).all(axis=(1, 2))
    return right


def overwritten(attempt: Try) -> str:
    """Let a writer be half through with a file that it overwrites in place; then let it finish."""
    layout, path, file, new = _files(attempt)
    calls, skip = _moment(attempt, layout)
    content = new.read_bytes()
    done = attempt.random.randrange(len(content))
    truncates = attempt.random.random() < 0.5

    def write(_: Path) -> None:
        with file.open("wb" if truncates else "r+b") as handle:
            handle.write(content[:done])

    outcome = "old or new"
    with opened(str(path), attempt.random, retries=1) as dataset:
        with injected(Fault(calls, file, skip=skip, times=1, hook=write), cold(path)) as acted:
            try:
                epoch = read_epoch(dataset)
            except (StoreReadError, CorruptChunkError) as error:
                check_names(error, path, file)
                if isinstance(error, StoreReadError):
                    check_errno(error, errno.EIO)
                outcome = "error"
            else:
                expected = epoch.is_of(0) | epoch.is_of(1)
                epoch.must(expected | epoch.lies_in(file, layout), "right in other chunks")
                if "crc32c" in layout:
                    epoch.must(expected, "old or new, with a checksum")
                elif layout == "raw":
                    epoch.must(_old_or_new_bytes(epoch), "old and new bytes")
                if not expected.all():
                    outcome = "old and new mixed, no checksum"
        check_injected(acted[0])
        file.write_bytes(content)
        epoch = read_epoch(dataset)
        epoch.must(np.where(epoch.lies_in(file, layout), epoch.is_of(1), epoch.is_of(0)), "as they are stored now")
    return outcome


#: What becomes of the array -> what the error says, and its errno.
_REPLACED: dict[str, tuple[str, int]] = {
    "shrunk": ("shape is", errno.ESTALE),
    "grown": ("shape is", errno.ESTALE),
    "another dtype": ("dtype is", errno.ESTALE),
    "other chunks": ("chunk shape is|shards is", errno.ESTALE),
    "other codecs": ("codecs is", errno.ESTALE),
    "deleted": ("is gone|cannot be opened", errno.ENOENT),
    "rewritten alike": ("", 0),
}


def _replace_array(path: Path, how: str) -> None:
    array = zarr.open_array(path, mode="r+")
    length = array.shape[0]
    match how:
        case "shrunk" | "grown":
            array.resize((length // 2 if how == "shrunk" else length + 64, *array.shape[1:]))
        case "deleted":
            shutil.rmtree(path)
        case "rewritten alike":
            document = path / "zarr.json"
            document.write_text(json.dumps(json.loads(document.read_text()), indent=3, sort_keys=True))
        case _:
            dtype = "i2" if how == "another dtype" else array.dtype
            chunks = (array.chunks[0] * 2, *array.chunks[1:]) if how == "other chunks" else array.chunks
            codecs: Any = GzipCodec() if how == "other codecs" else array.compressors
            shape, shards = array.shape, array.shards if how == "another dtype" else None
            made = zarr.create_array(
                path, shape=shape, chunks=chunks, shards=shards, dtype=dtype, compressors=codecs, overwrite=True
            )
            made[:] = 0


def metadata(attempt: Try) -> str:
    """Write another array in the place of one, between two epochs or in the middle of one, or delete it."""
    path = copied(attempt, attempt.random.choice(sorted(LAYOUTS)))
    how = attempt.random.choice(sorted(_REPLACED))
    text, code = _REPLACED[how]
    in_middle = attempt.random.random() < 0.3
    with opened(str(path), attempt.random) as dataset:
        check_right(dataset)
        if in_middle:  # that epoch reads what is there: old chunks, new ones, or fill values
            running = iter(dataset)
            next(running)
            _replace_array(path, how)
            with contextlib.suppress(StoreReadError, CorruptChunkError):
                for _ in running:
                    pass
        else:
            _replace_array(path, how)
        try:
            check_right(dataset)
        except StoreReadError as error:
            check_errno(error, code)
            if not text or not re.search(rf"{re.escape(str(path))}.*({text})", str(error)):
                raise UnspecifiedError(f"{how}: the error says not {text}: {error!r}") from error
            return "error"
    if text:
        raise UnspecifiedError(f"{how}: no error")
    return "right"


ROWS = (
    Row(
        "metadata",
        "another array is written in the place of one that is open, with another length, dtype, chunks or codecs; it "
        "is deleted; or its document is written again and says the same",
        "in the next epoch StoreReadError that says what changed; of a document that says the same none, and right",
        metadata,
        300,
        8,
        variables=preloaded,
    ),
    Row(
        "truncated",
        "a chunk or shard is cut off while it is read, before open, after it, or before a read",
        "right, or CorruptChunkError or StoreReadError that names it; in the next epoch CorruptChunkError",
        truncated,
        300,
        variables=preloaded,
    ),
    Row(
        "replaced",
        "chunks or shards are replaced with `rename` at these moments, up to all of them",
        "each row old or new, no error; in the next epoch as stored then",
        replaced,
        300,
        variables=preloaded,
    ),
    Row(
        "overwritten",
        "a chunk or shard is overwritten in place, and read when that is half done",
        "with crc32c rows that are old or new, or an error that names it; without, other values in that chunk at most; "
        "once it is done, new rows",
        overwritten,
        500,
        variables=preloaded,
    ),
)

"""Rows of local chunks that another process changes while they are read.

The change is made by the call of the engine that it is to hit: before it opens the file, after, or before it reads.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np

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


ROWS = (
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

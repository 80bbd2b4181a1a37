"""Files of tests that lie in memory: each costs a third of the CPU time of one on a disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "zarrfeed-tests-"
#: With less room than this, as in most containers, files lie on the disk.
_LEAST_ROOM = 2**31


@contextlib.contextmanager
def memory_folder(memory: Path = _MEMORY, least_room: int = _LEAST_ROOM) -> Iterator[Path | None]:
    """Yield a new folder in memory, or None where memory has no room; remove those whose processes have ended.

    A folder that holds files at the end stays until a later process calls this: files of a test that failed are there
    to be looked at.
    """
    if not memory.is_dir() or shutil.disk_usage(memory).free < least_room:
        yield None
        return
    with _locked(memory):  # no other process takes the new folder for a forgotten one before it is locked
        _remove_forgotten(memory)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=memory))
        lock = contextlib.ExitStack()
        lock.enter_context(_locked(folder))
    with lock:
        yield folder
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path, options: int = 0) -> Iterator[None]:
    """Hold the lock of a folder; the system takes it from a process that ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | options)
        yield
    finally:
        os.close(descriptor)


def _remove_forgotten(memory: Path) -> None:
    for folder in memory.glob(f"{_PREFIX}*"):
        # A folder may be in use, or belong to another user.
        with contextlib.suppress(OSError), _locked(folder, fcntl.LOCK_NB):
            shutil.rmtree(folder)

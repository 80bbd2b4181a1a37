"""`SharedFile`: a file without a name, which the process that made it shares with all that inherit it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any

from zarrfeed.base.process_lock import ProcessLock


class SharedFile:
    """An anonymous file that processes share which inherit it, by fork or by being spawned with it.

    The lock is one of the system, which releases it if its holder is killed.

    Attributes
    ----------
    descriptor
        The descriptor of the file in this process, which is closed when the object is dropped.
    """

    def __init__(self) -> None:
        self._adopt(anonymous_file())

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock against all threads and processes that share the file; yield its descriptor."""
        with self._lock.held:  # the file's lock is the process's
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
                yield self.descriptor
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def _adopt(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = ProcessLock()
        # Not when the interpreter exits: a daemon thread may still use the number, which may be another file's then.
        weakref.finalize(self, os.close, descriptor).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {"shared": reduction.DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._adopt(state["shared"].detach())


def anonymous_file() -> int:
    """Return the descriptor of a file without a name, which processes can share."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("zarrfeed")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

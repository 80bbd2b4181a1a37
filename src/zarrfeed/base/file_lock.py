"""Locks on files, which the system releases when their holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from pathlib import Path

_CLOSED_IN_CHILDREN: weakref.WeakSet[Held] = weakref.WeakSet()


class Held:
    """A lock on a file, held until it is released, this object is gone or the process ends; never by a forked child.

    Parameters
    ----------
    path
        Path of the file, which is made if it is not there. A link is not followed.
    shared
        If True, others that also pass `shared=True` may hold the lock at the same time.
    wait
        If True, wait for the lock.

    Raises
    ------
    BlockingIOError
        If another process or object holds the lock, and `wait` is False.
    """

    def __init__(self, path: Path, *, shared: bool = False, wait: bool = True) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.forget()
            raise
        _CLOSED_IN_CHILDREN.add(self)

    def is_at(self, path: Path) -> bool:
        """Return whether the file that was locked still has this path."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.lstat())
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """Close the file; the lock is released with the last descriptor of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.forget()


def _forget_in_child() -> None:
    for held in list(_CLOSED_IN_CHILDREN):
        held.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def is_held(path: Path) -> bool:
    """Return whether a process that lives holds the lock on a file; nobody holds one on a link."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

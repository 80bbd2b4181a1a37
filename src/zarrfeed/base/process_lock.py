"""A lock for the threads of one process, which a fork does not leave locked in the child."""

from __future__ import annotations

import os
import threading
import weakref


class ProcessLock:
    """A reentrant lock whose copy in a forked child is free, whatever threads of the parent held it.

    Take it with `with lock.held:`, which costs no more than a lock of `threading`. An interrupt breaks the wait for it.
    Pickling or copying makes another lock.

    Attributes
    ----------
    held
        The lock of this process.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held = threading.RLock()
        _locks.add(self)

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()


_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _free_in_child() -> None:
    for lock in list(_locks):
        lock.held = threading.RLock()


os.register_at_fork(after_in_child=_free_in_child)

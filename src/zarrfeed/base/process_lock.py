"""A lock for the threads of one process, which a fork does not leave locked in the child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

#: All locks, so that a forked child can replace their inner locks. References without a callback: see `ProcessLock`.
_locks: list[weakref.ref[ProcessLock]] = []
_guard = threading.Lock()
_FEW = 64
_sweep_at = _FEW


class ProcessLock:
    """A reentrant lock whose copy in a forked child is free, whatever threads of the parent held it.

    Take it with `with lock.held:`. An interrupt breaks the wait for it. Pickling or copying makes another lock. No
    Python code runs when a lock is dropped: an interrupt that comes then would be lost in that code.

    Attributes
    ----------
    held
        The lock of this process, as a context manager.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held: Any = threading.RLock()
        _remember(self)

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()


def _remember(lock: ProcessLock) -> None:
    global _sweep_at
    with _guard:
        if len(_locks) >= _sweep_at:
            _locks[:] = [known for known in _locks if known() is not None]
            _sweep_at = 2 * len(_locks) + _FEW
        _locks.append(weakref.ref(lock))


def _renew() -> None:
    global _guard
    _guard = threading.Lock()
    for known in _locks:
        lock = known()
        if lock is not None:
            lock.held = threading.RLock()


os.register_at_fork(after_in_child=_renew)

"""A lock for the threads of one process, which a fork does not leave locked in the child."""

from __future__ import annotations

import os
import threading
from typing import Any

#: How many forks lie between this process and the one that imported this module.
_forks = 0


class ProcessLock:
    """A reentrant lock whose copy in a forked child is free, whatever threads of the parent held it.

    Take it with `with lock.held:`. An interrupt breaks the wait for it. Pickling or copying makes another lock. No
    Python code runs when a lock is dropped: an interrupt that comes then would be lost in that code.
    """

    __slots__ = ("_forks", "_lock")

    def __init__(self) -> None:
        self._forks, self._lock = _forks, threading.RLock()

    @property
    def held(self) -> Any:
        """The lock of this process, as a context manager."""
        if self._forks != _forks:
            self._forks, self._lock = _forks, threading.RLock()
        return self._lock

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)

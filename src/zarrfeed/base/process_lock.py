"""A lock for the threads of one process, which a fork does not leave locked in the child."""

from __future__ import annotations

import os
import threading
from typing import Any


class ProcessLock:
    """A reentrant lock whose copy in a forked child is free, whatever threads of the parent held it.

    Take it with `with lock.here():`. An interrupt breaks the wait for it. Pickling or copying makes another lock.
    """

    def __init__(self) -> None:
        self._pid, self._lock = os.getpid(), threading.RLock()

    def here(self) -> Any:
        """Return the lock of this process, as a context manager."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()

"""A multiprocessing context whose events survive that a process is killed.

torch's DataLoader tells its workers to end by a `multiprocessing.Event`, each look at which takes a lock that all of
them share. A worker that is killed while it looks leaves the lock taken: the other workers, and the training process as
soon as it drops the iterator, wait for ever (pytorch issue 21554).
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import weakref
from multiprocessing import reduction
from multiprocessing.context import BaseContext
from typing import Any

from zarrfeed.epochs import anonymous_file


class Flag:
    """What a DataLoader uses of an event, without a lock: an anonymous file is empty until it is set."""

    def __init__(self) -> None:
        self._adopt(anonymous_file())

    def set(self) -> None:
        """Set it, for all processes that inherited it, by fork or by being spawned with it."""
        os.truncate(self._descriptor, 1)

    def is_set(self) -> bool:
        """Return whether a process has set it."""
        return os.fstat(self._descriptor).st_size > 0

    def _adopt(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {"shared": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._adopt(state["shared"].detach())


def with_flags(context: BaseContext | None) -> BaseContext:
    """Return a context, or the default one for None, that makes flags in place of events."""
    context = copy.copy(context or multiprocessing.get_context())
    context.Event = Flag  # type: ignore[assignment, method-assign]
    return context

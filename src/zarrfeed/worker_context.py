"""A multiprocessing context whose events survive that a process is killed.

torch's DataLoader tells its workers to end by a `multiprocessing.Event`, each look at which takes a lock that all of
them share. A worker that is killed while it looks leaves the lock taken: the other workers, and the training process as
soon as it drops the iterator, wait for ever (pytorch issue 21554).
"""

from __future__ import annotations

import copy
import ctypes
import functools
import multiprocessing
from multiprocessing.context import BaseContext
from typing import Any


class Flag:
    """What a DataLoader uses of an event, without a lock: a byte in shared memory that is set once."""

    def __init__(self, context: BaseContext) -> None:
        self._byte: Any = context.RawValue(ctypes.c_bool, False)

    def set(self) -> None:
        """Set it, for all processes."""
        self._byte.value = True

    def is_set(self) -> bool:
        """Return whether a process has set it."""
        return bool(self._byte.value)


def with_flags(context: BaseContext | None) -> BaseContext:
    """Return a context, or the default one for None, that makes flags in place of events."""
    context = copy.copy(context or multiprocessing.get_context())
    context.Event = functools.partial(Flag, context)  # type: ignore[assignment, method-assign]
    return context

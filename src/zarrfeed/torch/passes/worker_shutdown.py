"""A multiprocessing context whose events still work after a process that used them was killed.

torch's DataLoader tells its workers to end through a `multiprocessing.Event`. Every check of that event takes a lock
that all processes share. A worker that is killed during a check never releases the lock: the other workers wait for
ever, and so does the training process as soon as it drops the iterator (pytorch issue 21554).
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.context import BaseContext
from typing import Any

from zarrfeed.torch.passes.epochs import anonymous_file


class Flag:
    """What a DataLoader uses of an event, without a lock: a byte in shared memory that is 0 until it is set.

    It can be set as long as anything refers to it, also by a `__del__` when both are collected at once: the memory is
    unmapped after that. The descriptor may be closed by then; it is there for being sent to spawned workers alone.
    """

    def __init__(self) -> None:
        descriptor = anonymous_file()
        os.truncate(descriptor, 1)
        self._adopt(descriptor)

    def set(self) -> None:
        """Set it, for all processes that inherited it, by fork or by being spawned with it."""
        self._byte[0] = 1

    def is_set(self) -> bool:
        """Return whether a process has set it."""
        return self._byte[0] != 0

    def _adopt(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._byte = mmap.mmap(descriptor, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {"shared": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._adopt(state["shared"].detach())


def with_flags(context: BaseContext | None) -> BaseContext:
    """Return a context, or the default one for None, that makes flags in place of events."""
    context = copy.copy(context or multiprocessing.get_context())
    context.Event = Flag  # type: ignore[assignment, method-assign]
    return context


def keep_until_shutdown(iterator: Iterator[Any]) -> None:
    """Keep alive by what torch's iterator ends its workers, until the iterator itself is gone.

    The garbage collector ends the queues and processes of an iterator in a cycle before it calls the iterator's
    `__del__`, which then cannot tell its workers that they are to end, and waits 5 s for each of them: on whatever
    thread the collector came to run, perhaps zarr-python's event loop.
    """
    held = [getattr(iterator, name, None) for name in ("_index_queues", "_worker_result_queue", "_workers")]
    weakref.finalize(iterator, held.clear).atexit = False

"""Workers of a DataLoader that end as soon as they are told to, whatever was killed or interrupted before.

torch tells its workers to end through a `multiprocessing.Event` and a last message in the queue of each. Every check of
the event takes a lock that all processes share: a worker that is killed during a check never releases the lock, and
the others wait for ever (pytorch issue 21554). A `multiprocessing.Queue` has a lock and a thread in the training
process. An interrupt that comes as the lock is taken, or before the thread runs, leaves a queue that passes nothing on:
torch waits for the lock for ever, or 5 s for a worker that was told nothing. Here, both are memory and pipes without
locks and threads, and a worker that waits for a message looks at the event, too. Batches come back through
`result_queue.py`.
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
import queue
import weakref
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from typing import Any

from zarrfeed.base.waits import looks
from zarrfeed.torch.passes.result_queue import ResultQueue
from zarrfeed.torch.passes.shared_file import SharedFile

#: A worker without work looks this often whether it has to end.
_LOOK_S = 0.1


class Flag:
    """The part of an event that a DataLoader uses, without a lock: a byte in shared memory that is 0 until it is set.

    It can be set as long as anything refers to it, also by a `__del__` when both are collected at once: the memory is
    unmapped after that. The descriptor may be closed by then; it is there for being sent to spawned workers alone.
    """

    def __init__(self) -> None:
        file = SharedFile()
        os.truncate(file.descriptor, 1)
        self.__setstate__({"file": file})

    def set(self) -> None:
        """Set it, for all processes that inherited it, by fork or by being spawned with it."""
        self._byte[0] = 1

    def is_set(self) -> bool:
        """Return whether a process has set it."""
        return self._byte[0] != 0

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file = state["file"]
        self._byte = mmap.mmap(self._file.descriptor, 1)


class IndexQueue:
    """The queue of one worker, in which the training process asks for batches: a pipe, without a lock or a thread.

    A message is far shorter than `PIPE_BUF`, so that it is sent as a whole or not at all, whenever an interrupt comes.
    The pipe never fills up, since torch asks for a few batches ahead at most.
    """

    def __init__(self, context: BaseContext, ended: Flag) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._ended = ended

    def put(self, message: Any) -> None:
        """Send a message, and wait for nothing."""
        self._writer.send(message)

    def get(self, timeout: float) -> Any:
        """Return the next message, or None, torch's last one, if the worker has to end; `queue.Empty` after so long."""
        for look in looks(timeout, _LOOK_S):
            if self._reader.poll(look):
                return self._reader.recv()
            if self._ended.is_set():
                return None
        raise queue.Empty

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread."""

    def close(self) -> None:
        """Close both ends in this process."""
        self._reader.close()
        self._writer.close()


class _Endings:
    """Makes the event and the queues of one iterator of torch's, which makes the queue for all results first."""

    def __init__(self, context: BaseContext, num_workers: int) -> None:
        self._context = context
        self._num_workers = num_workers
        self._ended = Flag()
        self._has_results = False

    def event(self) -> Flag:
        return self._ended

    def queue(self) -> IndexQueue | ResultQueue:
        if self._has_results:
            return IndexQueue(self._context, self._ended)
        self._has_results = True
        return ResultQueue(self._context, self._num_workers)


def ending_workers(context: BaseContext | None, num_workers: int) -> BaseContext:
    """Return a context, or the default one for None, with which torch makes one iterator whose workers end surely."""
    context = context or multiprocessing.get_context()
    endings = _Endings(context, num_workers)
    context = copy.copy(context)
    context.Event = endings.event  # type: ignore[assignment, method-assign]
    context.Queue = endings.queue  # type: ignore[assignment, method-assign]
    return context


def keep_until_shutdown(iterator: Iterator[Any]) -> None:
    """Keep alive by what torch's iterator ends its workers, until the iterator itself is gone.

    The garbage collector ends the queues and processes of an iterator in a cycle before it calls the iterator's
    `__del__`, which then cannot tell its workers that they are to end, and waits 5 s for each of them: on whatever
    thread the collector came to run, perhaps zarr-python's event loop.
    """
    held = [getattr(iterator, name, None) for name in ("_index_queues", "_worker_result_queue", "_workers")]
    weakref.finalize(iterator, held.clear).atexit = False

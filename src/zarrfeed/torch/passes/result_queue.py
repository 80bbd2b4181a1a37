"""The queue in which DataLoader workers put batches: a pipe for each worker, and no lock that processes share.

All workers of torch write to one `multiprocessing.Queue`. A worker that is killed while it writes keeps the queue's
lock, and the others wait for it; half a message stays in the pipe, and the training process waits for the rest for
ever. An interrupt (Ctrl-C reaches workers, too) that comes within `put` leaves another lock taken, for which the worker
waits as it ends, and torch waits 5 s for the worker. Here, a worker that ends closes the only pipe that it wrote to,
and a worker takes no lock that is not released at once.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from zarrfeed.base.waits import looks

#: The training process looks this often whether an interrupt came.
_LOOK_S = 0.2
#: A process is gone at the latest so long after its pipes were closed, on a machine that has time for it.
_LEAVES_S = 0.1


class ResultQueue:
    """The part of a `multiprocessing.Queue` that a DataLoader uses, for the batches of a number of workers.

    Messages of one worker come in the order in which it put them.
    """

    def __init__(self, context: BaseContext, num_workers: int) -> None:
        # The last pipe is the one of the training process, which wakes up its own thread that pins batches.
        pipes = [context.Pipe(duplex=False) for _ in range(num_workers + 1)]
        self._readers: list[Connection] = [reader for reader, _ in pipes]
        self._writers: list[Connection] = [writer for _, writer in pipes]
        self._unsent: queue.SimpleQueue[Any] | None = None
        self._is_reading = False
        self._read_out: set[Connection] = set()  # of workers that have no more samples, and may end

    def put(self, item: Any) -> None:
        """Send an item; a worker lets a thread do it, and waits for nothing."""
        info = get_worker_info()
        if info is None:
            self._writers[-1].send(item)  # of torch: a few bytes, for which the pipe has room
            return
        if self._unsent is None:
            self._keep(info.id)
            unsent: queue.SimpleQueue[Any] = queue.SimpleQueue()
            _thread.start_new_thread(self._send, (self._writers[0], unsent))
            self._unsent = unsent
        self._unsent.put(item)  # in C: an interrupt comes before it or after it

    def get(self, timeout: float) -> Any:
        """Return an item that a worker sent; raise `queue.Empty` if none comes for so many seconds.

        It is raised at once if a worker ends that has to send more: torch looks then which workers are gone.
        """
        if not self._is_reading:  # all workers have started
            _close(self._writers[:-1])  # else the pipe of a worker that ended would never end
            self._is_reading = True
        for look in looks(timeout, _LOOK_S):
            for reader in wait(self._readers, look):
                assert isinstance(reader, Connection)
                try:
                    message = reader.recv_bytes()
                except (EOFError, OSError):  # between two messages, or within one
                    self._readers.remove(reader)
                    reader.close()
                    if reader in self._read_out:
                        continue
                    time.sleep(_LEAVES_S)
                    raise queue.Empty from None
                item = ForkingPickler.loads(message)
                if isinstance(item[1], _IterableDatasetStopIteration):
                    self._read_out.add(reader)
                else:
                    self._read_out.discard(reader)  # of a persistent worker, which reads the next epoch
                return item
        raise queue.Empty

    def cancel_join_thread(self) -> None:
        """Do nothing: no process waits for its thread."""

    def close(self) -> None:
        """Close the pipes, except for the one that a worker's thread writes to."""
        _close(self._readers)
        if self._unsent is None:
            _close(self._writers)

    def _keep(self, worker: int) -> None:
        """Close all pipes but the one to which this worker writes."""
        _close([*self._readers, *self._writers[:worker], *self._writers[worker + 1 :]])
        self._readers, self._writers = [], [self._writers[worker]]

    def _send(self, writer: Connection, unsent: queue.SimpleQueue[Any]) -> None:
        with contextlib.suppress(OSError):  # the training process is gone
            while True:
                item = unsent.get()
                try:
                    message = ForkingPickler.dumps(item)
                except Exception as error:  # noqa: BLE001 - whatever a user's object raises
                    self._on_queue_feeder_error(error, item)
                else:
                    writer.send_bytes(message)
                del item

    #: Called in this process with the exception and the item that it cannot send, as the one of `multiprocessing`.
    _on_queue_feeder_error: Callable[[Exception, Any], None] = staticmethod(
        lambda error, _: traceback.print_exception(error)
    )


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()

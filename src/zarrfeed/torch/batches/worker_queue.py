"""The result queue of a DataLoader worker, of which a batch that cannot be sent is an error of the training loop.

A thread of `multiprocessing` pickles what a worker puts into its queue. If that raises, the thread prints a traceback
and goes on, and the training process waits for the batch for ever. Here an exception takes the place of the batch.
"""

from __future__ import annotations

import errno
import inspect
import multiprocessing
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.utils.data
from torch._utils import ExceptionWrapper  # a DataLoader raises it in the training process

from zarrfeed.base.errors import BatchTransferError

#: Functions that DataLoader workers run, whose `data_queue` is the one result queue of all workers of an iterator.
_WORKER_LOOPS = (
    ("torch.utils.data._utils.worker", "_worker_loop"),
    ("torchdata.stateful_dataloader.worker", "_worker_loop"),
)


def worker_arguments() -> dict[str, Any] | None:
    """Return the arguments of the loop that this DataLoader worker runs; None in another process, or of another torch.

    They come from the worker's process and not from the frame of its loop: reading `f_locals` of a frame would keep the
    fetcher, and with it the reader of a pass, alive.
    """
    process: Any = multiprocessing.current_process()
    loop: Any = getattr(process, "_target", None)
    if (getattr(loop, "__module__", None), getattr(loop, "__name__", None)) not in _WORKER_LOOPS:
        return None
    try:
        return inspect.signature(loop).bind(*process._args, **process._kwargs).arguments  # noqa: SLF001
    except (AttributeError, TypeError, ValueError):
        return None


def report_unsent_batches() -> None:
    """Have the training loop raise `BatchTransferError` for a batch of this worker that cannot be sent.

    It takes effect if nothing was put into the queue yet, since the thread that sends takes its handler when it starts.
    """
    queue = (worker_arguments() or {}).get("data_queue")
    if queue is None or not hasattr(queue, "_on_queue_feeder_error"):
        return
    print_error = queue._on_queue_feeder_error  # noqa: SLF001 - concurrent.futures replaces it as well
    if getattr(print_error, "is_ours", False):
        return

    def report(error: Exception, item: Any) -> None:
        if not isinstance(item, tuple) or len(item) < 2 or not isinstance(item[0], int):
            print_error(error, item)
            return
        info = torch.utils.data.get_worker_info()
        number = "" if info is None else f" {info.id}"
        failed = BatchTransferError(_text(error))
        wrapper = ExceptionWrapper(  # type: ignore[no-untyped-call]
            (BatchTransferError, failed, error.__traceback__), where=f"in DataLoader worker process{number}"
        )
        queue.put((item[0], wrapper, *(_if_it_can_be_sent(one) for one in item[2:])))

    report.is_ours = True  # type: ignore[attr-defined]
    queue._on_queue_feeder_error = report  # noqa: SLF001


def _if_it_can_be_sent(item: Any) -> Any:
    try:
        ForkingPickler.dumps(item)
    except Exception:  # noqa: BLE001 - whatever a user's object raises
        return None
    return item


def _text(error: Exception) -> str:
    cause = f"{type(error).__name__}: {error}"
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE) or "open files" in str(error):
        remedy = "hold fewer batches at a time, send fewer tensors in each, or raise the limit (ulimit -n)"
    elif "AF_UNIX path too long" in str(error):
        remedy = "sockets lie in TMPDIR: give it a shorter path, of at most 70 characters"
    elif isinstance(error, OSError):
        remedy = "shared memory or sockets cannot be made: look at /dev/shm, TMPDIR and the limits of the process"
    else:
        remedy = "what transform and collate_fn return must be what pickle can send: tensors, arrays, numbers and text"
    return f"a batch cannot be sent from a DataLoader worker ({cause}); {remedy}"

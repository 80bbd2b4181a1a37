"""Batch memory of a DataLoader worker, which its training process sees, and which is used again.

A worker decodes batches into slots of a pool in shared memory (`cpp/engine/shared_pool.h` says what a slot is, and who
may write to it when). torch sends a tensor by pickling its storage. In a worker, a storage over a slot is pickled as a
handle of a few numbers, any other one as torch does it. The training process maps a slot once, and makes a storage over
it whenever a handle comes. When the last tensor over the slot is dropped, the worker may write to it again.

The first messages carry a descriptor of the pool, until a process has mapped it. A process that has not mapped the
pool of a later message opens it through the worker's number of the descriptor. That number, and the worker's pid, may
stand for something else by then, so the pool is mapped only if it has the id that the message names. Memory of a pool
goes back to the system when its worker ends, and, for what is still held then, when the last tensor is dropped.

Other storages, such as those that a transform made or that a used-up pool had no room for:

  - A small one, and any one that torch cannot share, is sent as its bytes. It takes no descriptor.
  - torch keeps a descriptor open for each storage that it shares. Where half of a process's descriptors are in use, a
    worker sends bytes, and the training process copies what it got to memory of its own.
"""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Callable
from multiprocessing import reduction, util
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_storage as reduce_storage_of_torch
from torch.utils.dlpack import from_dlpack

from zarrfeed.base.errors import CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.base.native import core
from zarrfeed.torch.batches.tensors import fits_shared_memory, shared_memory
from zarrfeed.torch.batches.worker_queue import report_unsent_batches

#: Memory of one worker that other processes may hold: so many batches or so many bytes, the larger of both. Beyond
#: that, the worker's batches come in fresh memory.
_MOST_HELD_BATCHES = 8
_MOST_HELD_BYTES = 64 << 20

#: A storage of so many bytes at most is sent as its bytes: pipes take as much without waiting.
_MOST_SENT_BYTES = 16 << 10

#: Part of a process's descriptors that may be open before storages are copied instead of being shared.
_MOST_OPEN = 0.5

#: Variables of the folder in which torch's sharing strategy "file_system" makes a socket, and the longest path of it.
_FOLDERS_OF_TORCH = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
_MOST_OF_FOLDER = 107 - len("/torch-shm-dir-XXXXXX/manager.sock")

#: Part of the link in /proc to the file of a pool (`cpp/engine/shared_pool.cc` gives it the name).
_POOL_FILE = "zarrfeed-batches"

#: Pools that this process writes to, by their ids.
_own: dict[int, core.SharedPool] = {}


class WorkerMemory:
    """Allocates the memory of batches in a DataLoader worker: an allocator of `Tensors`.

    Memory is used again when no process has a tensor over it, and no message with one is under way. Where the pool is
    used up, such as by a training loop that keeps its batches, the memory is fresh.

    Parameters
    ----------
    batch_bytes
        Bytes of all tensors of a batch.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._pool: core.SharedPool | None = None
        self._is_supported = True
        ForkingPickler.register(torch.UntypedStorage, reduce_storage)
        report_unsent_batches()

    def __call__(self, size: int) -> torch.Tensor:
        """Return a tensor of so many bytes."""
        if self._pool is None and self._is_supported:
            self._pool = self._make_pool()
        capsule = None if self._pool is None else self._pool.acquire(size)
        if capsule is not None:
            tensor: torch.Tensor = from_dlpack(capsule)
            return tensor
        if size > _MOST_SENT_BYTES and fits_shared_memory(size) and _torch_can_share():
            try:
                return shared_memory(size)
            except RuntimeError:  # no descriptor is left
                pass
        return torch.empty(size, dtype=torch.uint8)

    def _make_pool(self) -> core.SharedPool | None:
        number = secrets.randbits(64)
        try:
            pool = core.SharedPool.create(number, max(_MOST_HELD_BATCHES * self._batch_bytes, _MOST_HELD_BYTES))
        except (UnsupportedError, StoreReadError):  # not Linux, a limit of addresses, or no descriptor is left
            self._is_supported = False
            return None
        _own[number] = pool
        util.Finalize(self, _retire, args=(number,), exitpriority=0)  # also when the worker ends
        return pool


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a storage's pickle for another process, as `__reduce__` does: a handle if this process's pool has it."""
    if storage.device.type != "cpu" or not storage.nbytes():
        reduced: tuple[Callable[..., Any], tuple[Any, ...]] = reduce_storage_of_torch(storage)  # type: ignore[no-untyped-call]
        return reduced
    for number, pool in list(_own.items()):
        handle = pool.share(storage.data_ptr(), storage.nbytes())
        if handle is not None:
            sent = None if pool.is_opened() else _on_its_way(pool.descriptor())
            return rebuild_storage, (number, (pool.owner(), pool.descriptor()), sent, handle)
    if storage.is_shared() or (storage.nbytes() > _MOST_SENT_BYTES and _torch_can_share()):
        try:
            return rebuild_shared, reduce_storage_of_torch(storage)  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # no descriptor, no memory or no socket for it
            pass
    return rebuild_bytes, (bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy()),)


def _on_its_way(descriptor: int) -> Any:
    """Return a descriptor as it is sent; None where no socket can be made for that, such as in a long TMPDIR."""
    try:
        return reduction.DupFd(descriptor)
    except OSError:
        return None


def _torch_can_share() -> bool:
    """Return whether torch's way of sharing works, and leaves descriptors for others.

    With the strategy "file_system" torch waits for ever for a socket that it cannot make.
    """
    if _has_many_open():
        return False
    if torch.multiprocessing.get_sharing_strategy() != "file_system":  # type: ignore[no-untyped-call]
        return True
    folder = next((os.environ[name] for name in _FOLDERS_OF_TORCH if os.environ.get(name)), "/tmp")
    return len(os.fsencode(folder)) <= _MOST_OF_FOLDER


def rebuild_shared(function: Callable[..., torch.UntypedStorage], arguments: tuple[Any, ...]) -> torch.UntypedStorage:
    """Return a storage that torch shares, or a copy of it if many descriptors of this process are in use."""
    storage = function(*arguments)
    if not _has_many_open():
        return storage
    copy: torch.UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]
    return copy


def rebuild_bytes(content: bytes) -> torch.UntypedStorage:
    """Return a storage in memory of this process."""
    tensor = torch.empty(len(content), dtype=torch.uint8)
    tensor.numpy()[:] = np.frombuffer(content, np.uint8)
    return tensor.untyped_storage()


def _has_many_open() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return limit != resource.RLIM_INFINITY and len(os.listdir("/proc/self/fd")) > _MOST_OPEN * limit  # noqa: PTH208
    except OSError:  # not Linux
        return False


def rebuild_storage(
    number: int, origin: tuple[int, int], sent: Any, handle: tuple[int, int, int, int]
) -> torch.UntypedStorage:
    """Return the storage of a handle.

    Parameters
    ----------
    number
        The id of the pool.
    origin
        The process that sent the handle, and the pool's descriptor there.
    sent
        The descriptor on its way; None: a process, most likely this one, has mapped the pool.
    handle
        The location of the storage in the pool.

    Raises
    ------
    ConnectionError
        If this process does not know the pool, and cannot open it: mostly because the worker has ended, or has given
        the pool's descriptor to another file.
    """
    descriptor = None if sent is None else sent.detach()
    pool = core.SharedPool.find(number)
    if pool is None:
        pool = _open(number, origin) if descriptor is None else core.SharedPool.open(descriptor, number)
    elif descriptor is not None:
        os.close(descriptor)
    tensor: torch.Tensor = from_dlpack(pool.take_over(*handle))
    return tensor.untyped_storage()


def _open(number: int, origin: tuple[int, int]) -> core.SharedPool:
    """Return the pool with this id, opened through its owner's descriptor."""
    owner, descriptor = origin
    path = Path(f"/proc/{owner}/fd/{descriptor}")
    try:
        if _POOL_FILE not in str(path.readlink()):  # opening another file, a terminal or a pipe, may have effects
            raise FileNotFoundError(f"descriptor {descriptor} of process {owner} is no batch memory")
        return core.SharedPool.open(os.open(path, os.O_RDWR | os.O_CLOEXEC), number)
    except (OSError, CorruptChunkError) as error:
        raise ConnectionError(
            f"process {os.getpid()} cannot open the memory of a batch that the DataLoader worker with pid {owner} sent "
            f"({error}): the worker has ended, or the batch was meant for another process; send a copy, batch.clone()"
        ) from error


def _retire(number: int) -> None:
    pool = _own.pop(number, None)
    if pool is not None:
        pool.retire()

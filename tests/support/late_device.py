"""A device that this machine's processor plays, on which everything comes as late as the rules of streams allow.

A copy is made when an event behind it is waited for, and sees what its source has then. Memory of the device is handed
out again as soon as its last tensor is dropped, unless the tensor was recorded for the stream of the consumer and that
stream has work to do. So a loader that writes to its memory too early, and a prefetcher that forgets to record a
stream, deliver wrong batches here each time, and not only now and then.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from zarrfeed.torch.device.page_locks import PageLocks

Bytes = npt.NDArray[np.uint8]

#: Content of free memory.
STALE = 0xEE


def bytes_at(address: int, size: int) -> Bytes:
    """Return memory by its address; it keeps nothing alive."""
    interface = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first item of a tensor to behind its last one."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


#: The dtype, shape and strides of a tensor, without the tensor.
Layout: TypeAlias = tuple[torch.dtype, torch.Size, tuple[int, ...]]


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return what a tensor is but for its memory."""
    return tensor.dtype, tensor.shape, tensor.stride()


def tensor_over(memory: Bytes, layout: Layout) -> torch.Tensor:
    """Return a tensor over memory."""
    dtype, shape, strides = layout
    return torch.from_numpy(memory).view(dtype).as_strided(shape, strides)


class LateEvent:
    """The end of the copies that a device was given before it."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self.behind = device, device.given

    def query(self) -> bool:
        return self._device.done >= self.behind

    def synchronize(self) -> None:
        self._device.run(self.behind)


class LateDevice:
    """The streams of a device (`transfers.Streams`).

    A consumer's stream that joins an event waits for it, but the host does not: nothing is copied for it yet.

    Parameters
    ----------
    needs_locked
        Whether only page-locked memory may be copied from, and other memory is pinned before; else all memory counts as
        page-locked.

    Attributes
    ----------
    given, done
        How many copies were begun, and how many were made.
    joined
        For each batch that was handed over, the ids of its tensors.
    host
        The page-locked memory of this process.
    """

    def __init__(self, *, needs_locked: bool = False) -> None:
        self.given = self.done = 0
        self.joined: list[set[int]] = []
        self._joined_until = 0
        self.host = HostMemory(self)
        self._needs_locked = needs_locked
        self._here = threading.local()  # a stream is the current one of a thread
        self._queue: deque[tuple[int, int, Layout, torch.Tensor]] = deque()
        self._lock = threading.RLock()
        self._blocks: dict[int, int] = {}  # memory in use: address -> bytes
        self._free: list[Bytes] = []
        self._dropped: deque[Bytes] = deque()
        self._recorded: set[int] = set()
        self._work: list[Callable[[], None]] = []

    # The streams that prefetch uses

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        self._here.copies = True
        yield
        self._here.copies = False

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self._here.copies, "on the stream of copies"
        assert not self._needs_locked or self.host.is_locked(tensor), "a copy from pageable memory blocks the host"
        there = self._allocate(tensor)
        with self._lock:
            self._queue.append((tensor.data_ptr(), extent(tensor), layout_of(tensor), there))
            self.given += 1
            self.host.note_copy(tensor.data_ptr(), self.given)
        return there

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.host.pin(tensor) if self._needs_locked and not self.host.is_locked(tensor) else tensor

    def mark(self) -> LateEvent:
        return LateEvent(self)

    def join(self, event: LateEvent, tensors: list[torch.Tensor]) -> None:
        assert not getattr(self._here, "copies", False), "on the stream of the consumer"
        self.wait_for(event)
        with self._lock:
            self.joined.append({id(tensor) for tensor in tensors})
            self._recorded.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def page_locks(self) -> PageLocks | None:
        return PageLocks(self.host)

    # The acts of a consumer

    def wait_for(self, event: LateEvent) -> None:
        """Let the consumer's stream wait for an event."""
        assert isinstance(event, LateEvent)
        self._joined_until = max(self._joined_until, event.behind)

    def run(self, until: int) -> None:
        """Make the copies up to this one, from what lies at their addresses now."""
        with self._lock:
            while self.done < until:
                address, size, layout, there = self._queue.popleft()
                if size:
                    there.copy_(tensor_over(bytes_at(address, size).copy(), layout))
                self.done += 1

    def arrive(self) -> None:
        """Make the copies that the consumer's stream waits for."""
        self.run(self._joined_until)

    def read_late(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Queue a copy on the consumer's stream; return a function that returns it after `finish`."""
        address, size, layout = tensor.data_ptr(), extent(tensor), layout_of(tensor)
        out: list[torch.Tensor] = []
        self._work.append(lambda: out.append(tensor_over(bytes_at(address, size).copy(), layout)))
        return lambda: out[0]

    def finish(self) -> None:
        """Do all that is queued on any stream."""
        self.run(self.given)
        with self._lock:
            work, self._work = self._work, []
        for one in work:
            one()
        self._reclaim()

    # Memory

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the device's memory that tensors have."""
        self._reclaim()
        return sum(self._blocks.values())

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        shape = torch.empty_like(like, device="meta")
        size = shape.untyped_storage().nbytes()
        if not size:
            return torch.empty_like(like)
        self._reclaim()
        with self._lock:
            fitting = next((number for number, block in enumerate(self._free) if len(block) == size), None)
            block = np.empty(size, np.uint8) if fitting is None else self._free.pop(fitting)
            block.fill(STALE)
            self._blocks[block.ctypes.data] = size
        lent = block.view()
        weakref.finalize(lent, self._dropped.append, block)  # appending is all that a finalizer may do safely
        return tensor_over(lent, layout_of(shape))

    def _reclaim(self) -> None:
        """Take back what was dropped, and spoil it: the next copy may have it."""
        with self._lock:
            for _ in range(len(self._dropped)):
                block = self._dropped.popleft()
                address = block.ctypes.data
                if address in self._recorded and self._work:
                    self._dropped.append(block)
                    continue
                self._recorded.discard(address)
                block.fill(STALE)
                self._blocks.pop(address, None)
                self._free.append(block)


class HostMemory:
    """Page-locked memory of this process: what it allocates itself, and what is registered.

    Attributes
    ----------
    registered
        Each (address, bytes) that was registered, in order.
    made
        Number of blocks that were allocated anew.
    pins
        Number of tensors that were copied to page-locked memory.
    """

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self.registered: list[tuple[int, int]] = []
        self.made = self.pins = 0
        self.refuses_after = math.inf
        self._locked: dict[int, int] = {}
        self._copied: dict[int, int] = {}  # the last copy from a range
        self._free: deque[Bytes] = deque()
        self._lock = threading.RLock()

    @property
    def locked_ranges(self) -> int:
        """Number of registered ranges and of blocks."""
        return len(self._locked)

    def allocate(self, size: int) -> torch.Tensor:
        """Return page-locked bytes: of a block that was dropped, if the copies from it have ended."""
        room = 1 << max(9, (size - 1).bit_length())
        with self._lock:
            for _ in range(len(self._free)):
                block = self._free.popleft()
                if len(block) == room and self._copied.get(block.ctypes.data, 0) <= self._device.done:
                    block.fill(STALE)
                    break
                self._free.append(block)
            else:
                block = np.empty(room, np.uint8)
                self._locked[block.ctypes.data] = room
                self.made += 1
        lent = block.view()
        weakref.finalize(lent, self._free.append, block)
        return torch.from_numpy(lent)[:size]

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in page-locked memory."""
        self.pins += 1
        size = extent(tensor)
        if not size:
            return tensor
        memory = self.allocate(size)
        memory.numpy()[:] = bytes_at(tensor.data_ptr(), size)
        return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def register(self, address: int, size: int) -> bool:
        with self._lock:
            assert self._range_of(address, 1) is None, "registered twice"
            if len(self.registered) >= self.refuses_after:
                return False
            self.registered.append((address, size))
            self._locked[address] = size
            return True

    def unregister(self, address: int) -> None:
        with self._lock:
            assert self._copied.pop(address, 0) <= self._device.done, "a copy from this memory is under way"
            del self._locked[address]

    def is_locked(self, tensor: torch.Tensor) -> bool:
        """Return whether all of a tensor lies in one page-locked range, as the driver would say."""
        return not tensor.numel() or self._range_of(tensor.data_ptr(), extent(tensor)) is not None

    def note_copy(self, address: int, number: int) -> None:
        with self._lock:
            found = self._range_of(address, 1)
            if found is not None:
                self._copied[found] = number

    def _range_of(self, address: int, size: int) -> int | None:
        with self._lock:
            return next((a for a, room in self._locked.items() if a <= address and address + size <= a + room), None)

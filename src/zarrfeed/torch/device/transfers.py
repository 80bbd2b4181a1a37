"""Batches on their way to a device: copied on a stream of their own, while the device computes.

Invariants of each batch:

1. The tensors that it is copied from are kept until the copy ended, so whoever made them cannot write to their memory
   before.
2. The stream that the consumer computes on waits for the copy, by an event; no thread of this process does.
3. The memory on the device is marked as used by the consumer's stream, so that it is not given to a later copy before
   the work that was queued there has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch

from zarrfeed.torch.batches.accelerators import is_pinned
from zarrfeed.torch.batches.tensors import expect_sparse_tensors
from zarrfeed.torch.device.page_locks import CudaDriver, PageLocks


class Event(Protocol):
    """A point in the work of a stream: `torch.Event` and its like."""

    def query(self) -> bool:
        """Return whether the work before it has ended."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Streams(Protocol):
    """The streams of one device; one of them is only for copies."""

    def copying(self) -> AbstractContextManager[Any]:
        """Let the stream of copies be the current one."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a strided tensor in pinned memory, on the current stream."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a strided tensor in pinned memory: itself, if it lies there."""

    def mark(self) -> Event:
        """Return an event behind the copies that were begun."""

    def join(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Let the consumer's current stream wait for the event, and own the tensors."""

    def page_locks(self) -> PageLocks | None:
        """Return the locks of slots for one pass; None if the device copies from no memory that it did not allocate."""


class DeviceStreams:
    """The streams of an accelerator that torch has, such as CUDA, ROCm or XPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._api: Any = torch.get_device_module(device)
        self._copies = self._api.Stream(device)

    def copying(self) -> AbstractContextManager[Any]:
        """Let the stream of copies be the current one."""
        context: AbstractContextManager[Any] = self._api.stream(self._copies)
        return context

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor."""
        return tensor.to(self._device, non_blocking=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in pinned memory; one on a device as it is."""
        return tensor if tensor.device.type != "cpu" or is_pinned(tensor) else tensor.pin_memory()

    def mark(self) -> Event:
        """Return an event behind the copies that were begun."""
        event: Event = self._api.Event()
        event.record(self._copies)  # type: ignore[attr-defined]
        return event

    def join(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Let the current stream of this thread wait for the event, and own the tensors."""
        consumer = self._api.current_stream(self._device)
        consumer.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(consumer)

    def page_locks(self) -> PageLocks | None:
        """Return the locks of slots for one pass."""
        return PageLocks(CudaDriver(self._device)) if self._device.type == "cuda" else None


class Transfer:
    """A batch that is being copied.

    Parameters
    ----------
    batch
        The batch as the loader made it.
    streams
        The streams of the device.
    locks
        The locks of slots of the pass, if its batches may lie in slots of DataLoader workers.

    Attributes
    ----------
    nbytes
        Bytes of the batch's tensors on the device.
    """

    def __init__(self, batch: Any, streams: Streams, locks: PageLocks | None = None) -> None:
        self._streams, self._locks = streams, locks
        self._there: list[torch.Tensor] = []
        self._here: list[torch.Tensor] = []
        with streams.copying():
            self._batch = map_tensors(batch, self._copy)
            self._event = streams.mark()
        self.nbytes = sum(tensor.nbytes for tensor in self._there)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        once = _without_repeats(tensor)
        is_locked = self._locks is not None and self._locks.lock(once)
        pinned = once if is_locked else self._streams.pinned(once)
        there = self._streams.copy(pinned)
        self._here += [once, pinned]
        self._there.append(there)
        return there if once is tensor else there.expand(tensor.shape)

    def hand_over(self) -> Any:
        """Return the batch for work on the consumer's current stream; to be called once."""
        self._streams.join(self._event, self._there)
        batch, self._batch = self._batch, None
        self._there.clear()
        return batch

    def is_done(self) -> bool:
        """Return whether the copy has ended; the tensors that it copies from are kept until then."""
        if self._event.query():
            self._here.clear()
        return not self._here

    def wait(self) -> None:
        """Wait until the copy has ended."""
        self._event.synchronize()
        self._here.clear()


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with each expanded dimension cut to length 1, or the tensor itself if none is expanded.

    A static field comes as one sample that is expanded to a batch. torch would write it out for each row before the
    copy, to memory that is not page-locked.
    """
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch with a function applied to its strided tensors; other values stay.

    Dicts, lists, tuples, named tuples and dataclasses are rebuilt. A sparse CSR tensor is rebuilt of its three parts;
    tensors of other layouts, and other objects, stay as they are.
    """
    if isinstance(batch, torch.Tensor):
        if batch.layout == torch.strided:
            return function(batch)
        if batch.layout == torch.sparse_csr:
            expect_sparse_tensors()
            begins, columns, values = map(function, (batch.crow_indices(), batch.col_indices(), batch.values()))
            return torch.sparse_csr_tensor(begins, columns, values, batch.shape, check_invariants=False)
        return batch
    if isinstance(batch, Mapping):
        made = {key: map_tensors(value, function) for key, value in batch.items()}
        return made if type(batch) is dict else _like(batch, made)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)([map_tensors(value, function) for value in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        named = {f.name: map_tensors(getattr(batch, f.name), function) for f in fields(batch) if f.init}
        return replace(batch, **named)
    return batch


def _like(batch: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    """Return a mapping of the same class, or a dict where that takes no dict."""
    try:
        return type(batch)(made)  # type: ignore[call-arg]
    except TypeError:
        return made

"""The two devices that tests of tests/gpu run on: one that is played here, and a GPU.

A test says what it does once. `CudaDevice` makes copies and kernels slow, so that what is written or reused too early
shows; `FakeDevice` makes them as late as streams allow.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Protocol

import pytest
import torch

import zarrfeed.torch.datasets.options
import zarrfeed.torch.passes.session
from tests.support.late_device import LateDevice, bytes_at, extent
from zarrfeed.base.units import parse_bytes
from zarrfeed.device import DeviceLoader, prefetch
from zarrfeed.torch.device import page_locks
from zarrfeed.torch.device.transfers import DeviceStreams


class Device(Protocol):
    """A device, as far as tests use it."""

    name: str
    torch_device: torch.device
    registered: list[tuple[int, int]]  #: (address, bytes) of each range that was registered with the driver

    def prefetch(self, loader: Iterable[Any], *, ahead: str = "64MiB") -> DeviceLoader:
        """Return a loader that copies slowly."""

    def arrive(self, batch: Any) -> Any:
        """Return a batch that the step may compute with: the fake one's values come only now."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy slowly as a user does, by `non_blocking=True`; nothing is kept."""

    def read_late(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Queue a copy of a tensor behind slow work; return a function that returns it after `finish`."""

    def finish(self) -> None:
        """Wait for everything that was queued."""

    def pinned(self, size: int) -> torch.Tensor:
        """Return page-locked bytes."""

    def is_locked(self, tensor: torch.Tensor) -> bool:
        """Ask the driver whether a tensor lies in page-locked memory, all of it."""

    def blocks_made(self) -> int:
        """Return how often the allocator of page-locked memory asked the driver for more."""

    def allocated_bytes(self) -> int:
        """Return the bytes of the device's memory that tensors have."""


class FakeDevice:
    """A device of this machine's processor."""

    name = "fake"
    torch_device = torch.device("cpu")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.late = LateDevice(needs_locked=True)
        self.registered = self.late.host.registered
        monkeypatch.setattr(zarrfeed.torch.passes.session, "pinned_memory", self.late.host.allocate)
        for module in (zarrfeed.torch.passes.session, zarrfeed.torch.datasets.options):
            monkeypatch.setattr(module, "has_accelerator", lambda: True)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: self.late.host.is_locked(tensor))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.late.host.pin(tensor))

    def prefetch(self, loader: Iterable[Any], *, ahead: str = "64MiB") -> DeviceLoader:
        return DeviceLoader(loader, torch.device("cuda"), parse_bytes(ahead, "ahead"), self.late)  # type: ignore[arg-type]

    def arrive(self, batch: Any) -> Any:
        self.late.arrive()
        return batch

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.late.copying():
            there = self.late.copy(tensor)
            self.late.wait_for(self.late.mark())
        return there

    def read_late(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        return self.late.read_late(tensor)

    def finish(self) -> None:
        self.late.finish()

    def pinned(self, size: int) -> torch.Tensor:
        return self.late.host.allocate(size)

    def is_locked(self, tensor: torch.Tensor) -> bool:
        return self.late.host.is_locked(tensor)

    def blocks_made(self) -> int:
        return self.late.host.made

    def allocated_bytes(self) -> int:
        gc.collect()
        return self.late.allocated_bytes


#: Clock cycles by which a copy, or a read, comes late: about 10 and 100 ms.
_COPY_CYCLES, _READ_CYCLES = 15_000_000, 150_000_000


def _sleep(cycles: int) -> None:
    """Queue a kernel that does nothing for so long on the current stream."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


class SlowStreams(DeviceStreams):
    """Streams of a GPU on which a kernel that does nothing runs before each batch's copies."""

    cycles = _COPY_CYCLES

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        with super().copying():
            _sleep(self.cycles)
            yield


class CudaDevice:
    """The current GPU."""

    name = "cuda"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
        self.torch_device = torch.device("cuda", number)
        self.registered: list[tuple[int, int]] = []
        register = page_locks.CudaDriver.register

        def noted(driver: page_locks.CudaDriver, address: int, size: int) -> bool:
            is_locked = register(driver, address, size)
            if is_locked:
                self.registered.append((address, size))
            return is_locked

        monkeypatch.setattr(page_locks.CudaDriver, "register", noted)
        torch.zeros(1, device=self.torch_device)  # the context, of which the driver is asked

    def prefetch(self, loader: Iterable[Any], *, ahead: str = "64MiB") -> DeviceLoader:
        made = prefetch(loader, self.torch_device, ahead=ahead)
        made._streams = SlowStreams(self.torch_device)
        return made

    def arrive(self, batch: Any) -> Any:
        return batch

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        _sleep(_COPY_CYCLES)
        return tensor.to(self.torch_device, non_blocking=True)

    def read_late(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        _sleep(_READ_CYCLES)
        read = tensor.clone()
        return read.cpu

    def finish(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def is_locked(self, tensor: torch.Tensor) -> bool:
        page = 4096
        first, size = tensor.data_ptr(), extent(tensor)
        return all(driver_says_locked(first + min(offset, size - 1)) for offset in range(0, size + page, page) if size)

    def blocks_made(self) -> int:
        stats: Callable[[], dict[str, int]] | None = getattr(torch.cuda.memory, "host_memory_stats", None)
        if stats is None:
            pytest.skip(f"torch {torch.__version__} does not count what it allocates on the host")
        return stats()["num_host_alloc"]

    def allocated_bytes(self) -> int:
        gc.collect()
        torch.cuda.synchronize(self.torch_device)
        torch._C._cuda_clearCublasWorkspaces()  # which the first product of two matrices allocates for good
        return torch.cuda.memory_allocated(self.torch_device)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


#: CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_HOST, and the error for memory that the driver does not know.
_MEMORY_TYPE, _HOST, _INVALID_VALUE = 2, 1, 1


def driver_says_locked(address: int) -> bool:
    """Ask the driver whether it has locked the page of an address."""
    kind = ctypes.c_uint(0)
    status = _driver().cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address))
    assert status in (0, _INVALID_VALUE), f"cuPointerGetAttribute returned {status}"
    return bool(status == 0 and kind.value == _HOST)


def spoil(tensor: torch.Tensor) -> None:
    """Overwrite a tensor's memory, as a loader does with memory that nobody has any more."""
    bytes_at(tensor.data_ptr(), extent(tensor)).fill(0xEE)

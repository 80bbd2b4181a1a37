"""Page-locked batches of DataLoader workers: the device copies from the slots themselves.

A worker decodes batches into slots of a pool, which the training process maps (`worker_memory.py`). A copy to the
device runs beside the host only from page-locked memory. `PageLocks` has the driver lock the pages of a slot when the
first batch in it arrives. The lock holds for all later batches in the slot, so no batch is copied on the host.

Invariants:

  1. Only a pass that keeps each batch until its copies have ended locks slots (`Transfer`). A copy from locked pages
     goes on after the call that began it, and a worker writes to a slot as soon as its last tensor is dropped.
  2. Each slot is locked once in a pass, as a whole: batches of other lengths in it lie in the same lock.
  3. A locked slot stays mapped, since the lock refers to its pool.
  4. All slots are unlocked when the pass ends, after its last copy. A training loop that gets later batches of the same
     workers and copies them with `non_blocking=True` by itself finds pageable memory, which CUDA reads before the call
     returns.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Protocol

import torch

from zarrfeed.base.native import core

#: Locked for all contexts of the process, not only for the current one (cudaHostRegisterPortable).
_PORTABLE = 1


class Driver(Protocol):
    """The functions of a device's driver that lock and unlock pages."""

    def register(self, address: int, size: int) -> bool:
        """Lock the pages of memory; return False if the driver refuses."""

    def unregister(self, address: int) -> None:
        """Unlock memory by the address that `register` got."""


class CudaDriver:
    """Locks pages by `cudaHostRegister`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def register(self, address: int, size: int) -> bool:
        """Lock the pages of memory; return False if the driver refuses, such as for a limit of locked memory."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(address, size, _PORTABLE)) == 0:
            return True
        # The runtime keeps the error for whoever asks next: the check after this kernel, and not one of the user's.
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        return False

    def unregister(self, address: int) -> None:
        """Unlock memory."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(address)


class PageLocks:
    """The slots of worker pools that one pass has locked.

    Parameters
    ----------
    driver
        Locks and unlocks pages. None: no slot is locked.
    """

    def __init__(self, driver: Driver | None) -> None:
        self._driver = driver
        self._pools: dict[int, core.SharedPool] = {}  # by the address of a locked slot
        self._locks_more = driver is not None
        self._mutex = threading.Lock()

    def lock(self, tensor: torch.Tensor) -> bool:
        """Lock the slot in which a tensor lies, unless it is locked; return whether it is.

        Returns False for a tensor that lies in no slot. Once the driver has refused a slot, no other slot is tried.
        """
        if self._driver is None:
            return False
        with self._mutex:
            slot = core.SharedPool.find_slot(tensor.data_ptr())
            if slot is None:
                return False
            pool, address, size = slot
            if address not in self._pools and self._locks_more:
                self._locks_more = self._driver.register(address, size)
                if self._locks_more:
                    self._pools[address] = pool
            return address in self._pools

    def close(self) -> None:
        """Unlock all slots, and lock no others. Copies from them must have ended."""
        with self._mutex:
            self._locks_more = False
            for address in self._pools:
                assert self._driver is not None
                self._driver.unregister(address)
            self._pools.clear()

"""Slots of DataLoader workers are locked once, as a whole, and unlocked before they are unmapped."""

from __future__ import annotations

import gc
import secrets
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.dlpack import from_dlpack

from zarrfeed.base.native import core
from zarrfeed.torch.device.page_locks import CudaDriver, PageLocks


class Noting:
    """A driver that notes what it is asked, and refuses all after some."""

    def __init__(self, most: int = 100) -> None:
        self.locked: dict[int, int] = {}
        self.asked: list[int] = []
        self._most = most

    def register(self, address: int, size: int) -> bool:
        assert address not in self.locked
        self.asked.append(address)
        if len(self.asked) > self._most:
            return False
        self.locked[address] = size
        return True

    def unregister(self, address: int) -> None:
        del self.locked[address]


@pytest.fixture
def pool() -> core.SharedPool:
    return core.SharedPool.create(secrets.randbits(64), 1 << 20)


def in_slot(pool: core.SharedPool, size: int = 5000) -> torch.Tensor:
    tensor: torch.Tensor = from_dlpack(pool.acquire(size))
    return tensor


def test_a_slot_is_locked_once_and_as_a_whole(pool: core.SharedPool) -> None:
    driver = Noting()
    locks, tensor, other = PageLocks(driver), in_slot(pool), in_slot(pool)
    for view in (tensor, tensor[100:200], tensor[:7].view(7)):
        assert locks.lock(view)
    assert driver.locked == {tensor.data_ptr(): 8192}
    assert locks.lock(other[1:])
    assert driver.locked == {tensor.data_ptr(): 8192, other.data_ptr(): 8192}
    address = tensor.data_ptr()
    del tensor, view
    again = in_slot(pool, 6000)  # a longer batch in the same slot
    assert again.data_ptr() == address
    assert locks.lock(again)
    assert len(driver.asked) == 2
    locks.close()
    assert driver.locked == {}
    assert not locks.lock(again), "nothing is locked any more"


def test_what_lies_in_no_slot_is_not_locked(pool: core.SharedPool) -> None:
    driver = Noting()
    for locks in (PageLocks(driver), PageLocks(None)):
        assert not locks.lock(torch.zeros(100))
        assert not locks.lock(torch.zeros(0))
        locks.close()
    assert not PageLocks(None).lock(in_slot(pool))
    assert driver.asked == []


def test_once_the_driver_refuses_a_slot_the_others_stay_locked_and_no_more_are_asked_for(pool: core.SharedPool) -> None:
    driver = Noting(most=1)
    locks, tensors = PageLocks(driver), [in_slot(pool) for _ in range(4)]
    for _ in range(2):
        assert [locks.lock(tensor) for tensor in tensors] == [True, False, False, False]
    assert len(driver.asked) == 2
    locks.close()
    assert driver.locked == {}


def test_a_locked_slot_stays_mapped_until_it_is_unlocked() -> None:
    """Its address would be another mapping's otherwise, of which the device would see the old pages."""
    number = secrets.randbits(64)
    pool = core.SharedPool.create(number, 1 << 20)
    locks, tensor = PageLocks(Noting()), in_slot(pool)
    assert locks.lock(tensor)
    del tensor, pool
    gc.collect()
    assert core.SharedPool.find(number) is not None
    locks.close()
    gc.collect()
    assert core.SharedPool.find(number) is None


def runtime_that_answers(status: int, said: list[Any]) -> Any:
    """Return a module like the one of `torch.cuda.cudart()`, which says what it is asked."""

    def register(*arguments: int) -> int:
        said.append(("register", *arguments))
        return status

    def unregister(*arguments: int) -> int:
        said.append(("unregister", *arguments))
        return 0

    return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)


@pytest.mark.parametrize("status", [0, 2, 712])
def test_a_refusal_of_cuda_leaves_no_error_for_the_next_kernel(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime_that_answers(status, said))

    def kernel(*_: Any, device: torch.device) -> None:
        said.append(("kernel", device.type))
        raise RuntimeError("CUDA error: out of memory")  # the one before, which torch finds after its own kernel

    monkeypatch.setattr(torch, "zeros", kernel)
    driver = CudaDriver(torch.device("cuda"))
    assert driver.register(4096, 8192) is (status == 0)
    assert said == [("register", 4096, 8192, 1), *([("kernel", "cuda")] if status else [])]
    driver.unregister(4096)
    assert said[-1] == ("unregister", 4096)

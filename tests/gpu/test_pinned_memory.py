"""Batches lie in page-locked memory: the driver says so, each buffer is locked once, and none is written too early."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.devices import Device
from tests.gpu.stores import BATCH_SIZE, KINDS, N, dataset, is_right, numbers, same, tensors

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_each_tensor_is_page_locked(kind: str, device: Device, tmp_path: Path) -> None:
    data = KINDS[kind](tmp_path / "store")
    made = dataset(data)
    assert "(pinned)" in str(made.explain())
    found = 0
    for batch, plain in zip(made, dataset(data, pin_memory=False), strict=True):
        assert same(batch, plain)
        for tensor in tensors(batch):
            assert device.is_locked(tensor), (tensor.shape, tensor.dtype)
            found += 1
    assert found > 5
    made.close()


def test_the_driver_says_so_of_no_other_memory(device: Device, tmp_path: Path) -> None:
    store = numbers(tmp_path / "store")
    pinned = device.pinned(5000)
    assert device.is_locked(pinned)
    assert device.is_locked(pinned[100:4000])
    assert not device.is_locked(torch.zeros(5000, dtype=torch.uint8))
    for batch in dataset(store, pin_memory=False):
        assert not any(device.is_locked(tensor) for tensor in tensors(batch))


def test_each_buffer_is_locked_once_and_none_after_the_first_epochs(
    device: Device, tmp_path: Path, record_property: Any
) -> None:
    made = dataset(numbers(tmp_path / "store"))
    counts: list[int] = []
    addresses: set[int] = set()
    for _ in range(5):
        for batch in made:
            addresses.update(tensor.data_ptr() for tensor in tensors(batch))
            assert is_right(batch)
            del batch
        counts.append(device.blocks_made())
    assert counts[1:] == counts[1:2] * 4, "the allocator asked the driver again after the first epoch"
    assert len(addresses) < 5 * 2 * N // BATCH_SIZE / 2, "no buffer came twice"
    record_property("page-locked blocks after each epoch", counts)


def test_a_batch_that_is_held_is_not_written_again(device: Device, tmp_path: Path) -> None:
    made = dataset(numbers(tmp_path / "store"))
    held = [batch for _ in range(2) for batch in made]
    assert all(is_right(batch) and device.is_locked(batch[0]) for batch in held)
    assert len({batch[0].data_ptr() for batch in held}) == len(held)


def test_memory_that_a_user_copies_from_without_waiting_is_not_written_before_the_copy_ended(
    device: Device, tmp_path: Path
) -> None:
    """The user's own `non_blocking` copies: the batch is dropped at once, and the engine goes on."""
    made = dataset(numbers(tmp_path / "store"))
    there = []
    for _ in range(3):
        for samples, index in made:
            there.append((device.copy(samples), device.copy(index)))
            del samples, index
    device.finish()
    assert all(map(is_right, there))


def test_such_a_copy_would_show_memory_that_is_written_too_early(device: Device) -> None:
    source = device.pinned(4096)
    source.fill_(1)
    there = device.copy(source)
    source.fill_(2)
    device.finish()
    assert there.cpu().tolist() == [2] * 4096


def test_pages_go_back_when_nobody_holds_a_batch(device: Device, tmp_path: Path) -> None:
    """A second dataset of the same kind is served by the memory of the first one."""
    store = numbers(tmp_path / "store")
    for batch in (made := dataset(store)):
        assert is_right(batch)
    made.close()
    del made, batch
    gc.collect()
    device.finish()
    before = device.blocks_made()
    for batch in (again := dataset(store)):
        assert is_right(batch)
    again.close()
    assert device.blocks_made() <= before + 1  # which of two blocks is free first is a matter of threads

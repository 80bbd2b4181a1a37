"""Memory that is lent to the engine: whose it is, and how it crosses to another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.dlpack import from_dlpack

from tests.support.oracle import AnyArray, assert_rows_equal, numbered
from zarrfeed.engine.reader import Reader
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.fields.field import Field, IndexField, StoredField
from zarrfeed.torch.batches.tensors import Tensors, shared_memory

Allocator = Callable[[int], torch.Tensor]

N = 100
BATCH = 16  # the last batch has 4 samples
OPEN = 8


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return numbered((N, 7, 3))


@pytest.fixture(scope="module")
def store(data: AnyArray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("feed") / "a.zarr"
    zarr.create_array(path, data=data, chunks=(5, 4, 3))
    return path


def make_reader(store: Path, allocator: Allocator | None) -> Reader:
    fields: list[Field] = [
        StoredField("samples", read_layout(store)),
        field_in_memory("targets", torch.arange(2 * N).view(N, 2), 0),
        field_in_memory("nothing", torch.empty(N, 0), 0),
        IndexField(N),
    ]
    memory = plan_memory(FieldNeeds.of(fields), batch_size=BATCH, num_threads=2, budget=1 << 24, min_open_batches=OPEN)
    return Reader(fields, batch_size=BATCH, num_threads=2, memory=memory, arrays=Tensors(allocator))


def batches_of(reader: Reader, epoch: int = 0) -> Iterator[tuple[torch.Tensor, ...]]:
    order = Order(num_samples=N, block_rows=5, shuffle=True, seed=3, lanes=2)
    reader.start(order.plan(epoch), OPEN)
    while (batch := reader.next()) is not None:
        yield tuple(values for values in batch if isinstance(values, torch.Tensor))
    reader.stop()


def check(batches: list[tuple[torch.Tensor, ...]], data: AnyArray) -> None:
    for rows, targets, nothing, index in batches:
        assert_rows_equal(rows, index, data)
        assert torch.equal(targets, torch.stack([2 * index, 2 * index + 1], dim=1))
        assert nothing.shape == (len(index), 0)
    assert sorted(torch.cat([index for *_, index in batches]).tolist()) == list(range(N))


def inode(tensor: torch.Tensor) -> int:
    """Return which memory object a shared tensor lies in: the same number in every process that maps it."""
    assert tensor.untyped_storage().is_shared()
    descriptor, _ = tensor.untyped_storage()._share_fd_cpu_()
    return os.fstat(descriptor).st_ino


@pytest.mark.parametrize("allocator", [None, shared_memory, lambda n: torch.empty(n, dtype=torch.uint8)])
def test_batches_are_the_same_wherever_they_lie(allocator: Allocator | None, store: Path, data: AnyArray) -> None:
    reader = make_reader(store, allocator)
    for epoch in range(3):
        check(list(batches_of(reader, epoch)), data)


def test_a_buffer_is_lent_once(store: Path, data: AnyArray) -> None:
    """Another process may still read it when the last tensor over it is gone here."""
    lent: list[torch.Tensor] = []
    delivered: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        lent.append(shared_memory(size))
        return lent[-1]

    reader = make_reader(store, allocate)
    for epoch in range(2):
        batches = list(batches_of(reader, epoch))
        delivered += [tensor.data_ptr() for batch in batches for tensor in batch if tensor.numel()]
        check(batches, data)
    assert len(set(delivered)) == len(delivered)
    assert set(delivered) <= {tensor.data_ptr() for tensor in lent}


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 samples of 256 KiB, each full of its index: the engine's pool maps room for 8 batches of 4 at a time."""
    path = tmp_path_factory.mktemp("wide") / "a.zarr"
    rows = np.repeat(np.arange(32, dtype="u1"), 1 << 18).reshape(32, -1)
    zarr.create_array(path, data=rows, chunks=(4, 1 << 18))
    return path


def make_wide_reader(wide_store: Path) -> Reader:
    fields: list[Field] = [StoredField("samples", read_layout(wide_store)), IndexField(32)]
    memory = plan_memory(FieldNeeds.of(fields), batch_size=4, num_threads=2, budget=1 << 26, min_open_batches=2)
    return Reader(fields, batch_size=4, num_threads=2, memory=memory, arrays=Tensors())


def capsules_of(reader: Reader, epoch: int) -> Iterator[tuple[Any, Any]]:
    """Yield DLPack capsules over the samples and the indices of each batch, as torch is given them."""
    order = Order(num_samples=32, block_rows=4, shuffle=True, seed=1, lanes=1)
    reader.start(order.plan(epoch), 2)
    while (batch := reader._engine.next()) is not None:
        assert batch[0] == 4
        samples, index = batch[1]
        yield samples, index
    reader.stop()


def test_memory_behind_capsules_that_nobody_took_is_recycled(wide_store: Path) -> None:
    """A consumer may be interrupted between the engine and torch. Were a buffer lost then, the pool would grow."""
    reader = make_wide_reader(wide_store)
    mapped = []
    for epoch in range(4):
        assert len(list(capsules_of(reader, epoch))) == 8  # all at once, then dropped
        mapped.append(reader.stats().batch_memory_bytes)
    assert len(set(mapped)) == 1, mapped
    assert mapped[0] <= 4 << 23


def test_a_capsule_that_was_taken_leaves_its_memory_to_the_tensor(wide_store: Path) -> None:
    reader = make_wide_reader(wide_store)
    kept = []
    for epoch in range(3):
        for number, (samples, index) in enumerate(capsules_of(reader, epoch)):
            if number % 2:
                kept.append((from_dlpack(samples), from_dlpack(index)))
            del samples, index  # taken or not: what a tensor lies over must not be free now
    assert len({samples.data_ptr() for samples, _ in kept}) == len(kept) == 12
    for samples, index in kept:
        assert torch.equal(samples, index.to(torch.uint8)[:, None].expand_as(samples))


def test_capsules_outlive_the_engine(wide_store: Path) -> None:
    reader = make_wide_reader(wide_store)
    capsules = list(capsules_of(reader, 0))
    del reader
    samples, index = map(from_dlpack, capsules.pop())
    del capsules  # nobody takes these any more
    assert torch.equal(samples, index.to(torch.uint8)[:, None].expand_as(samples))


def test_shared_memory_is_shared_writable_and_of_the_size() -> None:
    for size in (1, 4096, 100_001):
        buffer = shared_memory(size)
        assert buffer.untyped_storage().is_shared()
        assert buffer.shape == (size,)
        assert buffer.dtype == torch.uint8
        buffer.fill_(3)
        assert int(buffer.sum()) == 3 * size


class InWorker(IterableDataset[Any]):
    """Reads in the worker process, and sends along where each tensor lies there."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def __iter__(self) -> Iterator[Any]:
        for batch in batches_of(make_reader(self.store, shared_memory)):
            assert all(tensor.untyped_storage().is_shared() for tensor in batch)
            yield batch, [inode(tensor) for tensor in batch]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_tensors_that_a_worker_sends_are_mapped_and_not_copied(context: str, store: Path, data: AnyArray) -> None:
    loader = DataLoader(
        InWorker(store), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=240, prefetch_factor=4
    )
    held: list[tuple[torch.Tensor, ...]] = []
    for batch, inodes in loader:
        assert [inode(tensor) for tensor in batch] == inodes
        held.append(tuple(batch))
    check(held, data)  # all are held to the end: none was written again
    full, last = held[0], held[-1]
    assert len(last[0]) == N % BATCH
    for f, tensor in enumerate(last):
        if tensor.numel():  # a short batch is a view of a whole buffer, here as in the worker
            assert tensor.untyped_storage().nbytes() == full[f].untyped_storage().nbytes()


def test_sample_bytes_of_an_empty_field_is_zero_and_it_still_has_a_buffer(store: Path) -> None:
    assert field_in_memory("nothing", torch.empty(N, 0), 0).sample_bytes == 0
    sizes: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    list(batches_of(make_reader(store, allocate)))
    assert min(sizes) == 1
    assert np.all(np.bincount(sizes)[[1, BATCH * 7 * 3 * 4]] == len(sizes) // 4)

"""What a user of `ZarrIterableDataset` relies on."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import zarrfeed.torch.datasets.options
import zarrfeed.torch.passes.session
from zarrfeed import ClosedError, ConfigError, MemoryBudgetError, ZarrIterableDataset
from zarrfeed.base.units import parse_bytes

N = 203  # divides nothing


def samples_of(n: int = N) -> npt.NDArray[np.float32]:
    """Every value encodes its sample: value = 100 * index + offset in the sample."""
    return (100 * np.arange(n).reshape(-1, 1, 1) + np.arange(15).reshape(1, 3, 5)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "samples.zarr")
    zarr.create_array(path, data=samples_of(), chunks=(8, 2, 5))
    return path


def index_of(batch: torch.Tensor) -> npt.NDArray[np.int64]:
    """Check that every sample is whole, and return which it is."""
    index = (batch[:, 0, 0].numpy() / 100).astype(np.int64)
    assert np.array_equal(batch.numpy(), samples_of()[index])
    return index


def read_epoch(dataset: ZarrIterableDataset) -> npt.NDArray[np.int64]:
    return np.concatenate([index_of(batch) for batch in dataset])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 64, N, 10 * N])
def test_batches_come_in_the_order_that_sample_order_lists(store: str, shuffle: bool, batch_size: int) -> None:
    with ZarrIterableDataset(store, batch_size=batch_size, shuffle=shuffle, seed=3) as dataset:
        sizes = [len(batch) for batch in dataset]
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
        assert sum(sizes) == N
        assert len(dataset) == len(sizes)
        expected = dataset.sample_order(1)
        assert np.array_equal(read_epoch(dataset), expected)
        assert np.array_equal(np.sort(expected), np.arange(N))
        assert np.array_equal(expected, np.arange(N)) != shuffle


def test_drop_last_drops_the_short_batch(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=64, drop_last=True, shuffle=True)
    assert len(dataset) == 3
    assert [len(batch) for batch in dataset] == [64, 64, 64]
    assert len(dataset.sample_order()) == 192


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_batch_size_single_samples_come_and_a_dataloader_batches_them(store: str, shuffle: bool) -> None:
    dataset = ZarrIterableDataset(store, shuffle=shuffle)
    assert len(dataset) == N
    one = list(dataset)
    assert len(one) == N
    assert one[0].shape == (3, 5)
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=16, num_workers=0)
    assert len(loader) == 13
    batches = list(loader)
    assert torch.equal(torch.cat(batches), torch.stack(one))
    assert np.array_equal(np.concatenate([index_of(b) for b in batches]), dataset.sample_order(0))


def test_with_a_batch_size_a_dataloader_passes_batches_through(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True, return_index=True)
    loader = DataLoader(dataset, batch_size=None)
    assert len(loader) == 13
    for batch, index in loader:
        assert np.array_equal(index_of(batch), index.numpy())


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_dataloader_workers_share_the_samples_without_duplicates(store: str, num_workers: int) -> None:
    dataset = ZarrIterableDataset(store, batch_size=8, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context="fork")
    seen = np.concatenate([index_of(batch) for batch in loader])
    assert np.array_equal(np.sort(seen), np.arange(N))


@pytest.mark.parametrize("targets_chunk", [1, 3, 8, 50, 1000])
@pytest.mark.parametrize("budget", ["1GiB", "64KiB"])
def test_targets_chunked_differently_stay_with_their_samples(
    store: str, tmp_path: Path, targets_chunk: int, budget: str
) -> None:
    path = str(tmp_path / "targets.zarr")
    labels = np.arange(N * 2, dtype=np.int64).reshape(N, 2)
    zarr.create_array(path, data=labels, chunks=(min(targets_chunk, N), 1))
    # a sixteenth of the small budget does not hold the targets, so that they are decoded block by block
    dataset = ZarrIterableDataset(store, path, batch_size=16, shuffle=True, num_threads=2, memory_budget=budget)
    seen = []
    for batch, target in dataset:
        index = index_of(batch)
        assert np.array_equal(target.numpy(), labels[index])
        seen.append(index)
    assert np.array_equal(np.concatenate(seen), dataset.sample_order(0))


@pytest.mark.parametrize(
    "targets",
    [
        np.arange(N),
        np.arange(2 * N)[::2],
        np.arange(N).astype(">i4"),
        torch.arange(N),
        torch.arange(N, dtype=torch.bfloat16),
        np.arange(N * 6, dtype=np.uint16).reshape(N, 2, 3),
        np.asfortranarray(np.arange(N * 6).reshape(N, 6)),
    ],
    ids=["int64", "strided", "big-endian", "tensor", "bfloat16", "uint16", "fortran"],
)
def test_targets_in_memory_stay_with_their_samples(store: str, targets: Any) -> None:
    as_tensor = (
        targets
        if isinstance(targets, torch.Tensor)
        else torch.from_numpy(np.array(targets, targets.dtype.newbyteorder("=")))
    )
    for batch, target, index in ZarrIterableDataset(store, targets, batch_size=32, shuffle=True, return_index=True):
        assert target.dtype == as_tensor.dtype
        assert torch.equal(target, as_tensor[index])
        assert np.array_equal(index_of(batch), index.numpy())


def test_read_only_targets_are_accepted(store: str) -> None:
    targets = np.arange(N)
    targets.flags.writeable = False
    seen = torch.cat([target for _, target in ZarrIterableDataset(store, targets, batch_size=32)])
    assert torch.equal(seen, torch.arange(N))


def test_threads_do_not_change_what_is_delivered(store: str) -> None:
    epochs = [
        torch.cat(
            list(
                ZarrIterableDataset(
                    store, batch_size=16, shuffle=True, seed=1, num_threads=threads, mixing={"lanes": 6}
                )
            )
        )
        for threads in (1, 2, 5, 16)
    ]
    for other in epochs[1:]:
        assert torch.equal(epochs[0], other)


@pytest.mark.parametrize(("lanes", "mix"), [(1, 1), (1, 26), (5, 2), (203, 1), (8, 3)])
def test_any_lanes_and_mix_deliver_every_sample(store: str, lanes: int, mix: int) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True, mixing={"lanes": lanes, "mix": mix})
    assert np.array_equal(read_epoch(dataset), dataset.sample_order(0))


def test_every_pass_takes_the_next_epoch_and_set_epoch_names_one(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True)
    first, second = read_epoch(dataset), read_epoch(dataset)
    assert not np.array_equal(first, second)
    dataset.set_epoch(0)
    assert np.array_equal(read_epoch(dataset), first)
    assert np.array_equal(read_epoch(dataset), second)
    assert np.array_equal(dataset.sample_order(1), second)


def test_batches_that_are_held_are_never_overwritten(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True, num_threads=2)
    held = []
    for _ in range(3):
        for i, batch in enumerate(dataset):
            if i % 3 == 0:
                held.append((batch, batch.clone()))
    dataset.close()
    for batch, copied in held:
        assert torch.equal(batch, copied)


def test_memory_of_dropped_batches_is_recycled(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True)
    read_epoch(dataset)
    mapped = dataset.stats().batch_memory_bytes
    for _ in range(20):
        read_epoch(dataset)
    assert dataset.stats().batch_memory_bytes == mapped > 0


def test_a_view_keeps_its_batch_alive_after_close(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16)
    row = next(iter(dataset))[3]
    dataset.close()
    del dataset
    assert torch.equal(row, torch.from_numpy(samples_of()[3]))


def test_batches_in_lent_memory_are_the_same(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned batches lie in memory that torch allocates; here plain memory stands in for it."""
    allocated = []

    def allocate(size: int) -> torch.Tensor:
        allocated.append(size)
        return torch.full((size,), 0xFF, dtype=torch.uint8)

    expected = read_epoch(ZarrIterableDataset(store, batch_size=16, shuffle=True))
    monkeypatch.setattr(zarrfeed.torch.passes.session, "pinned_memory", allocate)
    for module in (zarrfeed.torch.passes.session, zarrfeed.torch.datasets.options):
        monkeypatch.setattr(module, "has_accelerator", lambda: True)
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True, pin_memory=True)
    assert np.array_equal(read_epoch(dataset), expected)
    held = [(batch, batch.clone()) for batch in dataset]
    next(iter(dataset))  # an epoch that is given up
    assert np.array_equal(read_epoch(dataset), dataset.sample_order(3))
    for batch, copied in held:
        assert torch.equal(batch, copied)
    assert allocated
    assert "(pinned)" in str(dataset.explain())


def test_pin_memory_without_an_accelerator_is_refused(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarrfeed.torch.passes.session, "has_accelerator", lambda: False)
    with pytest.raises(ConfigError, match="pin_memory = True needs an accelerator"):
        ZarrIterableDataset(store, pin_memory=True)


def test_two_iterations_of_one_dataset_do_not_disturb_each_other(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16, shuffle=True)
    pairs = list(zip(dataset, dataset, strict=True))
    for epoch in (0, 1):
        seen = np.concatenate([index_of(pair[epoch]) for pair in pairs])
        assert np.array_equal(seen, dataset.sample_order(epoch))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))], ids=["deepcopy", "pickle"])
def test_a_copy_is_a_dataset_of_its_own(store: str, copier: Any, used: bool) -> None:
    dataset = ZarrIterableDataset(store, np.arange(N), batch_size=16, shuffle=True)
    if used:
        next(iter(dataset))
        dataset.set_epoch(0)
    other = copier(dataset)
    dataset.close()
    seen = np.concatenate([index_of(batch) for batch, _ in other])
    assert np.array_equal(seen, other.sample_order(0))


def test_stats_count_what_was_read(store: str) -> None:
    with ZarrIterableDataset(store, batch_size=16) as dataset:
        assert dataset.stats().chunks_read == 0
        read_epoch(dataset)
        stats = dataset.stats()
    assert stats.samples == N
    assert stats.batches == 13
    assert stats.chunks_read == 52  # 26 blocks x 2 cells, each once
    assert stats.bytes_scattered == N * 60
    assert stats.bytes_decoded == 52 * 8 * 2 * 5 * 4
    assert 0 < stats.bytes_read < stats.bytes_decoded
    assert stats.decode_s > 0
    assert dataset.stats().samples == N, "counters outlive close()"
    assert "203 samples in 13 batches" in str(stats)


def test_a_closed_dataset_says_so(store: str) -> None:
    dataset = ZarrIterableDataset(store, batch_size=16)
    feed = iter(dataset)
    next(feed)
    dataset.close()
    dataset.close()
    with pytest.raises(ClosedError):
        next(feed)
    with pytest.raises(ClosedError):
        iter(dataset)


def test_an_ended_iterator_stays_ended(store: str) -> None:
    feed = iter(ZarrIterableDataset(store, batch_size=N))
    assert len(list(feed)) == 1
    assert list(feed) == []


def test_a_budget_that_is_too_small_says_what_is_needed(store: str) -> None:
    with pytest.raises(MemoryBudgetError, match=r"memory_budget = 2\.0 KiB, must be at least .* KiB: .* open batches"):
        ZarrIterableDataset(store, batch_size=16, memory_budget=2048)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_budget_that_just_suffices_does_not_hang(store: str, shuffle: bool) -> None:
    low, high = 1, 1 << 20
    while low < high:  # the smallest budget that is accepted
        middle = (low + high) // 2
        try:
            ZarrIterableDataset(store, batch_size=5, shuffle=shuffle, memory_budget=middle)
            high = middle
        except MemoryBudgetError:
            low = middle + 1
    dataset = ZarrIterableDataset(store, batch_size=5, shuffle=shuffle, memory_budget=low)
    assert np.array_equal(read_epoch(dataset), dataset.sample_order(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2 << 30), ("1.5 MiB", 3 << 19), ("10MB", 10**7), ("4096", 4096), (123, 123), ("1e6", 10**6)],
)
def test_sizes_are_read_with_their_units(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


def test_repr_names_the_array(store: str) -> None:
    assert "samples.zarr: 203 samples of (3, 5) float32" in repr(ZarrIterableDataset(store))

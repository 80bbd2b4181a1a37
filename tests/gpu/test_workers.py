"""Batches of DataLoader workers on a device: it copies from their slots, each locked once and unlocked at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data

from tests.gpu.devices import CudaDevice, Device, FakeDevice
from tests.gpu.stores import N, dataset, is_right, numbers, same, tensors
from zarrfeed import ZarrDataLoader
from zarrfeed.base.native import core
from zarrfeed.torch.device import page_locks

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

WORKERS = 2
MANY = 8 * N


def loader(path: Path, num_workers: int = WORKERS, **options: Any) -> ZarrDataLoader:
    """Return batches of 48 KB, of which workers make more than they have slots."""
    store = numbers(path, 1500, n=MANY)
    return ZarrDataLoader(dataset(store, memory_budget="2MB"), num_workers=num_workers, **options)


def ranges_that_are_locked(device: Device) -> list[tuple[int, int]]:
    """Return what was registered and is still locked, as far as anybody can ask."""
    if isinstance(device, FakeDevice):
        return [(address, size) for address, size in device.registered if address in device.late.host._locked]
    return []  # of a pool that is unmapped, the driver cannot be asked


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_each_slot_is_locked_once_in_a_pass_and_unlocked_at_its_end(
    persistent_workers: bool, device: Device, tmp_path: Path, record_property: Any
) -> None:
    made = loader(tmp_path / "store", num_workers=1, persistent_workers=persistent_workers)
    for passed in range(2):
        device.registered.clear()
        counts, indices = [], []
        for batch in device.prefetch(made, ahead="100KB"):
            device.arrive(batch)
            assert is_right(batch)
            indices.append(batch[1].cpu())
            counts.append(len(device.registered))
        assert sorted(torch.cat(indices).tolist()) == list(range(MANY))
        assert 0 < len(device.registered) == len(set(device.registered)), "a slot was registered twice"
        assert len(device.registered) < 2 * len(counts) * 0.7, "many batches came in slots that were locked already"
        assert ranges_that_are_locked(device) == [], "a slot is locked after the pass"
        record_property(f"slots locked after each batch of pass {passed}", counts)
        del batch, indices


def test_the_device_copies_from_the_slots_and_the_host_copies_nothing(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, sources = [], []
    made = device.prefetch(loader(tmp_path / "store"))
    streams: Any = made._streams
    copy = streams.copy

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        sources.append((core.SharedPool.find_slot(tensor.data_ptr()) is not None, device.is_locked(tensor)))
        there: torch.Tensor = copy(tensor)
        return there

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.shape)
        return tensor

    monkeypatch.setattr(streams, "copy", noted)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    for batch in made:
        device.arrive(batch)
        assert is_right(batch)
    assert pinned == []
    assert sources
    assert all(is_locked for _, is_locked in sources)
    assert any(in_slot for in_slot, _ in sources)


def test_workers_write_to_no_slot_that_a_copy_still_reads(device: Device, tmp_path: Path) -> None:
    """Copies end as late as they can, and more batches come than a worker has slots."""
    there = list(device.prefetch(loader(tmp_path / "store")))
    device.finish()
    assert all(map(is_right, there))
    assert sum(len(index) for _, index in there) == MANY


def test_batches_of_other_lengths_lie_in_slots_that_are_locked_as_a_whole(device: Device, tmp_path: Path) -> None:
    """The last batch of an epoch is short; the next epoch's first one comes in its slot."""
    made = ZarrDataLoader(
        dataset(numbers(tmp_path / "store"), batch_size=11, memory_budget="2MB"),
        num_workers=1,
        persistent_workers=True,
    )
    for _ in range(3):
        got = list(device.prefetch(made, ahead="1B"))
        device.finish()
        assert all(map(is_right, got))


def test_a_later_pass_without_prefetch_gets_memory_that_is_not_locked(device: Device, tmp_path: Path) -> None:
    """A user who copies with `non_blocking=True` by himself keeps no batch until the copy has ended."""
    made = loader(tmp_path / "store", num_workers=1, persistent_workers=True, pin_memory=False)
    for batch in device.prefetch(made):
        device.arrive(batch)
        assert is_right(batch)
    for batch in made:
        assert is_right(batch)
        assert not any(device.is_locked(tensor) for tensor in tensors(batch))


def test_breaking_off_unlocks_all_slots_and_ends_the_workers(device: Device, tmp_path: Path) -> None:
    for stop in (1, 5):
        made = loader(tmp_path / f"store{stop}")
        for number, batch in enumerate(device.prefetch(made)):
            device.arrive(batch)
            assert is_right(batch)
            if number == stop:
                break
        assert ranges_that_are_locked(device) == []
        del batch


@pytest.mark.parametrize("after", [0, 2])
def test_where_the_driver_refuses_a_slot_batches_are_pinned_by_a_copy(
    after: int, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loader(tmp_path / "store")
    if isinstance(device, FakeDevice):
        device.late.host.refuses_after = after
    else:
        register = page_locks.CudaDriver.register

        def refused(driver: page_locks.CudaDriver, address: int, size: int) -> bool:
            """Ask for pages to which nothing is mapped: the driver's own refusal leaves an error, which is cleared."""
            return register(driver, *((address, size) if len(device.registered) < after else (4096, 4096)))

        monkeypatch.setattr(page_locks.CudaDriver, "register", refused)
    for batch in device.prefetch(made):
        device.arrive(batch)
        assert is_right(batch)
    assert len(device.registered) == after


def test_torch_does_not_pin_what_prefetch_copies_from_slots(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = loader(tmp_path / "store", pin_memory=True), []
    begin = torch.utils.data.DataLoader.__iter__

    def noted(started: Any) -> Any:
        asked.append(started.pin_memory)
        return begin(started)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", noted)
    for batch in device.prefetch(made):
        device.arrive(batch)
        assert is_right(batch)
    assert (asked, made.pin_memory) == ([False], True), "a pass without prefetch pins"


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_after_a_pass_of_prefetch_the_loader_pins_again(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Persistent workers that began for prefetch send to no thread that pins: a plain pass starts others."""
    made = loader(tmp_path / "store", num_workers=1, persistent_workers=True, pin_memory=True)
    begin = torch.utils.data.DataLoader.__iter__
    passes: list[tuple[bool, bool]] = []

    def noted(started: Any) -> Any:
        passes.append((started.pin_memory, started._iterator is None))
        return begin(started)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", noted)
    sources: list[Any] = [device.prefetch(made), device.prefetch(made), made, made, device.prefetch(made)]
    for number, source in enumerate(sources):
        for batch in source:
            device.arrive(batch)
            assert is_right(batch), number
            assert number not in (2, 3) or isinstance(device, FakeDevice) or device.is_locked(batch[0])
    assert passes == [(False, True), (False, False), (True, True), (True, False), (True, False)]


@pytest.mark.cuda
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pinned_batches_of_workers_are_right_without_prefetch(method: str, cuda: CudaDevice, tmp_path: Path) -> None:
    """A thread of torch pins them; the user copies with `non_blocking`, and drops them at once."""
    made = loader(tmp_path / "store", multiprocessing_context=method)
    there = []
    for samples, index in made:
        assert cuda.is_locked(samples)
        there.append((cuda.copy(samples), cuda.copy(index)))
        del samples, index
    cuda.finish()
    assert all(map(is_right, there))
    plain = list(loader(tmp_path / "again", pin_memory=False, num_workers=0))
    assert sum(len(batch[1]) for batch in plain) == sum(len(batch[1]) for batch in there)
    assert same(there[0], there[0])

"""`device.prefetch`: batches are right on the device while their memory on the host is used again at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.devices import CudaDevice, Device, SlowStreams, spoil
from tests.gpu.stores import BATCH_SIZE, KINDS, N, dataset, is_right, numbers, same, tensors
from tests.support.batch_types import Pair, Sample
from zarrfeed import ConfigError, ZarrDataLoader
from zarrfeed.device import prefetch
from zarrfeed.torch.batches.tensors import expect_sparse_tensors
from zarrfeed.torch.device.transfers import DeviceStreams

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Recycling:
    """A loader that writes the next batch to page-locked memory as soon as nobody has the last one in it."""

    def __init__(self, device: Device, batches: int, rows: int = 2000) -> None:
        self._device, self._count, self._rows = device, batches, rows
        self.memory: list[torch.Tensor] = []
        self._free: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self._count):
            if not self._free:
                self._free.append(len(self.memory))
                self.memory.append(self._device.pinned(8 * self._rows).view(torch.int64))
            which = self._free.pop()
            tensor = self.memory[which].fill_(number).view(-1)
            weakref.finalize(tensor, self._recycle, which)
            yield tensor
            del tensor

    def _recycle(self, which: int) -> None:
        spoil(self.memory[which])
        self._free.append(which)


def values_of(tensor: torch.Tensor) -> list[float]:
    """Return the values that a tensor has, each once."""
    return sorted(set(tensor.flatten().tolist()))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "zarrfeed-prefetch"]


@pytest.mark.parametrize("ahead", ["1B", "40KB", "64MiB"])
def test_what_a_copy_reads_is_not_written_before_the_copy_ended(ahead: str, device: Device) -> None:
    loader = Recycling(device, 40)
    there = list(device.prefetch(loader, ahead=ahead))
    device.finish()
    assert [values_of(batch) for batch in there] == [[number] for number in range(40)]


def test_copies_that_nobody_waits_for_would_show_it(device: Device) -> None:
    there = []
    for batch in Recycling(device, 4):
        there.append(device.copy(batch))
        del batch
    device.finish()
    assert [values_of(batch) for batch in there] != [[number] for number in range(4)]


def late_sums(device: Device, loader: Any) -> list[float]:
    """Read each batch late on the consumer's stream, and drop it before that."""
    late = []
    for batch in loader:
        device.arrive(batch)
        late.append(device.read_late(batch))
        del batch
    device.finish()
    return [float(one().double().mean()) for one in late]


def test_memory_of_the_device_is_not_used_again_before_the_consumers_work_with_it(device: Device) -> None:
    loader = device.prefetch([torch.full((3000,), float(n)) for n in range(12)], ahead="1B")
    assert late_sums(device, loader) == [float(n) for n in range(12)]


class Forgetful(DeviceStreams):
    """Streams of a GPU that let the consumer wait, and do not tell the allocator that it uses the tensors."""

    def join(self, event: Any, tensors: list[torch.Tensor]) -> None:  # noqa: ARG002 - what this class leaves out
        self._api.current_stream(self._device).wait_event(event)


def test_a_prefetcher_that_records_no_stream_would_show_it(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = device.prefetch([torch.full((3000,), float(n)) for n in range(12)], ahead="1B")
    if isinstance(device, CudaDevice):
        loader._streams = Forgetful(device.torch_device)
    else:
        streams: Any = loader._streams
        monkeypatch.setattr(streams, "join", lambda event, _: streams.wait_for(event))
    assert late_sums(device, loader) != [float(n) for n in range(12)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_every_kind_arrive_as_they_are_on_the_host(
    kind: str, num_workers: int, device: Device, tmp_path: Path
) -> None:
    data = KINDS[kind](tmp_path / "store")
    plain = list(ZarrDataLoader(dataset(data, pin_memory=False), num_workers=num_workers, pin_memory=False))
    loader = device.prefetch(ZarrDataLoader(dataset(data), num_workers=num_workers))
    for batch, expected in zip(loader, plain, strict=True):
        device.arrive(batch)
        assert all(tensor.device == device.torch_device for tensor in tensors(batch))
        assert same(batch, expected)
        assert type(batch) is type(expected)


def test_a_static_field_is_copied_once_for_a_batch_and_not_for_each_sample(device: Device, tmp_path: Path) -> None:
    made = dataset(KINDS["static"](tmp_path / "store"), batch_size=N)
    (batch,) = device.prefetch(ZarrDataLoader(made))
    device.arrive(batch)
    assert batch[0]["z"].stride()[0] == 0
    assert batch[0]["z"].untyped_storage().nbytes() < 4 * batch[0]["z"].numel() / 10


def test_batches_of_any_shape_are_rebuilt_of_copies(device: Device) -> None:
    expect_sparse_tensors()
    x = torch.arange(300)
    csr = torch.eye(50).to_sparse_csr()
    made = [{"a": (x, "text")}, Pair(x, 5), Sample(x, "b"), csr, [x.bool(), torch.zeros(0)], torch.tensor(3), None]
    (batch,) = device.prefetch([made])
    device.arrive(batch)
    assert batch[0]["a"][1] == "text"
    assert isinstance(batch[1], Pair)
    assert isinstance(batch[2], Sample)
    assert (batch[1].name, batch[2].name, batch[6]) == (5, "b", None)
    assert same(batch, made)
    assert batch[3].layout == torch.sparse_csr
    torch.testing.assert_close((batch[3] @ torch.ones(50, 1, device=device.torch_device)).cpu(), torch.ones(50, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.uint8, torch.bool])
def test_dtypes_and_memory_formats_are_kept(dtype: torch.dtype, device: Device) -> None:
    images = torch.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7).to(dtype)
    last = images.to(memory_format=torch.channels_last)
    volume = images[:, :, None].to(memory_format=torch.channels_last_3d)
    turned = images.transpose(1, 3)
    (batch,) = device.prefetch([(images, last, volume, turned, images[:, 1], images.expand(2, 3, 5, 7))])
    device.arrive(batch)
    assert same(batch, (images, last, volume, turned, images[:, 1], images))
    assert batch[1].is_contiguous(memory_format=torch.channels_last)
    assert batch[2].is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_breaking_off_ends_the_thread_and_gives_memory_back(num_workers: int, device: Device, tmp_path: Path) -> None:
    before = device.allocated_bytes()
    loader = device.prefetch(ZarrDataLoader(dataset(numbers(tmp_path / "store")), num_workers=num_workers))
    for number, batch in enumerate(loader):
        device.arrive(batch)
        assert is_right(batch)
        if number == 3:
            break
    del batch
    assert threads() == []
    assert device.allocated_bytes() == before
    state = loader.state_dict()
    assert sum(len(batch[1]) for batch in loader) == N
    loader.load_state_dict(state)
    rest = [index for _, index in loader]
    device.finish()
    assert sum(map(len, rest)) == N - 4 * BATCH_SIZE
    del rest


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_of_the_loader_comes_after_the_batches_before_it(at: int, device: Device) -> None:
    def loader() -> Iterator[torch.Tensor]:
        for number in range(at):
            yield torch.full((100,), number)
        raise LookupError("chunk 7")

    got: list[torch.Tensor] = []
    with pytest.raises(LookupError, match="chunk 7"):
        got.extend(device.prefetch(loader()))
    device.finish()
    assert [values_of(batch) for batch in got] == [[number] for number in range(at)]
    assert threads() == []


def test_an_exception_in_the_training_step_leaves_nothing_behind(device: Device, tmp_path: Path) -> None:
    before = device.allocated_bytes()
    loader = device.prefetch(ZarrDataLoader(dataset(numbers(tmp_path / "store"))))

    def train() -> None:
        for number, _ in enumerate(loader):
            if number == 2:
                raise ArithmeticError("loss is nan")

    with pytest.raises(ArithmeticError):
        train()
    assert threads() == []
    assert device.allocated_bytes() == before
    again = [index for _, index in loader]
    device.finish()
    assert sum(int(index.sum()) for index in again) == N * (N - 1) // 2
    del again


def test_threads_share_a_pass(device: Device) -> None:
    batches = iter(device.prefetch([torch.full((500,), number) for number in range(30)]))
    got: list[torch.Tensor] = []
    takers = [threading.Thread(target=lambda: got.extend(batches)) for _ in range(3)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(30)
    device.finish()
    assert sorted(int(batch[0]) for batch in got) == list(range(30))
    assert all(len(values_of(batch)) == 1 for batch in got)


# --- a GPU alone --------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_the_host_does_not_wait_for_copies(cuda: CudaDevice, record_property: Any) -> None:
    """The loop is through all batches while the copy stream still has most of its slow work to do."""
    loader = cuda.prefetch([cuda.pinned(1 << 20).fill_(n) for n in range(10)], ahead="1GiB")
    streams = loader._streams = SlowStreams(cuda.torch_device)
    streams.cycles = 100_000_000
    batches = iter(loader)
    got = [next(batches) for _ in range(10)]
    is_busy = not streams._copies.query()
    record_property("copies under way when the host had all batches", is_busy)
    assert is_busy
    assert [int(batch[0]) for batch in got] == list(range(10))
    assert list(batches) == []


@pytest.mark.cuda
def test_a_consumer_on_a_stream_of_its_own_waits_for_the_copies(cuda: CudaDevice, tmp_path: Path) -> None:
    loader = cuda.prefetch(ZarrDataLoader(dataset(numbers(tmp_path / "store"))))
    stream: Any = torch.cuda.Stream(cuda.torch_device)  # type: ignore[no-untyped-call]
    seen = []
    with torch.cuda.stream(stream):
        for samples, index in loader:
            seen.append((samples == index[:, None]).all())
            del samples, index
    torch.cuda.synchronize()
    assert all(bool(one) for one in seen)


@pytest.mark.cuda
def test_two_devices_get_their_own_batches(cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU here")
    store, second = numbers(tmp_path / "store"), CudaDevice(monkeypatch, 1)
    loaders = [one.prefetch(ZarrDataLoader(dataset(store))) for one in (cuda, second)]
    for first, other in zip(*loaders, strict=True):
        assert (first[0].device.index, other[0].device.index) == (0, 1)
        assert is_right(first)
        assert is_right(other)


@pytest.mark.cuda
def test_the_number_of_a_device_that_is_not_there_is_refused(cuda: CudaDevice) -> None:
    with pytest.raises(ConfigError, match="device = "):
        list(prefetch([torch.zeros(1)], torch.cuda.device_count()))
    np.testing.assert_array_equal(torch.zeros(1, device=cuda.torch_device).cpu(), [0])  # CUDA still works

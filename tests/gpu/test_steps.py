"""Training steps over prefetched batches: plain, compiled, as a CUDA graph, distributed, with all kinds of batches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import zarr
from torch import nn

from tests.gpu.devices import CudaDevice, Device, FakeDevice
from tests.gpu.stores import KINDS, N, dataset, numbers
from zarrfeed import ZarrDataLoader, ZarrIterableDataset

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

WIDTH = 24


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Write images and targets that are a linear function of them."""
    rng = np.random.default_rng(3)
    pixels = rng.normal(size=(64, 3, 8, 8)).astype("f4")
    group = zarr.create_group(tmp_path / "images")
    group.create_array("x", data=pixels, chunks=(7, 3, 8, 8))
    group.create_array("y", data=pixels.mean((2, 3)), chunks=(16, 3))
    return str(tmp_path / "images")


def batches_of(store: str) -> ZarrIterableDataset:
    path = Path(store)
    return ZarrIterableDataset(path / "x", path / "y", batch_size=8, shuffle=True, seed=1)


def make_model(device: Device, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 3))
    return model.to(device.torch_device, **options)


def train(model: nn.Module, batches: Any, arrive: Callable[[Any], Any]) -> list[float]:
    """Train for one pass; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for x, y in batches:
        arrive((x, y))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def expected_losses(device: Device, store: str, num_workers: int = 0) -> list[float]:
    """Train on batches that were copied to the device one by one, before each step."""
    loader = ZarrDataLoader(batches_of(store), num_workers=num_workers, pin_memory=False)
    plain = ((x.to(device.torch_device), y.to(device.torch_device)) for x, y in loader)
    return train(make_model(device), plain, lambda batch: batch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_step_learns_what_it_learns_from_batches_that_are_copied_before_it(
    num_workers: int, device: Device, images: str
) -> None:
    loader = device.prefetch(ZarrDataLoader(batches_of(images), num_workers=num_workers))
    losses = train(make_model(device), loader, device.arrive)
    np.testing.assert_allclose(losses, expected_losses(device, images, num_workers), rtol=1e-2)


@pytest.mark.slow
def test_a_compiled_step_learns_the_same(device: Device, images: str) -> None:
    check_compiled(device, images)


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_step_that_inductor_compiles_learns_the_same(mode: str, cuda: CudaDevice, images: str) -> None:
    check_compiled(cuda, images, mode=mode)


def check_compiled(device: Device, images: str, **options: Any) -> None:
    torch.compiler.reset()
    options = options or {"backend": "eager" if isinstance(device, FakeDevice) else "aot_eager"}
    expected = expected_losses(device, images)
    model = make_model(device)
    compiled: Any = torch.compile(model, **options)
    try:
        losses = train(compiled, device.prefetch(ZarrDataLoader(batches_of(images))), device.arrive)
    except RuntimeError as error:
        if "compiler" in str(error).lower():
            pytest.skip(f"torch.compile finds no compiler here: {str(error)[:200]}")
        raise
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    torch.compiler.reset()
    gc.collect()


def test_channels_last_images_train_in_bfloat16(device: Device, images: str) -> None:
    def last(batch: Any) -> Any:
        return batch[0].to(memory_format=torch.channels_last), batch[1]

    model = make_model(device, memory_format=torch.channels_last)
    seen = []
    for x, y in device.prefetch([last(batch) for batch in ZarrDataLoader(batches_of(images))]):
        device.arrive(x)
        assert x.is_contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.torch_device.type, torch.bfloat16):
            out = model(x)
        assert out.dtype == torch.bfloat16
        nn.functional.mse_loss(out.float(), y).backward()  # type: ignore[no-untyped-call]
        seen.append(len(x))
    assert sum(seen) == 64
    del x, y, out, model
    gc.collect()


def test_samples_that_were_cast_to_bfloat16_are_what_torch_rounds_them_to(device: Device, tmp_path: Path) -> None:
    data = KINDS["bfloat16"](tmp_path / "store")
    for batch, index in device.prefetch(ZarrDataLoader(dataset(data))):
        device.arrive(index)
        rounded = index.to(torch.float32).to(torch.bfloat16)
        assert torch.equal(batch["x"][:, 0, 0], rounded)
        assert torch.equal(batch["y"][:, 4, 6], (index + 0.5).to(torch.bfloat16))
    del batch, index, rounded


def test_patches_of_a_volume_go_through_a_3d_convolution(device: Device, tmp_path: Path) -> None:
    data = KINDS["patches"](tmp_path / "store")
    mean = nn.Conv3d(1, 1, 4, bias=False).to(device.torch_device)
    nn.init.constant_(mean.weight, 1 / 64)
    expected: dict[int, float] = {}
    for patch, index in dataset(data, pin_memory=False, batch_size=1):
        expected[int(index)] = float(patch.mean())
    seen: dict[int, float] = {}
    for patches, index in device.prefetch(ZarrDataLoader(dataset(data, batch_size=5))):
        device.arrive(index)
        with torch.no_grad():
            means = mean(patches[:, None]).flatten()
        seen.update(zip(index.tolist(), means.tolist(), strict=True))
    assert seen.keys() == expected.keys()
    np.testing.assert_allclose([seen[key] for key in expected], list(expected.values()), rtol=1e-2)
    del mean, means, patches, index


def test_sparse_batches_go_through_a_linear_layer(device: Device, tmp_path: Path) -> None:
    data = KINDS["csr"](tmp_path / "store")
    dense = {
        int(number): row
        for batch, index in dataset(data, pin_memory=False)
        for number, row in zip(index, batch.to_dense(), strict=True)
    }
    weight = torch.arange(17.0, device=device.torch_device).reshape(17, 1)
    for num_workers in (0, 1):
        count = 0
        for batch, index in device.prefetch(ZarrDataLoader(dataset(data), num_workers=num_workers)):
            device.arrive(index)
            assert batch.layout == torch.sparse_csr
            for number, value in zip(index.tolist(), (batch @ weight).flatten().tolist(), strict=True):
                assert value == pytest.approx(float(dense[number] @ torch.arange(17.0)), rel=1e-3)
                count += 1
        assert count == N
    del batch, index, weight


@contextmanager
def one_rank(device: Device, path: Path) -> Iterator[None]:
    """Be the only rank of a process group, of NCCL on a GPU."""
    backend = "nccl" if isinstance(device, CudaDevice) else "gloo"
    if backend == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(backend, init_method=f"file://{path}/rendezvous", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_model_in_ddp_learns_the_same_on_one_rank(device: Device, images: str, tmp_path: Path) -> None:
    expected = expected_losses(device, images)
    with one_rank(device, tmp_path):
        model = nn.parallel.DistributedDataParallel(make_model(device))
        losses = train(model, device.prefetch(ZarrDataLoader(batches_of(images), num_workers=1)), device.arrive)
        del model
        gc.collect()
    np.testing.assert_allclose(losses, expected, rtol=1e-2)


def test_memory_of_the_device_does_not_grow_from_epoch_to_epoch(
    device: Device, tmp_path: Path, record_property: Any
) -> None:
    loader = device.prefetch(ZarrDataLoader(dataset(numbers(tmp_path / "store"))), ahead="40KB")
    levels = []
    for _ in range(4):
        most = 0
        for number, batch in enumerate(loader):
            device.arrive(batch)
            if number == 7:
                most = device.allocated_bytes()
            del batch
        levels.append((most, device.allocated_bytes()))
    record_property("bytes at the eighth batch, and after the epoch", levels)
    assert len({after for _, after in levels}) == 1
    assert levels[-1][0] <= levels[0][0] + 40_000, "more than the batches that are ahead"


# --- a GPU alone --------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_a_step_that_is_captured_in_a_cuda_graph_reads_each_batch(cuda: CudaDevice, images: str) -> None:
    """The graph is captured while the thread copies ahead, which takes capture_error_mode="thread_local"."""
    model = make_model(cuda)
    static_x = torch.zeros(8, 3, 8, 8, device=cuda.torch_device)
    static_y = torch.zeros(8, 3, device=cuda.torch_device)
    warm: Any = torch.cuda.Stream(cuda.torch_device)  # type: ignore[no-untyped-call]
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            nn.functional.mse_loss(model(static_x), static_y)
    torch.cuda.current_stream().wait_stream(warm)
    graph, captured = torch.cuda.CUDAGraph(), None
    got, expected = [], []
    for x, y in cuda.prefetch(ZarrDataLoader(batches_of(images), num_workers=1)):
        if captured is None:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured = nn.functional.mse_loss(model(static_x), static_y).detach()
        static_x.copy_(x)
        static_y.copy_(y)
        expected.append(nn.functional.mse_loss(model(x), y).detach())
        del x, y
        graph.replay()
        got.append(captured.clone())
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=1e-3, atol=1e-5)
    assert len(got) == 8
    del graph, captured, got, expected, model, static_x, static_y
    gc.collect()


@pytest.mark.cuda
def test_all_memory_of_the_device_is_back_when_the_loader_is_gone(
    cuda: CudaDevice, tmp_path: Path, record_property: Any
) -> None:
    """Also what the allocator keeps: nothing of ours is left in its blocks."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(cuda.torch_device)
    loader = cuda.prefetch(ZarrDataLoader(dataset(numbers(tmp_path / "store")), num_workers=2))
    total = sum(int(index.sum()) for _, index in loader)
    assert total == N * (N - 1) // 2
    del loader
    cuda.allocated_bytes()  # which waits, and has the workspaces of cuBLAS freed
    torch.cuda.empty_cache()
    after = torch.cuda.memory_reserved(cuda.torch_device)
    record_property("bytes reserved before and after", [before, after])
    assert after <= before

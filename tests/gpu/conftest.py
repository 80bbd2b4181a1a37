"""The devices of these tests: `device` is a played one and a GPU, `cuda` a GPU alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.devices import CudaDevice, Device, FakeDevice


def make_cuda(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """Return the GPU, or skip."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU is here; dev/gpu.sh runs these tests where there is one")
    return CudaDevice(monkeypatch)


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Yield a device, all of whose memory is free at the end."""
    made: Device = make_cuda(monkeypatch) if request.param == "cuda" else FakeDevice(monkeypatch)
    before = made.allocated_bytes()
    yield made
    made.finish()
    if not request.node.stash.get(FAILED, False):
        assert made.allocated_bytes() <= before, "memory of the device that is not given back"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """Return the GPU; tests that ask for it have the marker `cuda`."""
    return make_cuda(monkeypatch)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note which tests failed: their frames keep memory of the device."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report  # type: ignore[return-value]

"""Processes that were forked after the device was used: workers make batches, all else is refused with the remedy."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.devices import CudaDevice, Device, FakeDevice
from tests.gpu.stores import KINDS, N, dataset, is_right, numbers, same
from zarrfeed import ConfigError, ZarrDataLoader
from zarrfeed.device import DeviceLoader, prefetch

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

REMEDY = r"forked from one that had already used the device.*'spawn'\) or 'forkserver', or fork before"


@pytest.fixture
def used(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device that this process has used. Of the played one, children are told what torch tells of CUDA."""
    if isinstance(device, FakeDevice):
        here, host = os.getpid(), device.late.host

        def refuse() -> None:
            if os.getpid() != here:
                raise RuntimeError("CUDA error: initialization error")

        def asked(tensor: torch.Tensor) -> bool:
            refuse()
            return host.is_locked(tensor)

        monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != here)
        monkeypatch.setattr(torch.Tensor, "is_pinned", asked)
        for name in ("zarrfeed.torch.passes.session", "zarrfeed.torch.datasets.options"):
            monkeypatch.setattr(f"{name}.has_accelerator", lambda: os.getpid() == here)
    return device


def in_child(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked process; its error is one of this process."""
    ours, theirs = multiprocessing.Pipe()

    def run() -> None:
        try:
            theirs.send((True, function()))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            theirs.send((False, (error, traceback.format_exc())))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    theirs.close()
    assert ours.poll(60), "the child hangs"
    is_good, value = ours.recv()
    child.join(30)
    if not is_good:
        error, text = value
        error.add_note(text)
        raise error
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_forked_workers_make_batches_of_every_kind(kind: str, used: Device, tmp_path: Path) -> None:
    """Nothing that a worker does may ask the driver, which answers with an error there."""
    data = KINDS[kind](tmp_path / "store")
    expected = list(dataset(data, pin_memory=False))
    made = ZarrDataLoader(dataset(data), num_workers=1, multiprocessing_context="fork", pin_memory=False)
    for batch, plain in zip(made, expected, strict=True):
        assert same(batch, plain)
    used.finish()


def test_a_forked_process_reads_unpinned_batches_by_default(used: Device, tmp_path: Path) -> None:
    made = dataset(numbers(tmp_path / "store"))
    assert "(pinned)" in str(made.explain())
    assert sum(len(index) for _, index in made) == N
    used.finish()

    def read() -> tuple[int, bool, bool]:
        batches = list(made)
        return sum(len(index) for _, index in batches), all(map(is_right, batches)), "(pinned)" in str(made.explain())

    assert in_child(read) == (N, True, False)


def test_pinned_memory_is_refused_in_a_forked_process(used: Device, tmp_path: Path) -> None:
    store = numbers(tmp_path / "store")
    inherited = dataset(store, pin_memory=True)
    used.finish()

    with pytest.raises(ConfigError, match=rf"pin_memory = True: .*{REMEDY}"):
        in_child(lambda: dataset(store, pin_memory=True))
    if isinstance(used, CudaDevice):  # the played one's allocator stands where this is asked
        with pytest.raises(ConfigError, match=rf"pin_memory = True: .*{REMEDY}"):
            in_child(lambda: list(inherited))
    assert all(map(is_right, inherited))


def test_prefetch_is_refused_in_a_forked_process(used: Device, tmp_path: Path) -> None:
    made = dataset(numbers(tmp_path / "store"))
    inherited = used.prefetch(made)
    with pytest.raises(ConfigError, match=rf"device = 'cuda': .*{REMEDY}"):
        in_child(lambda: prefetch(made, "cuda"))
    with pytest.raises(ConfigError, match=rf"device = 'cuda\S*': .*{REMEDY}"):
        in_child(lambda: list(inherited))
    assert sum(len(index) for _, index in inherited) == N


def test_a_pass_under_way_is_refused_in_a_forked_process_and_goes_on_here(used: Device, tmp_path: Path) -> None:
    batches = iter(used.prefetch(dataset(numbers(tmp_path / "store"))))
    got = [next(batches), next(batches)]
    with pytest.raises(ConfigError, match="this pass belongs to the process that began it"):
        in_child(lambda: next(batches))
    in_child(lambda: batches.close())  # type: ignore[attr-defined]
    got += list(batches)
    used.finish()
    assert all(map(is_right, got))
    assert sum(len(index) for _, index in got) == N


def test_a_process_that_was_spawned_may_use_the_device(used: Device) -> None:
    """The remedy works; the played device has nothing to show for it."""
    if isinstance(used, FakeDevice):
        assert isinstance(used.prefetch([torch.zeros(1)]), DeviceLoader)
        return
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_on_device) == 45


def _sum_on_device() -> int:
    return int(sum(int(batch.sum()) for batch in prefetch([torch.full((1,), n) for n in range(10)], "cuda")))

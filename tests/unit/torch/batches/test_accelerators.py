"""The device of this process, and the error that it is told if a fork took the device away."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from zarrfeed import ConfigError, ZarrIterableDataset
from zarrfeed.device import prefetch
from zarrfeed.torch.batches.accelerators import check_not_lost_by_fork, has_accelerator, is_lost_by_fork, is_pinned
from zarrfeed.torch.batches.tensors import pinned_memory


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say of CUDA what it says in a process that was forked from one that had initialised CUDA."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    accelerator: Any = SimpleNamespace(is_available=lambda: True)
    monkeypatch.setattr(torch, "accelerator", accelerator)

    def refuse(_: torch.Tensor) -> bool:
        raise RuntimeError("CUDA error: initialization error")

    monkeypatch.setattr(torch.Tensor, "is_pinned", refuse)


def test_without_torch_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert not has_accelerator()
    assert not is_lost_by_fork()
    check_not_lost_by_fork("pin_memory = True")


def test_torch_says_whether_there_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for available in (True, False):
        monkeypatch.setattr(torch, "accelerator", SimpleNamespace(is_available=lambda available=available: available))
        assert has_accelerator() is available
    monkeypatch.delattr(torch, "accelerator")  # of torch 2.5 and before
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert has_accelerator()


def test_torch_says_whether_a_tensor_is_pinned() -> None:
    for pinned in (True, False):
        tensor: Any = SimpleNamespace(is_pinned=lambda pinned=pinned: pinned)
        assert is_pinned(tensor) is pinned


@pytest.mark.usefixtures("forked")
def test_after_a_fork_the_driver_is_asked_nothing() -> None:
    assert is_lost_by_fork()
    assert is_lost_by_fork(torch.cuda)
    assert not is_lost_by_fork(SimpleNamespace())  # a kind of device that can be used after a fork
    assert not has_accelerator()
    assert not is_pinned(torch.zeros(3))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("use", "argument"),
    [
        (lambda: ZarrIterableDataset(np.arange(4), batch_size=2, pin_memory=True), "pin_memory = True"),
        (lambda: prefetch([], "cuda"), "device = 'cuda'"),
        (lambda: prefetch([], "cuda:3"), "device = 'cuda:3'"),
        (lambda: pinned_memory(8), "pin_memory = True"),  # of a dataset that was made before the fork
    ],
)
def test_after_a_fork_pinned_memory_and_the_device_are_refused_with_the_remedy(use: Any, argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{argument}: this process was forked from one .* 'forkserver', or fork"):
        use()


@pytest.mark.usefixtures("forked")
def test_after_a_fork_a_dataset_reads_unpinned_batches_by_default() -> None:
    dataset = ZarrIterableDataset(np.arange(4), batch_size=2)
    assert [batch.tolist() for batch in dataset] == [[0, 1], [2, 3]]
    assert [batch.tolist() for batch in prefetch(dataset, "cpu")] == [[0, 1], [2, 3]]

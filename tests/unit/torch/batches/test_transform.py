"""`transform=`: with the batch, or with its parts, as the function's signature says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.batches.transform import prepare_transform

N = 20
SAMPLES = np.arange(N * 3.0, dtype="f4").reshape(N, 3)
TARGETS = np.arange(N)


def add(samples: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return samples[:, 0] + 1000 * targets


def whole(batch: Any) -> Any:
    return ("whole", batch)


class Adder:
    """A callable object, and a bound method."""

    def __call__(self, samples: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return add(samples, targets)

    def method(self, samples: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return add(samples, targets)


class Module(torch.nn.Module):
    """Its `__call__` has no signature of its own: it gets the batch."""

    def forward(self, batch: Any) -> Any:
        return whole(batch)


EXPECTED = SAMPLES[:, 0] + 1000 * TARGETS


@pytest.mark.parametrize(
    "transform",
    [
        add,
        Adder(),
        Adder().method,
        lambda x, y: add(x, y),
        lambda x, y, scale=1: add(x, y) * scale,
        functools.partial(lambda scale, x, y: add(x, y) * scale, 1),
    ],
)
def test_a_function_of_two_arguments_gets_samples_and_targets(transform: Callable[..., Any]) -> None:
    with ZarrIterableDataset(SAMPLES, TARGETS, batch_size=8, transform=transform) as dataset:
        assert torch.cat(list(dataset)).tolist() == EXPECTED.tolist()


@pytest.mark.parametrize(
    "transform",
    [
        whole,
        Module(),
        lambda batch, other=None: whole(batch),  # noqa: ARG005
        lambda *batches: whole(*batches),
        lambda batch=None: whole(batch),
        functools.partial(lambda tag, batch: (tag, batch), "whole"),
    ],
)
def test_other_functions_get_the_batch_as_it_is_yielded(transform: Callable[..., Any]) -> None:
    with ZarrIterableDataset(SAMPLES, TARGETS, batch_size=8, transform=transform) as dataset:
        batches = list(dataset)
    assert [tag for tag, _ in batches] == ["whole"] * 3
    assert all(type(batch) is tuple and len(batch) == 2 for _, batch in batches)
    assert torch.cat([x for _, (x, _) in batches]).tolist() == SAMPLES.tolist()


def test_callables_without_a_signature_get_the_batch() -> None:
    with ZarrIterableDataset(SAMPLES, TARGETS, batch_size=8, transform=dict.fromkeys) as dataset:
        assert len(next(iter(dataset))) == 2
    with ZarrIterableDataset(SAMPLES, batch_size=8, transform=torch.neg) as dataset:
        assert np.array_equal(next(iter(dataset)).numpy(), -SAMPLES[:8])


def test_the_index_is_a_part_and_single_samples_are_unpacked_too() -> None:
    with ZarrIterableDataset(
        SAMPLES, TARGETS, return_index=True, transform=lambda x, y, i: (float(x[0]), int(y), int(i))
    ) as dataset:
        assert list(dataset) == [(3.0 * i, i, i) for i in range(N)]
    with ZarrIterableDataset(SAMPLES, batch_size=5, return_index=True, transform=lambda x, i: x[:, 0] - 3 * i) as both:
        assert torch.cat(list(both)).tolist() == [0.0] * N


def test_parts_are_dicts_where_samples_are() -> None:
    mapping = {"a": SAMPLES, "b": TARGETS}
    with ZarrIterableDataset(
        mapping, TARGETS, batch_size=N, transform=lambda fields, targets: fields["b"] - targets
    ) as dataset:
        (batch,) = dataset
    assert batch.tolist() == [0] * N


@pytest.mark.parametrize(
    ("targets", "transform", "message"),
    [
        (None, add, r"transform requires 2 arguments \(samples, targets\), must take the batch"),
        (
            TARGETS,
            lambda x, y, z: x,  # noqa: ARG005
            r"transform requires 3 arguments \(x, y, z\), must take the batch, or the 2 parts of it",
        ),
        (TARGETS, lambda: 3, "transform requires 0 arguments, must take the batch, or the 2 parts of it"),
        (TARGETS, "lower", "transform = 'lower', must be callable"),
    ],
)
def test_a_function_that_takes_neither_is_refused_at_construction(targets: Any, transform: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ZarrIterableDataset(SAMPLES, targets, transform=transform)


def test_no_transform_stays_none() -> None:
    assert prepare_transform(None, 2) is None


def test_workers_unpack_in_the_same_way() -> None:
    """There the dataset was pickled, with `forkserver`, or forked."""
    dataset = ZarrIterableDataset(SAMPLES, TARGETS, batch_size=4, transform=add)
    for context in ("fork", "forkserver"):
        loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context=context)
        loader.set_epoch(0)
        assert sorted(torch.cat(list(loader)).tolist()) == EXPECTED.tolist()

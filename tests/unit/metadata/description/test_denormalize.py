"""`Data.denormalize`: what a batch was before its steps, of each field and of stacks, and what cannot be had back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataset

RNG = np.random.default_rng(0)
X = np.abs(RNG.normal(1, 1, (6, 3, 2, 5))).astype("f8") + 0.1
MEAN, STD = np.array([0.5, 1, 2]), np.array([2.0, 3, 4])


def test_every_step_is_undone_in_reverse_order() -> None:
    data = zarrfeed.open(X).sqrt().log1p().normalize((MEAN, STD), axis=1).exp(axis=1, index=[1]).minmax(-1, 4)
    data = data.minmax(np.zeros((1, 1, 5)), np.arange(1, 6.0)[None, None]).exp().log()
    batch = ZarrDataset(data)[[3, 0]]
    wanted = X[[3, 0]]
    np.testing.assert_allclose(data.denormalize(batch).numpy(), wanted, rtol=1e-9)
    from_numpy = data.denormalize(batch.numpy(), "samples")
    assert isinstance(from_numpy, np.ndarray)
    np.testing.assert_allclose(from_numpy, wanted, rtol=1e-9)
    windows = data.window((0, 1))
    np.testing.assert_allclose(windows.denormalize(ZarrDataset(windows)[2]).numpy(), X[[2, 3]], rtol=1e-9)
    stored = zarr.create_array({}, data=X, chunks=(2, 3, 2, 5))
    patches = zarrfeed.open(stored).log1p(axis=1, index=[0]).clip(-9, 99).normalize((MEAN, STD), axis=1)
    patches = patches.patch({2: 1}, sampling="grid")
    np.testing.assert_allclose(patches.denormalize(ZarrDataset(patches)[1], lossy=True).numpy(), X[0, :, 1:], rtol=1e-9)
    chosen = data.isel({1: [2, 1]})
    np.testing.assert_allclose(chosen.denormalize(ZarrDataset(chosen)[1]).numpy(), X[1, [2, 1]], rtol=1e-9)


def test_gradients_flow_and_dtypes_stay() -> None:
    data = zarrfeed.open(X).log1p().normalize((1.0, 2.0))
    prediction = torch.zeros((2, 3, 2, 5), dtype=torch.float32, requires_grad=True)
    back = data.denormalize(prediction)
    assert back.dtype == torch.float32
    back.sum().backward()
    assert prediction.grad is not None
    np.testing.assert_allclose(prediction.grad.numpy(), 2 * np.e, rtol=1e-6)
    plain = zarrfeed.open(X)
    assert plain.denormalize(prediction) is prediction


def test_fields_and_sides_are_found_by_their_names() -> None:
    data = zarrfeed.open({"a": X, "b": X}, targets=X).normalize({"a": (1, 2), "b": (3, 4), "targets": (5, 6)})
    zeros = torch.zeros(X.shape)
    means = [float(data.denormalize(zeros, name).mean()) for name in ("a", "b", "targets", "samples['b']")]
    assert means == [1, 3, 5, 3]
    with pytest.raises(ConfigError, match=r"field = None, must be one of 'a', .*'b', .*'targets'"):
        data.denormalize(zeros)
    with pytest.raises(ConfigError, match=r"field = 'aa', must be one of 'a'.*did you mean 'a'"):
        data.denormalize(zeros, "aa")
    with pytest.raises(ConfigError, match=r"got values of torch.int64, must be floats"):
        data.denormalize(zeros.long(), "a")
    same = zarrfeed.open({"a": X}, {"a": X}).normalize({"samples['a']": (1, 2), "targets['a']": (5, 6)})
    assert [float(same.denormalize(zeros, f"{side}['a']").mean()) for side in ("samples", "targets")] == [1, 5]


def test_a_stack_is_undone_channel_by_channel() -> None:
    flat = X[:, 0]
    data = zarrfeed.open({"z": X, "t": flat}).log1p("z").normalize({"z": (MEAN, STD)}, axis=1)
    data = data.normalize({"t": (7, 2)})
    stacked = data.stack(["t", "z"])
    batch = ZarrDataset(stacked)[[5, 1]]
    before = batch.clone()
    wanted = np.concatenate((flat[:, None], X), 1)[[5, 1]]
    np.testing.assert_allclose(stacked.denormalize(batch).numpy(), wanted, rtol=1e-9)
    assert torch.equal(batch, before)
    windows = stacked.window((0, 2))
    np.testing.assert_allclose(windows.denormalize(ZarrDataset(windows)[1]).numpy()[1, 1:], X[3], rtol=1e-9)


def test_what_is_lost_is_an_error_that_names_the_step() -> None:
    data = zarrfeed.open(X).clip(0, 1.5).normalize((1, 2)).fill_nan(0, mask=True)
    batch = ZarrDataset(data)[2]["samples"]
    with pytest.raises(ConfigError, match=r"cannot invert clip 0 to 1.5 of samples; lossy=True"):
        data.denormalize(batch)
    np.testing.assert_allclose(data.denormalize(batch, lossy=True).numpy(), np.clip(X[2], 0, 1.5))


def test_stores_with_other_steps_have_no_inverse() -> None:
    first, second = (zarr.create_array({}, data=X.astype("f4"), chunks=(2, 3, 2, 5)) for _ in range(2))
    zeros = torch.zeros(2, 3, 2, 5)
    both = zarrfeed.concat([zarrfeed.open(first).log1p(), zarrfeed.open(second).log1p()])
    assert both.denormalize(zeros).sum() == 0
    other = zarrfeed.concat([zarrfeed.open(first).log1p(), zarrfeed.open(second).normalize((1, 2))])
    with pytest.raises(ConfigError, match="stores convert samples by different steps"):
        other.denormalize(zeros)

"""Padding at the ends of episodes against plain statements of what policies are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

import zarrfeed
from zarrfeed import ZarrDataset, ZarrIterableDataset

Int64 = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a replay buffer, whose actions and states say which step they are."""
    path = tmp_path_factory.mktemp("padding") / "buffer.zarr"
    ends = np.cumsum(np.random.default_rng(4).integers(3, 90, 25))
    group = zarr.create_group(path)
    steps = np.arange(ends[-1], dtype="f4")
    group.create_array("data/action", data=np.stack([steps, -steps], axis=1), chunks=(37, 2))
    group.create_array("data/state", data=steps[:, None], chunks=(64, 1))
    group.create_array("meta/episode_ends", data=ends.astype("i8"))
    return path


def ends_of(path: Path) -> Int64:
    ends: Int64 = np.asarray(zarr.open_array(path / "meta" / "episode_ends", mode="r")[:])
    return ends


def sequences(ends: Int64, horizon: int, before: int, after: int) -> list[list[int]]:
    """Return the steps of each training sequence of `horizon` steps.

    A sequence begins up to `before` steps before its episode, and ends up to `after` steps behind it. The first and the
    last step of the episode stand for those that it lacks.
    """
    return [
        [min(max(step, begin), end - 1) for step in range(first, first + horizon)]
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        for first in range(begin - before, end - horizon + after + 1)
    ]


@pytest.mark.parametrize(("horizon", "before", "after"), [(16, 1, 7), (8, 7, 0), (4, 0, 3), (10, 3, 6)])
def test_every_sequence_of_a_diffusion_policy_is_a_sample(buffer: Path, horizon: int, before: int, after: int) -> None:
    ends = ends_of(buffer)
    expected = sequences(ends, horizon, before, after)
    # a sample is the step at which observations end: `before` steps into its sequence
    begins = np.concatenate(([0], ends[:-1]))
    step = np.arange(ends[-1])
    episode = np.searchsorted(ends, step, side="right")
    is_sample = step - before <= ends[episode] - horizon + after
    assert is_sample.sum() == len(expected)
    assert (step - before >= begins[episode] - before).all()
    data = zarrfeed.open(buffer).select(is_sample)
    data = data.window(range(-before, horizon - before), rows="all", pad="edge")
    assert len(data) == len(expected)
    seen = []
    for batch in ZarrIterableDataset(data, batch_size=64, shuffle=True, seed=1):
        assert np.array_equal(batch["action"][..., 0].numpy(), batch["state"][..., 0].numpy())
        assert np.array_equal(batch["action"][..., 1].numpy(), -batch["state"][..., 0].numpy())
        seen += batch["action"][..., 0].int().tolist()
    assert sorted(seen) == sorted(expected)


def test_every_frame_is_a_sample_with_its_padding_marked(buffer: Path) -> None:
    """As LeRobot does it: the nearest frame of the episode, and `<key>_is_pad`."""
    ends = ends_of(buffer)
    offsets: dict[str, Any] = {"action": tuple(range(-2, 14)), "state": (-1, 0)}
    data = zarrfeed.open(buffer).window(offsets, pad="edge", mask=True)
    assert len(data) == ends[-1]
    batch = ZarrDataset(data)[list(range(len(data)))]
    step = np.arange(ends[-1])
    episode = np.searchsorted(ends, step, side="right")
    low, high = np.concatenate(([0], ends[:-1]))[episode], ends[episode]
    for name, of_name in offsets.items():
        at = step[:, None] + np.array(of_name)
        nearest = np.clip(at, low[:, None], high[:, None] - 1)
        assert np.array_equal(batch[name][..., 0].numpy(), nearest)
        is_pad = (at < low[:, None]) | (at >= high[:, None])
        assert np.array_equal(batch[f"{name}_is_pad"].numpy(), is_pad)


def test_segment_ends_may_be_an_array_or_its_path(buffer: Path) -> None:
    ends = zarr.open_array(buffer / "meta" / "episode_ends", mode="r")
    named: list[Any] = [ends, ends[:], "meta/episode_ends", str(buffer / "meta" / "episode_ends")]
    lengths = {len(zarrfeed.open(buffer / "data").window((0, 5), segment_ends=one)) for one in named}
    assert lengths == {len(zarrfeed.open(buffer).window((0, 5)))}
    with pytest.raises(zarrfeed.ConfigError, match="no array is there"):
        zarrfeed.open(buffer / "data").window((0, 5), segment_ends="meta/nothing")
    with pytest.raises(zarrfeed.ConfigError, match="the samples are in memory"):
        zarrfeed.open(np.zeros(4)).window((0, 1), segment_ends="meta/episode_ends")


@pytest.mark.parametrize(
    ("pad", "what"),
    [("egde", "did you mean 'edge'"), (True, "must be 'edge', 'nan' or a number"), ([1], "must be 'edge'")],
)
def test_a_wrong_pad_is_refused(buffer: Path, pad: Any, what: str) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=what):
        zarrfeed.open(buffer).window((0, 1), pad=pad)
    with pytest.raises(zarrfeed.ConfigError, match="give pad, too"):
        zarrfeed.open(buffer).window((0, 1), mask=True)
    with pytest.raises(zarrfeed.ConfigError, match="mask"):
        zarrfeed.open(buffer).window((0, 1), pad=0, mask="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", -128),
        ("uint8", 255),
        ("float16", 0.5),
        ("bfloat16", -3.25),
        ("float64", np.pi),
        ("bool", 1),
        ("int64", 7),
    ],
)
def test_a_value_pads_every_dtype(dtype: str, value: float) -> None:
    data = zarrfeed.open(np.zeros((4, 3), "f4" if dtype == "bfloat16" else dtype))
    if dtype == "bfloat16":
        data = data.cast("bfloat16")
    sample = ZarrDataset(data.window((-1, 0), pad=value))[0]
    assert sample[0].tolist() == [bool(value) if dtype == "bool" else value] * 3
    assert not sample[1].any()


@pytest.mark.parametrize(("dtype", "value"), [("int8", 128), ("uint8", -1), ("int32", 0.5), ("int16", "nan")])
def test_a_value_that_the_dtype_cannot_hold_is_refused(dtype: str, value: Any) -> None:
    data = zarrfeed.open(np.zeros((4, 3), dtype)).window((-1, 0), pad=value)
    with pytest.raises(zarrfeed.ConfigError, match=f"batches have {dtype}, which cannot hold it"):
        ZarrDataset(data)

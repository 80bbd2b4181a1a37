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


@pytest.mark.parametrize("pad", [None, "edge"])
def test_a_lead_is_drawn_for_each_sample_and_is_the_same_for_all_of_its_arrays(buffer: Path, pad: Any) -> None:
    ends = ends_of(buffer)
    offsets: dict[str, Any] = {"action": (0, zarrfeed.lead(2, 9)), "state": zarrfeed.lead(2, 9)}
    data = zarrfeed.open(buffer).window(offsets, pad=pad)
    assert [field.name for field in data.fields] == ["action", "state", "lead"]
    options: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 6, "return_index": True}
    dataset = ZarrIterableDataset(data, **options)
    by_sample: list[dict[int, int]] = []
    for _ in range(2):
        drawn: dict[int, int] = {}
        for batch, index in dataset:
            lead, step = batch["lead"].numpy(), index.numpy()
            end = ends[np.searchsorted(ends, step, side="right")]
            at = np.minimum(step + lead, end - 1)
            assert np.array_equal(batch["action"][:, 0, 0].numpy(), step)
            assert np.array_equal(batch["action"][:, 1, 0].numpy(), at)
            assert np.array_equal(batch["state"][:, 0].numpy(), at)
            drawn |= dict(zip(step.tolist(), lead.tolist(), strict=True))
        by_sample.append(drawn)
    counts = np.bincount(list(by_sample[0].values()), minlength=10)
    assert not counts[:2].any()
    assert (np.abs(counts[2:] - len(data) / 8) < 6 * np.sqrt(len(data) / 8)).all(), "uniform"
    assert by_sample[0] != by_sample[1], "each epoch draws anew"
    parts = [ZarrIterableDataset(data, rank=rank, world_size=3, even="off", **options) for rank in range(3)]
    read = {
        int(i): int(lead)
        for part in parts
        for batch, index in part
        for i, lead in zip(index, batch["lead"], strict=True)
    }
    assert read == by_sample[0], "on any number of ranks"


def test_a_lead_goes_with_states_and_other_offsets(buffer: Path) -> None:
    data = zarrfeed.open(buffer, variables=["state"]).window((0, zarrfeed.lead(1, 4)), pad="edge")
    assert "zarrfeed.lead(1, 4)" in repr(data)
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 2}
    dataset = ZarrIterableDataset(data, **options)
    dataset.set_offsets((0, zarrfeed.lead(5, 8)))
    batches = iter(dataset)
    assert next(batches)["lead"].min() >= 5
    state = dataset.state_dict()
    rest = [batch["lead"].tolist() for batch in batches]
    again = ZarrIterableDataset(data, **options)
    again.load_state_dict(state)
    assert [batch["lead"].tolist() for batch in again] == rest
    other = ZarrIterableDataset(zarrfeed.open(buffer, variables=["state"]).window((0, 1), pad="edge"), **options)
    state.pop("offsets")
    with pytest.raises(zarrfeed.ConfigError, match="another dataset"):
        other.load_state_dict(state)


def test_wrong_leads_are_refused(buffer: Path) -> None:
    lead = zarrfeed.lead
    with pytest.raises(zarrfeed.ConfigError, match="must ascend"):
        lead(4, 3)
    with pytest.raises(zarrfeed.ConfigError, match="low"):
        lead(0.5, 3)  # type: ignore[arg-type]
    data = zarrfeed.open(buffer)
    with pytest.raises(zarrfeed.ConfigError, match="must have one zarrfeed"):
        data.window((lead(0, 1), lead(0, 2)))
    with pytest.raises(zarrfeed.ConfigError, match="must have one zarrfeed"):
        data.window({"action": lead(0, 1), "state": lead(0, 2)})
    with pytest.raises(zarrfeed.ConfigError, match="an array of this name"):
        zarrfeed.open({"lead": np.zeros(9)}).window((0, lead(1, 2)))
    with pytest.raises(zarrfeed.ConfigError, match="must be integers or zarrfeed"):
        data.window({"action": [{"leads": [1, 2]}]})  # type: ignore[list-item]


def test_a_padded_window_of_listed_samples_reads_no_row_that_is_not_selected() -> None:
    """In one segment as in several: the row beyond an end is the nearest one inside, every other row is selected."""
    kept = np.array([0, 1, 2, 4, 5, 6, 7, 9])
    for ends, wanted in ((None, [0, 1, 2, 5, 6, 7]), ([5, 10], [0, 1, 2, 5, 6, 7])):
        data = zarrfeed.open({"x": np.arange(10)}).select(kept)
        data = data.window({"x": (-1, 0)}, pad="edge", rows="selected", segment_ends=ends)
        with ZarrIterableDataset(data, batch_size=10, return_index=True, rank=0, world_size=1) as dataset:
            ((batch, index),) = list(dataset)
        assert index.tolist() == wanted, ends
        assert set(batch["x"].flatten().tolist()) <= set(kept.tolist()), ends

"""`Array` and `Column`: what belongs to an array stays with it, whatever becomes of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import Data, ZarrDataset

N = 6
SHAPES = {"a": ("t", "c", "y", "x"), "b": ("t", "y", "x"), "c": ("t", "c", "y", "x"), "d": ("t", "y", "x")}
LENGTHS = {"t": N, "c": 3, "y": 8, "x": 8}


def make_group(names: str = "abcd") -> zarr.Group:
    """Return arrays with other axes each, whose items differ from each other."""
    group = zarr.create_group({})
    for number, name in enumerate(names):
        shape = tuple(LENGTHS[dim] for dim in SHAPES[name])
        values = np.arange(np.prod(shape), dtype="f4").reshape(shape) + 10_000 * number
        chunks = (2, *shape[1:])
        group.create_array(name, shape=shape, chunks=chunks, dtype="f4", dimension_names=SHAPES[name])[:] = values
    return group


def planes(value: Any) -> np.ndarray[Any, Any]:
    """Return the channels of a sample as planes."""
    array = np.asarray(value)
    return array.reshape(-1, *array.shape[-2:])


@pytest.mark.parametrize("stacked", [["a", "c"], ["b"], ["d", "a"], ["c", "b", "a"]])
def test_patches_that_are_stacked_afterwards_are_cut_out_of_their_own_arrays(stacked: list[str]) -> None:
    group = make_group()
    data = zarrfeed.open(group).patch({"y": 4, "x": 4}, sampling="grid").stack(stacked, name="s")
    dataset = ZarrDataset(data, return_index=True)
    for position in range(0, len(dataset), 5):
        sample, number = dataset[position]
        _, (t, y, x) = data.locate(int(number))
        expected = {name: planes(group[name][t])[:, y : y + 4, x : x + 4] for name in SHAPES}
        assert np.array_equal(planes(sample["s"]), np.concatenate([expected[name] for name in stacked])), position
        for name in set(SHAPES) - set(stacked):
            assert np.array_equal(planes(sample[name]), expected[name]), (position, name)


def test_the_context_of_an_array_stays_with_it_when_others_are_stacked() -> None:
    patches = zarrfeed.open(make_group()).patch({"y": 4, "x": 4}, sampling="grid", context={"a": {"y": 6}})
    before = {info.name: info.shape for info in patches.fields}
    after = {info.name: info.shape for info in patches.stack(["b"], name="s").fields}
    assert before == {"a": (3, 6, 4), "b": (4, 4), "c": (3, 4, 4), "d": (4, 4)}
    assert after == {"a": (3, 6, 4), "s": (1, 4, 4), "c": (3, 4, 4), "d": (4, 4)}


def test_statistics_of_patches_fit_their_arrays_after_a_stack() -> None:
    group = make_group("abc")
    patches = zarrfeed.open(group).patch({"y": 4, "x": 4}, sampling="grid", isel={"c": [0, 2]})
    statistics = zarrfeed.stats(zarrfeed.open(group), axis="c")
    alone = patches.normalize(statistics)
    stacked = patches.stack(["a"], name="s").normalize(statistics)
    assert np.array_equal(planes(ZarrDataset(stacked)[3]["s"]), planes(ZarrDataset(alone)[3]["a"]))
    assert np.array_equal(planes(ZarrDataset(stacked)[3]["c"]), planes(ZarrDataset(alone)[3]["c"]))


def test_a_single_array_keeps_its_name_beside_a_stack() -> None:
    times = np.arange(4).astype("M8[h]")
    described = zarrfeed.open(np.arange(8.0).reshape(4, 2)).time_features("hour", coords=times)
    data = described.stack(["time_features"], name="s")
    assert list(ZarrDataset(data)[1]) == [info.name for info in data.fields] == ["samples", "s"]


def test_conversions_and_windows_stay_with_their_arrays_when_these_are_reordered() -> None:
    group = make_group("bd")

    def described(stack: bool) -> Data:
        data = zarrfeed.open(group).normalize({"b": (1.0, 2.0), "d": (3.0, 4.0)}).cast({"d": "float64"})
        data = data.window({"b": (-1, 0), "d": 1}, pad="edge")
        return data.stack(["b"], name="s") if stack else data

    plain, stacked = (ZarrDataset(described(stack))[3] for stack in (False, True))
    assert list(stacked) == ["d", "s"]
    assert stacked["d"].dtype == plain["d"].dtype
    assert np.array_equal(stacked["d"], plain["d"])
    assert np.array_equal(stacked["s"][:, 0], plain["b"])

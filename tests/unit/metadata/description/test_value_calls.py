"""What methods that calculate with values refuse, leave alone, and say of themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data, ZarrDataset

X = np.arange(24, dtype="f4").reshape(4, 3, 2)


def names() -> zarr.Array[Any]:
    array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="str")
    array[...] = np.array(["a"] * 4)
    return array


def opened() -> Data:
    return zarrfeed.open({"x": X, "label": np.arange(4), "name": names()})


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no such field": (lambda d: d.log1p("y"), r"log1p names 'y', must be one of 'x', 'label', 'name'"),
    "no field": (lambda d: d.exp([]), r"exp: field = \[\], must name a field"),
    "text": (lambda d: d.sqrt("name"), r"cannot convert text or bytes"),
    "an axis alone": (lambda d: d.log("x", axis=1), r"axis = 1, index = None: give both"),
    "an index alone": (lambda d: d.log("x", index=[1]), r"axis = None, index = \[1\]: give both"),
    "the sample axis": (lambda d: d.log("x", axis=0, index=[1]), "is the sample axis"),
    "no such channel": (lambda d: d.log("x", axis=1, index=[3]), "which has 3 channels: index 3 is out of bounds"),
    "no bound": (lambda d: d.clip(), "lo = None, hi = None, must have one of them"),
    "bounds the wrong way": (lambda d: d.clip(2, 1), "lo = 2.0, hi = 1.0, must be numbers, and lo at most hi"),
    "a bound of NaN": (lambda d: d.clip(math.nan), "lo at most hi"),
    "bounds of other lengths": (lambda d: d.clip([1, 2], [3, 4], field="x", axis=1), "2 values, axis 1 has length 3"),
    "bounds that are text": (lambda d: d.clip("a"), "clip of x|must be lo and hi, two numbers or arrays"),
    "channels without an axis": (lambda d: d.clip([1, 2, 3], field="x"), "3 values: axis must say along which axis"),
    "an empty range": (lambda d: d.minmax(1, 1), "must be finite, and lo below hi"),
    "an infinite range": (lambda d: d.minmax(0, math.inf), "must be finite, and lo below hi"),
    "NaN for NaN": (lambda d: d.fill_nan(math.nan), "value = nan, must be a number"),
    "integers": (lambda d: d.fill_nan(0, field="label"), "items of int64 without a fill value"),
    "a mask of another kind": (lambda d: d.fill_nan(0, mask=1), "mask = 1, must be True or False"),
    "a second mask": (lambda d: d.fill_nan(0, mask=True).fill_nan(1, mask=True), "have an array 'x_is_nan'"),
    "an axis of another kind": (lambda d: d.clip(0, axis=1.5), "axis = 1.5, must be an axis or the name"),
    "integers in the end": (lambda d: d.log1p().cast({"x": "int32"}), "int32 cannot hold log1p values"),
    "normalised twice": (
        lambda d: d.normalize((0, 1)).log1p().normalize({"x": (1, 2)}),
        "it was normalised before; give mean and std once",
    ),
    "an option that there is none of": (lambda d: d.fill_nan(0, masks=True), "did you mean 'mask'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_where_it_is_said(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises((ConfigError, TypeError), match=message):
        call(opened())


def test_a_call_without_names_is_for_the_arrays_of_the_samples() -> None:
    times = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="f8")
    data = zarrfeed.open({"x": X, "i": np.arange(4), "name": names()}, targets=times)
    stepped = data.log1p()
    assert [one.dtype for one in stepped.fields] == ["float32", "float32", "str", "float64"]
    assert [f.conversion is None for f in stepped.resolved.fields] == [False, False, True, True]
    filled = data.fill_nan(0)
    assert [f.conversion is None for f in filled.resolved.fields] == [False, True, True, True]
    named = data.log1p("targets").clip(0, 1, field=["x", "targets"])
    said = ["" if f.conversion is None else f.conversion.describe_steps() for f in named.resolved.fields]
    assert said == ["clip 0 to 1", "", "", "log1p, clip 0 to 1"]


def test_no_array_of_floats_has_no_nan() -> None:
    with pytest.raises(ConfigError, match="no array of floats, and so no NaN"):
        zarrfeed.open(np.arange(4)).fill_nan(0)
    filled = zarrfeed.open(np.array([0, 3], "i2")).log().clip(-math.inf, 5).fill_nan(2)
    assert ZarrDataset(filled)[[0, 1]].tolist() == [-math.inf, pytest.approx(math.log(3))]


def test_steps_are_named_in_their_order() -> None:
    data = zarrfeed.open(X).log1p(axis=1, index=slice(0, 2)).clip(0, None).normalize(([1, 2, 3], 2), axis=1)
    data = data.minmax(np.zeros((1, 3, 1)), np.ones((1, 3, 1))).fill_nan(7.5).sqrt().cast("bfloat16")
    conversion = data.resolved.fields[0].conversion
    assert str(conversion) == (
        "float32 -> bfloat16, log1p of 2 of 3 channels, clip 0 to inf, normalised, 3 channels, "
        "min-max by arrays of shape (1, 3, 1), NaN filled with 7.5, sqrt"
    )
    assert repr(data).endswith(
        ".log1p(axis=1, index=slice(0, 2)).clip(lo=0).normalize(([1, 2, 3], 2), axis=1)"
        ".minmax([[[0.0], [0.0], [0.0]]], [[[1.0], [1.0], [1.0]]]).fill_nan(7.5).sqrt().cast('bfloat16')"
    )
    assert data != zarrfeed.open(X).log1p(axis=1, index=slice(0, 1))
    assert len({zarrfeed.open(X).clip(0, 1).expression, zarrfeed.open(X).clip(0, 1).expression}) == 1


def test_a_coordinate_is_left_as_it_is_and_explain_says_so(tmp_path: Any) -> None:
    group = zarr.create_group(str(tmp_path / "x.zarr"))
    for name, values in {"time": np.arange(4.0), "x": X}.items():
        dims = ["time"] if name == "time" else ["time", "c", "y"]
        group.create_array(name, data=values, dimension_names=dims)
    data = zarrfeed.open(tmp_path / "x.zarr", variables=["x", "time"]).exp()
    np.testing.assert_array_equal(ZarrDataset(data)[3]["time"], 3.0)
    assert data.resolved.columns[1].requested.left_unconverted
    assert not data.exp("time").resolved.columns[1].requested.left_unconverted

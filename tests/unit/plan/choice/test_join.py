"""Joined axes: those of `xarray.align`, and rows that are those of pandas' reindex."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from zarrfeed import ConfigError
from zarrfeed.plan.choice.join import HOWS, How, Joined, JoinInput, join_axes
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.spec.samples.row_map import NO_ROW

START = np.datetime64("2000-01-01", "s")


def join_input(name: str, values: Any, samples: Any = None) -> JoinInput:
    values = np.asarray(values)
    return JoinInput(name, Coordinate("time", values, f"{name}.zarr/time"), samples or range(len(values)))


def joined(*coordinates: Any, how: How = "inner", missing: Any = "drop") -> Joined:
    return join_axes([join_input("abc"[i], one) for i, one in enumerate(coordinates)], how, missing)


def rows_of(result: Joined) -> list[list[int]]:
    return [np.asarray(rows).tolist() for rows in result.rows]


@st.composite
def coordinates(draw: st.DrawFn) -> list[Any]:
    """Draw two or three coordinates of one kind, each sorted, which overlap or not."""
    kind = draw(st.sampled_from(["time", "units", "int", "float", "text"]))
    result = []
    for _ in range(draw(st.integers(2, 3))):
        steps = np.array(sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=20))))
        if kind == "text":
            result.append(np.array([f"{step:02}" for step in steps]))
        elif kind == "float":
            result.append(steps / 4 if draw(st.booleans()) else steps)
        elif kind == "int":
            result.append(steps)
        else:
            unit = draw(st.sampled_from(["s", "ms", "ns"])) if kind == "units" else "s"
            result.append((START + steps * np.timedelta64(6 * 3600, "s")).astype(f"M8[{unit}]"))
    return result


@given(coordinates(), st.sampled_from(HOWS))
def test_axes_are_those_of_xarray(values: list[Any], how: How) -> None:
    arrays = [xr.DataArray(np.arange(len(one)), {"time": one}, ["time"]) for one in values]
    aligned = xr.align(*arrays, join=how, fill_value=NO_ROW)
    if not aligned[0].size or (how == "outer" and not xr.align(*arrays, join="inner")[0].size):
        with pytest.raises(ConfigError, match=r"join: no time is in all of the arrays: 'a' has "):
            joined(*values, how=how)
        if how == "inner":
            return
    result = joined(*values, how=how, missing="nan")
    assert np.array_equal(result.values, aligned[0]["time"].values)
    assert rows_of(result) == [one.values.tolist() for one in aligned]
    complete = np.logical_and.reduce([one.values != NO_ROW for one in aligned])
    assert np.array_equal(result.complete, np.flatnonzero(complete))


@given(coordinates())
def test_nearest_rows_are_those_of_pandas(values: list[Any]) -> None:
    if values[0].dtype.kind == "U":
        return
    result = joined(*values, how="outer", missing="nearest")
    for one, rows in zip(values, rows_of(result), strict=True):
        assert rows == pd.Index(one).get_indexer(pd.Index(result.values), method="nearest").tolist()
    assert np.array_equal(result.complete, np.arange(len(result.values)))


@given(coordinates(), st.data())
def test_rows_are_of_the_samples_that_an_input_has(values: list[Any], data: st.DataObject) -> None:
    """Samples that were selected before: a row is the index in the array."""
    inputs = []
    for number, one in enumerate(values):
        first, step = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))
        samples: Any = range(first, first + step * len(one), step)
        if data.draw(st.booleans()):
            samples = np.cumsum(data.draw(st.lists(st.integers(1, 3), min_size=len(one), max_size=len(one))))
        inputs.append(JoinInput(str(number), Coordinate("time", one, "a"), samples))
    plain = joined(*values, how="outer", missing="nan")
    result = join_axes(inputs, "outer", "nan")
    for one, rows, indices in zip(inputs, rows_of(result), rows_of(plain), strict=True):
        assert rows == [NO_ROW if at == NO_ROW else one.samples[at] for at in indices]


def test_regular_rows_are_ranges() -> None:
    days = START + np.arange(100) * np.timedelta64(86400, "s")
    result = joined(days, days[10:90], days[::5])
    assert result.rows == (range(10, 90, 5), range(0, 80, 5), range(2, 18))
    assert result.complete == range(16)
    result = joined(days, days[10:], how="outer", missing="drop")
    assert result.rows[0] == range(100)
    assert result.complete == range(10, 100)
    assert isinstance(joined([1, 2, 3], [2], how="outer", missing="nearest").rows[1], np.ndarray), (
        "one row, three times"
    )
    assert joined([4], [4]).rows == (range(1), range(1))


def test_what_is_left_out_is_counted() -> None:
    result = joined([1, 2, 3, 4], [3, 4, 5], how="inner")
    assert [str(one) for one in result.left_out] == [
        "2 of 4 samples left out: those of 'a' whose time 'b' lacks (1, 2)",
        "1 of 3 samples left out: those of 'b' whose time 'a' lacks (5)",
    ]
    result = joined([1, 2, 3, 4], [3, 4, 5], [1, 4, 5], how="outer")
    assert [str(one) for one in result.left_out] == [
        "1 of 5 samples left out: 'a' lacks their time (5)",
        "2 of 4 samples left out: 'b' lacks their time (1, 2)",
        "1 of 2 samples left out: 'c' lacks their time (3)",
    ]
    assert np.asarray(result.complete).tolist() == [3]
    for missing, what in (("nan", "NaN"), ("nearest", "the nearest row")):
        result = joined([1, 2], [2, 3], how="outer", missing=missing)
        assert result.left_out == ()
        assert result.notes == (f"1 samples have {what} (3)", f"1 samples have {what} (1)")
    assert joined([1, 2], [1, 2]).left_out == ()
    assert joined([1, 2], [1, 2], how="outer", missing="nan").notes == ("", "")


def test_what_other_inputs_lack_is_named_with_the_values() -> None:
    days = START + np.arange(10) * np.timedelta64(86400, "s")
    result = joined(days, days[2:], days[[2, 3, 5, 6, 7, 8, 9]])
    assert [str(one) for one in result.left_out] == [
        "3 of 10 samples left out: those of 'a' whose time 'b' (2) or 'c' (1) lacks (2000-01-01, 2000-01-02, "
        "2000-01-05)",
        "1 of 8 samples left out: those of 'b' whose time 'c' lacks (2000-01-05)",
    ]
    result = joined(days, days[5:], how="outer")
    assert [str(one) for one in result.left_out] == [
        "5 of 10 samples left out: 'b' lacks their time (2000-01-01 to 2000-01-05)"
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [5, 7, 7, 9],
            "join: 'b': b.zarr/time has a value twice: 7 at index 3, and 7 at index 5; leave one of them out",
        ),
        ([5, 9, 7, 8], "join: 'b': b.zarr/time is not sorted: it has 7 at index 5 behind 9 at index 3"),
        ([5.0, 6, np.nan, 7], "join: 'b': b.zarr/time has no value at index 5"),
        (["1", "2", "3", "4"], "join: coordinates must be of one kind: 'a' has int64, 'b' has <U1"),
    ],
)
def test_coordinates_that_are_refused(values: Any, message: str) -> None:
    second = join_input("b", values, range(1, 9, 2))
    for how in HOWS:
        with pytest.raises(ConfigError, match=re.escape(message)):
            join_axes([join_input("a", [1, 2, 3]), second], how, "drop")


def test_times_that_are_refused() -> None:
    days = START + np.arange(3) * np.timedelta64(86400, "s")
    lacking = days.copy()
    lacking[1] = np.datetime64("NaT")
    with pytest.raises(ConfigError, match=r"'b': b.zarr/time has no value at index 1"):
        joined(days, lacking)
    with pytest.raises(ConfigError, match=r"'a': a.zarr/time has times that do not fit into one unit"):
        joined(np.array(["9999-01-01"], "M8[s]"), days.astype("M8[ns]"))

    for far in ("9999-01-01", "-9999-01-01"):  # the last time of an axis, and the first one
        two = np.sort(np.array([far, "2000-01-01"], "M8[s]"))
        with pytest.raises(ConfigError, match=r"'a': a.zarr/time has times that do not fit into one unit"):
            joined(two, days.astype("M8[ns]"))

    class Day(datetime.datetime):
        calendar = "noleap"

    class OtherDay(datetime.datetime):
        calendar = "360_day"

    dates = np.array([Day(2000, 1, 1), Day(2000, 1, 2)], dtype=object)
    result = joined(dates, dates[1:], how="outer", missing="nan")
    assert (result.values.tolist(), rows_of(result)) == (dates.tolist(), [[0, 1], [NO_ROW, 0]])
    with pytest.raises(ConfigError, match="times must be of one calendar: 'a' has 'noleap', 'b' has '360_day'"):
        joined(dates, np.array([OtherDay(2000, 1, 1)], dtype=object))

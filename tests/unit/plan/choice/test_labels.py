"""Labels: the positions that xarray finds for them are the positions that we find."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

from zarrfeed import ConfigError
from zarrfeed.plan.choice.labels import LabelIndex
from zarrfeed.spec.samples.coordinate import Coordinate

START = np.datetime64("2014-12-29")


def index_of(values: Any) -> LabelIndex:
    return LabelIndex(Coordinate("time", np.asarray(values), "a.zarr/time"))


def positions(values: Any, label: Any, method: Any = None) -> list[int]:
    found = index_of(values).find(label, method)
    return list(np.arange(len(values))[found].tolist())


def of_xarray(values: Any, label: Any, method: Any = None) -> list[int]:
    array = xr.DataArray(np.arange(len(values)), {"time": values}, ["time"])
    return list(np.atleast_1d(array.sel(time=label, method=method).values).tolist())


@st.composite
def coordinates(draw: st.DrawFn) -> Any:
    """Draw a coordinate, sorted or descending, without duplicates."""
    steps = draw(st.lists(st.integers(0, 400), min_size=1, max_size=40, unique=True))
    kind = draw(st.sampled_from(["s", "ns", "int", "float", "text"]))
    order = np.array(sorted(steps, reverse=draw(st.booleans())))
    if kind == "int":
        return order - 200
    if kind == "float":
        return (order - 200) / 8
    if kind == "text":
        return np.array([f"{value:04}" for value in order])
    every = draw(st.sampled_from([60, 3600, 6 * 3600, 86400, 31 * 86400]))
    return START.astype("M8[s]").astype(f"M8[{kind}]") + order * np.timedelta64(every, "s")


def labels_near(values: Any, draw: Any) -> Any:
    """Draw a label that is of the coordinate, or near it."""
    value = draw(st.sampled_from(list(values)))
    if values.dtype.kind == "U":
        return str(value) if draw(st.booleans()) else str(value)[: draw(st.integers(1, 4))] + "5"
    if values.dtype.kind != "M":
        return (value + draw(st.sampled_from([0, 0, 1, -1, 0.5]))).item()
    moved = value + np.timedelta64(draw(st.sampled_from([0, 0, 1, -3600, 86400])), "s")
    form = draw(st.sampled_from(["Y", "M", "D", "h", "m", "s", "time", "object"]))
    if form == "time":
        return moved
    return moved.astype("M8[us]").item() if form == "object" else str(moved.astype(f"M8[{form}]"))


@given(st.data())
def test_slices_are_those_of_xarray(data: st.DataObject) -> None:
    values = data.draw(coordinates())
    start, stop = (data.draw(st.none() | st.builds(lambda: labels_near(values, data.draw))) for _ in range(2))
    step = data.draw(st.sampled_from([None, 1, 3]))
    label = slice(start, stop, step)
    if values.dtype.kind == "M" and values[0] > values[-1]:  # there pandas takes strings only if a value is their end
        ascending = of_xarray(values[::-1], slice(stop, start))
        expected = [len(values) - 1 - position for position in reversed(ascending)][::step]
    else:
        expected = of_xarray(values, label)
    if expected:
        assert positions(values, label) == expected
    else:
        with pytest.raises(ConfigError, match=r"selects nothing: a.zarr/time has values from"):
            positions(values, label)


@given(st.data())
def test_single_labels_are_those_of_xarray(data: st.DataObject) -> None:
    values = data.draw(coordinates())
    label = labels_near(values, data.draw)
    try:
        expected = of_xarray(values, label)
    except KeyError:
        expected = []
    if expected:
        assert positions(values, label) == expected
    else:
        with pytest.raises(ConfigError, match="sel: time has no "):
            positions(values, label)


@given(st.data())
def test_lists_are_those_of_xarray(data: st.DataObject) -> None:
    values = data.draw(coordinates())
    order = data.draw(st.permutations(range(len(values))))
    some = values[np.array(order[: data.draw(st.integers(1, len(values)))])]
    assert positions(values, some) == of_xarray(values, some)
    assert positions(values, list(some)) == of_xarray(values, some)
    if values.dtype.kind == "M":
        assert positions(values, [str(one) for one in some]) == of_xarray(values, some)
        assert positions(values, pd.DatetimeIndex(some)) == of_xarray(values, some)
        assert positions(values, [pd.Timestamp(one) for one in some]) == of_xarray(values, some)
    unsorted = values[np.array(order)]
    assert positions(unsorted, some) == of_xarray(unsorted, some)


@given(st.data())
def test_nearest_labels_are_those_of_xarray(data: st.DataObject) -> None:
    values = data.draw(coordinates())
    assume(values.dtype.kind != "U" and (len(values) < 2 or values[0] < values[1]))
    label = labels_near(values, data.draw)
    expected = of_xarray(values, label, "nearest")
    assert positions(values, label, "nearest") == expected
    assert positions(values, [label], "nearest") == expected


def test_the_nearest_label_is_found_where_distances_do_not_fit_in_an_int64() -> None:
    values = [-9 * 10**18, 9 * 10**18]
    for label in (-8 * 10**18, -1, 0, 1, 8 * 10**18):
        nearest = min(reversed(range(2)), key=lambda i: abs(values[i] - label))  # the larger of two as near
        assert positions(values, label, "nearest") == [nearest], label


def test_two_labels_of_one_sample_are_refused_as_two_nearest() -> None:
    assert positions([0, 10, 20], [11, 2], "nearest") == [1, 0]
    with pytest.raises(ConfigError, match=r"two labels name 10 \(index 1\), must name each sample once"):
        positions([0, 10, 20], [11, 9], "nearest")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 5))
def test_a_label_alone_names_all_that_have_it(values: list[int], label: int) -> None:
    """Episodes or scenes: sorted or not."""
    expected = [i for i, value in enumerate(values) if value == label]
    if expected:
        assert positions(values, label) == expected
        assert positions([str(value) for value in values], str(label)) == expected
    else:
        with pytest.raises(ConfigError, match=f"time has no {label}: "):
            positions(values, label)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.sets(st.integers(0, 4), min_size=1))
def test_a_list_names_all_samples_that_have_one_of_its_labels(values: list[int], wanted: set[int]) -> None:
    index = LabelIndex(Coordinate("time", np.array(values), "a.zarr/time"))
    labels = list(wanted)
    if wanted <= {*values}:
        found = index.find(labels)
        positions = np.arange(len(values))[found]
        assert np.sort(positions).tolist() == np.flatnonzero(np.isin(values, labels)).tolist()
    else:
        with pytest.raises(ConfigError, match="time has no"):
            index.find(labels)


def test_a_label_of_two_items_is_ambiguous() -> None:
    index = LabelIndex(Coordinate("level", np.array([5, 3, 5]), "a.zarr/level"), noun="item")
    with pytest.raises(ConfigError, match=r"level = 5 is ambiguous: a.zarr/level has 5 \(index 0\) and 5 \(index 2\)"):
        index.find([3, 5])


def test_other_forms_of_labels() -> None:
    times = START.astype("M8[s]") + np.arange(10) * np.timedelta64(1, "D")
    assert positions(times, times == times[3]) == [3]
    assert positions(times, xr.DataArray(times[[4, 2]])) == [4, 2]
    assert positions(times, xr.DataArray(times[4])) == [4]
    assert positions(times, np.array(times[4])) == [4]
    assert positions(times, datetime.date(2014, 12, 30)) == [1]
    assert positions(times, times[[3, 5]].astype("M8[D]")) == [3, 5]
    assert positions(times, "2014") == [0, 1, 2]
    assert positions(times, slice("2015", "9999")) == list(range(3, 10))
    assert positions(times.astype("M8[ns]"), slice("1000", "9999")) == list(range(10))
    steps = np.arange(5) * np.timedelta64(3600, "s")
    assert positions(steps, np.timedelta64(2, "h")) == [2]
    assert positions(steps, slice(datetime.timedelta(hours=1), pd.Timedelta("2h"))) == [1, 2]
    assert positions(steps, [np.timedelta64(3, "h"), np.timedelta64(0, "s")]) == [3, 0]
    assert positions(steps, np.timedelta64(100, "m"), "nearest") == [2]
    by_pandas = pd.Series(range(5), pd.to_timedelta(steps))
    for text in ("0h", "3h", "120 min", "1 hour"):
        assert positions(steps, text) == [by_pandas.loc[text]]
    assert positions(steps, slice("1h", "3h")) == by_pandas.loc["1h":"3h"].tolist()
    assert positions(steps, ["3h", "0h"]) == [3, 0]
    assert positions(steps - np.timedelta64(7200, "s"), slice(None, "-1h")) == [0, 1]
    assert positions([True, False, True], True) == [0, 2]
    assert positions(np.arange(5), slice(0.5, float("inf"))) == [1, 2, 3, 4]
    assert positions(np.arange(5.0, dtype="f4") / 10, 0.1) == [1], "as the stored float32 has it"


def test_a_list_of_dates_that_no_count_of_nanoseconds_reaches_is_found() -> None:
    years = np.arange("1000", "4000", dtype="M8[Y]").astype("M8[s]")
    assert positions(years, ["3000", "1500"]) == [2000, 500]
    assert positions(years, ["3000-01-01T00:00:01"], "nearest") == [2000]


def test_times_of_cftime_compare_as_objects() -> None:
    """Of a class that stands for theirs."""

    class Day(datetime.datetime):
        calendar = "noleap"

    days = np.array([Day(2000, month, 1) for month in range(1, 13)], dtype=object)
    assert positions(days, slice("2000-03", "2000-05")) == [2, 3, 4]
    assert positions(days, "2000-12") == [11]
    assert positions(days, days[4]) == [4]
    assert positions(days[::-1], [days[4], days[2]]) == [7, 9]
    for label in (datetime.datetime(2000, 1, 1), 3):
        with pytest.raises(ConfigError, match="must be times of cftime, or dates as text"):
            positions(days, label)


TIMES = START.astype("M8[s]") + np.arange(10) * np.timedelta64(1, "D")


@pytest.mark.parametrize(
    ("values", "label", "message"),
    [
        (TIMES, ["2014-12-29", "2014-12-30T01"], "time has no '2014-12-30T01': a.zarr/time has values from 2014-12-2"),
        (TIMES[[0, 3, 2]], slice("2014", None), "needs a sorted coordinate; a.zarr/time has 2014-12-31T00:00:00 "
            "(index 2) behind 2015-01-01T00:00:00 (index 1)"),
        ([0.0, np.nan, 2.0, 1.0], slice(0, 1), "has 1.0 (index 3) behind 2.0 (index 2)"),
        ([np.nan, np.nan], slice(0, 1), "a.zarr/time has no value of any sample"),
        ([3, 5, 5], [5, 5], "two labels name 5 (index 1), must name each sample once"),
        ([3, 5], [3, 3], "two labels name 3 (index 0), must name each sample once"),
        ([3, 5], [], "has labels of shape (0,), must be a list of at least one"),
        ([3, 5], [[3]], "has labels of shape (1, 1), must be"),
        ([3, 5], slice(None, None, 0), "the step must be a number of samples, at least 1"),
        ([3, 5], slice(None, None, -1), "the step must be a number of samples, at least 1"),
        ([3, 5], slice(None, None, "a"), "the step must be a number of samples, at least 1"),
        ([3, 5], slice(4, 4), "time = slice(4, 4, None) selects nothing"),
        ([3, 5], 4, "time has no 4: a.zarr/time has values from 3 (index 0) to 5 (index 1); method='nearest' takes"),
        ([3, 5], 3.5, "time has no 3.5"),
        ([3, 5], [3.5], "time has no 3.5"),
        ([3, 5], "a", "time = 'a' is a str; labels of a.zarr/time must be numbers"),
        ([3, 5], ["a"], "time = 'a' is a str"),
        ([3, 5], True, "time = True is a bool; labels"),
        ([3, 5], np.timedelta64(3, "h"), "time = 3 hours is a timedelta64; labels"),
        ([3, 5], [np.timedelta64(3, "h")], "time = 3 hours is a timedelta64; labels"),
        ([3, 5, 9, 12], 6, "12 (index 3); near it are 5 (index 1) and 9 (index 2); method"),
        ([12, 9, 5, 3], 6.5, "near it are 5 (index 2) and 9 (index 1); method"),
        ([3, 5, 9], 2, "9 (index 2); method="),
        (["red", "green"], "gren", "did you mean 'green'?"),
        ([3, 5], float("nan"), "time = nan is a float"),
        ([3.0, 5], [3.0, float("nan")], "time = nan is a float"),
        ([3, 5], [True, False, True], "is a mask of 3 flags, must have one a sample, 2"),
        ([3, 5], [False, False], "is a mask that selects nothing"),
        (["a", "b"], 3, "time = 3 is a int; labels of a.zarr/time must be text"),
        (["a", "b"], [3], "time = 3 is a int"),
        (["a", "b"], "c", "time has no 'c': a.zarr/time has values from a (index 0) to b (index 1)"),
        (TIMES, 3, "labels of a.zarr/time must be times: dates as text, such as '2015-03-04', datetime64, or datetime"),
        (TIMES, np.datetime64("NaT"), "time = NaT finds no sample: those without a value have no label"),
        (TIMES, [np.datetime64("NaT", "s")], "time = NaT finds no sample: those without a value have no label"),
        (TIMES, datetime.datetime(2015, 1, 1, tzinfo=datetime.UTC), "must be times: dates as text"),
        (TIMES, pd.Timestamp("2015-01-01", tz="UTC"), "must be times: dates as text"),
        (TIMES, "January", "time = 'January': 'January' is no date, must be a date such as '2015'"),
        (TIMES, slice("2015-02-30", None), "time = '2015-02-30': the date '2015-02-30' does not exist"),
        (TIMES, ["2015-01-01", "x"], "time = 'x': 'x' is no date"),
        (TIMES, [pd.Timestamp("2015-01-02T00:00:00.000000001")], "time has no Timestamp('2015-01-02 00:00:00.0000"),
        (TIMES.astype("M8[ns]"), ["9999"], "has labels that are too far away"),
        (TIMES - TIMES[0], "1 month", "must be time differences: a length of time, such as '6h', timedelta64"),
        (TIMES - TIMES[0], "999999 days", "must be time differences: a length of time"),
        (TIMES - TIMES[0], "1h", "time has no '1h'"),
        (TIMES - TIMES[0], np.timedelta64(1, "M"), "must be time differences"),
    ],
)  # fmt: skip
def test_labels_that_are_refused(values: Any, label: Any, message: str) -> None:
    with pytest.raises(ConfigError, match="sel: .*" + re.escape(message)):
        positions(values, label)


def test_nearest_that_is_refused() -> None:
    with pytest.raises(ConfigError, match="method = 'nearest' is for labels, time = slice"):
        positions([1, 2], slice(1, 2), "nearest")
    with pytest.raises(ConfigError, match="'nearest' needs times or numbers, time has text"):
        positions(["a"], "a", "nearest")


def test_messages_name_the_index_in_the_array() -> None:
    index = LabelIndex(Coordinate("time", np.array([5, 3]), "a.zarr/time"), range(10, 14, 2))
    with pytest.raises(ConfigError, match=r"has values from 3 \(index 12\) to 5 \(index 10\)"):
        index.find([7])

"""Which rows are neighbours along a coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.windows.gap_step import GapStep
from zarrfeed.plan.windows.gaps import GapRule, Gaps, StoreCoordinate
from zarrfeed.spec.samples.coordinate import Coordinate


def rule(*stores: Any, step: Any = None) -> GapRule:
    listed, first = [], 0
    for values in stores:
        listed.append(StoreCoordinate(first, Coordinate("time", np.asarray(values), "x.zarr/time")))
        first += len(values)
    return GapRule("drop", GapStep.parse(step), listed)


def found(*stores: Any, step: Any = None, begin: int = 0, end: int | None = None, ends: Any = None) -> Gaps:
    total = sum(map(len, stores))
    listed = None if ends is None else np.asarray(ends)
    return rule(*stores, step=step).find(begin, total if end is None else end, listed)


def times(*days: float) -> npt.NDArray[np.datetime64]:
    return np.datetime64("2000-01-01", "s") + (np.array(days) * 86400).astype("m8[s]")


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([0, 1, 2, 4, 5], [3]),
        ([0, 2, 4, 7, 9], []),  # 1.5 times the commonest is none
        ([0, 2, 4, 8, 10], [3]),
        ([9, 8, 7, 5, 4], [3]),
        ([0, 1], []),
        ([7], []),
        ([], []),
        ([0, 1, 5], [2]),  # as common as the other: the smaller one is the regular one
        ([0.0, 0.1, 0.2, 0.3, 0.5], [4]),
        ([0, 31, 59, 90, 120, 151, 212], [6]),  # months, in days
        (["a", "b", "z"], []),
        ([True, False, True], []),
        (times(0, 1, 2, 4), [3]),
        (np.array([0, 1, 2, 9], "m8[s]"), [3]),
    ],
)
def test_a_difference_of_more_than_one_and_a_half_of_the_commonest_is_a_gap(values: Any, rows: list[int]) -> None:
    gaps = found(values)
    assert gaps.rows.tolist() == rows
    assert not gaps.are_faults.any()


def test_values_that_come_twice_or_go_back_are_told_apart_from_gaps() -> None:
    gaps = found([0, 1, 2, 2, 3, 9, 8, 10, 11])
    assert gaps.rows.tolist() == [3, 5, 6, 7]
    assert gaps.are_faults.tolist() == [True, False, True, False]
    assert gaps.largest(np.arange(4)) == (6.0, "3 to 9 (samples 4 and 5)")


def test_a_row_without_a_value_is_a_neighbour_of_no_row() -> None:
    values = times(0, 1, 2, 3, 4, 5)
    values[3] = np.datetime64("NaT")
    gaps = found(values)
    assert gaps.rows.tolist() == [3, 4]
    assert not gaps.are_faults.any()
    assert gaps.text(0) == "2000-01-03 to NaT (samples 2 and 3)"
    assert found([0.0, 1.0, np.nan, 3.0]).rows.tolist() == [2, 3]
    assert found([np.nan, np.nan, np.nan]).rows.tolist() == []  # nobody wrote any


def test_times_that_jitter_have_a_commonest_difference() -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(33e6, 1e6, 5000).astype("i8")
    steps[[100, 2000]] = [70_000_000, 10**9]
    gaps = found((np.cumsum(steps)).view("M8[ns]"))
    assert gaps.rows.tolist() == [100, 2000]


def test_floats_that_were_rounded_are_regular() -> None:
    assert found(np.arange(1000, dtype="f4") * np.float32(0.1)).rows.tolist() == []
    assert found(np.arange(0, 1000, 0.25), step=0.25).rows.tolist() == []


def test_the_step_over_the_border_of_a_segment_is_no_gap_and_not_counted() -> None:
    values = [0, 1, 2, 0, 1, 2, 4, 0, 1]
    assert found(values, ends=[3, 7, 9]).rows.tolist() == [6]
    assert found([0, 9, 0, 9, 0, 9, 1], ends=[2, 4, 6, 7]).rows.tolist() == []


def test_each_store_has_a_commonest_difference_of_its_own_unless_it_has_too_few_rows() -> None:
    assert found([0, 1, 2, 3], [0, 6, 12, 24], [100, 101]).rows.tolist() == [7]
    assert found([0, 6, 12, 18], [0, 12], [5]).rows.tolist() == [5]
    hours, days = times(0, 0.25, 0.5, 0.75), times(1, 3).astype("M8[ns]")
    assert found(hours, days).rows.tolist() == [5]


def test_only_rows_that_windows_may_read_are_looked_at() -> None:
    values = [0, 1, 1, 2, 3, 9, 15, 21, 22]
    assert found(values, begin=4, end=9).rows.tolist() == []
    assert found(values, begin=0, end=9).rows.tolist() == [2, 5, 6, 7]
    assert found([0, 1, 3, 4], [0, 5, 10, 11], begin=3, end=7).rows.tolist() == []


@pytest.mark.parametrize(
    ("values", "step", "has"),
    [
        (times(0, 1), 3, "has times: give a length of time"),
        ([0, 1], "6h", "has numbers: give a number"),
        (np.array([0, 1], "m8[s]"), "month", "has time differences"),
        (["a", "b"], "6h", "has no differences|that have no differences"),
    ],
)
def test_a_step_of_another_kind_is_refused(values: Any, step: Any, has: str) -> None:
    with pytest.raises(ConfigError, match=has):
        found(values, step=step)


def test_times_of_other_calendars_have_gaps_too() -> None:
    cftime = pytest.importorskip("cftime")
    made = np.array([cftime.Datetime360Day(2000, month, 1) for month in (1, 2, 3, 5, 6)], dtype=object)
    assert found(made).rows.tolist() == [3]
    assert found(made, step="month").rows.tolist() == [3]
    assert found(made[::-1], step="month").rows.tolist() == [2]
    made[1] = None
    assert found(made).rows.tolist() == [1, 2, 3]


def test_gaps_that_were_found_are_not_looked_for_again() -> None:
    gaps = found([0, 1, 5])
    again = GapRule("drop", None, (), gaps)
    assert again.find(0, 3, None) is gaps

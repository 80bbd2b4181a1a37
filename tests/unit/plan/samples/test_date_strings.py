"""Date strings: the period that each names is the one that pandas knows."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from zarrfeed import ConfigError
from zarrfeed.plan.samples.date_strings import nanoseconds, period, period_like

DATES = [
    "2015", "1600", "9999", "2016-02", "2015-02", "2015-12", "2016-02-29", "2015-12-31", "2015-03-04T06",
    "2015-03-04 06", "2015-12-31T23:59", "2015-12-31 23:59:59", "2015-01-01T00:00:00.25", "2015-01-01T00:00:00.123456",
]  # fmt: skip


@pytest.mark.parametrize("text", [date for date in DATES if date != "9999" and date != "1600"])
def test_periods_are_those_of_pandas(text: str) -> None:
    first, behind = period(text)
    times = pd.DatetimeIndex([pd.Timestamp(2015, 1, 1), pd.Timestamp(2016, 2, 29, 7, 8, 9)])
    parsed, resolution = times._parse_with_reso(text)
    low, high = times._parsed_string_to_bounds(resolution, parsed)
    assert first == low.as_unit("ns").value
    if "." not in text:  # pandas ends a fraction of a second with its last microsecond
        assert 0 < behind - high.as_unit("ns").value <= 1000, "its last instant, in pandas' own unit"


def test_periods_that_pandas_cannot_hold() -> None:
    assert period("9999")[0] == nanoseconds(np.datetime64("9999-01-01"))
    assert period("9999")[1] == nanoseconds(np.datetime64("10000-01-01"))
    assert period("1600")[1] == period("1601")[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "today",
        "NaT",
        "20150304",
        "2015-3",
        "15-03-04",
        "2015-03-04T06Z",
        "2015-03-04+01",
        "2015Q1",
        "2015-03-04T06:00:00.1234567891",
    ],
)
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(ConfigError, match="is no date, must be a date such as"):
        period(text)


@pytest.mark.parametrize("text", ["2015-02-29", "2015-13", "2015-03-04T25", "2015-00"])
def test_dates_that_do_not_exist(text: str) -> None:
    with pytest.raises(ConfigError, match=f"the date '{text}' does not exist"):
        period(text)


class _Like(datetime.datetime):
    """What a date of cftime can do, in the calendar that Python has."""

    calendar = "proleptic_gregorian"


@pytest.mark.parametrize("text", [date for date in DATES if date != "9999"])
def test_periods_in_the_calendar_of_an_object(text: str) -> None:
    first, last = period_like(text, _Like(1999, 5, 6, 7, 8, 9))
    low, behind = period(text)
    assert nanoseconds(np.datetime64(first)) == low
    if "." in text:
        assert first == last
    else:
        assert nanoseconds(np.datetime64(last)) == behind - 1000


def test_dates_that_a_calendar_lacks() -> None:
    with pytest.raises(ConfigError, match="'2015-02-30' does not exist in the calendar 'proleptic_gregorian'"):
        period_like("2015-02-30", _Like(1999, 5, 6))

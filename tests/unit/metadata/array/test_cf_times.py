"""Times that are stored as numbers: exact, equal however they are written, and xarray's where xarray is exact."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xarray.coding.times import decode_cf_datetime

from zarrfeed import ConfigError, UnsupportedError
from zarrfeed.metadata.array.cf_times import decode_times, together

_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def decode(values: object, units: str, calendar: str | None = None) -> npt.NDArray[Any]:
    return decode_times(np.asarray(values), units, calendar, "a.zarr/time")


@given(
    unit=st.sampled_from(sorted(_SECONDS)),
    reference=st.integers(-5_000_000_000, 2_000_000_000),
    values=st.lists(st.integers(-40_000, 40_000), min_size=1, max_size=5),
    parts=st.sampled_from([1, 2, 8, 64]),
)
def test_times_are_those_of_xarray(unit: str, reference: int, values: list[int], parts: int) -> None:
    """Fractions of a unit that a float holds exactly; xarray rounds them to 128 ns."""
    numbers = np.array(values) if parts == 1 else np.array(values) / parts
    units = f"{unit} since {np.datetime64(reference, 's')!s}"
    expected = decode_cf_datetime(numbers, units, "proleptic_gregorian").astype("M8[ns]")
    got = decode(numbers, units, "proleptic_gregorian")
    assert np.abs(got.astype("M8[ns]") - expected).max() < np.timedelta64(1, "us")
    exact = [(reference + Fraction(value, parts) * _SECONDS[unit]) * 10**9 for value in values]
    assert got.astype("M8[ns]").view("i8").tolist() == exact


def test_a_time_is_the_same_however_it_is_written() -> None:
    hours = np.arange(1_000_000, 1_000_024)
    expected = np.datetime64("1900-01-01", "s") + hours * np.timedelta64(3600, "s")
    for values, units in (
        (hours, "hours since 1900-01-01"),
        (hours.astype("f4") - 1_000_000, "hours since 2014-01-29 16:00"),
        (hours / 24, "days since 1900-01-01 00:00:0.0"),
        (hours * 60, "minutes since 1900-01-01T00:00:00Z"),
        (hours.astype("u4") * 3600 - 60, "secs since 1900-1-1 0:1 UTC"),
        (hours * 3_600_000_000_000, "nanoseconds since 1900-01-01"),
        (hours + 2, "h since 1900-01-01 00:00:00 +02:00"),
        ((hours - 24 * 25567) / 24, "days since 1970-01-01 00:00:00"),
    ):
        got = decode(values, units)
        assert np.array_equal(got, expected), units
        assert got.dtype == "M8[s]", units


def test_the_unit_is_as_fine_as_it_must_be() -> None:
    assert decode([0, 1], "milliseconds since 2000-01-01").dtype == "M8[ms]"
    assert decode([0, 1000], "milliseconds since 2000-01-01").dtype == "M8[s]"
    assert decode([0], "days since 2000-01-01 00:00:00.5").tolist() == [np.datetime64("2000-01-01T00:00:00.5").item()]
    assert decode([1], "nanoseconds since 2000-01-01")[0] == np.datetime64("2000-01-01T00:00:00.000000001")
    long_ago = decode([-(10**6)], "days since 2000-01-01", "proleptic_gregorian")
    assert long_ago[0] == np.datetime64("2000-01-01") - np.timedelta64(10**6, "D")


def test_no_number_is_no_time() -> None:
    got = decode([0.5, np.nan], "days since 2000-01-01")
    assert np.isnat(got).tolist() == [False, True]
    assert len(decode(np.empty(0), "days since 2000-01-01")) == 0


def test_the_standard_calendar_is_julian_before_1582() -> None:
    """NCEP's reanalysis: 17067072 hours since 1-1-1 are 1948-01-01, two days off from the proleptic calendar."""
    for values in ([17067072], [17067072.0]):
        assert decode(values, "hours since 1-1-1 00:00:0.0", "standard")[0] == np.datetime64("1948-01-01")
    assert decode([0], "days since 1582-10-15")[0] == np.datetime64("1582-10-15")
    assert decode([1], "days since 1582-10-04")[0] == np.datetime64("1582-10-15")
    assert decode([0], "days since 0001-01-01", "proleptic_gregorian")[0] == np.datetime64("0001-01-01")
    with pytest.raises(ConfigError, match=r"a.zarr/time: has times before 1582-10-15 in the calendar 'standard'"):
        decode([0, 800_000], "days since 1-1-1")
    with pytest.raises(ConfigError, match="has times before 1582"):
        decode([-200_000], "days since 1970-01-01", "gregorian")


@pytest.mark.parametrize(
    "units", ["fortnights since 2000-01-01", "months since 2000-01-01", "days since yesterday", "days since 2000", "K"]
)
def test_units_that_are_not_understood(units: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"a.zarr/time: has the units {units!r}, must")):
        decode([0], units)


def test_dates_that_do_not_exist_and_times_too_far_away() -> None:
    with pytest.raises(ConfigError, match="name a date that does not exist"):
        decode([0], "days since 2001-02-30")
    for values in ([2**62], [1e300], [np.inf]):
        with pytest.raises(ConfigError, match="times that are too far away"):
            decode(values, "days since 2001-02-03")


def test_other_calendars_need_cftime(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cftime", None)
    with pytest.raises(UnsupportedError, match="calendar 'noleap', which needs cftime: pip install cftime"):
        decode([0], "days since 2001-01-01", "noleap")


def test_other_calendars() -> None:
    pytest.importorskip("cftime")
    got = decode([58, 59], "days since 2000-01-01", "noleap")
    assert [str(one)[:10] for one in got] == ["2000-02-28", "2000-03-01"]
    with pytest.raises(ConfigError, match="'months since 2000-01-01' of the calendar 'noleap' cannot be decoded"):
        decode([0], "months since 2000-01-01", "noleap")
    for values in ([0, np.nan], [0, np.iinfo(np.int64).min]):
        got = decode(values, "days since 2000-01-01", "noleap")
        assert (str(got[0])[:10], got[1]) == ("2000-01-01", None), values


def test_one_unit_holds_times_or_it_is_an_error() -> None:
    days, stamp = np.array(["2020-01-01", "NaT"], "M8[s]"), np.array(["2020-01-01T00:00:00.000000001"], "M8[ns]")
    assert np.array_equal(together([days, stamp], "time"), np.concatenate([days, stamp]), equal_nan=True)
    with pytest.raises(ConfigError, match="time: has times that do not fit into one unit"):
        together([np.array(["0001-01-01"], "M8[s]"), stamp], "time")

"""Attributes of two arrays say the same, or the difference is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zarrfeed.metadata.array.meaning import difference, meaning_of, normal_units

SHORT = np.dtype("i2")


@pytest.mark.parametrize(
    "spellings",
    [
        ("m s-1", "m s**-1", "m/s", "m s^-1", " m  s-1 ", "m.s-1".replace(".", " ")),
        ("K", "kelvin", "Kelvin", "degK"),
        ("degC", "degrees_C", "celsius", "degree_Celsius", "°C"),
        ("kg m-2 s-1", "kg/m2/s", "kg m**-2 s**-1", "kg/m^2/s"),
        ("1", "", "dimensionless"),
        ("s-1", "1/s", "s**-1"),
        ("hPa", "mbar", "millibars"),
        ("mm d-1", "mm/day", "mm day-1"),
        ("W m-2", "W/m²", "Watts/m^2", "W m⁻²", "W m^{-2}", "m-2 W", "W.m-2", "W·m-2"),
        ("degC", "degrees C", "deg C", "Degrees Celsius", "DegC"),
        ("1", "kg/kg", "kg kg**-1", "m3 m-3", "~"),
        ("um", "µm", "micron", "micrometers"),
    ],
)
def test_units_are_one_in_all_spellings(spellings: tuple[str, ...]) -> None:
    assert {normal_units(one) for one in spellings} == {spellings[0]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("K", "degC"), ("Pa", "hPa"), ("m", "M"), ("m s-1", "m s-2"), ("m s-1", "m s"), ("J/(kg K)", "J/kg")),
        *(("k", "K"), ("ms-1", "m s-1"), ("Mbar", "mbar"), ("1", "%"), ("g kg-1", "kg kg-1"), ("m2 s-2", "m s-2")),
        ("0.1 m", "1 m"),
    ],
)
def test_other_units_stay_others(one: str, other: str) -> None:
    assert normal_units(one) != normal_units(other)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"_FillValue": -1}, {"missing_value": [-1]}),
    ({"scale_factor": 1.0, "add_offset": 0.0}, {}),
    ({"scale_factor": 0.5}, {"scale_factor": [0.5]}),
    ({"_Unsigned": "false"}, {}),
    ({"flag_meanings": "a  b"}, {"flag_meanings": "a b"}),
    ({"flag_values": np.array([1, 2], "i1")}, {"flag_values": [1, 2]}),
    ({"flag_masks": np.int8(1)}, {"flag_masks": [1]}),
    ({"long_name": "a", "units": "K"}, {"long_name": "b", "units": "kelvin"}),
    ({"units": "days since 2000-01-01"}, {"units": "hours since 1900-01-01", "calendar": "Gregorian"}),
]


@pytest.mark.parametrize("pair", SAME, ids=str)
def test_attributes_that_say_the_same_are_no_difference(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    ours, theirs = (meaning_of(one, SHORT) for one in pair)
    assert difference(ours, theirs) is None
    assert difference(theirs, ours) is None


def test_a_fill_value_of_nan_masks_nothing() -> None:
    floats = np.dtype("f4")
    for fill in (np.nan, "NaN", "AAAAAAAA+H8="):  # as JSON and as xarray write it
        assert difference(meaning_of({"_FillValue": fill}, floats), meaning_of({}, floats)) is None
    found = difference(meaning_of({"_FillValue": "AAAAAAAAIsA="}, floats), meaning_of({}, floats))
    assert found is not None
    assert (found.told(found.ours), found.told(found.theirs)) == (
        "with '_FillValue or missing_value': -9.0",
        "without '_FillValue or missing_value'",
    )


def test_a_fill_value_that_no_integer_of_the_dtype_is_masks_nothing() -> None:
    for dtype, fill in (("u1", -9999), ("i2", 1e20), ("u4", 0.5)):
        assert difference(meaning_of({"_FillValue": fill}, np.dtype(dtype)), meaning_of({}, np.dtype(dtype))) is None
    # xarray compares float32 with the float64 of the attribute: it finds the first one only
    exact, decimal = ({"missing_value": fill} for fill in (float(np.float32(1e20)), 1e20))
    assert difference(meaning_of(exact, np.dtype("f4")), meaning_of(decimal, np.dtype("f4"))) is not None


def test_datetimes_are_times_and_time_differences_have_their_unit() -> None:
    times = meaning_of({}, np.dtype("M8[ns]"))
    assert difference(times, meaning_of({}, np.dtype("M8[D]"))) is None
    assert difference(times, meaning_of({"units": "days since 2000-01-01"}, np.dtype("f8"))) is None
    found = difference(meaning_of({}, np.dtype("m8[ns]")), meaning_of({}, np.dtype("m8[s]")))
    assert found is not None
    assert found.told(found.ours) == "with 'dtype': 'timedelta64[ns]'"


def test_the_attribute_that_differs_is_named() -> None:
    def between(ours: dict[str, Any], theirs: dict[str, Any], **options: Any) -> str | None:
        found = difference(meaning_of(ours, SHORT), meaning_of(theirs, SHORT), **options)
        return None if found is None else found.attribute

    assert between({"units": "K"}, {"units": "degC"}) == "units"
    assert between({"units": "1"}, {}) is None
    assert between({"units": "K"}, {}) == between({}, {"units": "K"}) == "units"
    assert between({"units": "K"}, {}, unsaid=False) is None
    assert between({"units": "K"}, {"units": "degC"}, unsaid=False) == "units"
    assert between({"scale_factor": 2}, {}, unsaid=False) == "scale_factor"
    assert between({"_Unsigned": "true"}, {}) == "_Unsigned"
    assert (
        between({"units": "days since 2000-01-01", "calendar": "noleap"}, {"units": "days since 2000-01-01"})
        == "calendar"
    )
    assert between({"units": "days since 2000-01-01"}, {"units": "days"}) == "units"


def test_decoded_values_mean_the_same_however_they_are_stored() -> None:
    stored = {"units": "K", "scale_factor": 0.5, "_FillValue": -1}
    assert meaning_of(stored, SHORT, decoded=True) == meaning_of({"units": "kelvin"}, np.dtype("f8")) == {"units": "K"}

"""Stored numbers of coordinates become what xarray makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray

from zarrfeed.metadata.array.coordinate_values import are_same_coordinates, decode_values
from zarrfeed.spec.values.missing import NAT

STAMPS = 1_600_000_000_123_456_789 + np.arange(3)  # float64 does not hold them


@pytest.mark.parametrize(
    ("stored", "attributes"),
    [
        (np.array([3, NAT, 5]), {"units": "days since 2020-01-01"}),
        (np.array([3, -1, 5]), {"units": "days since 2020-01-01", "_FillValue": -1}),
        (np.append(STAMPS, -9), {"units": "nanoseconds since 1970-01-01", "_FillValue": -9}),
        (np.append(STAMPS, NAT), {"units": "nanoseconds since 1970-01-01", "_FillValue": NAT}),
        (np.array([0.5, np.nan, 2]), {"units": "hours since 2020-01-01", "_FillValue": np.nan}),
        (np.array([1, 2, -5], "i2"), {"scale_factor": 0.5, "add_offset": -1.0, "_FillValue": -5}),
        (np.array([0.5, -1.0]), {"missing_value": -1.0}),
        (np.array([[1, NAT], [2, 3]]), {"units": "seconds since 2020-01-01"}),
        (np.array([-1, 1], "i1"), {"_Unsigned": "true"}),
        (np.array([7, 8], ">i4"), {}),
        (np.array([0, 6, 12]), {"units": "hours", "dtype": "timedelta64[ns]"}),
        (np.array([0, NAT, -3]), {"units": "days", "dtype": "timedelta64[s]"}),
        (np.array([0.5, np.nan, 1.25]), {"units": "minutes", "dtype": "timedelta64[ns]"}),
        (np.array([1, 2, -9], "i2"), {"units": "seconds", "dtype": "timedelta64[ms]", "_FillValue": -9}),
        (np.array([0, 6, 12]), {"units": "hours"}),
    ],
    ids=str,
)
def test_values_are_those_of_xarray(stored: np.ndarray[Any, Any], attributes: dict[str, Any]) -> None:
    variable = xarray.Variable([f"d{axis}" for axis in range(stored.ndim)], stored, attributes)
    expected = xarray.decode_cf(xarray.Dataset({"x": variable}))["x"].values
    got = decode_values(stored, attributes, "x")
    same = np.array_equal(got, expected.astype(got.dtype), equal_nan=got.dtype.kind in "fmM")
    assert (got.dtype.kind in "mM") == (expected.dtype.kind in "mM")
    assert same, f"got {got}, expected {expected}"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (np.arange(4) * 0.1, np.array([0.0, 0.1, 0.2, 0.3]), True),
        (np.array([0.1, 0.2], "f4"), np.array([0.1, 0.2]), True),
        (np.array([0.0, 0.5]), np.array([1e-15, 0.5]), True),
        (np.array([0.1, 0.2]), np.array([0.101, 0.2]), False),
        (np.array([1, 2]), np.array([1.0, 2.0]), True),
        (np.array([1.0]), np.array([1.0 + 1e-9]), False),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), False),
        (np.array([1, 2]), np.array([1, 2, 3]), False),
        (np.array(["a", "b"]), np.array(["a", "b"]), True),
        (np.array(["2020-01-01"], "M8[s]"), np.array(["2020-01-02"], "M8[s]"), False),
    ],
    ids=str,
)
def test_coordinates_are_the_same_but_for_rounding(ours: Any, theirs: Any, expected: bool) -> None:
    assert are_same_coordinates(ours, theirs) is expected

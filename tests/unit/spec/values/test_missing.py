"""The table of missing values: each convention, and what is near one and is a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zarrfeed.spec.values.missing import NAT, is_missing, is_missing_number


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0.0, np.nan, -0.0, np.inf]), [0, 1, 0, 0]),
        (np.array([0, np.nan], "f2"), [0, 1]),
        (np.array(["2020-01-01", "NaT"], "M8[s]"), [0, 1]),
        (np.array([1, "NaT"], "m8[ns]"), [0, 1]),
        (np.array([None, "a", ""], dtype=object), [1, 0, 0]),
        (np.array(["", "NaN"]), [0, 0]),
        (np.array([NAT, 0, -1]), [0, 0, 0]),
        (np.array([True, False]), [0, 0]),
    ],
    ids=lambda one: str(getattr(one, "dtype", "")),
)
def test_decoded_values_are_missing_by_their_dtype(values: npt.NDArray[Any], expected: list[int]) -> None:
    assert is_missing(values).tolist() == [bool(flag) for flag in expected]


def test_nat_as_an_integer_is_missing_among_times_alone() -> None:
    stored = np.array([0, NAT, NAT + 1])
    assert is_missing_number(stored, is_time=True).tolist() == [False, True, False]
    assert not is_missing_number(stored).any()
    assert not is_missing_number(np.array([np.iinfo("i4").min], "i4"), is_time=True).any()


def test_fill_values_are_compared_in_the_dtype_of_the_items() -> None:
    big = 2**62 + 1
    assert is_missing_number(np.array([big - 1, big, big + 1]), [big]).tolist() == [False, True, False]
    assert is_missing_number(np.array([0.1], "f4"), [0.1]).tolist() == [True]
    assert not is_missing_number(np.array([1, 2], "u1"), [257.0, -1, 1.5]).any()
    assert is_missing_number(np.array([[1, 9], [np.nan, 0]]), [9]).tolist() == [[False, True], [True, False]]

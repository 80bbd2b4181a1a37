"""What a user may write as the step of a coordinate."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.windows.gap_step import GapStep

HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("written", "count", "unit", "shown"),
    [
        ("6h", 6 * HOUR, "ns", "'6h'"),
        ("6 H", 6 * HOUR, "ns", "'6h'"),
        (" 1.5 hours ", 90 * HOUR // 60, "ns", "'90min'"),
        ("day", 24 * HOUR, "ns", "'1d'"),
        ("2W", 14 * 24 * HOUR, "ns", "'2w'"),
        ("30min", HOUR // 2, "ns", "'30min'"),
        ("33ms", 33 * 10**6, "ns", "'33ms'"),
        (timedelta(minutes=10), HOUR // 6, "ns", "'10min'"),
        (np.timedelta64(6, "h"), 6 * HOUR, "ns", "'6h'"),
        (np.timedelta64(1, "D"), 24 * HOUR, "ns", "'1d'"),
        (np.timedelta64(2, ("h", 6)), 12 * HOUR, "ns", "'12h'"),
        (np.timedelta64(5, "ns"), 5, "ns", "'5ns'"),
        ("month", 1, "month", "'month'"),
        ("3 months", 3, "month", "'3 months'"),
        ("Years", 1, "year", "'year'"),
        (np.timedelta64(3, "M"), 3, "month", "'3 months'"),
        (np.timedelta64(1, "Y"), 1, "year", "'year'"),
        (2, 2, "number", "2"),
        (np.float32(0.5), 0.5, "number", "0.5"),
    ],
)
def test_a_step_means_what_it_says(written: Any, count: float, unit: str, shown: str) -> None:
    step = GapStep.parse(written)
    assert step is not None
    assert (step.count, step.unit, str(step)) == (count, unit, shown)
    assert step.unit == "number" or GapStep.parse(shown.strip("'")) == step


@pytest.mark.parametrize(
    "written",
    ["", "6", "6 hrsx", "1M", "m", "1MS", "-6h", "0h", "1.5 months", "0.5ns", 0, -1, True, np.nan, np.inf, [6], b"6h",
     np.timedelta64("NaT", "h"), np.timedelta64(-6, "h"), np.timedelta64(6), np.timedelta64(6, "ps"), timedelta(0)],
)  # fmt: skip
def test_what_is_no_step_is_refused_with_examples(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"step = .*must be a length of time above 0, such as '6h'"):
        GapStep.parse(written)


def test_no_step_is_none() -> None:
    assert GapStep.parse(None) is None

"""Which gaps windows span, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.left_out import LeftOut, merged
from zarrfeed.plan.windows.gap_windows import (
    all_over_gaps,
    gap_warning,
    over_gaps,
    padded_clause,
    refuse_gaps,
    spanned_gaps,
)
from zarrfeed.plan.windows.gaps import GapRule, Gaps, StoreCoordinate
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.spec.samples.window import Window


def gaps_of(values: list[int]) -> Gaps:
    coordinate = StoreCoordinate(0, Coordinate("time", np.array(values), "time"))
    return GapRule("drop", None, [coordinate]).find(0, len(values), None)


def test_a_gap_is_spanned_where_it_lies_between_the_first_and_the_last_row() -> None:
    gaps = gaps_of([0, 1, 2, 3, 10, 11, 12, 13])
    for offsets, samples, is_spanned in [
        ((0, 1), range(3, 4), True),
        ((0, 1), range(4, 7), False),
        ((-2, 2), range(2, 3), True),
        ((-4, -2), range(4, 6), True),
        ((-4, -2), range(8, 9), False),
        ((3,), range(1), False),
        ((3,), range(1, 2), True),
    ]:
        spanned = spanned_gaps(gaps, samples, [Window(offsets), None], None, 8)
        assert (spanned.tolist() == [0]) is is_spanned, (offsets, samples)
    segments = np.array([2, 4, 8])  # rows 2 and 3 are a segment, and the gap lies behind it
    assert spanned_gaps(gaps_of([0, 1, 2, 9, 10, 11, 12, 13]), range(2), [Window((0, 5))], segments, 8).tolist() == []


def test_a_fault_counts_only_where_both_of_its_rows_may_be_read() -> None:
    gaps = gaps_of([0, 1, 1, 2, 3])
    rule = GapRule("drop", None, ())
    with pytest.raises(ConfigError, match=r"has a value twice, or goes back, once within windows: 1 to 1 \(samples 1"):
        refuse_gaps(gaps, np.array([0]), range(5), rule)
    refuse_gaps(gaps, np.array([0]), range(2, 5), rule)
    with pytest.raises(ConfigError, match=r"gaps = 'error', and windows span a gap of time: 1 to 1"):
        refuse_gaps(gaps, np.array([0]), range(2, 5), GapRule("error", None, ()))


def test_what_is_left_out_names_the_largest_gap_and_three_examples() -> None:
    gaps = gaps_of([0, 1, 2, 3, 4, 5, 8, 9, 19, 20, 23, 24, 30])
    spanned = np.arange(4)
    left_out = over_gaps(gaps, spanned, 4, 12)
    assert str(left_out) == (
        "4 of 12 samples left out: their windows span a gap of 'time'; the largest is 9 to 19 (samples 7 and 8)"
    )
    text = gap_warning([LeftOut(1, 13, "another reason"), left_out])
    assert text is not None
    assert "such as 5 to 8 (samples 5 and 6); 9 to 19 (samples 7 and 8); 20 to 23 (samples 9 and 10)." in text
    assert gap_warning([over_gaps(gaps, spanned, 4, 80)]) is None  # 5 % are not more than 5 %
    assert padded_clause(gaps).startswith("also at 4 gaps of 'time'; the largest is 9 to 19")
    assert "no sample is left: the windows of all 12 span a gap of time, such as 5 to 8" in str(
        all_over_gaps(gaps, spanned, 12)
    )


def test_several_stores_that_were_windowed_alone_name_the_largest_gap_of_all() -> None:
    small, large = gaps_of([0, 1, 2, 5]), gaps_of([0, 1, 2, 50])
    one = merged([over_gaps(small, np.array([0]), 1, 3), over_gaps(large, np.array([0]), 1, 3)])
    assert [str(left_out) for left_out in one] == [
        "2 of 6 samples left out: their windows span a gap of 'time'; the largest is 2 to 50 (samples 2 and 3)"
    ]

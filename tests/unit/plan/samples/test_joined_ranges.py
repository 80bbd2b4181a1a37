"""Ranges that are joined are those that a loop appends."""

from __future__ import annotations

import numpy as np

from zarrfeed.plan.samples.joined_ranges import joined_ranges


def test_a_range_is_missing_or_out_of_order() -> None:
    random = np.random.default_rng(0)
    for ranges in (0, 1, 2, 17):
        first, counts = random.integers(-50, 50, ranges), random.integers(0, 4, ranges)
        expected = [
            n for begin, count in zip(first.tolist(), counts.tolist(), strict=True) for n in range(begin, begin + count)
        ]
        joined = joined_ranges(first, counts)
        assert joined.tolist() == expected
        assert joined.dtype == np.int64
        assert joined_ranges(5, counts).tolist() == [5 + n for count in counts.tolist() for n in range(count)]

"""Expected counts: exact sums, whole numbers that stay whole, and refusals that name the first offender."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.expected_counts import ExpectedCounts

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=60).filter(any)


@examples(200)
@given(WEIGHTS, st.one_of(st.integers(1, 200), st.sampled_from([10**6, 2**31 + 1, 2**40])))
def test_all_shares_together_are_the_samples_of_an_epoch(weights: list[float], total: int) -> None:
    expected = ExpectedCounts.of(np.array(weights), total)
    assert int(expected.shares.sum()) == total << expected.bits < 2**62
    whole = sum(map(Fraction, weights))
    for weight, shares in zip(weights, expected.shares.tolist(), strict=True):
        wanted = float(total * Fraction(weight) / whole)
        assert (shares == 0) >= (weight == 0)
        assert shares >= 0
        assert abs(shares / 2**expected.bits - wanted) <= 30 * 2.0**-expected.bits + 1e-6 * wanted


@examples(200)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60).filter(any), st.floats(1e-200, 1e200))
def test_whole_counts_are_exact(counts: list[int], scale: float) -> None:
    expected = ExpectedCounts.of(np.array(counts) * scale, sum(counts))
    assert expected.shares.tolist() == [count << expected.bits for count in counts]


def test_digests_tell_weights_and_lengths_apart() -> None:
    weights = np.arange(1.0, 9.0)
    first = ExpectedCounts.of(weights, 8)
    assert first.digest == ExpectedCounts.of(weights * 3, 8).digest
    assert len({first.digest, ExpectedCounts.of(weights, 9).digest, ExpectedCounts.of(weights[::-1], 8).digest}) == 3
    assert first.most == pytest.approx(8 * 8 / 36)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.5, np.nan], r"number 1 is -0\.5, must be finite and not negative"),
        ([1.0, 2.0, np.nan], "number 2 is nan"),
        ([np.inf, 1.0], "number 0 is inf"),
        ([0.0, 0.0], "all 2 are 0"),
        (["a", "b"], "have the dtype <U1, must be numbers"),
        ([1j], "have the dtype complex128"),
    ],
)
def test_wrong_weights_are_refused_by_the_first_of_them(weights: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExpectedCounts.of(np.array(weights), 5)

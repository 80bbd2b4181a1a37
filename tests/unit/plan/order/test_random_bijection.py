"""Permutations that are never listed: bijections, inverse to each other, and as random as listed ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples, tries
from zarrfeed import ConfigError
from zarrfeed.plan.order.random_bijection import RandomBijection


@examples(60)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1))
def test_each_number_has_one_position_and_each_position_one_number(n: int, seed: int) -> None:
    order = RandomBijection(n, seed)
    positions = order.positions(np.arange(n))
    assert np.array_equal(np.sort(positions), np.arange(n))
    assert np.array_equal(positions[order.numbers(np.arange(n))], np.arange(n))


@pytest.mark.parametrize("n", [1 << 40, (1 << 40) + 1, 10**15 + 7, 1 << 62])
def test_large_ranges_are_mapped_without_listing_them(n: int) -> None:
    order, numbers = RandomBijection(n, 5), np.array([0, 1, 12345, n // 2, n - 1])
    positions = order.positions(numbers)
    assert positions.min() >= 0
    assert positions.max() < n
    assert np.array_equal(order.numbers(positions), numbers)


def test_the_order_of_a_seed_never_changes() -> None:
    assert RandomBijection(10, 0).positions(np.arange(10)).tolist() == [9, 1, 6, 8, 7, 2, 3, 0, 4, 5]
    of_a_square = [12, 11, 2, 8, 13, 6, 10, 14, 9, 7, 0, 5, 3, 4, 1, 15]  # 16 numbers fill a domain of 4 x 4
    assert RandomBijection(16, 0).positions(np.arange(16)).tolist() == of_a_square
    assert int(RandomBijection(10**12, 7).positions(np.array([123456789]))[0]) == 703368561965


def test_seeds_and_lengths_make_other_orders() -> None:
    orders = {tuple(RandomBijection(50, seed).positions(np.arange(50)).tolist()) for seed in range(200)}
    assert len(orders) == 200
    assert not np.array_equal(
        RandomBijection(51, 1).positions(np.arange(50)), RandomBijection(50, 1).positions(np.arange(50))
    )


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_all_orders_of_a_few_numbers_are_as_likely(n: int) -> None:
    orders = math.factorial(n)
    count_of_seeds = tries(300, 600) if n == 6 else tries(50, 125) * orders
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(count_of_seeds):
        order = tuple(RandomBijection(n, seed).positions(np.arange(n)).tolist())
        counts[order] = counts.get(order, 0) + 1
    if n == 6:  # of 720 orders, each number is at each position as often
        table = np.zeros((n, n))
        for order, count in counts.items():
            table[np.arange(n), order] += count
        expected = count_of_seeds / n
    else:
        table, expected = np.array(list(counts.values())), count_of_seeds / orders
        assert len(counts) == orders
    freedom = table.size - 1
    assert ((table - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("n", "seed"), [(0, 1), (5, -1), (5, 2**64), ((1 << 62) + 1, 0), (2.5, 0)])
def test_what_is_no_range_or_seed_is_refused(n: int, seed: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        RandomBijection(n, seed)

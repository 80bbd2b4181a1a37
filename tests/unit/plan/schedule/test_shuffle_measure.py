"""The measure of a shuffle, from blocks, against the same of listed orders."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from zarrfeed import _core
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.plan.schedule.shuffle_measure import NEIGHBOURS, NUM_STRETCHES, measure_shuffle


def order_of(n: int, rows: int, lanes: int, mix: int = 1, strip: int = 1, **more: object) -> Order:
    return Order(n, rows, shuffle=True, seed=3, lanes=lanes, mix=mix, strip=strip, **more)  # type: ignore[arg-type]


def listed_measure(order: Order) -> tuple[float, float]:
    """Return share and correlation by the definition, of orders that are listed."""
    n, count = order.length, min(NEIGHBOURS, order.length)
    drawn, squares = [], []
    samples = np.sort(_core.sample_order(order.plan(0).to_core()))
    for epoch in range(8):
        number = np.searchsorted(samples, _core.sample_order(order.plan(epoch).to_core()))
        stretch = number * NUM_STRETCHES // n
        starts = np.linspace(0, n - count, 100).astype(int)
        drawn += [len(np.unique(stretch[at : at + count])) for at in starts]
        squares.append(np.corrcoef(np.arange(n), number)[0, 1] ** 2)
    random = np.random.default_rng(0)
    perfect = [len(np.unique(random.choice(n, count, replace=False) * NUM_STRETCHES // n)) for _ in range(400)]
    return float(np.mean(drawn) / np.mean(perfect)), float(np.sqrt(np.mean(squares)) - 1 / np.sqrt(n - 1))


def test_the_measure_is_that_of_the_listed_order() -> None:
    lists = np.flatnonzero(np.random.default_rng(0).random(9000) < 0.3)
    orders = [
        order_of(5840, 365, 1, mix=2, strip=8),
        order_of(5840, 365, 6),
        order_of(20000, 1000, 1, mix=5, strip=4),
        order_of(3000, 100, 2, mix=3, strip=2),
        order_of(20000, 24, 2),
        order_of(4000, 4, 1, mix=300),
        order_of(300, 7, 3, mix=2),
        order_of(70, 7, 3, mix=2),
        order_of(9000, 50, 4, mix=2, selection=Selection.of_samples(lists, 50)),
        order_of(9000, 50, 1, selection=Selection.of_range(range(100, 9000, 3), 50)),
    ]
    for number, order in enumerate(orders):
        found = measure_shuffle(order)
        assert found is not None
        share, correlation = listed_measure(order)
        assert found.share == pytest.approx(min(1, share), abs=0.05), number
        assert found.correlation == pytest.approx(max(0, correlation), abs=0.03), number


def test_strips_of_neighbours_hide_from_the_count_of_blocks_and_not_from_this() -> None:
    """64 blocks of one sample each are 64 blocks, and one part of the array."""
    found = measure_shuffle(order_of(100_000, 1, 1, strip=100))
    assert found is not None
    assert found.share < 0.1
    assert found.is_poor
    good = measure_shuffle(order_of(100_000, 1, 1))
    assert good is not None
    assert good.is_good
    assert good.of_perfect > 0.95


def test_an_order_of_many_blocks_is_measured_without_its_blocks() -> None:
    order = order_of(5 * 10**9, 5, 48, mix=2, combs=1024)
    tracemalloc.start()
    found = measure_shuffle(order)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.share > 0.85
    assert peak < 40 << 20


def test_what_keeps_its_order_is_not_measured() -> None:
    assert measure_shuffle(Order(100, 10, shuffle=False, seed=0, lanes=1)) is None
    assert measure_shuffle(Order(100, 10, shuffle=True, seed=0, lanes=1, shuffle_rows=False)) is None
    alone = measure_shuffle(order_of(1, 1, 1))
    assert alone is not None
    assert not alone.is_poor

"""Results of calls on several threads: in order, few at a time, and none after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from zarrfeed.base.in_order import results_in_order


@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_results_come_in_the_order_of_the_items(ahead: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield number

    def late(number: int) -> int:
        time.sleep(0.002 * (number % 3 == 0))
        return number * number

    with ThreadPoolExecutor(4) as pool:
        for yielded, result in enumerate(results_in_order(pool, late, items(), ahead)):
            assert result == yielded**2
            assert taken <= yielded + ahead
    assert taken == 20


def test_calls_that_have_not_begun_are_cancelled() -> None:
    begun, gate = [], threading.Event()

    def wait(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("the first one")
        gate.wait(240)
        return number

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="the first one"):
            list(results_in_order(pool, wait, range(9), 5))
        gate.set()
    assert set(begun) <= {0, 1}  # the thread may have begun another one meanwhile
    begun.clear()
    with ThreadPoolExecutor(1) as pool, closing(results_in_order(pool, wait, range(1, 9), 5)) as results:
        assert next(results) == 1
    assert len(begun) < 5

"""The positions that a consumer takes: by stride, and one by one before and after."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.portion import WHOLE, Portion, Strides


def settled(portion: Portion, length: int) -> list[int]:
    """Return the positions of a portion in the order of its steps."""
    strides, position, step = portion.settled(length)
    taken = np.full(strides.count + len(position), -1)
    taken[strides.begin : strides.begin + strides.count] = strides.first + strides.stride * np.arange(strides.count)
    taken[step] = position
    assert (taken >= 0).all()
    return [int(one) for one in taken]


@examples(200)
@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 7),
    st.none() | st.integers(0, 40),
    st.lists(st.integers(0, 99), max_size=4),
    st.lists(st.integers(0, 99), max_size=4),
)
def test_no_step_is_left_out_and_none_comes_twice(
    length: int, first: int, stride: int, steps: int | None, head: list[int], tail: list[int]
) -> None:
    portion = Portion(first, stride, steps, np.array(head, dtype=np.int64), np.array(tail, dtype=np.int64))
    assert settled(portion, length) == [*head, *list(range(first, length, stride))[:steps], *tail]


def test_the_whole_order_has_all_positions() -> None:
    assert settled(WHOLE, 5) == [0, 1, 2, 3, 4]
    assert settled(WHOLE, 0) == []


def test_a_portion_in_runs_has_the_steps_that_it_names() -> None:
    strides, position, _ = Portion(3, 2, 12, run=4, period=60).settled(10)
    assert strides == Strides(3, 2, 0, 12, 4, 60)
    assert not len(position)


def test_all_kinds_of_orders_plan_the_same_description() -> None:
    order = Order(20, 4, shuffle=True, seed=3, lanes=2)
    head, tail = np.array([1]), np.array([20 + 3])
    plan = order.plan(0, Portion(2, 3, 4, head, tail))
    assert (plan.strides.first, plan.stride, plan.strides.begin, plan.strides.count, plan.steps) == (2, 3, 1, 4, 6)
    assert (plan.extra_position.tolist(), plan.extra_step.tolist()) == ([1, 23], [0, 5])

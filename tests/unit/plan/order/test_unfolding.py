"""Plans that are unfolded against plans whose groups are listed: the same samples at the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order import block_order
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.order.unfolding import UnfoldingPlan, unfold
from zarrfeed.plan.samples.selection import Selection


def random_order(rng: np.random.Generator) -> Order:
    """Return an order of rows, a selection or listed samples; shuffled either way, or not."""
    n, block_rows = int(rng.integers(1, 2000)), int(rng.integers(1, 12))
    low, high = np.sort(rng.choice(n + 1, 2, replace=False)).astype(int).tolist()
    listed = np.sort(rng.choice(n, int(rng.integers(1, n + 1)), replace=False))
    selection = [
        None,
        Selection.of_range(range(n), block_rows),
        Selection.of_range(range(low, high, int(rng.integers(1, 20))), block_rows),
        Selection.of_samples(listed, block_rows),
    ][rng.integers(4)]
    length, blocks = (n, -(-n // block_rows)) if selection is None else (selection.length, len(selection.blocks))
    shuffle = bool(rng.integers(4))
    combs = int(rng.choice([0, 1, 7, 64, 1024])) if shuffle else 0
    return Order(
        n,
        block_rows,
        shuffle=shuffle,
        seed=int(rng.integers(2**63)),
        lanes=int(rng.integers(1, min(length, 39) + 1)),
        mix=int(rng.integers(1, min(blocks, 5) + 1)),
        selection=selection,
        shuffle_rows=[None, True, False][rng.integers(3)],
        first_block=0 if shuffle else int(rng.integers(blocks)),
        short_last=not combs and bool(rng.integers(2)),
        combs=combs,
    )


def random_consumer(rng: np.random.Generator, length: int) -> dict[str, Any]:
    """Return positions by stride, and around them some one by one, of later turns, too: those of resumed runs."""
    stride, first = int(rng.integers(1, 9)), int(rng.integers(min(length, 20)))
    steps = int(rng.integers(-(-(length - first) // stride) + 1))
    behind = first + stride * (steps - 1) + 1 if steps else first
    head = np.sort(rng.choice(first, min(first, int(rng.integers(5))), replace=False))
    tail = np.sort(rng.choice(length - behind, min(length - behind, int(rng.integers(5))), replace=False))
    again = rng.integers(length, 3 * length, int(rng.integers(4)))
    return {
        "first": first,
        "stride": stride,
        "steps": steps,
        "head": head.astype(np.int64),
        "tail": np.concatenate([behind + tail, again]).astype(np.int64),
    }


@pytest.mark.parametrize("seed", range(8))
def test_an_unfolded_plan_has_the_samples_of_the_listed_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        order = random_order(rng)
        consumer, epoch = random_consumer(rng, order.length), int(rng.integers(5))
        listed, unfolded = order.plan(epoch, Portion(**consumer)), unfold(order, epoch, Portion(**consumer))
        assert isinstance(unfolded, UnfoldingPlan)
        assert (unfolded.steps, unfolded.stride) == (listed.steps, listed.stride)
        assert core.sample_order(unfolded.to_core()).tolist() == core.sample_order(listed.to_core()).tolist()
        for batch_size in (1, 7):
            needed = core.required_open_batches(unfolded.to_core(), batch_size)
            assert needed == core.required_open_batches(listed.to_core(), batch_size)
        assert isinstance(unfolded.listed(), EpochPlan)


@pytest.mark.parametrize("combs", [0, 64])
def test_consumers_of_any_stride_partition_what_is_left(combs: int) -> None:
    order = Order(1001, 4, shuffle=True, seed=5, lanes=7, mix=2, combs=combs)
    for stride in (1, 2, 3, 7):
        plans = [unfold(order, 2, Portion(first=first, stride=stride)) for first in range(stride)]
        delivered = np.concatenate([core.sample_order(plan.to_core()) for plan in plans])
        assert sorted(delivered.tolist()) == list(range(1001))


def test_positions_that_do_not_ascend_have_their_groups_listed() -> None:
    order = Order(100, 4, shuffle=True, seed=5, lanes=3)
    for head, tail in (([50, 10], []), ([], [9, 3]), ([60], [5])):
        consumer: dict[str, Any] = {"first": 20, "stride": 2, "steps": 10, "head": np.array(head, dtype=np.int64)}
        plan = unfold(order, 0, Portion(**consumer, tail=np.array(tail, dtype=np.int64)))
        assert isinstance(plan, EpochPlan), (head, tail)


def test_orders_of_other_kinds_have_their_groups_listed() -> None:
    class Other(Order):
        pass

    order = Order(100, 4, shuffle=True, seed=5, lanes=3)
    assert isinstance(unfold(Other(**{f: getattr(order, f) for f in order.__dataclass_fields__}), 0), EpochPlan)
    assert issubclass(MixedOrder, Order)


def test_a_plan_of_a_thousand_million_blocks_begins_at_once() -> None:
    """Neither time nor memory grows with the blocks; a listed plan would be half a terabyte, and is refused."""
    order = Order(10 * 10**9 - 3, 10, shuffle=True, seed=1, lanes=720, combs=1024)
    steps = 64 * 720
    first = core.sample_order(unfold(order, 3, Portion(steps=steps)).to_core())
    assert len(np.unique(first)) == steps
    later = core.sample_order(unfold(order, 3, Portion(first=720 * 30, steps=720)).to_core())
    assert later.tolist() == first[720 * 30 : 720 * 31].tolist()
    with pytest.raises(ConfigError, match=f"at most {block_order.MOST_BLOCKS}"):
        order.plan(3)
    with pytest.raises(ConfigError, match=f"at most {2**32}"):
        replace(order, num_samples=10 * (2**32 + 1))

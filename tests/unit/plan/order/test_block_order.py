"""Rotated combs against their definition, number by number; and which orders have them."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.base.native import core
from zarrfeed.plan.order import block_order
from zarrfeed.plan.order.block_order import permuted, regular_table, strata_for
from zarrfeed.plan.order.order import Order

_WORD = 2**64


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)


class _Random:
    """SplitMix64 with a key of several words, as cpp/plan/row_order.h describes it."""

    def __init__(self, *words: int) -> None:
        self.state = 0
        for word in words:
            self.state = _mix((self.state + 0x9E3779B97F4A7C15) % _WORD ^ word)

    def below(self, bound: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % _WORD
        return _mix(self.state) * bound >> 64

    def permutation(self, n: int) -> list[int]:
        out: list[int] = []
        for i in range(n):
            j = self.below(i + 1)
            out.append(i)
            out[i], out[j] = out[j], i
        return out


def combs(n: int, seed: int, epoch: int, strata: int) -> list[int]:
    """Return the held indices of n blocks in the order of an epoch, by the definition in cpp/plan/block_order.h."""
    m = -(-n // strata)
    rotation = [_Random(seed, epoch, 0x726F74617465, i).below(m) for i in range(strata)]
    indices = []
    for j in _Random(seed, epoch, 0x7375706572).permutation(m):
        for i in _Random(seed, epoch, 0x6D656D62657273, j).permutation(strata):
            held_index = i * m + (j + rotation[i]) % m
            indices += [held_index] * (held_index < n)
    return indices


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("strata", [1, 8, 64])
def test_combs_are_what_their_definition_says(n: int, strata: int) -> None:
    order = Order(3 * n, 3, shuffle=True, seed=2**64 - 5, lanes=1, combs=strata)
    for epoch in (0, 7):
        indices = combs(n, order.seed, epoch, strata)
        assert sorted(indices) == list(range(n))
        assert order.held_indices(epoch).tolist() == indices


def test_the_order_depends_on_seed_epoch_and_strata_alone() -> None:
    order = Order(3000, 3, shuffle=True, seed=1, lanes=7, combs=64)
    base = order.held_indices(0).tolist()
    for lanes, mix in ((1, 1), (720, 4)):
        assert Order(3000, 3, shuffle=True, seed=1, lanes=lanes, mix=mix, combs=64).held_indices(0).tolist() == base
    others = [(1, 1, 64), (2, 0, 64), (1, 0, 32), (1, 0, 0)]
    orders = [Order(3000, 3, shuffle=True, seed=s, lanes=7, combs=c).held_indices(e).tolist() for s, e, c in others]
    assert len({tuple(indices) for indices in [base, *orders]}) == 5


def test_sorted_keys_are_what_they_always_were() -> None:
    assert permuted(8, 3, 1).tolist() == [7, 3, 5, 6, 4, 0, 2, 1]
    assert permuted(1000, 2**64 - 1, 2**62)[:6].tolist() == [27, 820, 520, 505, 868, 212]
    assert Order(24, 3, shuffle=True, seed=3, lanes=1).held_indices(1).tolist() == permuted(8, 3, 1).tolist()


def test_combs_begin_behind_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (strata_for(1 << 22), strata_for((1 << 22) + 1)) == (0, 1024)
    monkeypatch.setattr(block_order, "COMBS_ABOVE", 10)
    assert (strata_for(10), strata_for(11)) == (0, 1024)


def test_windows_of_batches_draw_from_all_of_the_array() -> None:
    """Means over many batches stay as near to the mean of the array as those of a permutation, along a trend."""
    n, lanes = 1 << 17, 64
    trend = np.arange(n) / n - 0.5
    spread = []
    for combs_ in (0, 256):
        order = Order(n, 1, shuffle=True, seed=3, lanes=lanes, combs=combs_)
        means = trend[order.held_indices(0).reshape(lanes, -1)].mean(axis=0)
        spread.append([means[: len(means) // k * k].reshape(-1, k).mean(axis=1).var() for k in (1, 16, 256)])
    assert (np.array(spread[1]) <= 1.3 * np.array(spread[0])).all()


def test_a_table_of_the_whole_array_has_a_short_block_at_its_end() -> None:
    for num_samples, rows in ((10, 4), (8, 4), (3, 4)):
        table = regular_table(num_samples, rows)
        block, first, length = table.at(np.arange(table.num_blocks))
        begins = list(range(0, num_samples, rows))
        assert (block.tolist(), first.tolist()) == (list(range(len(begins))), begins)
        assert length.tolist() == [min(rows, num_samples - begin) for begin in begins]
        assert (table.length, table.num_blocks) == (num_samples, len(begins))
        assert table.rows_before(np.array([table.num_blocks])).tolist() == [num_samples]
        assert table.indices_of(np.array([num_samples - 1])).tolist() == [len(begins) - 1]


def test_ordered_blocks_find_positions_and_blocks() -> None:
    blocks = core.BlockOrder.combs(regular_table(1000, 3), seed=1, epoch=2, strata=16)
    held_indices = blocks.held_indices(0, 334)
    begins = blocks.begins(np.arange(334))
    assert blocks.ordinals_of(held_indices).tolist() == list(range(334))
    assert blocks.find(begins).tolist() == list(range(334))
    assert blocks.held_indices(100, 103).tolist() == held_indices[100:103].tolist()

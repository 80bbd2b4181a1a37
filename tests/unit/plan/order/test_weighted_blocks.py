"""`WeightedBlocks` against the definition of its counts in NumPy, and what holds of visits in every epoch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.plan.order.keyed_random import KeyedRandom, permutation
from zarrfeed.plan.order.weighted_blocks import MOST_VISITS, WeightedBlocks
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Int64, Selection

POOL, POOLS, PHASE = 0x706F6F6C, 0x706F6F6C73, 0x7068617365


def counts_in_numpy(expected: ExpectedCounts, rows: Int64, seed: int, epoch: int) -> Int64:
    """Return how often each sample comes: the head of cpp/plan/weighted_counts.h, word by word."""
    one, pools, small, begin = 1 << expected.bits, [], [], 0
    for of_block in rows.tolist():
        block = list(range(begin, begin + of_block))
        begin += of_block
        if of_block >= 64:
            pools.append(block)
            continue
        small += block
        if len(small) >= 64 and expected.shares[small].sum() >= 2 * one:
            pools.append(small)
            small = []
    pools += [small] if small else []
    laid = [
        pools[number][row]
        for number in permutation(len(pools), POOLS, seed, epoch)
        for row in permutation(len(pools[number]), POOL, seed, epoch, number)
    ]
    ends = np.cumsum(expected.shares[laid]) + KeyedRandom(PHASE, seed, epoch).word() % one
    counts = np.zeros(len(laid), dtype=np.int64)
    counts[laid] = np.diff(ends >> expected.bits, prepend=0)
    return counts


def blocks_of(
    num_samples: int,
    block_rows: int,
    weights: npt.ArrayLike,
    n: int,
    *,
    visits: float = MOST_VISITS,
    **selected: object,
) -> WeightedBlocks:
    selection = Selection.of_range(range(num_samples), block_rows)
    if selected:
        selection = Selection.of_samples(np.asarray(selected["samples"]), block_rows)
    return WeightedBlocks.visiting(selection, ExpectedCounts.of(np.asarray(weights, dtype=float), n), 11, visits)


@st.composite
def some_blocks(draw: st.DrawFn) -> WeightedBlocks:
    block_rows = draw(st.sampled_from([1, 3, 20, 64, 100, 1000]))
    num_samples = draw(st.integers(1, 700))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    chosen = np.arange(num_samples)
    if draw(st.booleans()):
        chosen = np.sort(rng.choice(num_samples, rng.integers(1, num_samples + 1), replace=False))
    weights = rng.random(len(chosen)) ** draw(st.sampled_from([0, 1, 8])) + 1e-9
    n = draw(st.integers(1, 3000))
    visits = draw(st.sampled_from([1, 1.1, MOST_VISITS]))
    made = blocks_of(num_samples, block_rows, weights, n, visits=visits, samples=chosen)
    named = draw(st.sampled_from([made.repeats, 1, 7]))  # as a state may name
    return replace(made, repeats=named)


@examples(150)
@given(some_blocks(), st.integers(0, 2**40))
def test_counts_are_those_of_the_definition_in_numpy(blocks: WeightedBlocks, epoch: int) -> None:
    assert blocks.counts(epoch).tolist() == counts_in_numpy(blocks.expected, blocks.samples.rows, 11, epoch).tolist()


@examples(150)
@given(some_blocks(), st.integers(0, 100))
def test_each_sample_comes_as_often_as_it_is_drawn_and_no_visit_is_larger_than_any_may_be(
    blocks: WeightedBlocks, epoch: int
) -> None:
    drawn, counts, one = blocks.draw(epoch), blocks.counts(epoch), 1 << blocks.expected.bits
    assert counts.sum() == drawn.length == blocks.expected.total
    assert ((counts == blocks.expected.shares // one) | (counts == -(-blocks.expected.shares // one))).all()
    assert sorted(drawn.listed().tolist()) == np.repeat(blocks.samples.listed(), counts).tolist()
    assert drawn.max_rows <= blocks.max_rows
    assert drawn.nbytes <= blocks.nbytes
    assert (np.diff(drawn.blocks) >= 0).all()
    whole = blocks.samples
    of_block = {int(b): whole.listed(np.array([i])) for i, b in enumerate(whole.blocks)}
    for held_index, block in enumerate(drawn.blocks.tolist()):
        samples = drawn.listed(np.array([held_index]))
        assert np.isin(samples, of_block[block]).all()
        assert (np.diff(samples) >= 0).all(), "the samples of a visit ascend"
        assert np.unique(samples, return_counts=True)[1].max() <= blocks.repeats
    if counts.max() <= blocks.repeats:
        assert (np.diff(drawn.blocks) > 0).all(), "a block has one visit"


@examples(60)
@given(some_blocks(), st.sampled_from([1, 1.1, MOST_VISITS]), st.integers(0, 100))
def test_visits_are_at_most_as_many_as_wanted(blocks: WeightedBlocks, wanted: float, epoch: int) -> None:
    fitting = WeightedBlocks.visiting(blocks.samples, blocks.expected, blocks.seed, wanted)
    assert len(fitting.draw(epoch).held) <= wanted * len(blocks.samples.held)
    if fitting.repeats > 2:  # the least that do
        expected, begin = blocks.expected, np.cumsum(blocks.samples.rows) - blocks.samples.rows
        most = -(-np.maximum.reduceat(expected.shares, begin) >> expected.bits)
        assert np.sum(-(-most // (fitting.repeats - 1))) > wanted * len(begin)


def test_visits_of_a_block_are_even() -> None:
    blocks = blocks_of(40, 20, np.r_[np.full(20, 7.0), np.full(20, 1.0)], 160)
    drawn = blocks.draw(3)
    assert blocks.repeats == 3  # 7 times in 3 visits, and once in one: 4 visits of 2 blocks
    assert drawn.blocks.tolist() == [0, 0, 0, 1]
    assert drawn.rows.tolist() == [47, 47, 46, 20]
    counts = [np.bincount(drawn.listed(np.array([visit])), minlength=40)[:20] for visit in range(3)]
    assert set(np.concatenate(counts).tolist()) == {2, 3}


def test_offsets_that_are_too_far_for_16_bits_are_listed() -> None:
    weights = np.ones(200_000)
    weights[[5, 150_000]] = 9
    blocks = blocks_of(200_000, 100_000, weights, 200_016)
    drawn = blocks.draw(0)
    assert drawn.samples is not None
    assert drawn.samples.form == "list"
    assert np.bincount(drawn.listed(), minlength=200_000).tolist() == weights.tolist()
    assert blocks_of(200_000, 50_000, weights, 9).draw(0).samples.form == "repeats"  # type: ignore[union-attr]


@pytest.mark.parametrize("block_rows", [1, 5, 64, 100])
def test_counts_of_many_epochs_have_the_expected_mean_and_pairs_meet(block_rows: int) -> None:
    """Chi-square of how often each sample comes, and of how often two samples of 0.4 come in one epoch."""
    epochs, n = 3000, 200
    weights = np.r_[np.full(100, 1.0), np.full(100, 4.0)]
    blocks = blocks_of(200, block_rows, weights, n)
    counts = np.array([blocks.counts(epoch) for epoch in range(epochs)])
    expected = n * weights / weights.sum()
    spread = (counts.mean(0) - expected) / np.sqrt((expected % 1) * (1 - expected % 1) / epochs)
    assert (spread**2).sum() < 200 + 5 * np.sqrt(2 * 200)
    rare = counts[:, :20]
    together = np.array([(rare[:, i] & rare[:, j]).mean() for i, j in itertools.combinations(range(20), 2)])
    assert together.min() > 0.08  # 0.16 of independent samples
    assert together.max() < 0.24


def test_two_samples_of_a_small_block_may_come_together_though_one_of_the_block_is_expected() -> None:
    blocks = blocks_of(1000, 4, np.ones(1000), 250)
    counts = np.array([blocks.counts(epoch) for epoch in range(2000)]).reshape(2000, 250, 4)
    several = (counts.sum(2) > 1).mean()
    independent = 1 - 0.75**4 - 4 * 0.25 * 0.75**3
    assert 0.7 * independent < several < 1.1 * independent

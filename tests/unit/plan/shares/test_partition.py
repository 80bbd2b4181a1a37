"""Who reads what, and what is left: checked position by position against the rule in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.plan.shares.partition import EVEN_MODES, Consumer, Division
from zarrfeed.plan.shares.progress import Cut, Int64, Progress

SETTINGS = examples(300)


@st.composite
def divisions(draw: st.DrawFn, length: int | None = None) -> Division:
    return Division(
        length=draw(st.integers(0, 200)) if length is None else length,
        world_size=draw(st.integers(1, 6)),
        num_workers=draw(st.integers(1, 4)),
        batch_size=draw(st.integers(1, 12)),
        even=draw(st.sampled_from(EVEN_MODES)),
        drop_last=draw(st.booleans()),
    )


def positions(division: Division, rank: int, worker: int, begin: int = 0) -> Int64:
    share = division.share(Consumer(rank, division.world_size, worker, division.num_workers), begin)
    return np.concatenate([share.first + share.stride * np.arange(share.count, dtype=np.int64), share.tail])


def batches_of_rank(division: Division, rank: int) -> list[list[int]]:
    """Batches in the order in which a DataLoader takes them from its workers."""
    size, workers = division.batch_size, division.num_workers
    shares = [positions(division, rank, worker).tolist() for worker in range(workers)]
    queues = [[share[i : i + size] for i in range(0, len(share), size)] for share in shares]
    batches: list[list[int]] = []
    while any(queues):
        batches.append(queues[len(batches) % workers].pop(0))  # IndexError: the worker whose turn it is has none
    return batches


@SETTINGS
@given(divisions())
def test_ranks_and_workers_deliver_every_position_as_often_as_even_says(division: Division) -> None:
    everyone = range(division.world_size)
    delivered = np.sort(
        [p % division.length for r in everyone for batch in batches_of_rank(division, r) for p in batch]
    )
    n, world_size, size = division.length, division.world_size, division.batch_size
    if division.drop_last:
        assert len(np.unique(delivered)) == len(delivered) or division.even == "repeat"
        assert n - len(delivered) < world_size * (size + 1)
        return
    expected = {
        "drop": np.arange(n // world_size * world_size),
        "repeat": np.sort(np.arange(-(-n // world_size) * world_size) % max(n, 1)),
        "off": np.arange(n),
    }[division.even]
    assert np.array_equal(delivered, expected)


@SETTINGS
@given(divisions())
def test_only_the_last_batch_is_short_and_their_number_is_the_same_for_any_number_of_workers(
    division: Division,
) -> None:
    for rank in range(division.world_size):
        batches = batches_of_rank(division, rank)
        assert len(batches) == division.batches(rank)
        assert all(len(batch) == division.batch_size for batch in batches[:-1])
        assert not division.drop_last or all(len(batch) == division.batch_size for batch in batches)
        alone = Division(
            division.length, division.world_size, 1, division.batch_size, division.even, division.drop_last
        )
        assert len(batches) == alone.batches(rank)
        if division.even != "off":
            assert len(batches) == division.batches(0)
        steps = [
            division.steps(Consumer(rank, division.world_size, w, division.num_workers))
            for w in range(division.num_workers)
        ]
        assert division.drop_last or sum(steps) == sum(map(len, batches))


@SETTINGS
@given(divisions(), st.data())
def test_a_share_can_begin_at_any_step(division: Division, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, division.world_size - 1))
    worker = data.draw(st.integers(0, division.num_workers - 1))
    whole = positions(division, rank, worker)
    begin = data.draw(st.integers(0, len(whole)))
    assert np.array_equal(positions(division, rank, worker, begin), whole[begin:])


@SETTINGS
@given(divisions(), st.data())
def test_a_cut_is_what_the_ranks_delivered(division: Division, data: st.DataObject) -> None:
    of_rank = [batches_of_rank(division, rank) for rank in range(division.world_size)]
    batches = data.draw(st.integers(0, max(map(len, of_rank))))
    delivered = np.array(
        sorted({p for rank in of_rank for batch in rank[:batches] for p in batch if p < division.length})
    )
    left = np.setdiff1d(np.arange(division.length), delivered)
    cut = division.cut(batches)
    numbered = cut.position(np.arange(division.length - cut.used))
    if batches < min(map(len, of_rank)):
        assert np.array_equal(numbered, left)
    else:  # the end: what no rank gets, and short batches, are used up too
        assert set(numbered) <= set(left)


@SETTINGS
@given(st.data())
def test_after_any_number_of_runs_what_is_left_is_numbered_in_order(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 300))
    left, progress = np.arange(length), Progress()
    for _ in range(data.draw(st.integers(0, 4))):
        division = data.draw(divisions(len(left)))
        batches = data.draw(st.integers(0, min(division.batches(r) for r in range(division.world_size))))
        cut = division.cut(batches)
        left = left[cut.position(np.arange(len(left) - cut.used))]
        progress = progress.then(cut)
        assert np.array_equal(progress.position(np.arange(length - progress.used)), left)
        number, shift = progress.regular_from()
        assert np.array_equal(left[number:], np.arange(number, len(left)) + shift)
        saved = json.loads(json.dumps(progress.to_lists()))
        assert Progress.from_lists(saved, length) == progress


def test_runs_that_end_between_rounds_are_one_prefix() -> None:
    assert Progress().then(Cut(8)).then(Cut(4)).then(Cut(6)) == Progress((Cut(18),))


def test_a_comb_that_was_read_to_its_end_becomes_part_of_the_prefix() -> None:
    comb = Cut(12, width=2, period=6, rounds=5)  # leaves 4 of each 6
    assert Progress().then(comb).then(Cut(20)) == Progress((Cut(42),))
    assert Progress().then(comb).then(Cut(19)) == Progress((comb, Cut(19)))


@pytest.mark.parametrize(
    "damaged",
    [
        [[-1, 0, 1, 0]],
        [[0, 2, 2, 1]],
        [[0, 1, 3, -1]],
        [[5, 1, 3, 2]],
        [[11, 0, 1, 0]],
        [[True, 0, 1, 0]],
        [[1, 0, 1]],
        [[1, 0, 1, 0], [1, 0, 1, 0]],
    ],
)
def test_lists_that_are_no_progress_are_refused(damaged: list[list[int]]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Progress.from_lists(damaged, 10)

"""Runs of whole blocks: who reads what, and what is left, checked position by position against the rule in words."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfeed.plan.shares.partition import Consumer
from zarrfeed.plan.shares.progress import Int64, Progress
from zarrfeed.plan.shares.runs import RunCut, RunDivision


@st.composite
def divisions(draw: st.DrawFn, length: int | None = None) -> RunDivision:
    return RunDivision(
        length=draw(st.integers(0, 200)) if length is None else length,
        world_size=draw(st.integers(1, 5)),
        num_workers=draw(st.integers(1, 4)),
        batch_size=draw(st.integers(1, 12)),
        block_rows=draw(st.integers(1, 15)),
        drop_last=draw(st.booleans()),
        turn=draw(st.integers(0, 300)),
    )


def positions(division: RunDivision, rank: int, worker: int, begin: int = 0) -> list[int]:
    share = division.share(Consumer(rank, division.world_size, worker, division.num_workers), begin)
    found: list[int] = np.concatenate([share.first + share.stride * np.arange(share.count), share.tail]).tolist()
    return found


def batches_of_rank(division: RunDivision, rank: int, done: int = 0) -> list[list[int]]:
    """Batches as a DataLoader takes them from workers that continue after `done` batches: those with none are left."""
    size, workers = division.batch_size, division.num_workers
    queues = []
    for worker in range(workers):
        consumer, begin = division.continued(Consumer(rank, division.world_size, worker, workers), done)
        share = positions(division, rank, consumer.worker, begin * size)
        queues.append([share[i : i + size] for i in range(0, len(share), size)])
    batches: list[list[int]] = []
    while any(queues):
        batches += [queue.pop(0) for queue in queues if queue]
    return batches


def left_after(division: RunDivision, batches: int) -> Int64:
    used = [p for rank in range(division.world_size) for b in batches_of_rank(division, rank)[:batches] for p in b]
    return np.setdiff1d(np.arange(division.length), used)


@given(divisions())
def test_every_position_comes_once_but_for_fewer_than_there_are_ranks(division: RunDivision) -> None:
    ranks = [[p for batch in batches_of_rank(division, r) for p in batch] for r in range(division.world_size)]
    assert len({len(rank) for rank in ranks}) == 1, "ranks have as many samples"
    assert len(ranks[0]) == division.samples(0)
    counts = Counter(p for rank in ranks for p in rank)
    assert set(counts.values()) <= {1}
    assert set(counts) <= set(range(division.length))
    if not division.drop_last:
        assert division.length - len(counts) == division.length % division.world_size


@given(divisions())
def test_every_block_comes_from_one_consumer_but_for_fewer_than_there_are_ranks_and_a_short_one(
    division: RunDivision,
) -> None:
    readers: dict[int, set[tuple[int, int]]] = {}
    for rank in range(division.world_size):
        for worker in range(division.num_workers):
            for position in positions(division, rank, worker):
                readers.setdefault(position // division.block_rows, set()).add((rank, worker))
    full = division.length // division.block_rows
    whole = full - full % division.world_size if division.world_size > 1 else full + 1
    assert all(len(found) == 1 for block, found in readers.items() if block < whole)
    of_workers = [len({block for block in readers if (0, w) in readers[block] and block < whole}) for w in range(4)]
    if not division.drop_last:
        assert max(of_workers[: division.num_workers]) - min(of_workers[: division.num_workers]) <= 1


@given(divisions())
def test_ranks_have_as_many_batches_and_only_a_worker_s_last_one_is_short(division: RunDivision) -> None:
    size = division.batch_size
    for rank in range(division.world_size):
        assert len(batches_of_rank(division, rank)) == division.batches(rank) == division.batches(0)
        for worker in range(division.num_workers):
            share = positions(division, rank, worker)
            consumer = Consumer(rank, division.world_size, worker, division.num_workers)
            assert len(share) == division.steps(consumer)
            assert not division.drop_last or len(share) % size == 0
            begin = len(share) // 2
            assert positions(division, rank, worker, begin) == share[begin:]


@given(divisions(), st.data())
def test_a_run_that_continues_delivers_the_batches_that_come_next(division: RunDivision, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, division.batches(0)))
    for rank in range(division.world_size):
        assert batches_of_rank(division, rank, done) == batches_of_rank(division, rank)[done:]


@given(divisions(), st.data())
def test_a_cut_is_what_the_ranks_delivered(division: RunDivision, data: st.DataObject) -> None:
    batches = data.draw(st.integers(0, division.batches(0)))
    cut, left = division.cut(batches), left_after(division, batches)
    assert cut.used == division.length - len(left)
    assert np.array_equal(cut.position(np.arange(len(left))), left)
    assert np.array_equal(left[cut.gaps :], np.arange(cut.gaps, len(left)) + cut.used)
    assert cut.prefix in (None, cut.used)
    assert (cut.prefix is not None) == (cut.gaps == 0)


@given(st.data())
def test_after_any_number_of_runs_what_is_left_is_numbered_in_order(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 200))
    left, progress = np.arange(length), Progress()
    for _ in range(data.draw(st.integers(0, 4))):
        division = data.draw(divisions(len(left)))
        batches = data.draw(st.integers(0, division.batches(0)))
        left = left[left_after(division, batches)]
        progress = progress.then(division.cut(batches))
        assert np.array_equal(progress.position(np.arange(length - progress.used)), left)
        number, shift = progress.regular_from()
        assert np.array_equal(left[number:], np.arange(number, len(left)) + shift)
        saved = json.loads(json.dumps(progress.to_lists()))
        assert Progress.from_lists(saved, length, RunCut.from_json) == progress


def test_other_samples_are_left_out_in_each_epoch() -> None:
    """Of 23 samples in blocks of 4, two ranks have eight each in whole blocks; one of the other seven is left out."""
    missing = set()
    for epoch in range(7):
        division = RunDivision(23, 2, 1, 5, 4, turn=epoch)
        delivered = {p for rank in range(2) for p in positions(division, rank, 0)}
        missing |= set(range(23)) - delivered
    assert missing == set(range(16, 23))


@pytest.mark.parametrize(
    "damage",
    [
        *(
            {"length": 101},
            {"length": 9},
            {"world_size": 0},
            {"num_workers": 1 << 40},
            {"batch_size": True},
            {"block_rows": 0},
            {"turn": -1},
        ),
        *({"drop_last": 1}, {"batches": 1000}, {"batches": -1}, {"more": 1}),
    ],
)
def test_a_damaged_cut_is_refused(damage: dict[str, int]) -> None:
    good = RunDivision(100, 2, 3, 5, 7, turn=3).cut(4).to_json()
    assert RunCut.from_json(good, 100).to_json() == good
    with pytest.raises((ValueError, TypeError)):
        RunCut.from_json({**good, **damage}, 100)
    for name in good:
        with pytest.raises((ValueError, TypeError, KeyError)):
            RunCut.from_json({key: value for key, value in good.items() if key != name}, 100)

"""Blocks that follow a rule against the same blocks, listed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from zarrfeed.plan.samples import held_blocks
from zarrfeed.plan.samples.held_blocks import HeldBlocks, ListedBlocks, RunBlocks, StepBlocks, range_blocks
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.samples.block_edges import Edges, StoreEdges


def cases(seed: int) -> Iterator[tuple[range, int, Edges | None, npt.NDArray[np.int64]]]:
    """Yield ranges of samples, with the blocks of an array or of many stores, and the listed edges of these."""
    rng = np.random.default_rng(seed)
    for number in range(150):
        rows = rng.integers(1, 12, int(rng.integers(1, 9)))
        begin = np.concatenate(([0], np.cumsum(rng.integers(1, 90, len(rows)))))
        edges: Edges | None = StoreEdges(begin, rows)
        if number % 3 == 0:
            edges = None
            listed = np.append(np.arange(0, begin[-1], rows[0]), begin[-1])
        else:
            listed = np.asarray(edges)
        if number % 3 == 1:
            edges = listed
        start = int(rng.integers(begin[-1]))
        step = 1 if number % 2 else int(rng.integers(1, 30))
        yield range(start, int(rng.integers(start + 1, begin[-1] + 1)), step), int(rows[0]), edges, listed


def listed_blocks(samples: range, edges: npt.NDArray[np.int64]) -> ListedBlocks:
    block = np.searchsorted(edges, np.array(samples), side="right") - 1
    blocks, first, rows = np.unique(block, return_index=True, return_counts=True)
    return ListedBlocks(blocks, rows, np.array(samples)[first])


def assert_same(held: HeldBlocks, listed: ListedBlocks) -> None:
    """Check all that blocks say."""
    for name in ("blocks", "rows", "first"):
        assert getattr(held, name).tolist() == getattr(listed, name).tolist(), name
    assert (len(held), held.length, held.max_rows) == (len(listed), listed.length, listed.max_rows)
    held_indices = np.random.default_rng(0).permutation(len(listed))
    for ours, theirs in zip(held.at(held_indices), listed.at(held_indices), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert held.indices_of(listed.blocks).tolist() == list(range(len(listed)))
    positions = np.arange(listed.length)
    for ours, theirs in zip(held.positions_in(positions), listed.positions_in(positions), strict=True):
        assert ours.tolist() == theirs.tolist()
    lengths, counts = held.count_rows()
    assert [lengths.tolist(), counts.tolist()] == [part.tolist() for part in listed.count_rows()]
    for ours, theirs in zip(held.table().at(held_indices), listed.table().at(held_indices), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_a_range_are_those_that_its_samples_lie_in(seed: int) -> None:
    kinds = set()
    for samples, block_rows, edges, listed in cases(seed):
        held = range_blocks(samples, block_rows, edges)
        kinds.add(type(held))
        assert_same(held, listed_blocks(samples, listed))
        again = pickle.loads(pickle.dumps(held))
        assert again.rows.tolist() == held.rows.tolist()
    assert kinds == {RunBlocks, StepBlocks, ListedBlocks}


def test_lengths_that_repeat_are_counted_by_their_period() -> None:
    for step, rows in ((3, 10), (7, 10), (4, 10), (5, 10), (9, 10), (10, 10), (13, 10)):
        samples = range(4, 20_003, step)
        held = range_blocks(samples, rows, None)
        assert isinstance(held, StepBlocks)
        assert_same(held, listed_blocks(samples, np.append(np.arange(0, 20_003, rows), 20_003)))


def test_a_thousand_million_blocks_take_no_list() -> None:
    edges = StoreEdges(np.arange(1001) * 10_000_003, np.full(1000, 10))
    for held in (
        range_blocks(range(17, 10**10), 10, edges),
        range_blocks(range(17, 10**10, 3), 10, None),
        range_blocks(range(17, 10**10, 5), 10, None),
    ):
        assert len(held) > 999_000_000
        assert held.max_rows in (2, 4, 10)
        assert not {"_listed"} & set(vars(held))
        assert Selection(held, 1).digest == Selection(held, 1).digest
        assert not {"_listed"} & set(vars(held))


def test_digests_of_many_blocks_are_those_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the threshold they are what they always were; above, each rule has another one."""
    made = [Selection.of_range(samples, 4) for samples in (range(3, 90), range(3, 91), range(2, 90), range(3, 90, 2))]
    few = [selection.digest for selection in made]
    assert few[0] == "87 (ffff422dcc782197)"
    monkeypatch.setattr("zarrfeed.plan.samples.selection.MANY_BLOCKS", 5)
    again = [Selection(one.held, one.step) for one in made]
    many = [selection.digest for selection in again]
    assert len({*few, *many}) == 8
    assert [selection.listed_digest for selection in again] == few
    assert Selection.of_range(range(3, 90, 2), 4).digest == Selection.of_range(range(3, 91, 2), 4).digest
    listed = Selection.of_samples(np.array([1, 2, 40, 44, 80, 81, 99, 120]), 4)
    assert listed.digest == listed.listed_digest
    assert held_blocks.MANY_BLOCKS == 1 << 22

"""Samples that are dealt to nodes: who gets what, in every epoch and after any chain of runs, as the plan says."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from tests.support.covering import cover
from tests.support.examples import examples, is_large
from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError
from zarrfeed.base.native import core
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.order.order import Order, make_order
from zarrfeed.plan.samples.selection import make_selection
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, make_state_dict, read_state_dict
from zarrfeed.plan.shares.affinity import Dealing, blocks_together, seed_of_node
from zarrfeed.plan.shares.partition import Consumer, RankInfo
from zarrfeed.spec.fields.field import FieldSet, StoredField
from zarrfeed.spec.samples.window import Window

# ---- the parts


@st.composite
def orders(draw: st.DrawFn) -> Order:
    num_samples = draw(st.integers(8, 150))
    block_rows = draw(st.integers(1, 20))
    select: Any = draw(
        st.one_of(
            st.none(),
            st.builds(slice, st.integers(0, 3), st.none(), st.integers(1, 4)),
            st.lists(st.integers(0, num_samples - 1), min_size=1, unique=True),
        )
    )
    selection = make_selection(select, None, num_samples=num_samples, block_rows=block_rows)
    shuffle = draw(st.booleans())
    return make_order(num_samples, block_rows, selection, shuffle=shuffle, seed=draw(st.integers(0, 9)), lanes=2, mix=1)


def samples_of(order: Order) -> list[int]:
    listed: list[int] = list(range(order.num_samples)) if order.selection is None else order.selection.listed().tolist()
    return listed


@given(orders(), st.integers(1, 6), st.integers(1, 4))
def test_parts_are_all_samples_in_as_many_pieces_as_there_are_nodes(order: Order, num_nodes: int, run: int) -> None:
    if order.length < num_nodes:
        with pytest.raises(ConfigError, match=f"{order.length} samples for {num_nodes} nodes, must"):
            Dealing.of(order, num_nodes, run)
        return
    dealing = Dealing.of(order, num_nodes, run)
    parts = [dealing.part(node) for node in range(num_nodes)]
    lists = [part.listed().tolist() for part in parts]
    assert sorted(itertools.chain(*lists)) == samples_of(order)
    each, more = divmod(order.length, num_nodes)
    assert [len(one) for one in lists] == [each + (node < more) for node in range(num_nodes)]
    assert (dealing.longest, dealing.long_nodes) == (each + (more > 0), more)
    readers = Counter(block for part in parts for block in part.blocks.tolist())
    assert sum(readers.values()) - len(readers) < num_nodes, "each border cuts one block"
    assert dealing.fewest_blocks == min(len(part.blocks) for part in parts)
    assert parts[dealing.hardest].max_rows == max(part.max_rows for part in parts)
    for part, listed in zip(parts, lists, strict=True):
        assert (np.diff(part.blocks) > 0).all()
        assert listed == sorted(listed)
        assert part.samples_at(np.arange(part.length)).tolist() == listed
        assert [sample // order.block_rows for sample in listed] == np.repeat(part.blocks, part.rows).tolist()
    if not order.shuffle:
        assert list(itertools.chain(*lists)) == samples_of(order), "blocks that keep their order are dealt in order"


def test_the_dealing_is_this_one_for_ever() -> None:
    """A state does not list the parts: with another dealing, a run that is resumed would lose samples."""
    order = make_order(100, 8, None, shuffle=True, seed=7, lanes=2, mix=1)
    dealing = Dealing.of(order, 3, 1)
    assert dealing.drawn.tolist() == PINNED_BLOCKS
    assert [dealing.part(node).length for node in range(3)] == [34, 33, 33]
    assert Dealing.of(order, 3, 4).drawn.tolist() == PINNED_RUNS
    assert [seed_of_node(7, node) for node in range(2)] == PINNED_SEEDS


PINNED_BLOCKS = [2, 3, 12, 7, 11, 6, 4, 0, 5, 9, 10, 1, 8]
PINNED_RUNS = [8, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7]
PINNED_SEEDS = [6414459695342640162, 4923698562856740828]


@pytest.mark.parametrize("run", [1, 8])
def test_few_blocks_move_to_another_node_when_the_array_grows(run: int) -> None:
    def nodes(num_blocks: int, first: int = 0) -> np.ndarray[Any, Any]:
        selection = make_selection(slice(first * 4, None), None, num_samples=num_blocks * 4, block_rows=4)
        order = make_order(num_blocks * 4, 4, selection, shuffle=True, seed=1, lanes=2, mix=1)
        dealing = Dealing.of(order, 4, run)
        node = np.full(num_blocks, -1)
        for number in range(4):
            node[dealing.part(number).blocks] = number
        return node

    before, after = nodes(20_000), nodes(22_000)
    assert (before != after[:20_000]).mean() < 0.05
    evicted = nodes(22_000, first=1_000)
    assert (before[1_000:] != evicted[1_000:20_000]).mean() < 0.05


# ---- what consumers get


@dataclass(frozen=True)
class Setup:
    """What may change from run to run; the number of nodes may not."""

    local: int
    num_workers: int
    batch_size: int | None
    even: str = "off"
    drop_last: bool = False

    @property
    def division(self) -> tuple[Any, ...]:
        """What makes two runs share out alike, so that the second one continues the first."""
        drops = self.drop_last and self.batch_size is not None
        return self.local, self.num_workers, self.batch_size or 1, self.even, drops


setups = st.builds(
    Setup,
    local=st.integers(1, 3),
    num_workers=st.integers(1, 3),
    batch_size=st.none() | st.integers(1, 9),
    even=st.sampled_from(["off", "drop", "repeat"]),
    drop_last=st.booleans(),
)

State = dict[str, Any]
#: Per node and rank: the batches in the order of a DataLoader.
Delivered = list[list[list[list[int]]]]


class Planned:
    """The runs of a dataset on some nodes, as its plans say."""

    def __init__(self, num_samples: int, num_nodes: int, **options: Any) -> None:
        values = zarr.array(np.arange(num_samples), chunks=(4,))
        self.num_nodes = num_nodes
        self.schedule = iterable_dataset(values, rank=0, world_size=1, **options).session.schedule

    def on(self, node: int, setup: Setup) -> Schedule:
        even: Any = setup.even
        whole = self.schedule.with_options(batch_size=setup.batch_size, even=even, drop_last=setup.drop_last)
        return whole.for_node(node, self.num_nodes)

    def rank_info(self, node: int, rank: int, setup: Setup) -> RankInfo:
        return RankInfo(node * setup.local + rank, self.num_nodes * setup.local, setup.local).in_node()

    def fresh(self, epoch: int) -> State:
        schedule = self.schedule.for_node(0, self.num_nodes)
        return make_state_dict(EpochState(epoch), schedule.part, schedule.fields.fields)

    def run(self, setup: Setup, state: State) -> Delivered:
        nodes, ranks = range(self.num_nodes), range(setup.local)
        return [[self._rank(self.rank_info(node, rank, setup), setup, state) for rank in ranks] for node in nodes]

    def saved(self, setup: Setup, state: State, batches: int) -> State:
        """Return the state after some more batches of a run that began in `state`: the same on every node."""
        made = []
        for node in range(self.num_nodes):
            schedule = self.on(node, setup)
            consumer = self.rank_info(node, 0, setup).consumer(num_workers=setup.num_workers)
            cursor = Cursor.at(schedule, self._read(schedule, state), consumer, in_worker=False)
            cursor.delivered += batches
            made.append(json.dumps(make_state_dict(cursor.state(), schedule.part, schedule.fields.fields)))
        assert len(set(made)) == 1
        saved: State = json.loads(made[0])
        return saved

    def part(self, node: int) -> list[int]:
        order = self.schedule.for_node(node, self.num_nodes).order
        assert order.selection is not None
        listed: list[int] = order.selection.listed().tolist()
        return listed

    def _rank(self, rank_info: RankInfo, setup: Setup, state: State) -> list[list[int]]:
        schedule = self.on(rank_info.node, setup)
        begin = self._read(schedule, state)
        division = schedule.division(begin, rank_info.consumer(num_workers=setup.num_workers))
        shares = []
        for worker in range(setup.num_workers):
            consumer = rank_info.consumer(worker, setup.num_workers)
            plan = schedule.plan(schedule.settle(begin, consumer), consumer)
            samples = core.sample_order(plan.to_core()).tolist()
            size = setup.batch_size or 1
            shares.append([samples[i : i + size] for i in range(0, len(samples), size)])
        batches = [batch for turn in itertools.zip_longest(*shares) for batch in turn if batch is not None]
        if not begin.batches:
            assert len(batches) == division.batches(rank_info.rank, rank_info.node)
        assert all(len(batch) == (setup.batch_size or 1) for batch in batches[:-1]), "only the last batch is short"
        return batches

    def _read(self, schedule: Schedule, state: State) -> EpochState:
        any_mix = schedule.options.mix is None
        return read_state_dict(state, schedule.part, schedule.fields.fields, any_mix=any_mix)


ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "seed": 5},
    "mixed": {"shuffle": True, "seed": 5, "lanes": 4, "mix": 3},
    "in order": {},
    "selected": {"shuffle": True, "seed": 5, "select": list(range(3, 90, 2))},
    "windows": {"shuffle": True, "seed": 5, "offsets": (0, 2)},
}


def check_run(delivered: Delivered, left: list[list[int]], parts: list[list[int]], setup: Setup) -> None:
    """Check what a run to the end of an epoch delivers of what earlier runs left of each node's part."""
    num_ranks, total = len(left) * setup.local, sum(map(len, left))
    samples = [[[s for batch in rank for s in batch] for rank in node] for node in delivered]
    counts = [len(rank) for node in samples for rank in node]
    if setup.even != "off":
        assert len(set(counts)) == 1, "all ranks of all nodes have as many samples"
        assert len({tuple(map(len, rank)) for node in delivered for rank in node}) == 1, "in as many batches"
    size = setup.batch_size if setup.drop_last and setup.batch_size else 1
    expected = {"drop": total // num_ranks, "repeat": -(-total // num_ranks)}
    if setup.even in expected:
        assert counts[0] == expected[setup.even] // size * size
    elif size == 1:
        assert max(counts) - min(counts) <= 1
    for node, mine, part in zip(samples, left, parts, strict=True):
        together = Counter(s for rank in node for s in rank)
        assert set(together) <= set(mine or part), "a node reads its own part"
        if setup.even != "repeat":
            assert max(together.values(), default=0) <= 1
        if size == 1 and setup.even != "drop":
            assert set(mine) <= set(together)


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
@pytest.mark.parametrize(
    ("offsets", "together"),
    [(None, 1), ((0,), 1), ((-1, 0), 8), ((0, 1), 8), ((-1, 1), 16), ((0, 5), 16), ((-9, 40), 104)],
)
def test_blocks_whose_windows_share_chunks_are_dealt_together(
    offsets: tuple[int, ...] | None, together: int, num_nodes: int
) -> None:
    """Windows reach into so many chunks of 4 rows before and after their own: 8 times as many blocks make a run."""
    field = StoredField("x", read_layout(zarr.create_array(MemoryStore(), shape=(4000, 2), dtype="f4", chunks=(4, 2))))
    if offsets is not None:
        field = replace(field, window=Window(offsets))
    order = make_order(4000, 4, None, shuffle=True, seed=0, lanes=2, mix=1)
    found = blocks_together(FieldSet((field,), (None,), 0, 4), order, num_nodes)
    assert found == min(together, 1000 // (8 * num_nodes))  # a node has 8 runs at least


@pytest.mark.parametrize("kind", ORDERS)
def test_every_sample_comes_once_from_all_ranks_and_workers_of_all_nodes(kind: str) -> None:
    """The grid, from the beginning of an epoch; batch sizes go round, with the last one and without."""
    grid = [*itertools.product((2, 3, 4), (1, 2, 3), (1, 2), ("drop", "repeat", "off"))]
    grid = [grid[index] for index in cover(grid)] if not is_large() else grid
    ways = itertools.cycle(itertools.product((1, 4, 7, None, 50), (False, True)))
    made = {num_nodes: Planned(97, num_nodes, **ORDERS[kind]) for num_nodes in (2, 3, 4)}
    for (num_nodes, local, num_workers, even), (size, drop_last) in zip(grid, ways, strict=False):
        planned, setup = made[num_nodes], Setup(local, num_workers, size, even, drop_last)
        parts = [planned.part(node) for node in range(num_nodes)]
        check_run(planned.run(setup, planned.fresh(3)), parts, parts, setup)


@examples(300)
@given(
    num_samples=st.integers(3, 80),
    num_nodes=st.integers(2, 3),
    kind=st.sampled_from(["shuffled", "in order"]),
    epoch=st.integers(0, 3),
    legs=st.lists(st.tuples(st.booleans(), setups, st.integers(0, 6)), min_size=1, max_size=5),
)
def test_after_any_chain_of_runs_each_node_reads_the_rest_of_its_part(
    num_samples: int, num_nodes: int, kind: str, epoch: int, legs: list[tuple[bool, Setup, int]]
) -> None:
    """A leg with the setup of the one before continues its batches; with another one, it shares out what is left."""
    planned = Planned(num_samples, num_nodes, **ORDERS[kind])
    parts = [planned.part(node) for node in range(num_nodes)]
    left, state, continued = parts, planned.fresh(epoch), None
    setup = legs[0][1]
    for same, other, steps in legs:
        if not same and other.division != setup.division:
            setup, continued = other, None
        delivered = planned.run(setup, state)
        if continued is None:
            check_run(delivered, left, parts, setup)
        else:
            assert delivered == continued
        if steps >= min(len(rank) for node in delivered for rank in node):  # the epoch would end
            return
        state = planned.saved(setup, state, steps)
        used = [{s for rank in node for batch in rank[:steps] for s in batch} for node in delivered]
        left = [[s for s in mine if s not in gone] for mine, gone in zip(left, used, strict=True)]
        continued = [[rank[steps:] for rank in node] for node in delivered]


def test_a_node_of_which_nothing_is_left_repeats_its_part_where_another_has_one_sample_left() -> None:
    planned = Planned(9, 2, shuffle=True)  # 5 samples and 4
    state = planned.saved(Setup(1, 1, 2), planned.fresh(0), 2)
    ((last,),), ((again,),) = planned.run(Setup(1, 1, 3, "repeat"), state)
    assert (len(last), len(again)) == (1, 1)
    assert again[0] in planned.part(1)
    assert planned.run(Setup(1, 1, 3, "off"), state) == [[[last]], [[]]]
    assert planned.run(Setup(1, 1, 3, "drop"), state) == [[[]], [[]]]


@pytest.mark.parametrize("epoch", range(12))
def test_a_state_suits_parts_of_two_lengths_and_numbers_of_blocks(epoch: int) -> None:
    """Lanes and the first block of the order are the same on a node with 3 samples in 1 block and one with 2 in 2."""
    setup = Setup(1, 3, 1, "drop")
    for num_samples in (5, 21):
        planned = Planned(num_samples, 2)
        state = planned.saved(setup, planned.fresh(epoch), 1)
        assert state["lanes"] <= num_samples // 2
    blocks = [planned.on(node, setup).order.num_blocks for node in range(2)]
    assert state["first_block"] == epoch % min(blocks)
    assert min(blocks) > 1


@pytest.mark.parametrize(("num_nodes", "local"), [(2, 1), (1, 2), (2, 2)])
def test_several_ranks_drop_what_does_not_fill_a_round_unless_told_otherwise(num_nodes: int, local: int) -> None:
    schedule = Planned(99, 1, shuffle=True, batch_size=4).schedule
    for rank in range(num_nodes * local):
        rank_info = RankInfo(rank, num_nodes * local, local).in_node()
        dealt = schedule.for_node(rank_info.node, num_nodes)
        division = dealt.division(EpochState(0), rank_info.consumer())
        assert division.samples(rank_info.rank, rank_info.node) == 99 // (num_nodes * local)


def test_nodes_permute_their_blocks_differently_and_read_the_same_part_in_each_epoch() -> None:
    planned, setup = Planned(400, 2, shuffle=True, seed=3), Setup(1, 1, 8)
    orders = [planned.on(node, setup).order for node in range(2)]
    assert orders[0].num_blocks >= 40
    assert orders[0].held_indices(0).tolist() != orders[1].held_indices(0).tolist()
    for epoch in range(3):
        delivered = planned.run(setup, planned.fresh(epoch))
        for node in range(2):
            assert sorted(s for batch in delivered[node][0] for s in batch) == planned.part(node)


def test_what_a_state_holds_of_the_order_is_the_same_on_all_nodes() -> None:
    """Also of blocks of very different lengths: what is chosen suits the part with the longest."""
    select = [*range(0, 640, 64), *range(640, 1000)]
    planned = Planned(1000, 3, shuffle=True, select=select)
    orders = [planned.on(node, Setup(1, 1, 8)).order for node in range(3)]
    assert len({(order.lanes, order.mix, order.strip) for order in orders}) == 1
    assert len({order.num_blocks for order in orders}) > 1
    assert all(order.mix <= order.num_blocks and order.lanes <= order.length for order in orders)


# ---- what is refused


def test_a_state_of_another_number_of_nodes_is_refused() -> None:
    two, three = Planned(60, 2, shuffle=True), Planned(60, 3, shuffle=True)
    whole = two.schedule
    setup = Setup(1, 1, 4)
    of_two, of_one = two.saved(setup, two.fresh(0), 3), make_state_dict(EpochState(0), whole.part, whole.fields.fields)
    assert of_two["nodes"] == 2
    for state, schedule, message in (
        (of_two, three.on(0, setup), "affinity was '2 nodes', is '3 nodes'"),
        (two.fresh(1), three.on(0, setup), "affinity was '2 nodes', is '3 nodes'"),
        (of_two, whole, "affinity was '2 nodes', is None"),
        (of_one, three.on(0, setup), "affinity was None, is '3 nodes'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_state_dict(state, schedule.part, schedule.fields.fields, any_mix=True)
    part = two.on(1, setup).part
    with pytest.raises(ConfigError, match=r"the state is damaged: .*nodes = 3, must be 2"):
        read_state_dict(of_two | {"nodes": 3}, part, whole.fields.fields, any_mix=True)


def test_an_epoch_that_was_begun_on_other_nodes_is_not_continued() -> None:
    """As when a process group is made anew with other ranks, between two passes of one dataset."""
    planned, setup = Planned(60, 2, shuffle=True), Setup(1, 1, 4)
    schedule = planned.on(0, setup)
    settled = schedule.settle(EpochState(0), Consumer())
    with pytest.raises(ConfigError, match="dealt to 2 nodes, and cannot be continued with 1"):
        planned.schedule.settle(settled, Consumer())


def test_runs_of_whole_blocks_are_not_dealt() -> None:
    schedule = Planned(60, 2).schedule.with_options(whole_blocks=True)
    with pytest.raises(ConfigError, match="runs of whole blocks cannot be dealt to nodes"):
        schedule.for_node(0, 2)

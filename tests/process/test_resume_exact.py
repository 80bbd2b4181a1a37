"""A run that is resumed with the same ranks, workers and batch size delivers the batches of a run that never stopped.

Most tests ask the plan alone, for every rank and worker, and put batches together as torch's DataLoader does: worker 0
first, then the others in turn. So thousands of stopping points are cheap, and nothing is read.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.support.examples import slow
from tests.support.flat import iterable_dataset
from tests.support.ranks import take
from tests.support.shares import rank_batches, unshuffled_order
from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.base.native import core
from zarrfeed.compat import zarrdataset
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, make_state_dict, read_state_dict
from zarrfeed.plan.shares.partition import Consumer

Int64: TypeAlias = npt.NDArray[np.int64]
State: TypeAlias = dict[str, Any]

N = 97  # a prime

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@dataclass(frozen=True)
class Setup:
    """What must stay the same for the batches to stay the same."""

    world_size: int
    num_workers: int
    batch_size: int | None
    even: str = "off"
    drop_last: bool = False


setups = st.builds(
    Setup,
    world_size=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    batch_size=st.none() | st.integers(1, 9),
    even=st.sampled_from(["off", "drop", "repeat"]),
    drop_last=st.booleans(),
)


class Planned:
    """The runs of a dataset as its plans say, without reading."""

    def __init__(self, store: str, **options: Any) -> None:
        if "shuffle_buffer" in options:
            self.schedule = zarrdataset.ZarrIterableDataset(samples=store, targets=None, **options).session.schedule
        else:
            self.schedule = iterable_dataset(store, rank=0, world_size=1, **options).session.schedule

    def schedule_of(self, setup: Setup) -> Schedule:
        even: Any = setup.even
        return self.schedule.with_options(batch_size=setup.batch_size, even=even, drop_last=setup.drop_last)

    def run(self, setup: Setup, state: State) -> list[list[list[int]]]:
        """Return the batches of every rank, in the order of a DataLoader, from a state on."""
        return [self._rank(setup, state, rank) for rank in range(setup.world_size)]

    def saved(self, setup: Setup, state: State, batches: int) -> State:
        """Return the state after some more batches of a run that began in `state`."""
        schedule, begin = self._read(setup, state)
        cursor = Cursor.at(schedule, begin, Consumer(0, setup.world_size, 0, setup.num_workers), in_worker=False)
        cursor.delivered += batches
        made = make_state_dict(cursor.state(), schedule.part, schedule.fields.fields)
        text = json.dumps(made)
        assert len(text) < 2000, "a small dict"
        read_back: State = json.loads(text)
        return read_back

    def fresh(self, epoch: int) -> State:
        return make_state_dict(EpochState(epoch), self.schedule.part, self.schedule.fields.fields)

    def sample_order(self, setup: Setup, state: State) -> Int64:
        """Return the whole order of the epoch that a run reads."""
        schedule, begin = self._read(setup, state)
        order = schedule.order_of(schedule.settle(begin, Consumer(0, setup.world_size, 0, setup.num_workers)))
        samples: Int64 = core.sample_order(order.plan(begin.epoch).to_core())
        return samples

    def _rank(self, setup: Setup, state: State, rank: int) -> list[list[int]]:
        schedule, begin = self._read(setup, state)
        size = setup.batch_size or 1
        shares = []
        for worker in range(setup.num_workers):
            consumer = Consumer(rank, setup.world_size, worker, setup.num_workers)
            plan = schedule.reading(schedule.settle(begin, consumer), consumer)
            samples = core.sample_order(plan.to_core()).tolist()
            shares.append([samples[i : i + size] for i in range(0, len(samples), size)])
        return [batch for turn in itertools.zip_longest(*shares) for batch in turn if batch is not None]

    def _read(self, setup: Setup, state: State) -> tuple[Schedule, EpochState]:
        schedule = self.schedule_of(setup)
        return schedule, read_state_dict(state, schedule.part, schedule.fields.fields)


ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "seed": 5, "lanes": 6},
    "mixed": {"shuffle": True, "seed": 5, "lanes": 4, "mix": 3},
    "in order": {},
    "windows": {"shuffle": True, "seed": 5, "lanes": 6, "offsets": (0, 2)},
    "selected": {"shuffle": True, "seed": 5, "lanes": 6, "select": list(range(3, 90, 2))},
}


#: Those of `compat` whose consumers have runs of whole chunks.
RUNS: dict[str, dict[str, Any]] = {
    "runs in order": {"shuffle_chunks": False, "shuffle_buffer": False},
    "runs of shuffled chunks": {"chunks_shuffle_seed": 5, "shuffle_buffer": False},
    "runs of some chunks": {"chunks_shuffle_seed": 5, "shuffle_buffer": False, "selected_chunk_indexes": [1, 4, 9, -1]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("exact") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    return path


@pytest.fixture(scope="module", params=ORDERS)
def planned(store: str, request: pytest.FixtureRequest) -> Planned:
    return Planned(store, **ORDERS[request.param])


@pytest.fixture(scope="module", params=RUNS)
def planned_runs(store: str, request: pytest.FixtureRequest) -> Planned:
    return Planned(store, **RUNS[request.param])


@pytest.fixture(scope="module", params=[*ORDERS, *RUNS])
def planned_any(store: str, request: pytest.FixtureRequest) -> Planned:
    return Planned(store, **(ORDERS | RUNS)[request.param])


@given(setup=setups, epoch=st.integers(0, 3), data=st.data())
def test_a_resumed_run_delivers_the_batches_of_one_that_never_stopped(
    planned_any: Planned, setup: Setup, epoch: int, data: st.DataObject
) -> None:
    """Stopped once, and stopped again before the end: on every rank the same batches in the same order."""
    planned = planned_any
    fresh = planned.fresh(epoch)
    whole = planned.run(setup, fresh)
    stop = data.draw(st.integers(0, max(0, len(whole[0]) - 1)))
    state = planned.saved(setup, fresh, stop)
    assert planned.run(setup, state) == [batches[stop:] for batches in whole]
    again = data.draw(st.integers(stop, max(stop, len(whole[0]) - 1)))
    state = planned.saved(setup, state, again - stop)
    assert planned.run(setup, state) == [batches[again:] for batches in whole]


def test_every_stopping_point_of_two_workers(planned_any: Planned) -> None:
    """Odd numbers of batches are those that lie between the batches of the two workers."""
    planned, setup = planned_any, Setup(1, 2, 7)
    fresh = planned.fresh(0)
    whole = planned.run(setup, fresh)
    for stop in range(len(whole[0])):
        assert planned.run(setup, planned.saved(setup, fresh, stop)) == [whole[0][stop:]]


def test_a_batch_that_rank_0_alone_has_is_not_lost_by_a_stop_before_it(planned: Planned) -> None:
    """With even="off" a rank has all of its batches before the epoch ends."""
    fresh = planned.fresh(0)
    for batch_size in (1, 2, 3, 5, 9):
        for world_size in (1, 2, 3):
            setup = Setup(world_size, 1, batch_size)
            whole = planned.run(setup, fresh)
            stop = len(whole[0]) - 1
            message = f"{setup}: {[len(batches) for batches in whole]} batches"
            assert planned.run(setup, planned.saved(setup, fresh, stop)) == [each[stop:] for each in whole], message


@given(legs=st.lists(st.tuples(st.sampled_from(["same", "other"]), setups, st.integers(0, 5)), max_size=6))
def test_after_any_chain_of_changes_what_is_left_is_numbered_as_the_rule_says(
    planned: Planned, legs: list[tuple[str, Setup, int]]
) -> None:
    """A leg with the setup of the one before continues its batches; another setup shares out anew what is left."""
    setup, state = Setup(2, 2, 3), planned.fresh(1)
    epoch_order = planned.sample_order(setup, state)
    expected = planned.run(setup, state)
    state = planned.saved(setup, state, 1)  # from here on the order is settled
    used = [sample for batches in expected for sample in batches[0]]
    expected = [batches[1:] for batches in expected]
    for kind, other, steps in legs:
        other = replace(other, batch_size=other.batch_size or 1)
        if kind == "other" and other != setup:
            setup = other
            left = epoch_order[~np.isin(epoch_order, used)]
            expected = [
                [
                    batch.tolist()
                    for batch in rank_batches(
                        left,
                        rank=rank,
                        world_size=setup.world_size,
                        num_workers=setup.num_workers,
                        batch_size=setup.batch_size or 1,
                        even=setup.even,
                        drop_last=setup.drop_last,
                    )
                ]
                for rank in range(setup.world_size)
            ]
        assert planned.run(setup, state) == expected
        if steps >= min(map(len, expected)):  # the epoch would end: nothing of it would be left
            return
        state = planned.saved(setup, state, steps)
        used += [sample for batches in expected for batch in batches[:steps] for sample in batch]
        expected = [batches[steps:] for batches in expected]


@given(legs=st.lists(st.tuples(setups, st.integers(0, 5)), min_size=1, max_size=6), epoch=st.integers(0, 3))
def test_runs_of_whole_chunks_deliver_each_sample_once_after_any_chain_of_changes(
    planned_runs: Planned, legs: list[tuple[Setup, int]], epoch: int
) -> None:
    """The last leg runs to the end: nothing comes twice, and fewer than it has ranks are left out."""
    planned, state = planned_runs, planned_runs.fresh(epoch)
    used: list[int] = []
    for setup, steps in legs[:-1]:
        batches = planned.run(setup, state)
        assert len({len(of_rank) for of_rank in batches}) == 1, "ranks have as many batches"
        if steps >= len(batches[0]):
            break
        state = planned.saved(setup, state, steps)
        used += [sample for of_rank in batches for batch in of_rank[:steps] for sample in batch]
    last = replace(legs[-1][0], drop_last=False)
    delivered = [[s for batch in of_rank for s in batch] for of_rank in planned.run(last, state)]
    assert len({len(samples) for samples in delivered}) == 1, "ranks have as many samples"
    together = used + [sample for samples in delivered for sample in samples]
    assert len(set(together)) == len(together)
    missing = set(planned.sample_order(last, state).tolist()) - set(together)
    assert len(missing) < last.world_size


def test_other_settings_are_another_division(store: str) -> None:
    """Each of the five alone makes a renumbering, of exactly what is left."""
    planned, setup = Planned(store, shuffle=True, seed=5, lanes=6), Setup(2, 2, 4)
    fresh = planned.fresh(0)
    state = planned.saved(setup, fresh, 5)
    left = {s for batches in planned.run(setup, state) for batch in batches for s in batch}
    changes: list[dict[str, Any]] = [
        *({"world_size": 3}, {"num_workers": 3}, {"batch_size": 5}, {"even": "repeat"}, {"drop_last": True})
    ]
    for change in changes:
        other = replace(setup, **change)
        got = [s for batches in planned.run(other, state) for batch in batches for s in batch]
        assert set(got) <= left
        assert set(got) == left or "drop_last" in change
        assert "run" not in planned.saved(other, state, 0), change


# ---- old states


#: The state that version 1 of `compat` saved after 3 batches of 7 from 2 workers: its order has a lane a worker.
OLD_STATE_OF_COMPAT: State = json.loads(
    """{"version": 1, "epoch": 0, "used": [[14, 1, 2, 7]], "lanes": 2, "first_block": 0, "position": 21,
    "order": {"num_samples": 97, "block_rows": 4, "blocks": null, "select": null, "shuffle": false, "seed": 0, "mix": 1,
    "shuffle_rows": false, "row_seed": 7}, "layout": {"samples": [97, 3, "int64"]}}"""
)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_of_version_1_of_compat_keeps_the_order_that_it_has(store: str, num_workers: int) -> None:
    planned = Planned(store, **RUNS["runs in order"], buffer_shuffle_seed=7)
    (batches,) = planned.run(Setup(1, num_workers, 7), OLD_STATE_OF_COMPAT)
    epoch_order = unshuffled_order(N, 2)
    assert sorted(s for batch in batches for s in batch) == sorted([*epoch_order[15:28:2], *epoch_order[28:]])


#: What version 1 saved after 3 batches of 7 from 2 workers, with the lanes of "shuffled".
OLD_STATE: State = json.loads(
    """{"version": 1, "epoch": 1, "used": [[14, 1, 2, 7]], "lanes": 6, "first_block": 0, "position": 21,
    "order": {"num_samples": 97, "block_rows": 4, "blocks": null, "select": null, "shuffle": true, "seed": 5, "mix": 1,
    "shuffle_rows": null, "row_seed": null}, "layout": {"samples": [97, 3, "int64"]}}"""
)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_of_version_1_is_read_as_version_1_read_it(store: str, num_workers: int) -> None:
    """It does not say who reads how: what is left is numbered anew, and nothing comes twice or not at all."""
    planned, setup = Planned(store, **ORDERS["shuffled"]), Setup(1, num_workers, 7)
    epoch_order = planned.sample_order(setup, OLD_STATE)
    left = np.concatenate([epoch_order[15:28:2], epoch_order[28:]])
    expected = rank_batches(
        left, rank=0, world_size=1, num_workers=num_workers, batch_size=7, even="off", drop_last=False
    )
    assert planned.run(setup, OLD_STATE) == [[batch.tolist() for batch in expected]]
    resumed = planned.saved(setup, OLD_STATE, 2)
    assert resumed["used"] == OLD_STATE["used"], "the run that is saved now goes on from there"
    assert planned.run(setup, resumed) == [[batch.tolist() for batch in expected[2:]]]


def test_the_state_says_how_the_run_shared_out(store: str) -> None:
    planned = Planned(store, **ORDERS["shuffled"])
    state = planned.saved(Setup(2, 3, 4, "drop"), planned.fresh(0), 5)
    assert (state["version"], state["used"], state["position"]) == (2, [], 40)
    assert state["run"] == {
        "length": 97,
        "world_size": 2,
        "num_workers": 3,
        "batch_size": 4,
        "even": "drop",
        "drop_last": False,
        "batches": 5,
    }


@pytest.mark.parametrize(
    "damage",
    [
        {"length": 98},
        {"length": 10},
        {"world_size": 0},
        {"num_workers": True},
        {"batch_size": "4"},
        {"even": "odd"},
        {"drop_last": 0},
        {"batches": -1},
        {"batches": 1000},
        {"more": 1},
    ],
)
def test_a_damaged_run_is_refused(store: str, damage: dict[str, Any]) -> None:
    planned, setup = Planned(store, **ORDERS["shuffled"]), Setup(1, 2, 4)
    state = planned.saved(setup, planned.fresh(0), 5)
    with pytest.raises(ValueError, match="damaged"):
        planned.run(setup, {**state, "run": {**state["run"], **damage}})
    for name in state["run"]:
        lacking = {key: value for key, value in state["run"].items() if key != name}
        with pytest.raises(ValueError, match="damaged"):
            planned.run(setup, {**state, "run": lacking})


# ---- real workers


def dataset_of(store: str, **options: Any) -> ZarrIterableDataset:
    given_options: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": 6, "batch_size": 7, "num_threads": 1}
    return iterable_dataset(store, **{**given_options, **options}, return_index=True)


def loader_of(store: str, num_workers: int = 2, *, persistent: bool = False, **options: Any) -> ZarrDataLoader:
    return ZarrDataLoader(
        dataset_of(store, **options),
        num_workers=num_workers,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        timeout=120,
    )


def lists(batches: Iterator[Any], count: int | None = None) -> list[list[int]]:
    return [batch.tolist() for batch in take(batches, count)]


@pytest.mark.parametrize(
    ("num_workers", "persistent", "options"),
    [
        (3, True, {}),
        slow(2, True, {"shuffle": False, "lanes": None}),
        (2, False, {"rank": 1, "world_size": 2, "even": "repeat"}),
        slow(3, False, {"rank": 1, "world_size": 2, "drop_last": True}),
    ],
)
def test_workers_deliver_the_very_same_batches_and_then_the_next_epoch(
    store: str, num_workers: int, persistent: bool, options: dict[str, Any]
) -> None:
    whole_run = loader_of(store, num_workers, persistent=True, **options)  # its workers start once
    whole = [lists(iter(whole_run)) for _ in range(3)]
    assert whole[0] != whole[1] or options.get("shuffle") is False
    saving = loader_of(store, num_workers, persistent=persistent, **options)
    lists(iter(saving))
    for steps in (1, {2: 4, 3: 3}[num_workers]):  # between the batches of the workers, and where all had as many
        saving.set_epoch(1)
        feed = iter(saving)
        assert lists(feed, steps) == whole[1][:steps]
        state = json.loads(json.dumps(saving.state_dict()))
        del feed
        resumed = loader_of(store, num_workers, persistent=persistent, **options)
        resumed.load_state_dict(state)
        feed = iter(resumed)
        assert lists(feed, 1) == whole[1][steps : steps + 1]
        state = resumed.state_dict()
        del feed
        resumed.load_state_dict(state)
        assert lists(iter(resumed)) == whole[1][steps + 1 :]
        assert lists(iter(resumed)) == whole[2]


def test_a_plain_data_loader_continues_the_state_of_ours(store: str) -> None:
    loader = loader_of(store)
    whole = lists(iter(loader_of(store)))
    feed = iter(loader)
    lists(feed, 3)
    dataset = dataset_of(store)
    dataset.load_state_dict(loader.state_dict())
    plain = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120)
    assert lists(iter(plain)) == whole[3:]


def test_what_is_repeated_at_the_end_does_not_depend_on_a_stop(store: str) -> None:
    """Ranks are filled up with the first samples of the order, also where these were delivered before the stop."""
    whole = lists(iter(dataset_of(store, rank=2, world_size=3, even="repeat")))
    dataset = dataset_of(store, rank=2, world_size=3, even="repeat")
    feed = iter(dataset)
    lists(feed, 2)
    resumed = dataset_of(store, rank=2, world_size=3, even="repeat")
    resumed.load_state_dict(dataset.state_dict())
    assert lists(iter(resumed)) == whole[2:]


def test_walks_of_real_runs_with_the_same_setup(store: str) -> None:
    """Saved and resumed after random numbers of batches until the epoch ends: its batches, each once, in order."""
    rng = random.Random(3)
    whole = lists(iter(loader_of(store, batch_size=3)))
    seen: list[list[int]] = []
    state: State | None = None
    while len(seen) < len(whole):
        loader = loader_of(store, batch_size=3)
        if state is not None:
            loader.load_state_dict(state)
        feed = iter(loader)
        seen += lists(feed, min(rng.randint(1, 9), len(whole) - len(seen)))
        state = loader.state_dict()
        del feed
    assert seen == whole

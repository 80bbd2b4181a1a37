"""States: what they hold, and that one which does not fit is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, MemoryBudgetError, ZarrIterableDataset

N = 103


@pytest.fixture
def store(tmp_path: Path) -> str:
    array = zarr.create_array(tmp_path / "x", shape=(N, 2), chunks=(7, 2), dtype="i8")
    array[:] = np.arange(N)[:, None].repeat(2, 1)
    return str(tmp_path / "x")


def make(store: str, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(store, **{"batch_size": 8, "shuffle": True, "seed": 1} | options)


def saved(store: str, batches: int = 3, **options: Any) -> dict[str, Any]:
    dataset = make(store, **options)
    running = iter(dataset)
    for _ in range(batches):
        next(running)
    state: dict[str, Any] = json.loads(json.dumps(dataset.state_dict()))
    return state


def indices(dataset: ZarrIterableDataset) -> list[int]:
    return [int(v) for batch in dataset for v in batch[:, 0]]


def test_a_state_is_small_and_says_where_the_epoch_stands(store: str) -> None:
    state = saved(store)
    assert (state["epoch"], state["position"], state["order"]["seed"]) == (0, 24, 1)
    assert len(json.dumps(state)) < 1000


def test_what_was_delivered_counts_and_not_what_was_decoded_ahead(store: str) -> None:
    dataset = make(store)
    assert dataset.state_dict()["position"] == 0
    running = iter(dataset)
    for batches in range(1, len(dataset)):
        next(running)
        assert dataset.state_dict()["position"] == 8 * batches


def test_at_its_end_an_epoch_has_become_the_next(store: str) -> None:
    dataset = make(store)
    indices(dataset)
    assert dataset.state_dict() == saved(store, 0) | {"epoch": 1}
    resumed = make(store)
    resumed.load_state_dict(dataset.state_dict())
    assert indices(resumed) == indices(dataset)


def test_a_pass_that_was_left_can_be_resumed_by_the_same_dataset(store: str) -> None:
    dataset = make(store)
    first = [int(v) for batch in islice(dataset, 4) for v in batch[:, 0]]
    dataset.load_state_dict(dataset.state_dict())
    assert first + indices(dataset) == dataset.sample_order(0).tolist()


def test_set_epoch_discards_the_position(store: str) -> None:
    dataset = make(store)
    next(iter(dataset))
    dataset.set_epoch(5)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["position"]) == (5, 0)
    assert indices(dataset) == dataset.sample_order(5).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 2}, "seed was 1, is 2"),
        ({"shuffle": False}, "shuffle was True, is False"),
        ({"mix": 3}, "mix was 2, is 3"),
        ({"blocks": [0, 1, 2]}, r"blocks was None, is '3 \("),
    ],
)
def test_a_state_of_another_order_is_refused_saying_what_differs(
    store: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(store, **options).load_state_dict(saved(store))


def test_another_selection_of_as_many_blocks_is_another_order(store: str) -> None:
    state = saved(store, blocks=[0, 1, 2])
    make(store, blocks=[2, 1, 0]).load_state_dict(state)
    with pytest.raises(ConfigError, match="blocks was"):
        make(store, blocks=[0, 1, 3]).load_state_dict(state)


def test_a_state_of_another_array_is_refused_saying_what_differs(store: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "other", shape=(N, 3), chunks=(7, 3), dtype="f4")
    with pytest.raises(ConfigError, match=r"samples was \[103, 2, 'int64'\], is \[103, 3, 'float32'\]"):
        make(str(tmp_path / "other")).load_state_dict(saved(store))


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s | {"version": 0},
        lambda _: None,
        lambda _: [],
        lambda s: s | {"epoch": -1},
        lambda s: s | {"epoch": 1.5},
        lambda s: s | {"epoch": True},
        lambda s: {k: v for k, v in s.items() if k != "epoch"},
        lambda s: s | {"order": None},
        lambda s: s | {"layout": {}},
        lambda s: s | {"used": [[24, 0, 1]]},
        lambda s: s | {"used": [[25, 0, 1, 0]]},
        lambda s: s | {"position": 16},
        lambda s: s | {"used": [[1000, 0, 1, 0]], "position": 1000},
        lambda s: s | {"used": "24"},
        lambda s: s | {"position": s["position"] + 1},
        lambda s: s | {"position": 0},
        lambda s: s | {"lanes": 0},
        lambda s: s | {"lanes": 104},
        lambda s: s | {"first_block": 15},
        lambda s: s | {"worker": {"rank": 0}},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(store: str, damage: Callable[[Any], Any]) -> None:
    dataset = make(store)
    before = dataset.state_dict()
    with pytest.raises(ConfigError):
        dataset.load_state_dict(damage(saved(store)))
    assert dataset.state_dict() == before


@pytest.mark.parametrize(
    "sources", [[[2, 1, 1]], [[2, 1, 1]] * 3, [[101, 1, 1], [2, 1, 1]], [[2, 1, 1], [2, 40, 1]], []]
)
def test_a_mixture_state_with_sources_that_no_order_has_is_refused(sources: list[list[int]]) -> None:
    """Lanes of sources that were read as they stand would make another order of the rest, without a word."""
    data = zarrfeed.mix([np.arange(100.0), np.arange(60.0)], weights=[2, 1], stop="all")
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True)
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    assert state["sources"] == [[2, 1, 1], [2, 1, 1]]
    again = ZarrIterableDataset(data, batch_size=4, shuffle=True)
    before = again.state_dict()
    with pytest.raises(ConfigError, match=r"sources = \[.*\] of a mixture of 2"):
        again.load_state_dict(state | {"sources": sources})
    assert again.state_dict() == before
    again.load_state_dict(state)


def test_lanes_of_a_state_that_have_no_room_are_refused(store: str) -> None:
    state = saved(store, lanes=64)
    with pytest.raises(MemoryBudgetError, match="lanes = 64"):
        make(store, lanes=1, memory_budget="1KiB", num_threads=1, batch_size=1).load_state_dict(state)


def test_the_lanes_of_a_state_serve_its_epoch_and_no_other(store: str) -> None:
    """They follow from the memory budget, which may be another where the run goes on."""
    resumed = make(store, lanes=2)
    resumed.load_state_dict(saved(store, lanes=5))
    assert indices(resumed) == make(store, lanes=5).sample_order(0)[24:].tolist()
    assert indices(resumed) == make(store, lanes=2).sample_order(1).tolist()


def test_a_state_can_be_read_at_any_version_of_the_batch_size(store: str) -> None:
    order = make(store).sample_order(0).tolist()
    for batch_size in (1, 5, 64, 1000, None):
        resumed = make(store, batch_size=batch_size)
        resumed.load_state_dict(saved(store))
        rows = [row for item in resumed for row in item.reshape(-1, 2)[:, 0].tolist()]
        assert rows == order[24:]


def test_a_worker_share_is_no_state_for_another_consumer(store: str) -> None:
    dataset = make(store)
    state = saved(store) | {
        "worker": {"rank": 0, "world_size": 1, "worker": 1, "num_workers": 2, "batch_size": 8, "batches": 1}
    }
    dataset.load_state_dict(state)
    with pytest.raises(ConfigError, match="a worker can load only its own state"):
        next(iter(dataset))


def test_an_order_is_described_by_all_that_an_order_depends_on(store: str) -> None:
    """A field of Order that is missing in the description could change unnoticed between save and load."""
    described = set(saved(store)["order"]) - {"blocks", "select"} | {
        *("lanes", "strip", "combs", "first_block", "short_last", "selection", "edges", "slabs")
    }  # a selection, whose digest is in "select", has the blocks of edges; "slab_rows" of a state says the slabs
    assert described == set(make(store).session.schedule.order.__dataclass_fields__)
    assert replace(make(store).session.schedule.order, lanes=1).lanes == 1

"""A kind of order answers for itself: one that overrides its sequence alone is planned, settled, saved and resumed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT
from zarrfeed._core import sample_order
from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.order import EpochPlan, Order, make_order
from zarrfeed.plan.order.order_state import OrderState, OwnState
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState, make_state_dict, read_state_dict
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.spec.fields.field import FieldSet, IndexField

N, ROWS = 103, 8


@dataclass(frozen=True)
class Reversed(Order):
    """Blocks in the opposite of their order."""

    def held_indices(self, epoch: int) -> Int64:
        return super().held_indices(epoch)[::-1].copy()


@dataclass(frozen=True)
class Turn:
    """Which way round an epoch is read."""

    backward: bool
    lasts: bool

    def to_json(self) -> dict[str, Any]:
        return {"turn": [self.backward, self.lasts]}


@dataclass(frozen=True)
class Turned(Reversed):
    """A kind with a state of its own."""

    lasts: bool = True

    def settle(self, state: Any, readers: Any) -> Any:
        return super().settle(state if state.own else replace(state, own=Turn(True, self.lasts)), readers)

    def own_in(self, json: Any) -> OwnState | None:
        return Turn(*json["turn"]) if "turn" in json else None

    def check_own(self, state: OrderState) -> None:
        if state.lanes is not None and not isinstance(state.own, Turn):
            raise ValueError("turn")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "turned": True}


def schedule_of(kind: type[Order], *, shuffle: bool, lanes: int | None = None) -> Schedule:
    plain = make_order(N, ROWS, None, shuffle=shuffle, seed=4, lanes=lanes, mix=None)
    fields = FieldSet((IndexField(N),), (None,), None, ROWS)
    order = kind(N, ROWS, shuffle=shuffle, seed=4, lanes=plain.lanes)
    return Schedule.make(fields, order, ScheduleOptions(lanes=lanes, batch_size=5))


def samples_of(schedule: Schedule, state: EpochState, rank_info: RankInfo | None = None) -> list[int]:
    plan = schedule.reading(state, (rank_info or RankInfo()).consumer())
    return list(sample_order(plan.to_core()).tolist())


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_new_kind_is_read_as_its_own_sequence_says_without_a_change_of_the_planner(shuffle: bool) -> None:
    schedule, plain = schedule_of(Reversed, shuffle=shuffle, lanes=1), schedule_of(Order, shuffle=shuffle, lanes=1)
    state = schedule.settle(EpochState(0), RankInfo().consumer())
    assert state.combs == 0  # only the plain kind is unfolded
    assert isinstance(schedule.reading(state, RankInfo().consumer()), EpochPlan)
    found, before = samples_of(schedule, state), samples_of(plain, plain.settle(EpochState(0), RankInfo().consumer()))
    blocks = [np.unique(np.array(one) // ROWS, return_index=True) for one in (found, before)]
    sequence = [block[np.argsort(first)].tolist() for block, first in blocks]
    assert sequence[0] == sequence[1][::-1]
    assert sorted(found) == list(range(N))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [Reversed, Turned])
def test_a_new_kind_is_shared_by_ranks_and_resumed(kind: type[Order], shuffle: bool) -> None:
    schedule = schedule_of(kind, shuffle=shuffle)
    of_all: list[int] = []
    for rank in range(3):
        consumer = RankInfo(rank, 3).consumer()
        cursor = Cursor.at(schedule, EpochState(2), consumer, in_worker=False)
        whole = samples_of(schedule, cursor.begin, RankInfo(rank, 3))
        cursor.delivered = 2
        saved = json.loads(json.dumps(make_state_dict(cursor.state(), schedule.part, schedule.fields.fields)))
        loaded = read_state_dict(saved, schedule.part, schedule.fields.fields)
        assert loaded == cursor.state()
        assert samples_of(schedule, schedule.settle(loaded, consumer), RankInfo(rank, 3)) == whole[10:]
        of_all += whole
    assert len(of_all) == len(set(of_all)) == N - N % 3


@pytest.mark.parametrize("lasts", [False, True])
def test_what_a_kind_keeps_lasts_as_long_as_it_says(lasts: bool) -> None:
    state = EpochState(3, lanes=2, own=Turn(True, lasts))
    assert state.following() == EpochState(4, own=Turn(True, lasts) if lasts else None)
    assert state.to_json()["turn"] == [True, lasts]


def test_a_state_without_what_its_kind_needs_is_refused() -> None:
    schedule = schedule_of(Turned, shuffle=True)
    state = schedule.settle(EpochState(0), RankInfo().consumer())
    saved = make_state_dict(state, schedule.part, schedule.fields.fields)
    assert read_state_dict(saved, schedule.part, schedule.fields.fields) == state
    del saved["turn"]
    with pytest.raises(ConfigError, match=r"the state is damaged: ValueError\('turn'\)"):
        read_state_dict(saved, schedule.part, schedule.fields.fields)
    other = schedule_of(Reversed, shuffle=True)
    with pytest.raises(ConfigError, match="turned was True, is None"):
        read_state_dict(saved, other.part, other.fields.fields)


def test_plans_of_a_kind_that_lists_its_groups_take_memory() -> None:
    orders = [schedule_of(kind, shuffle=True).order for kind in (Order, Reversed)]
    assert [one.groups_bytes(are_shared=False) for one in orders] == [0, 230 * orders[1].num_blocks]
    assert orders[0].groups_bytes(are_shared=True) == 460 * orders[0].num_blocks


def test_hardly_anybody_asks_an_order_for_its_class() -> None:
    asks = re.compile(r"isinstance\([^)]*Order\b|type\(\w*order\) is")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in path.read_text().splitlines()
        if asks.search(line)
    ]
    assert len(found) <= 3, found

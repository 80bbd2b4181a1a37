"""Loaders over one dataset, read, left, saved, resumed, interrupted and forked in any order.

The model knows which epoch each pass reads and how many batches it handed out. Batches are compared with the order of
a fresh dataset, and the state of every loader with the model after every step.
"""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from tests.support.flat import iterable_dataset
from tests.support.late_device import LateDevice
from tests.unit.torch.device.test_prefetch import on
from zarrfeed import ZarrDataLoader
from zarrfeed.device import prefetch
from zarrfeed.engine.reader import Reader

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"), pytest.mark.timeout(600)]


@dataclass
class Pass:
    """A pass, as the model knows it."""

    loader: int
    running: Any
    epoch: int | None = None
    begin: int = 0
    got: list[int] = field(default_factory=list)
    turn: int = 0
    is_closed: bool = False

    @property
    def delivered(self) -> int:
        return self.begin + len(self.got) // BATCH

    @property
    def under_way(self) -> bool:
        return self.epoch is not None and not self.is_closed and self.delivered < BATCHES


BATCH, BATCHES = 4, 5
N = BATCH * BATCHES
#: More forks of a run find nothing else, and are dear: the process has hundreds of MB.
MOST_FORKS = 4


def make() -> Any:
    return iterable_dataset(np.arange(N), batch_size=BATCH, shuffle=True, seed=3, num_threads=1)


class Interleavings(RuleBasedStateMachine):
    """Loaders over one dataset, of which any may be read, left, saved, resumed, interrupted or forked at any time."""

    passes = Bundle("passes")

    def __init__(self) -> None:
        super().__init__()
        self.dataset = make()
        self.order = functools.cache(lambda epoch: make().sample_order(epoch).tolist())
        own = ZarrDataLoader(self.dataset)
        self.loaders: list[Any] = [own, ZarrDataLoader(self.dataset), on(LateDevice(), ZarrDataLoader(self.dataset))]
        self.loaders.append(prefetch(self.dataset, "cpu"))
        self.all: list[Pass] = []
        self.turns = itertools.count(1)
        self.next_epoch = 0
        self.named = False
        self.claims: dict[int, tuple[int, int]] = {}
        self.since = [0] * len(self.loaders)
        self.forks = 0

    @rule(target=passes, loader=st.integers(0, 3))
    def start(self, loader: int) -> Pass:
        made = Pass(loader, iter(self.loaders[loader]))
        self.all.append(made)
        return made

    @rule(one=passes, count=st.integers(1, 4))
    def read(self, one: Pass, count: int) -> None:
        for _ in range(count):
            if self._is_over(one):
                with pytest.raises(StopIteration):
                    next(one.running)
                return
            self._begin(one)
            batch = next(one.running)
            device = getattr(self.loaders[one.loader], "_streams", None)
            if device is not None:
                device.run(device.given)
            one.got += batch.tolist()
            one.turn = next(self.turns)
            assert one.epoch is not None
            assert one.got == self.order(one.epoch)[one.begin * BATCH : one.delivered * BATCH]

    @rule(one=passes)
    def leave(self, one: Pass) -> None:
        one.running.close()
        one.is_closed = True

    @rule(one=passes)
    def interrupt(self, one: Pass) -> None:
        if self._is_over(one) or one.loader == 2:  # the thread of a device may have all batches already
            return
        self._begin(one)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reader, "next", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(one.running)
        one.is_closed = True

    @rule(epoch=st.integers(0, 9), loader=st.integers(0, 2))
    def tell_loader(self, epoch: int, loader: int) -> None:
        self.loaders[loader].set_epoch(epoch)
        upcoming = self.claims.get(loader, (self.next_epoch, 0))
        if upcoming[0] != epoch or not upcoming[1]:
            self._claim(loader, epoch, 0)

    @rule(epoch=st.integers(0, 9))
    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)
        claimed = next(reversed(self.claims.values()), None)
        if claimed is not None and claimed[0] == epoch and claimed[1]:
            return
        self.claims.clear()
        self.next_epoch, self.named = epoch, True

    @rule(saved=st.integers(0, 2), loaded=st.integers(0, 2))
    def resume(self, saved: int, loaded: int) -> None:
        state = self.loaders[saved].state_dict()
        epoch, batches = self._expected(saved)
        self.loaders[loaded].load_state_dict(state)
        self._claim(loaded, epoch, batches)
        self.since[loaded] = next(self.turns)

    @precondition(lambda self: self.forks < MOST_FORKS)
    @rule()
    def fork(self) -> None:
        self.forks += 1
        child = os.fork()
        if child == 0:
            os._exit(0 if sorted(int(i) for batch in self.loaders[3] for i in batch) == list(range(N)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    @invariant()
    def states_are_those_of_their_loaders(self) -> None:
        for loader in range(3):
            state = self.loaders[loader].state_dict()
            epoch, batches = self._expected(loader)
            assert (state["epoch"], state["position"]) == (epoch, batches * BATCH), loader

    def _is_over(self, one: Pass) -> bool:
        return one.is_closed or (one.epoch is not None and one.delivered == BATCHES)

    def _begin(self, one: Pass) -> None:
        if one.epoch is not None:
            return
        others = self.next_epoch if one.loader in self.claims else 0
        one.epoch, one.begin = self.claims.pop(one.loader, (self.next_epoch, 0))
        self.next_epoch, self.named = max(one.epoch + 1, others), False

    def _claim(self, loader: int, epoch: int, batches: int) -> None:
        self.claims.pop(loader, None)
        self.claims[loader] = epoch, batches  # the last one
        self.next_epoch, self.named = epoch, False

    def _expected(self, loader: int) -> tuple[int, int]:
        mine = [one for one in self.all if one.loader == loader and one.turn > self.since[loader]]
        mine.sort(key=lambda one: one.turn)
        counting = (one for one in reversed(mine) if one.under_way and (one is mine[-1] or len(one.got) > BATCH))
        chosen = next(counting, mine[-1] if mine else None)
        if chosen is None or (not chosen.under_way and (self.named or loader in self.claims)):
            return self.claims.get(loader, (self.next_epoch, 0))
        assert chosen.epoch is not None
        return (chosen.epoch + 1, 0) if chosen.delivered == BATCHES else (chosen.epoch, chosen.delivered)

    def teardown(self) -> None:
        self.dataset.close()


def _interrupted(_: Reader) -> None:
    raise KeyboardInterrupt


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=30, stateful_step_count=16, deadline=None)

"""Passes of a `ZarrDataLoader`: two at once, with persistent workers, after an interrupted start, over a subclass."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.support.late_device import LateDevice
from tests.unit.torch.batches.test_pass_positions import BATCH, BATCHES, N, is_whole, make, take, values
from tests.unit.torch.device.test_prefetch import on
from zarrfeed import ZarrDataLoader

#: torch warns where there are more workers than cores.
pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_passes_of_one_loader_are_both_whole(num_workers: int, persistent_workers: bool) -> None:
    loader = ZarrDataLoader(
        make(),
        num_workers=num_workers,
        persistent_workers=persistent_workers and num_workers > 0,
        multiprocessing_context="fork" if num_workers else None,
    )
    for number in (1, 2):
        both = list(zip(loader, loader, strict=True))
        assert is_whole(values(first for first, _ in both))
        assert is_whole(values(second for _, second in both))
        assert loader.state_dict()["epoch"] == 2 * number  # the pass that ended last was begun first
    outer = iter(loader)
    got = take(outer, 5)
    assert is_whole(values(loader))  # a loop within a loop
    assert loader.state_dict()["position"] == 5 * BATCH  # that of the pass under way
    take(iter(loader), 2)  # one that is left
    assert loader.state_dict()["position"] == 5 * BATCH
    assert is_whole(got + values(outer))
    assert is_whole(values(loader))


@pytest.mark.parametrize("wrap", [lambda loader: loader, lambda loader: on(LateDevice(), loader)])
def test_a_look_at_the_data_is_not_the_position_of_a_loader(wrap: Any) -> None:
    loader = wrap(ZarrDataLoader(make()))
    look = iter(loader)
    next(look)
    assert loader.state_dict()["position"] == BATCH
    for number in (2, 3):
        for _ in loader:
            pass
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (number, 0)
    next(look)  # it goes on after all
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 2 * BATCH)


def test_a_copy_of_a_loader_has_no_pass_of_the_original() -> None:
    loader = ZarrDataLoader(make())
    running = iter(loader)
    take(running, 5)
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert (copied.state_dict()["epoch"], copied.state_dict()["position"]) == (1, 0)
        assert is_whole(values(copied))
        assert copied.state_dict()["epoch"] == 2
    assert loader.state_dict()["position"] == 5 * BATCH


def test_persistent_workers_serve_the_next_pass_of_whoever_has_not_asked_for_the_end() -> None:
    """A framework that counts batches never asks, and may still have the iterator."""
    loader = ZarrDataLoader(make(), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    earlier = iter(loader)
    assert is_whole(take(earlier, BATCHES))
    workers = loader._iterator._workers  # type: ignore[union-attr]
    assert is_whole(values(loader))
    assert loader._iterator._workers is workers  # type: ignore[union-attr]
    assert list(earlier) == []


def test_a_loader_whose_start_was_interrupted_reads_a_whole_pass_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for persistent in (False, True):
        loader = ZarrDataLoader(
            make(), num_workers=2, persistent_workers=persistent, multiprocessing_context="fork", prefetch_factor=1
        )
        start = DataLoader.__iter__

        def interrupted(self: Any, start: Any = start) -> Any:
            start(self)
            raise KeyboardInterrupt

        for _ in range(2):
            running = iter(loader)
            with monkeypatch.context() as patch:
                patch.setattr(DataLoader, "__iter__", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(running)
            assert is_whole(values(loader))


def test_a_subclass_with_an_iter_of_its_own_has_a_position_too() -> None:
    base = type(make())

    class Every(base):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                if number % 2 == 0:  # of two batches it hands out one
                    yield batch

    dataset = Every(np.arange(N), batch_size=BATCH)
    for loader in (ZarrDataLoader(dataset), on(LateDevice(), ZarrDataLoader(dataset))):
        dataset.set_epoch(1)
        running = iter(loader)
        for _ in range(3):
            next(running)
        assert loader.state_dict()["position"] == 5 * BATCH
        running.close()  # type: ignore[attr-defined]


def test_a_pass_that_could_not_begin_leaves_persistent_workers_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would ask for the pass that did not begin, and read another epoch than the loader says."""
    dataset = make()
    loader = ZarrDataLoader(dataset, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    assert is_whole(values(loader))
    with monkeypatch.context() as patch:
        patch.setattr(dataset.session, "settle_for_workers", _unreadable)
        with pytest.raises(OSError, match="cannot be listed"):
            list(loader)
    running = iter(loader)
    got = take(running, 5)
    again = ZarrDataLoader(make(), num_workers=2, multiprocessing_context="fork")
    again.load_state_dict(loader.state_dict())
    assert is_whole(got + values(again))


def _unreadable(*_: object) -> None:
    raise OSError("the store cannot be listed")

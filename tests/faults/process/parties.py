"""A row: several loaders that read one dataset at once, some of them left in the middle, some shared by threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process.stores import KINDS, NUM_BATCHES, check, check_epoch, make, write_stores
from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.device import prefetch

_ITERABLE = tuple(kind for kind in KINDS if kind != "access")
#: Of these tries each has DataLoader workers, which take longer.
_WORKERS_EVERY = 3
_JOIN_S = 50.0


class _Party:
    """A loader and the pass that it is in."""

    def __init__(self, loader: Any, *, num_workers: int = 0) -> None:
        self.loader, self.num_workers = loader, num_workers
        self.running: Iterator[Any] = iter(loader)
        self.got: list[npt.NDArray[np.int64]] = []

    @property
    def has_state(self) -> bool:
        """Whether the loader's state goes on with this pass, and not with the next one."""
        return isinstance(self.loader, ZarrDataLoader) and 0 < len(self.got) < NUM_BATCHES

    def take(self) -> bool:
        """Take a batch; at the end check the pass, and return False."""
        batch = next(self.running, None)
        if batch is None:
            check_epoch((), self.got)
            return False
        self.got.append(check(batch))
        return True

    def begin_again(self) -> None:
        """Leave the pass, and begin another one."""
        self.running = iter(self.loader)
        self.got = []

    def check_state(self, dataset: ZarrIterableDataset) -> None:
        """Go on with the loader's state in another dataset: with what this pass had, each sample comes once."""
        resumed = ZarrDataLoader(
            dataset, num_workers=self.num_workers, multiprocessing_context=_context(self.num_workers)
        )
        resumed.load_state_dict(self.loader.state_dict())
        check_epoch(resumed, self.got)


def _context(num_workers: int) -> str | None:
    return "fork" if num_workers else None


def _plain(dataset: Any, num_workers: int) -> _Party:
    """Return torch's loader with the seed that all others have."""
    seeds = torch.Generator().manual_seed(1)
    context = _context(num_workers)
    return _Party(DataLoader(dataset, None, num_workers=num_workers, generator=seeds, multiprocessing_context=context))


def _parties(dataset: Any, number: random.Random, num_workers: int) -> list[_Party]:
    def own(**options: Any) -> _Party:
        context = _context(num_workers)
        loader = ZarrDataLoader(dataset, num_workers=num_workers, multiprocessing_context=context, **options)
        return _Party(loader, num_workers=num_workers)

    persistent = own(persistent_workers=num_workers > 0)
    second = _Party(persistent.loader, num_workers=num_workers)  # of one loader
    if not num_workers:
        return [persistent, own(), _plain(dataset, 0), _Party(dataset), _Party(prefetch(dataset, "cpu"))]
    return number.choice([[persistent, _plain(dataset, 2), _plain(dataset, 2)], [persistent, second]])


def _read_by_threads(dataset: Any) -> None:
    running = iter(dataset)
    got: list[npt.NDArray[np.int64]] = []
    errors: list[BaseException] = []

    def pull() -> None:
        try:
            got.extend(check(batch) for batch in running)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_JOIN_S)
    if errors:
        raise UnspecifiedError(f"a thread that shares an iterator: {errors[0]!r}")
    check_epoch((), got)


def two_passes(attempt: Try) -> str:
    """Read passes of several loaders in random turns."""
    write_stores(attempt.shared)
    number = attempt.random
    kind = number.choice(_ITERABLE)
    num_workers = 2 if attempt.number % _WORKERS_EVERY == 0 else 0
    dataset = make(kind, attempt.shared, seed=attempt.number)
    parties = _parties(dataset, number, num_workers)
    saved_at, left_at = number.randrange(30), number.randrange(60)
    step = 0
    while parties:
        party = number.choice(parties)
        if step >= left_at and party.got:
            party.begin_again()
            left_at = 10**9
        if step >= saved_at and party.has_state and _is_alone(party, parties):
            party.check_state(make(kind, Path(attempt.shared), seed=attempt.number))
            saved_at = 10**9
        if not party.take():
            parties.remove(party)
        if number.random() < 0.02:
            dataset.set_epoch(number.randrange(100))
        step += 1
    _read_by_threads(dataset)
    return "whole, with workers" if num_workers else "whole"


def _is_alone(party: _Party, parties: list[_Party]) -> bool:
    """Return whether no other pass of the same loader is under way, so that the loader's state is that of this one."""
    return all(one is party or one.loader is not party.loader for one in parties)


ROWS = (
    Row(
        "two-passes",
        "two to five loaders read one dataset at once, in random turns, with equal seeds; one is left, one is saved, "
        "epochs are named meanwhile, and threads share an iterator",
        "every pass has each sample once; the state of a loader goes on with its own pass",
        two_passes,
        runs=100,
        short_runs=4,
        timeout_s=120,
    ),
)

"""Row: Ctrl-C at random moments of an epoch that is read."""

from __future__ import annotations

import functools
import gc
import math
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process.census import Census, Surroundings
from tests.faults.process.kicker import Kicker
from tests.faults.process.stores import KINDS, check, check_epoch, make_iterable, write_stores
from zarrfeed import ZarrDataLoader

_WITHIN_S = 1.0
#: Of these tries each has DataLoader workers.
_WORKERS_EVERY = 10
#: After these tries each a whole epoch is read.
_EPOCH_EVERY = 4
_LONGEST_DELAY_S = 0.12
_LONG_S = 20.0
#: Whose callbacks lost an interrupt.
_lost: list[str] = []


@functools.cache
def _kicker() -> Kicker:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what they start in the background ignore it
    sys.unraisablehook = _note
    return Kicker()


def _note(unraisable: sys.UnraisableHookArgs) -> None:
    """Note interrupts in callbacks of weak references, where Python forgets them: asyncio has a `WeakSet` of tasks."""
    name = getattr(unraisable.object, "__qualname__", "")
    if unraisable.exc_type is KeyboardInterrupt and name.startswith("WeakSet."):
        _lost.append("a WeakSet")
    sys.__unraisablehook__(unraisable)


class _Datasets:
    """Datasets that are used for many tries, as in a notebook, and what they keep open.

    An interrupt may cost a dataset the reader that it keeps; the next pass makes another. So what is open is counted
    when all of them have one.
    """

    def __init__(self, folder: Path) -> None:
        write_stores(folder)
        for _ in ZarrDataLoader(make_iterable(KINDS[0], folder), num_workers=1, multiprocessing_context="fork"):
            break  # what multiprocessing opens once is open now
        self._folder = folder
        self._of_kind: dict[str, Any] = {}
        self._usual = Census(0, 0)

    def of_kind(self, kind: str) -> Any:
        """Return the dataset of a kind."""
        if kind not in self._of_kind:
            dataset = self._of_kind[kind] = make_iterable(kind, self._folder)
            check_epoch(dataset)
            self._usual = self._count()
        return self._of_kind[kind]

    def check(self) -> None:
        """Raise UnspecifiedError if there is more than when the last dataset was made."""
        if not self._usual.holds():
            self._count()
            self._usual.check()

    def _count(self) -> Census:
        gc.collect()
        for dataset in self._of_kind.values():
            for _ in dataset:
                break
        return Census.take()


@functools.cache
def _datasets(folder: Path) -> _Datasets:
    return _Datasets(folder)


def interrupt(attempt: Try) -> str:
    """Send SIGINT while epochs are read; see that the loop hears of it, and that all is well afterwards."""
    choose = attempt.random
    kind = KINDS[attempt.number % len(KINDS)]
    _kicker()
    datasets = _datasets(attempt.shared)
    dataset = datasets.of_kind(kind)
    if attempt.number % _WORKERS_EVERY == _WORKERS_EVERY - 1 and kind != "access":
        return _interrupt_workers(datasets, dataset, choose)
    late_s = _interrupted_after(_without_end(dataset, choose), choose.uniform(0, _LONGEST_DELAY_S), group=False)
    datasets.check()
    if attempt.number % _EPOCH_EVERY == 0:
        check_epoch(dataset)
        datasets.check()
    return _outcome(late_s, "interrupted")


def _interrupt_workers(datasets: _Datasets, dataset: Any, choose: random.Random) -> str:
    """Do the same with DataLoader workers; from a terminal they would get the signal, too."""
    surroundings = Surroundings.look()
    loader = ZarrDataLoader(
        dataset, num_workers=2, multiprocessing_context="fork", persistent_workers=True, timeout=240
    )
    check(next(iter(loader)))  # Python loses an interrupt that comes in the functions that os.fork runs
    group = choose.random() < 0.5
    late_s = _interrupted_after(_without_end(loader, choose), choose.uniform(0, 4 * _LONGEST_DELAY_S), group=group)
    del loader
    gc.collect()
    surroundings.check(20)
    check_epoch(dataset)
    datasets.check()
    return _outcome(late_s, "interrupted, with workers")


def _interrupted_after(batches: Iterator[Any], delay_s: float, *, group: bool) -> float:
    """Loop over batches until the signal comes; return how long after it was sent that was."""
    _lost.clear()
    try:
        _kicker().start(delay_s, group=group)
        for batch in batches:
            check(batch)
    except KeyboardInterrupt:
        now = time.monotonic()
    else:
        now = math.inf
    return now - _kicker().sent_at()


def _outcome(late_s: float, what: str) -> str:
    if late_s == math.inf and _lost:
        return f"interrupt lost by Python in a callback of {_lost.pop()}"
    if late_s == math.inf:
        raise UnspecifiedError("no KeyboardInterrupt came")
    if late_s > _WITHIN_S:
        raise UnspecifiedError(f"the interrupt came after {late_s:.2f} s")
    return what


def _without_end(dataset: Any, choose: random.Random) -> Iterator[Any]:
    """Read epochs, some of them not to their end, with more or less work in between; for a while at most."""
    deadline = time.monotonic() + _LONG_S
    pace_s = choose.choice((0, 0, 1e-5, 1e-3))
    whole = choose.random() < 0.5
    while time.monotonic() < deadline:
        batches = iter(dataset)
        for number, batch in enumerate(batches):
            yield batch
            if pace_s:
                time.sleep(choose.uniform(0, 2 * pace_s))
            if not whole and number == 3:
                break
        if not whole and isinstance(dataset, ZarrDataLoader):
            whole = True  # starting workers all the time would be all that there is


ROWS = (
    Row(
        "SIGINT",
        "SIGINT at a random moment of an epoch: its start, a wait, the consumer's own work",
        "KeyboardInterrupt within 1 s, no thread or file left, epochs right afterwards",
        interrupt,
        runs=1000,
        short_runs=4,
        timeout_s=200,
    ),
)

"""Row: Ctrl-C at random moments of an epoch that is read."""

from __future__ import annotations

import functools
import gc
import math
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.process_census import Census, Surroundings
from faults.process_kicker import Kicker
from faults.process_stores import KINDS, check, check_epoch, make_iterable, write_stores
from faults.row import Row, Try, UnspecifiedError
from zarrfeed import ZarrDataLoader

_WITHIN_S = 1.0
#: Of these tries each has DataLoader workers.
_WORKERS_EVERY = 10
#: After these tries each a whole epoch is read.
_EPOCH_EVERY = 4
_LONGEST_DELAY_S = 0.12
_LONG_S = 20.0
#: In these tries all kinds of datasets have come, and been interrupted, several times.
_SETTLING = 4 * len(KINDS)


@functools.cache
def _kicker() -> Kicker:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what they start in the background ignore it
    return Kicker()


class _Usual:
    """What is usually open before a try. An interrupt may cost a dataset its kept reader: then it is a little less."""

    def __init__(self) -> None:
        self._census = Census(0, 0)
        self._tries = 0

    def at_least(self, census: Census) -> Census:
        """Return a census raised to what was seen in the first tries; in later ones nothing may rise any more."""
        self._tries += 1
        if self._tries <= _SETTLING:
            self._census = self._census.union(census)
        return self._census


@functools.cache
def _usual() -> _Usual:
    return _Usual()


@functools.cache
def _dataset(kind: str, folder: Path) -> Any:
    """Return a dataset that is used for many tries, as in a notebook; what it keeps open, it has open now."""
    write_stores(folder)
    dataset = make_iterable(kind, folder)
    check_epoch(dataset)
    return dataset


def interrupt(attempt: Try) -> str:
    """Send SIGINT while epochs are read; see that the loop hears of it, and that all is well afterwards."""
    choose = attempt.random
    kind = KINDS[attempt.number % len(KINDS)]
    dataset = _dataset(kind, attempt.shared)
    if attempt.number % _WORKERS_EVERY == _WORKERS_EVERY - 1 and kind != "access":
        return _interrupt_workers(dataset, choose)
    _kicker()
    for _ in dataset:  # an interrupt in the wrong moment costs the reader that it has kept
        break
    census = _usual().at_least(Census.take())
    late_s = _interrupted_after(_without_end(dataset, choose), choose.uniform(0, _LONGEST_DELAY_S), group=False)
    census.check()
    if attempt.number % _EPOCH_EVERY == 0:
        check_epoch(dataset)
        census.check()
    return _outcome(late_s, "interrupted")


def _interrupt_workers(dataset: Any, choose: random.Random) -> str:
    """Do the same with DataLoader workers; from a terminal they would get the signal, too."""
    _kicker()
    census, surroundings = _usual().at_least(Census.take()), Surroundings.look()
    loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork", persistent_workers=True, timeout=30)
    check(next(iter(loader)))  # Python loses an interrupt that comes in the functions that os.fork runs
    group = choose.random() < 0.5
    late_s = _interrupted_after(_without_end(loader, choose), choose.uniform(0, 4 * _LONGEST_DELAY_S), group=group)
    del loader
    gc.collect()
    surroundings.check(20)
    check_epoch(dataset)
    census.check()
    return _outcome(late_s, "interrupted, with workers")


def _interrupted_after(batches: Iterator[Any], delay_s: float, *, group: bool) -> float:
    """Loop over batches until the signal comes; return how long after it was sent that was."""
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
        short_runs=12,
        patience_s=200,
    ),
)

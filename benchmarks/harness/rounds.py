"""Many short rounds, in each of which zarrfeed and the ceilings read one store once: their CPU seconds and clock times.

On a machine that others use, a single turn says little, and clock times say little at all. CPU seconds of a turn are
larger by what others do to the caches, which passes within milliseconds: the median of the ratios within a round moves
by 2 to 5 % then, and that of clock times by 6 to 14 % (docs/performance.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.measure import CpuWatch
from benchmarks.loaders import OURS, Loader, Yardstick

#: Epochs before the first round: with fresh memory, and with caches that others have filled.
_WARM_EPOCHS = 3


@dataclass(frozen=True)
class Turn:
    """One epoch of zarrfeed, or one pass of a ceiling.

    Attributes
    ----------
    wall_s
        Clock time; of a ceiling without its set-up.
    cpu_s
        CPU seconds of this process; of a ceiling with its set-up, which is the same in each pass.
    """

    wall_s: float
    cpu_s: float


#: Side -> its turn in one round.
Round = Mapping[str, Turn]


@dataclass(frozen=True)
class Rounds:
    """What was measured on one layout.

    Attributes
    ----------
    turns
        One mapping a round, each with the same sides.
    foreign_cores
        Cores that were busy for others meanwhile, on average; None where that is not known.
    """

    turns: Sequence[Round]
    foreign_cores: float | None


def measure_rounds(
    loader: Loader,
    ceilings: Mapping[str, Yardstick],
    *,
    rounds: int,
    max_s: float,
    first_epoch: int = 1,
    is_settled: Callable[[Sequence[Round]], bool] = lambda _: False,
) -> Rounds:
    """Let zarrfeed and the ceilings take turns, for a number of rounds, or of seconds if they end first.

    `is_settled` sees the rounds after each of them, and ends the measurement by returning true. The side that begins is
    another one in each round.
    """
    epochs = iter(range(first_epoch, first_epoch + _WARM_EPOCHS + rounds))
    sides: dict[str, Callable[[], float | None]] = {name: ceiling.measure for name, ceiling in ceilings.items()}
    sides[OURS] = lambda: _read(loader, next(epochs))
    for _ in range(_WARM_EPOCHS):
        _read(loader, next(epochs))
    for ceiling in ceilings.values():
        ceiling.measure()
    turns: list[Round] = []
    watch, begin = CpuWatch(), time.perf_counter()
    while len(turns) < rounds and time.perf_counter() - begin < max_s and not is_settled(turns):
        names = list(sides)
        first = len(turns) % len(names)
        turns.append({name: _turn(sides[name]) for name in names[first:] + names[:first]})
    return Rounds(turns, watch.stop()[1])


def _turn(run: Callable[[], float | None]) -> Turn:
    cpu_s, begin = time.process_time(), time.perf_counter()
    inside_s = run()
    wall_s = time.perf_counter() - begin
    return Turn(wall_s if inside_s is None else inside_s, time.process_time() - cpu_s)


def _read(loader: Loader, epoch: int) -> None:
    for _ in loader.epoch(epoch):
        pass

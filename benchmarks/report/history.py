"""The history of zarrfeed's ratios to the ceilings: its rows, and whether a layout became slower than its last row.

Nothing here measures. `benchmarks/history.jsonl` has one JSON object a commit, machine and layout, the newest last.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.harness.options import QUIET_CORES
from benchmarks.harness.rounds import Round, Rounds
from benchmarks.loaders import LIBRARY_CEILING, OURS
from zarrfeed.base.atomic_file import write_whole

#: What is judged: a ratio of CPU seconds, or of clock times.
Clock = Literal["cpu", "wall"]
CLOCKS: tuple[Clock, ...] = ("cpu", "wall")
#: A layout fell if it lost more than this share against every ceiling, or twice this share against `LIBRARY_CEILING`.
#: Clock times differ more, on a quiet machine, too.
FALLS: Mapping[Clock, float] = {"cpu": 0.10, "wall": 0.25}
#: Where others keep more than this share of the cores busy, nothing is judged and no row is added.
BUSY_SHARE = 0.75
#: Fewer rounds judge nothing.
LEAST_ROUNDS = 15
#: How sure it has to be that the median of all possible rounds lies below the limit.
_CONFIDENCE = 0.9
#: A row is added if its median is known as well as this: upper bound over lower bound.
MOST_UNSURE = 1.06


@dataclass(frozen=True)
class Ratio:
    """How fast zarrfeed is beside something else, over many rounds: the median and the quartiles."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Row:
    """One layout at one commit on one machine.

    Attributes
    ----------
    commit, date
        The last one that changed src/ or cpp/, 12 digits; when it was measured, as YYYY-MM-DD.
    cpu, cores, machine
        The first two name the machines that are compared; `machine` is the whole line, with versions.
    layout, rounds, foreign_cores
        What was measured, how often, and how many cores others kept busy.
    of_cpu, of_wall
        Ceiling -> zarrfeed's speed over its speed, by CPU seconds and by clock times.
    """

    commit: str
    date: str
    cpu: str
    cores: int
    machine: str
    layout: str
    rounds: int
    foreign_cores: float | None
    of_cpu: dict[str, Ratio]
    of_wall: dict[str, Ratio]

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Row:
        """Read such a line."""
        fields: dict[str, Any] = json.loads(line)
        for name in ("of_cpu", "of_wall"):
            fields[name] = {ceiling: Ratio(**ratio) for ceiling, ratio in fields[name].items()}
        return cls(**fields)

    def of(self, clock: Clock) -> Mapping[str, Ratio]:
        """Return the ratios by a clock."""
        return self.of_cpu if clock == "cpu" else self.of_wall


def read_history(path: Path) -> list[Row]:
    """Return all rows, the oldest first; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Row.from_json(line) for line in lines if line]


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file; rows of the same commit, machine and layout are replaced."""
    new = list(rows)
    measured = {_measured(row) for row in new}
    kept = [row for row in read_history(path) if _measured(row) not in measured]
    write_whole(path, "".join(f"{row.to_json()}\n" for row in (*kept, *new)).encode())


def _measured(row: Row) -> tuple[str, str, int, str]:
    return row.commit, row.cpu, row.cores, row.layout


def last_row(history: Sequence[Row], *, cpu: str, cores: int, layout: str) -> Row | None:
    """Return the row that a measurement on such a machine is compared with."""
    alike = [row for row in history if (row.cpu, row.cores, row.layout) == (cpu, cores, layout)]
    return alike[-1] if alike else None


def ratios(rounds: Rounds, ceiling: str, clock: Clock) -> list[float]:
    """Return zarrfeed's speed over a ceiling's in each round."""
    if clock == "cpu":
        return [turn[ceiling].cpu_s / turn[OURS].cpu_s for turn in rounds.turns]
    return [turn[ceiling].wall_s / turn[OURS].wall_s for turn in rounds.turns]


def summarise(values: Sequence[float]) -> Ratio:
    """Return the median and the quartiles, to 4 digits."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Ratio(round(ordered[quarter], 4), round(median(ordered), 4), round(ordered[-1 - quarter], 4))


def median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return between which values the median of all possible rounds lies: each bound holds with `_CONFIDENCE`.

    These are order statistics, which suppose nothing about the distribution: the number of values below the median is
    binomial. Bounds are infinite where there are too few values.
    """
    n, ordered = len(values), sorted(values)
    below, least = 0.0, 0  # P(fewer than `least` values are below the median)
    while least < n and below + math.comb(n, least) / 2**n <= 1 - _CONFIDENCE:
        below += math.comb(n, least) / 2**n
        least += 1
    return (ordered[least - 1], ordered[n - least]) if least else (-math.inf, math.inf)


@dataclass(frozen=True)
class Verdict:
    """What one try says about one layout.

    Attributes
    ----------
    fell
        Whether zarrfeed is surely slower than its reference by more than is allowed.
    words
        What was found, or why nothing was judged.
    """

    layout: str
    fell: bool
    words: str


def why_not_judged(rounds: Rounds, cores: int) -> str:
    """Return why rounds say nothing; "" if they do."""
    if rounds.foreign_cores is not None and rounds.foreign_cores > BUSY_SHARE * cores:
        return f"others kept {rounds.foreign_cores:.1f} of {cores} cores busy, more than {BUSY_SHARE * cores:g}"
    if len(rounds.turns) < LEAST_ROUNDS:
        return f"only {len(rounds.turns)} rounds fitted into the time, fewer than {LEAST_ROUNDS}"
    return ""


def judge(layout: str, rounds: Rounds, reference: Row | None, cores: int) -> Verdict:
    """Compare the rounds of one try with the last row of such a machine.

    A slower zarrfeed loses against every ceiling. Against one alone, little means nothing: a faster kernel of ours may
    raise the ceiling that has it, and the ratio to the libraries' ceiling moves by 7 % with what else the machine does.
    But a slower kernel of ours lowers its ceiling, too: hence the second limit, against the libraries alone.

    CPU seconds are always judged. They do not show threads that wait, so clock times are judged, too, where the machine
    was quiet both times.
    """
    if reference is None:
        return Verdict(layout, False, "not judged: the history has no row of such a machine")
    if reason := why_not_judged(rounds, cores):
        found = [f"{median(ratios(rounds, name, 'cpu')):.3f} of {name}" for name in reference.of_cpu if rounds.turns]
        return Verdict(layout, False, "; ".join([f"not judged: {reason}", *found]))
    quiet = _is_quiet(rounds.foreign_cores, reference.foreign_cores)
    words, fell = [], False
    for clock in CLOCKS if quiet else CLOCKS[:1]:
        surely: dict[str, float] = {}
        for ceiling, known in reference.of(clock).items():
            values = ratios(rounds, ceiling, clock)
            surely[ceiling] = median_bounds(values)[1] / known.median
            change = f"had {known.median:.3f} ({surely[ceiling] - 1:+.0%} at most)"
            words.append(f"{clock} {median(values):.3f} of {ceiling}, {change}")
        lost = FALLS[clock]
        if max(surely.values()) < 1 - lost or surely[LIBRARY_CEILING] < 1 - 2 * lost:
            fell = True
            words.append(f"FELL since {reference.commit[:7]}")
    return Verdict(layout, fell, "; ".join(words))


def is_settled(turns: Sequence[Round], reference: Row | None) -> bool:
    """Return whether so many rounds already show that the layout did not fall, by `judge`'s limits and confidence."""
    if reference is None or len(turns) < LEAST_ROUNDS:
        return False
    for clock in CLOCKS if _is_quiet(reference.foreign_cores) else CLOCKS[:1]:
        surely = {
            ceiling: median_bounds(ratios(Rounds(turns, None), ceiling, clock))[0] / known.median
            for ceiling, known in reference.of(clock).items()
        }
        if max(surely.values()) < 1 - FALLS[clock] or surely[LIBRARY_CEILING] < 1 - 2 * FALLS[clock]:
            return False
    return True


def _is_quiet(*foreign_cores: float | None) -> bool:
    return all(cores is not None and cores <= QUIET_CORES for cores in foreign_cores)

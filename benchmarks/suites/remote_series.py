"""`python -m benchmarks.remote --series`: rates behind latencies and caps, over the undelayed rate and over the cap.

Each turn is a new process, which reads a long epoch (`LONG_BYTES` decoded) and then others: the first one starts with
few requests in flight. All conditions have the same proxy before nginx, the undelayed one included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.data.long_store import long_store, times_for
from benchmarks.data.stores import Store, warm_page_cache
from benchmarks.harness.measure import process_cpu_s
from benchmarks.harness.nginx import Nginx
from benchmarks.harness.slow_proxy import Slowness, slowed
from benchmarks.report.tables import number, print_rows

#: An epoch of the series has at least so many decoded bytes.
LONG_BYTES = 1 << 30

#: A proxy that takes more of a core than this may be what is measured.
PROXY_BUSY = 0.7

UNDELAYED = "undelayed"
#: Name -> how the server is slowed down, and the goal for the rate: of the undelayed rate, or of the cap.
CONDITIONS: dict[str, tuple[Slowness, float | None]] = {
    UNDELAYED: (Slowness(always=True), None),
    "20 ms": (Slowness(latency_ms=20), 0.95),
    "100 ms": (Slowness(latency_ms=100), 0.9),
    "200 MB/s": (Slowness(cap_mb_s=200), 0.97),
    "1 GB/s": (Slowness(cap_mb_s=1000), 0.97),
}


@dataclass(frozen=True)
class Turn:
    """One side under one condition in one round.

    Attributes
    ----------
    first_gb_per_s, gb_per_s
        Stored bytes a second, of the first epoch of a process and of later ones.
    proxy_cores
        How much of a core the proxy was busy.
    """

    layout: str
    side: str
    condition: str
    repeat: int
    first_gb_per_s: float
    gb_per_s: float
    proxy_cores: float


#: Runs `remote_probe rate` of a layout and a side at a URL, so many copies long, and returns its figures.
Probe = Callable[[str, str, str, int], Mapping[str, Any]]


def measure_series(
    console: Console, stores: Mapping[str, Store], sides: Sequence[str], nginx: Nginx, repeats: int, probe: Probe
) -> list[Turn]:
    """Give each side its turn under each condition in each round."""
    turns = []
    for name, store in stores.items():
        times = times_for(store.layout, LONG_BYTES)
        warm_page_cache(store)
        with long_store(store, times):
            for repeat in range(repeats):
                for condition, (how, _) in CONDITIONS.items():
                    with slowed(nginx.url, how) as server:
                        for side in sides:
                            assert server.pid is not None
                            cpu_s = process_cpu_s(server.pid)
                            figures = probe(name, side, server.url, times)
                            busy = (process_cpu_s(server.pid) - cpu_s) / figures["reading_s"]
                            rates = figures["first_gb_per_s"], figures["stored_gb_per_s"]
                            turns.append(Turn(name, side, condition, repeat, *rates, busy))
        console.print(f"{name}: timed, {times} copies of it an epoch", highlight=False)
    return turns


def share(turns: Sequence[Turn], layout: str, side: str, condition: str, figure: str) -> float | None:
    """Return a rate relative to the cap, or to the undelayed rate of the same round: the median of the rounds."""
    how, _ = CONDITIONS[condition]
    rates = _by_round(turns, layout, side, condition, figure)
    if how.cap_mb_s is not None:
        return median(rates.values()) / (how.cap_mb_s / 1e3) if rates else None
    undelayed = _by_round(turns, layout, side, UNDELAYED, figure)
    ratios = [rate / undelayed[repeat] for repeat, rate in rates.items() if repeat in undelayed]
    return median(ratios) if ratios else None


def _by_round(turns: Sequence[Turn], layout: str, side: str, condition: str, figure: str) -> dict[int, float]:
    wanted = (layout, side, condition)
    return {t.repeat: getattr(t, figure) for t in turns if (t.layout, t.side, t.condition) == wanted}


def print_series(console: Console, turns: Sequence[Turn]) -> None:
    """Print a row a layout and side, with the first epoch of a process and the later ones in a cell."""
    rows = []
    for layout, side in dict.fromkeys((turn.layout, turn.side) for turn in turns):
        undelayed = [
            number(median(_by_round(turns, layout, side, UNDELAYED, figure).values()))
            for figure in ("first_gb_per_s", "gb_per_s")
        ]
        rows.append([layout, side, " ".join(undelayed), *(_cell(turns, layout, side, name) for name in _slowed())])
    print_rows(console, ("layout", "side", "undelayed GB/s", *_slowed()), rows, words=2)
    busy = max(turns, key=lambda turn: turn.proxy_cores)
    goals = ", ".join(f"{goal:g} at {name}" for name, (_, goal) in CONDITIONS.items() if goal is not None)
    console.print(
        "undelayed GB/s: stored bytes (10**9) a second through the proxy; first epoch of a process, then later ones.\n"
        "ms, MB/s, GB/s: the rate over the undelayed rate of the same round, or over the cap; in the same order.\n"
        f"Goals of zarrfeed for later epochs: {goals}; * if missed.\n"
        f"The proxy was busy for up to {busy.proxy_cores:.2f} of a core ({busy.layout}, {busy.side}, {busy.condition})"
        + ("; from 0.7 on, it may be what is measured." if busy.proxy_cores >= PROXY_BUSY else "."),
        highlight=False,
        soft_wrap=True,
    )


def _slowed() -> list[str]:
    return [name for name in CONDITIONS if name != UNDELAYED]


def _cell(turns: Sequence[Turn], layout: str, side: str, condition: str) -> str:
    first, later = (share(turns, layout, side, condition, figure) for figure in ("first_gb_per_s", "gb_per_s"))
    goal = CONDITIONS[condition][1]
    missed = side.startswith("zarrfeed") and later is not None and goal is not None and later < goal
    return f"{number(first)} {number(later)}" + " *" * missed

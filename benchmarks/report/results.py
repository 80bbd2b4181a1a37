"""Measurements of one run, their medians and ratios, and the rows that are written to disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.data.layouts import Layout
from benchmarks.harness.measure import Timing
from benchmarks.loaders import OURS, YARDSTICK
from zarrfeed.base.atomic_file import write_whole

#: The `repeat` of a loader's first epoch: with fresh memory, and with the start of its workers.
FIRST_EPOCH = -1


@dataclass(frozen=True)
class Measurement:
    """One loader, or ceiling, on one layout, timed once.

    Attributes
    ----------
    repeat
        Number of the round of all loaders, or `FIRST_EPOCH`.
    whole_epoch
        Whether every sample was delivered, rather than a random part.
    chunks_per_batch
        Mean number of chunks that a batch has samples of; None for ceilings.
    """

    layout: Layout
    loader: str
    repeat: int
    timing: Timing
    settings: dict[str, object]
    whole_epoch: bool = True
    chunks_per_batch: float | None = None

    def to_row(self) -> dict[str, object]:
        """Return everything as one flat object for JSON."""
        return {
            **{f"layout_{name}" if name == "name" else name: value for name, value in asdict(self.layout).items()},
            "loader": self.loader,
            "first_epoch": self.repeat == FIRST_EPOCH,
            "repeat": max(0, self.repeat),
            **asdict(self.timing),
            "gb_per_s": self.timing.gb_per_s,
            "cpu_s_per_gb": self.timing.cpu_s_per_gb,
            "whole_epoch": self.whole_epoch,
            "chunks_per_batch": self.chunks_per_batch,
            "settings": self.settings,
        }


@dataclass(frozen=True)
class Summary:
    """The repeats of one loader on one layout: medians over the rounds of rates, and of ratios within a round.

    Loaders of a round are timed one behind the other, so that a machine that is slower for a while slows both sides of
    a ratio.
    """

    layout: str
    loader: str
    gb_per_s: float
    slowest: float
    fastest: float
    first_epoch: float | None
    cpu_s_per_gb: float | None
    chunks_per_batch: float | None
    whole_epoch: bool
    ours_over_it: float | None
    it_over_ceiling: float | None


def summarise(measurements: Iterable[Measurement]) -> list[Summary]:
    """Return a summary for each (layout, loader), in the order of their first measurements.

    Each must have the same rounds.
    """
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.layout.name, m.loader), []).append(m)
    summaries = []
    for (layout, loader), group in groups.items():
        rates = _rates(group)
        ours, ceiling = (_rates(groups.get((layout, name), [])) for name in (OURS, YARDSTICK))
        cpu = [m.timing.cpu_s_per_gb for m in group if m.repeat != FIRST_EPOCH and m.timing.cpu_s_per_gb is not None]
        summaries.append(
            Summary(
                layout=layout,
                loader=loader,
                gb_per_s=median(rates),
                slowest=min(rates),
                fastest=max(rates),
                first_epoch=next((m.timing.gb_per_s for m in group if m.repeat == FIRST_EPOCH), None),
                cpu_s_per_gb=median(cpu) if cpu else None,
                chunks_per_batch=group[0].chunks_per_batch,
                whole_epoch=group[0].whole_epoch,
                ours_over_it=median(a / b for a, b in zip(ours, rates, strict=True)) if ours else None,
                it_over_ceiling=median(a / b for a, b in zip(rates, ceiling, strict=True)) if ceiling else None,
            )
        )
    return summaries


def _rates(group: Sequence[Measurement]) -> list[float]:
    return [m.timing.gb_per_s for m in group if m.repeat != FIRST_EPOCH]


def write_rows(path: Path, measurements: Iterable[Measurement], common: dict[str, object]) -> None:
    """Write a JSON list, one measurement a line, each with what is common to the run."""
    rows = [json.dumps({**m.to_row(), **common}) for m in measurements]
    write_whole(path, ("[\n" + ",\n".join(rows) + "\n]\n").encode())

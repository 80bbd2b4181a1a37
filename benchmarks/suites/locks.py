"""How long the engine holds its locks for a chunk, and what that would cost on more cores than there are.

python -m benchmarks.locks
python -m benchmarks.locks --layouts A,D --cores 16,64

A process reads epochs below `lock_meter.c`, which measures each mutex that the engine locks. With a chunk's CPU seconds
c and a mutex that is held for h of them, in n holds, N cores keep the mutex busy for r = N h / c of the time. Where a
hold meets the mutex at a random moment and holds are alike, it waits for r h / (2 n (1 - r)) (M/D/1), so that a core
does c / (c + the waits of a chunk's holds) of its work. That leaves out what cores share besides: memory bandwidth,
caches, and the lines of atomic counters. A mutex that is always busy (r = 1) bounds the number of cores: c / h.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.harness.compile import compiled
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.report.tables import make_console, print_rows

_ROOT = Path(__file__).parents[2]
_METER = Path(__file__).parents[1] / "harness" / "lock_meter.c"


@dataclass(frozen=True)
class Mutex:
    """One mutex: for each chunk that was read, holds, seconds held, and how many of its holds had to wait."""

    holds: float
    held_s: float
    contended: float


@dataclass(frozen=True)
class Locks:
    """Of one layout: CPU seconds of a chunk, and its mutexes, that held for longest first."""

    layout: str
    cpu_s: float
    mutexes: tuple[Mutex, ...]

    @classmethod
    def of(cls, layout: str, measured: dict[str, Any]) -> Locks:
        """Take what the probe measured; a hold in which nothing is done counts nothing."""
        chunks = measured["chunks"]
        mutexes = []
        for found in measured["mutexes"]:
            short = found["locks"] - found["long_holds"]
            held_ns = max(0, found["held_ns"] - short * measured["cost_ns"])
            # A long hold counts as one of the others: the thread had lost its processor.
            held_ns *= found["locks"] / short if short else 0.0
            mutexes.append(Mutex(found["locks"] / chunks, held_ns / 1e9 / chunks, found["contended"] / chunks))
        return cls(layout, measured["cpu_s"] / chunks, tuple(mutexes))

    def most_cores(self) -> float:
        """Return how many cores keep one mutex busy all the time."""
        longest = max((mutex.held_s for mutex in self.mutexes), default=0.0)
        return self.cpu_s / longest if longest else math.inf

    def efficiency(self, cores: int) -> float:
        """Return the part of its time in which each of so many cores does not wait for a mutex."""
        waits = 0.0
        for mutex in self.mutexes:
            busy = cores * mutex.held_s / self.cpu_s
            if busy >= 1:
                return self.most_cores() / cores
            waits += busy * mutex.held_s / (2 * (1 - busy))
        return self.cpu_s / (self.cpu_s + waits)


def measure(layout: str, scale: str, data: Path, epochs: int) -> Locks:
    """Read epochs of a layout in a process of their own."""
    meter = compiled(_METER, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    before = os.environ.get("LD_PRELOAD", "")
    environment = {**os.environ, "LD_PRELOAD": f"{meter} {before}".strip()}
    command = [sys.executable, "-m", "benchmarks.suites.locks_probe", layout, scale, str(data), str(epochs)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Locks.of(layout, json.loads(done.stdout))


def table_of(measured: Sequence[Locks], cores: Sequence[int]) -> list[list[str]]:
    """Return a line for each layout."""
    table = []
    for locks in measured:
        most = max(locks.mutexes, key=lambda mutex: mutex.held_s, default=Mutex(0, 0, 0))
        table.append(
            [
                locks.layout,
                f"{1e6 * locks.cpu_s:.0f}",
                f"{most.holds:.1f}",
                f"{1e6 * most.held_s:.2f}",
                f"{1e6 * sum(mutex.held_s for mutex in locks.mutexes):.2f}",
                f"{locks.most_cores():.0f}",
                *(f"{locks.efficiency(number):.3f}" for number in cores),
            ]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    options.data.mkdir(parents=True, exist_ok=True)
    console = make_console()
    measured = [measure(name, options.scale, options.data, options.epochs) for name in options.layouts]
    heads = ["", "CPU us a chunk", "holds", "held us", "all mutexes us", "cores at most", *map(str, options.cores)]
    print_rows(console, heads, table_of(measured, options.cores), words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    write_document(options.out / "locks.json", layouts=[asdict(locks) for locks in measured])
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.locks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=["A", "D", "D-1024", "E", "G", "I-int16"])
    parser.add_argument("--cores", type=lambda text: [positive(part) for part in text.split(",")], default=[2, 16, 64])
    parser.add_argument("--epochs", type=positive, default=4)
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

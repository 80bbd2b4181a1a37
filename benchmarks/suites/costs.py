"""What the loader costs besides time, against goals: CPU, a training step beside it, the GIL, memory, threads.

python -m benchmarks.costs
python -m benchmarks.costs --costs memory,growth
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.data.stores import prepare_store, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.measure import CpuWatch
from benchmarks.harness.options import names, positive
from benchmarks.loaders import OURS, why_not
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.report.charts import draw_curves
from benchmarks.report.tables import make_console, markdown_rows, print_rows, say_if_not_quiet
from benchmarks.suites.cost_probes import PROBES
from zarrfeed.base.atomic_file import write_whole

_HERE = Path(__file__).parents[1]

#: Up to as many the curve has a point for each.
_MOST_THREADS = 16

#: (probe, case, layout) -> the figures of some fresh processes.
Measure = Callable[[str, str, str, int], list[Mapping[str, float]]]


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes
    ----------
    cost, what
        The question, and of what or beside what it was asked.
    value, unit
        The answer; None: it could not be measured, and `unit` says why.
    goal
        What is wanted: at most that, or at least that where `more` is set; None: for comparison only.
    threads
        Where the figure is a rate that depends on the number of decode threads: that number.
    """

    cost: str
    what: str
    value: float | None
    unit: str
    goal: float | None = None
    more: bool = False
    threads: int | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.more else self.value <= self.goal


def _cpu(measure: Measure, repeats: int) -> Iterator[Row]:
    for loader in (OURS, "tensorstore", "zarr-chunkwise-workers", "zarr-map-workers"):
        if why_not(loader, LAYOUTS["A"]):
            continue
        seconds = [figures["cpu_s_per_gb"] for figures in measure("cpu", loader, "A", repeats)]
        yield Row("CPU", loader, median(seconds), "s per decoded GB", 0.4 if loader == OURS else None)


def _step(measure: Measure, repeats: int) -> Iterator[Row]:
    for how, what in (("loop", "takes a batch each"), ("full", "beside a loader that never rests")):
        figures = _medians(measure("step", how, "A", repeats))
        yield Row("step of 10 ms", what, figures["slowdown_percent"], "% slower", 5)
        yield Row("", "", figures["on_a_core_percent"], "% slower, waiting for a core left out", 5)
        yield Row("", "beside nothing, before and after", figures["noise_percent"], "% apart")


def _heartbeat(measure: Measure, repeats: int) -> Iterator[Row]:
    """Give the least of the longest gaps: what the loader does, it does in every process; others do it in some."""
    for beside in ("nothing", "ceiling", OURS, "zarr-chunkwise-0w"):
        figures = _least(measure("heartbeat", beside, "A", repeats))
        goal = 5.0 if beside == OURS else None
        yield Row("heartbeat", f"beside {beside}", figures["longest_ms"], "ms, longest gap", goal)
        yield Row("", "", figures["on_a_core_ms"], "ms, waiting for a core left out", goal)
        yield Row("", "", figures["p99_9_ms"], "ms, of 999 in 1000")


def _first(measure: Measure, repeats: int) -> Iterator[Row]:
    for loader in (OURS, "tensorstore", "zarr-chunkwise-0w", "zarr-map-0w"):
        if why_not(loader, LAYOUTS["A"]):
            continue
        times = [figures["ms"] for figures in measure("first", loader, "A", repeats)]
        yield Row("first batch", loader, median(times), "ms after import", 50 if loader == OURS else None)


def _memory(measure: Measure, repeats: int) -> Iterator[Row]:  # noqa: ARG001
    for layout in ("A", "F"):
        for budget, mib in (("64MiB", 64), ("256MiB", 256), ("1GiB", 1024)):
            (figures,) = measure("memory", budget, layout, 1)
            what = f"{layout}, budget {budget}"
            if figures["refused"]:
                yield Row("peak memory", what, None, "refused: the array's chunks need more")
            else:
                yield Row("peak memory", what, figures["grown_mib"] - mib, "MiB beyond the budget", 150)


def _growth(measure: Measure, repeats: int) -> Iterator[Row]:  # noqa: ARG001
    (figures,) = measure("growth", "20", "A", 1)
    yield Row("growth", "epoch 2 to 20", figures["grown_mib"], "MiB", 8)


def _epochs(measure: Measure, repeats: int) -> Iterator[Row]:
    ratios = [figures["second_over_first"] for figures in measure("epochs", "-", "A", repeats)]
    yield Row("second epoch", "time over the first's", median(ratios), "", 1.05)


def _threads(measure: Measure, repeats: int) -> Iterator[Row]:  # noqa: ARG001
    for count in range(1, min(_MOST_THREADS, usable_cores()) + 1):
        (figures,) = measure("threads", str(count), "A", 1)
        for name in ("zarrfeed", "ceiling_scatter", "ceiling_decode"):
            yield Row("threads", f"{name.replace('_', '-')}, {count}", figures[name], "GB/s", threads=count)
        yield Row("threads", f"of ceiling-scatter, {count}", figures["of_ceiling"], "", 0.9, more=True)


def _medians(all_figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(figures[name] for figures in all_figures) for name in all_figures[0]}


def _least(all_figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: min(figures[name] for figures in all_figures) for name in all_figures[0]}


def _python(measure: Measure, repeats: int) -> Iterator[Row]:
    for layout, batch_size in (("A", 64), ("D", 64), ("D", 1024), ("D", 16384)):
        figures = _medians(measure("python", str(batch_size), layout, repeats))
        what = f"{layout}, batches of {batch_size}"
        yield Row("Python", what, figures["us_per_batch"], "us per batch, consumer's thread", 100)


COSTS: dict[str, Callable[[Measure, int], Iterator[Row]]] = {
    "cpu": _cpu,
    "step": _step,
    "heartbeat": _heartbeat,
    "first": _first,
    "memory": _memory,
    "growth": _growth,
    "epochs": _epochs,
    "threads": _threads,
    "python": _python,
}
assert COSTS.keys() == PROBES.keys()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table with the goals, and write costs.json, costs.md and the curve over threads."""
    options = _parse(arguments)
    console = make_console()
    console.print(machine_line(), highlight=False, soft_wrap=True)
    options.data.mkdir(parents=True, exist_ok=True)
    for name in ("A", "D", "F"):
        warm_page_cache(prepare_store(LAYOUTS[name].scaled(options.scale), options.data, scale=options.scale))

    def measure(probe: str, case: str, layout: str, repeats: int) -> list[Mapping[str, float]]:
        return [_run(probe, case, layout, options) for _ in range(repeats)]

    watch = CpuWatch()
    rows = [row for cost in options.costs for row in COSTS[cost](measure, options.repeats)]
    _, foreign_cores = watch.stop()
    verdicts = [{True: "reached", False: "MISSED", None: ""}[row.met] for row in rows]
    cells = [(r.cost, r.what, _measured(r), _goal(r), verdict) for r, verdict in zip(rows, verdicts, strict=True)]
    print_rows(console, ("what", "", "measured", "goal", ""), cells, words=5)
    say_if_not_quiet(console, foreign_cores, "on average")
    of_rows = [{**asdict(row), "met": row.met} for row in rows]
    write_document(options.out / "costs.json", scale=options.scale, foreign_cores=foreign_cores, rows=of_rows)
    write_whole(options.out / "costs.md", to_markdown(rows).encode())
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.threads is not None and row.value is not None:
            curves.setdefault(row.what.rpartition(",")[0], {})[row.threads] = row.value
    if curves:
        draw_curves(curves, machine_line()).savefig(options.out / "threads.png")
    written = "costs.json, costs.md and threads.png" if curves else "costs.json and costs.md"
    console.print(f"wrote {written} to {options.out}", highlight=False, soft_wrap=True)
    return 0


def to_markdown(rows: Sequence[Row]) -> str:
    """Return the table; what misses its goal is in bold."""
    cells = [(row.cost, row.what, _measured(row, "**" if row.met is False else ""), _goal(row)) for row in rows]
    return markdown_rows(("what", "", "measured", "goal"), cells)


def _run(probe: str, case: str, layout: str, options: argparse.Namespace) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.suites.cost_probes", probe, case, "--layout", layout]
    command += ["--scale", options.scale, "--seconds", str(options.seconds), "--data", str(options.data)]
    done = subprocess.run(command, cwd=_HERE.parent, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{probe} {case} on {layout} failed:\n{done.stderr}")
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measured(row: Row, mark: str = "") -> str:
    return f"{mark}{_number(row.value)}{mark} {row.unit}".strip()


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{'at least' if row.more else 'at most'} {row.goal:g}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--costs", type=names(COSTS), default=list(COSTS), help=f"of {', '.join(COSTS)}")
    add("--scale", choices=SCALES, default="full", help="full: 512 MiB a layout; small: a few MiB, not to be judged")
    add("--repeats", type=positive, default=5, help="fresh processes for what happens once in a process")
    add("--seconds", type=float, default=3.0, help="for what is measured over a while")
    add("--data", type=Path, default=_HERE / "stores", help="where stores are kept")
    add("--out", type=Path, default=_HERE / "results", help="where costs.json and costs.md go")
    return parser.parse_args(arguments)

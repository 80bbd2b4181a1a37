"""The page and the picture of `python -m benchmarks.cores`, from its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.options import QUIET_CORES
from benchmarks.report.tables import markdown_rows, number
from benchmarks.suites.locks import Locks, Mutex
from zarrfeed.base.atomic_file import write_whole

Json = Mapping[str, Any]

#: Beside this case, the server keeps cores busy.
_WITH_SERVER = "remote"
_OURS, _LOOP = "#0b6e4f", "#333333"


def write_report(document: Json, folder: Path, *, picture: bool) -> None:
    """Write cores.json, cores.md and, if asked and where matplotlib is installed, cores.png."""
    write_whole(folder / "cores.json", json.dumps(document, indent=1).encode())
    write_whole(folder / "cores.md", page(document).encode())
    if picture and document["parts"] and find_spec("matplotlib") is not None:
        draw(document, folder / "cores.png")


def rates(part: Json, side: str) -> dict[int, float]:
    """Return the decoded GB/s of a side by the number of threads: the medians of the rounds."""
    return _by_threads(part, lambda row: float(row[side]))


def efficiency(of_threads: Mapping[int, float]) -> dict[int, float]:
    """Return the rate on each number of threads over so many times that of the fewest, which are mostly one."""
    fewest = min(of_threads)
    alone = of_threads[fewest] / fewest
    return {threads: found / threads / alone for threads, found in of_threads.items()}


def beyond_the_loop(part: Json) -> dict[int, float]:
    """Return zarrfeed's efficiency over the loop's: what zarrfeed alone loses on more threads."""
    ours, loop = efficiency(rates(part, "ours")), efficiency(rates(part, "loop"))
    return {threads: ours[threads] / loop[threads] for threads in ours}


def locks_of(found: Json) -> Locks:
    """Return what a document has of a layout's locks."""
    return Locks(found["layout"], found["cpu_s"], tuple(Mutex(**mutex) for mutex in found["mutexes"]))


def consumer_bound(part: Json) -> dict[int, float]:
    """Return the part of linear scaling that one thread allows which takes a batch in the time that was measured.

    That time is its CPU time for a batch on the fewest threads, where it waits for no core.
    """
    ours, batch_us = rates(part, "ours"), _by_threads(part, lambda row: float(row["batch_us"]))
    fewest = min(ours)
    most = part["batch_bytes"] / batch_us[fewest] / 1e3  # GB/s
    return {threads: min(1.0, most / (threads * ours[fewest] / fewest)) for threads in ours}


def page(document: Json) -> str:
    """Return the page in Markdown."""
    lines = ["# From one thread to all cores", ""]
    if document["is_check"]:
        lines += ["**A check that everything runs, and no result:** data are small and windows are short.", ""]
    lines += [document["machine_line"] + ".", "", _topology(document), ""]
    if document["parts"]:
        lines += ["## Rates", "", markdown_rows(_RATES, _rate_rows(document)), *_RATES_LEGEND, ""]
        alone = [part for part in document["parts"] if part["case"] != _WITH_SERVER]
        busy = max((row["foreign_cores"] or 0.0 for part in alone for row in part["rows"]), default=0.0)
        if busy > QUIET_CORES:
            lines += [f"**Not quiet:** others kept up to {busy:.1f} cores busy meanwhile.", ""]
        if document["locks"]:
            lines += ["## The model beside what was measured", ""]
            lines += [markdown_rows(_MODEL, _model_rows(document)), *_MODEL_LEGEND, ""]
            lines += ["## Locks", "", markdown_rows(_LOCKS, _lock_rows(document)), *_LOCKS_LEGEND, ""]
    if document["stream"]:
        lines += ["## Memory bandwidth", "", markdown_rows(_STREAM, _stream_rows(document))]
        lines += ["STREAM's triad: bytes that the program reads and writes, each thread over arrays of its own.", ""]
    if any(part["counters"] for part in document["parts"]):
        lines += ["## The processor's counters", "", *_counters(document), ""]
    if document["parts"]:
        described = {part["case"]: part["description"] for part in document["parts"]}
        lines += ["## Cases", "", *(f"- {case}: {text}." for case, text in described.items())]
        lines += [f"- The server runs on the same cores: {document['server']}."] if document["server"] else []
        lines += [""]
    for title, key in (("Failed", "failed"), ("Left out", "left_out")):
        if document[key]:
            lines += [f"## {title}", "", *(f"- {one}" for one in document[key]), ""]
    return "\n".join(lines).rstrip() + "\n"


_RATES = (
    *("case", "on", "threads", "zarrfeed, GB/s", "loop, GB/s", "/ loop", "efficiency", "of the loop"),
    *("CPU s/GB", "batch, us"),
)
_RATES_LEGEND = (
    "- Decoded GB/s, medians of the rounds. Epochs do not end while they are timed.",
    "- Loop: a bare C++ loop with as many threads reads the same chunks, decodes them and copies their rows or "
    "patches.",
    "- Efficiency: the rate over the number of threads times the rate of one.",
    "- Batch: CPU time of the thread that takes the batches, for each of them.",
)
_MODEL = ("case", "threads", "locks", "thread of batches", "model", "measured", "measured - model")
_MODEL_LEGEND = (
    "- Locks: the part of linear scaling that M/D/1 leaves, from how long each mutex is held "
    "(benchmarks/suites/locks.py).",
    "- Thread of batches: the part that one thread leaves which takes all batches.",
    "- Model: the smaller one. Measured: zarrfeed's efficiency over the loop's, so that memory and caches, which the "
    "model does not have, are left out where they slow both alike.",
)
_LOCKS = ("case", "cores", "CPU us a chunk", "holds", "held us", "waits, measured", "waits, model")
_LOCKS_LEGEND = (
    "- Of the mutex that is held for longest: holds of a chunk, and how long it is held for one.",
    "- Waits: the share of holds that had to wait for another one, and the share of time in which the mutex is held "
    "while all cores decode, which is what the model expects of them.",
)
_STREAM = ("threads", "on", "GB/s", "efficiency")


def _topology(document: Json) -> str:
    found = document["nodes"]
    shared = document["threads_of_a_core"]
    cores = f" A core has {shared} hardware threads." if shared and shared > 1 else ""
    if len(found) == 1:
        return f"One memory node, so that binding to a node changes nothing.{cores}"
    sizes = ", ".join(f"node {node} with {len(cpus)}" for node, cpus in found.items())
    return f"{len(found)} memory nodes, by usable cores: {sizes}.{cores}"


def _rate_rows(document: Json) -> list[list[str]]:
    table = []
    for part in document["parts"]:
        ours, loop = rates(part, "ours"), rates(part, "loop")
        of_ours, of_loop = efficiency(ours), efficiency(loop)
        cpu_s = _by_threads(part, lambda row: float(row["cpu_s_per_gb"]))
        batch_us = _by_threads(part, lambda row: float(row["batch_us"]))
        for threads in ours:
            ratio = median(row["ours"] / row["loop"] for row in part["rows"] if row["threads"] == threads)
            table.append(
                [
                    part["case"],
                    part["where"],
                    str(threads),
                    number(ours[threads]),
                    number(loop[threads]),
                    f"{ratio:.2f}",
                    f"{of_ours[threads]:.2f}",
                    f"{of_loop[threads]:.2f}",
                    f"{cpu_s[threads]:.2f}",
                    f"{batch_us[threads]:.1f}",
                ]
            )
    return table


def _model_rows(document: Json) -> list[list[str]]:
    parts = {part["case"]: part for part in document["parts"] if part["where"] == "all cores"}
    table = []
    for found in document["locks"]:
        part = parts.get(found["layout"])
        if part is None:
            continue
        of_locks, bound, measured = locks_of(found), consumer_bound(part), beyond_the_loop(part)
        for threads, value in measured.items():
            by_locks = of_locks.efficiency(threads)
            model = min(by_locks, bound[threads])
            cells = (by_locks, bound[threads], model, value)
            table.append([part["case"], str(threads), *(f"{cell:.3f}" for cell in cells), f"{value - model:+.3f}"])
    return table


def _lock_rows(document: Json) -> list[list[str]]:
    table = []
    for found in document["locks"]:
        of, cores = locks_of(found), found["measured_on"]
        most = max(of.mutexes, key=lambda mutex: mutex.held_s, default=Mutex(0, 0, 0))
        waited = most.contended / most.holds if most.holds else 0.0
        cells = [f"{1e6 * of.cpu_s:.0f}", f"{most.holds:.1f}", f"{1e6 * most.held_s:.2f}"]
        expected = min(1.0, cores * most.held_s / of.cpu_s)
        table.append([of.layout, str(cores), *cells, f"{100 * waited:.1f} %", f"{100 * expected:.1f} %"])
    return table


def _stream_rows(document: Json) -> list[list[str]]:
    found = [row for row in document["stream"] if not row["on_one_node"]]
    of = efficiency({row["threads"]: row["gb_per_s"] for row in found})
    table = [[str(row["threads"]), "all cores", number(row["gb_per_s"]), f"{of[row['threads']]:.2f}"] for row in found]
    one_node = [row for row in document["stream"] if row["on_one_node"]]
    return table + [[str(row["threads"]), "one node", number(row["gb_per_s"]), ""] for row in one_node]


def _counters(document: Json) -> Sequence[str]:
    table, reasons = [], set()
    events: list[str] = []
    for part in document["parts"]:
        for threads, found in part["counters"].items():
            reasons |= {found["why_not"]} - {""}
            events = list(found["per_gb"]) or events
            if found["per_gb"]:
                table.append([part["case"], str(threads), *(f"{count:.3g}" for count in found["per_gb"].values())])
    if not table:
        return [f"None were read: {'; '.join(sorted(reasons))}."]
    return [markdown_rows(("case", "threads", *events), table), "Of zarrfeed's process, for each decoded GB."]


def _by_threads(part: Json, value: Callable[[Json], float]) -> dict[int, float]:
    threads = sorted({row["threads"] for row in part["rows"]})
    return {one: median(value(row) for row in part["rows"] if row["threads"] == one) for one in threads}


def draw(document: Json, path: Path) -> None:
    """Draw the efficiency of zarrfeed and of the loop over the number of threads, a panel a case."""
    from zarrfeed.tools.plot.canvas import GREY, new_figure, save, style  # which need matplotlib

    parts = [part for part in document["parts"] if part["where"] == "all cores"]
    columns = min(4, len(parts))
    rows = -(-len(parts) // columns)
    with style():
        figure = new_figure(1.0 + 1.9 * columns, 0.8 + 1.7 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, part in zip(panels, parts, strict=False):
            for side, label, colour in (("loop", "the loop", _LOOP), ("ours", "zarrfeed", _OURS)):
                of = efficiency(rates(part, side))
                axes.plot(list(of), list(of.values()), "o-", color=colour, markersize=4, linewidth=1.3, label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(document["threads"], [str(threads) for threads in document["threads"]])
            axes.set_ylim(0, 1.15)
            axes.set_title(part["case"], loc="left", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.tick_params(labelsize=7.5)
        for axes in panels[len(parts) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        check = "a check, and no result; " if document["is_check"] else ""
        figure.suptitle(
            f"{check}rate over threads times that of one; {document['machine']['cpu']}", fontsize=8, color=GREY
        )
        save(figure, path)

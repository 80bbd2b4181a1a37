"""The picture of benchmarks/history.jsonl: zarrfeed's ratios to the ceilings, commit by commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.data.layouts import LAYOUTS
from benchmarks.loaders import LIBRARY_CEILING, YARDSTICK
from benchmarks.report.history import Row, read_history
from zarrfeed.tools.plot.canvas import GREY, new_figure, save, style

_COLOURS = {YARDSTICK: "#0b6e4f", LIBRARY_CEILING: "#d95f02"}
_LABELS = {YARDSTICK: "of ceiling-scatter", LIBRARY_CEILING: "of ceiling-library"}
#: The newest commits that have room.
_MOST_COMMITS = 24


def draw_all(history: Path, picture: Path) -> None:
    """Draw a history into a file."""
    with style():
        save(draw_history(read_history(history)), picture)


def draw_history(history: Sequence[Row]) -> Figure:
    """Return a panel a layout: ratios of CPU seconds over the commits, with the quartiles of the rounds as bars.

    Lines join the rows of one machine: ratios of different machines differ.
    """
    commits = list(dict.fromkeys(row.commit for row in history))[-_MOST_COMMITS:]
    layouts = list(dict.fromkeys(row.layout for row in history))
    machines = list(dict.fromkeys((row.cpu, row.cores) for row in history))
    figure = new_figure(7.6, 0.9 + 2.1 * max(1, -(-len(layouts) // 2)))
    panels = figure.subplots(max(1, -(-len(layouts) // 2)), 2, sharex=True, squeeze=False).ravel()
    for axes, layout in zip(panels, layouts, strict=False):
        for number, machine in enumerate(machines):
            rows = [
                row
                for row in history
                if row.layout == layout and (row.cpu, row.cores) == machine and row.commit in commits
            ]
            _draw_rows(axes, rows, commits, "os^vD"[number % 5])
        axes.set_title(f"{layout}: {LAYOUTS[layout].description}", loc="left", fontsize=8)
        axes.set_xlim(-0.5, max(0.5, len(commits) - 0.5))
        axes.set_ylim(bottom=0)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(commits)), [commit[:7] for commit in commits], rotation=60, fontsize=7)
        axes.tick_params(labelbottom=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for axes in panels[len(layouts) :]:
        axes.set_visible(False)
    figure.supylabel("zarrfeed's speed by CPU seconds", fontsize=8.5)
    for name, colour in _COLOURS.items():
        panels[0].plot([], [], "-", color=colour, label=_LABELS[name])
    for number, (cpu, cores) in enumerate(machines):
        panels[0].plot([], [], "os^vD"[number % 5], color=GREY, label=f"{cpu}, {cores} cores")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def _draw_rows(axes: Axes, rows: Sequence[Row], commits: Sequence[str], marker: str) -> None:
    x = [commits.index(row.commit) for row in rows]
    for name, colour in _COLOURS.items():
        ratios = [row.of_cpu[name] for row in rows]
        middle = np.array([ratio.median for ratio in ratios])
        around = np.array([[ratio.median - ratio.low, ratio.high - ratio.median] for ratio in ratios]).reshape(-1, 2).T
        axes.errorbar(x, middle, around, color=colour, marker=marker, markersize=4, linewidth=1.2, elinewidth=0.8)

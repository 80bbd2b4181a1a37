"""The pictures: rates by layout beside the ceiling, and rates over the number of threads."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.data.layouts import LAYOUTS
from benchmarks.loaders import CEILINGS, LOADERS, OURS, OURS_IN_WORKERS, PLAIN_ZARR, YARDSTICK
from benchmarks.report.results import Summary
from benchmarks.report.tables import number

#: Of what one thread gives: where each further one gives less than this, it gives nothing.
_NOTHING = 0.1

_COLUMNS = 4
_DARK, _GREY = "#333333", "#777777"
#: Label -> loaders, of which the fastest is drawn, and colour.
BARS: dict[str, tuple[tuple[str, ...], str]] = {
    OURS: ((OURS,), "#0b6e4f"),
    "zarrfeed, in workers": ((OURS_IN_WORKERS,), "#5ba88c"),
    "plain zarr, best": (PLAIN_ZARR, "#5b8fd6"),
    "zarr with zarrs, best": (tuple(name for name in LOADERS if name.startswith("zarrs-")), "#d98b3a"),
    "tensorstore": (("tensorstore",), "#8e6bb8"),
    "zarr-torch-dataset, best": (tuple(name for name in LOADERS if name.startswith("zarr-torch-")), "#b8434e"),
    "zarr-beluga": (("zarr-beluga",), "#7a8b3c"),
    "memmap, no codec": (("numpy-memmap",), "#999999"),
    "torch, in memory": (("torch-in-memory",), "#bbbbbb"),
}
_STYLES: dict[str, Any] = dict(zip(CEILINGS, ("-", "--", ":"), strict=True))
_CURVES = {OURS: "#0b6e4f", YARDSTICK: _DARK}


def draw_results(summaries: Sequence[Summary], machine: str) -> Any:
    """Return a figure: a panel a layout with a bar a kind of loader, and the ceilings as lines across them.

    All panels have the same logarithmic axis.
    """
    layouts = list(dict.fromkeys(s.layout for s in summaries))
    rates = {(s.layout, s.loader): s.gb_per_s for s in summaries}
    bars = {label: names for label, (names, _) in BARS.items() if any(s.loader in names for s in summaries)}
    columns = min(_COLUMNS, len(layouts))
    rows = -(-len(layouts) // columns)
    figure = _figure(2.2 + 2.9 * columns, 1.3 + rows * (0.75 + 0.24 * len(bars)))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    drawn = [max(known) for layout in layouts for _, known in _bars(rates, layout, bars) if known]
    low, high = min(drawn), max(rates.values())
    for axes, layout in zip(panels, layouts, strict=False):
        axes.set_xscale("log")
        axes.set_xlim(low / 2, high * 2.5)  # a number has room behind its bar
        for row, (label, known) in enumerate(_bars(rates, layout, bars)):
            if not known:
                axes.annotate("not measured", (low / 1.9, row), va="center", fontsize=6.5, color=_GREY)
                continue
            axes.barh(row, max(known), 0.75, color=BARS[label][1])
            text = {"textcoords": "offset points", "va": "center", "fontsize": 7, "zorder": 5}
            axes.annotate(number(max(known)), (max(known), row), (3, 0), **text, bbox=_WHITE)
        for name, style in _STYLES.items():
            if (layout, name) in rates:
                axes.axvline(rates[layout, name], color=_DARK, linestyle=style, linewidth=1.3)
        axes.set_title(_title(layout), fontsize=7.5, loc="left")
        _plain(axes, "x")
    panels[0].set_yticks(range(len(bars)), list(bars), fontsize=7.5)
    panels[0].invert_yaxis()  # all share it
    for axes in panels[len(layouts) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(layouts) - columns) : len(layouts)]:
        axes.tick_params(labelbottom=True)
    from matplotlib.lines import Line2D

    ceilings = [name for name in CEILINGS if any(s.loader == name for s in summaries)]
    lines = [Line2D([], [], color=_DARK, linestyle=_STYLES[name], label=name) for name in ceilings]
    if lines:
        figure.legend(handles=lines, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    figure.supxlabel("decoded GB/s, logarithmic", fontsize=9)
    figure.suptitle(machine, fontsize=7, color=_GREY)
    return figure


def draw_curves(curves: Mapping[str, Mapping[int, float]], machine: str) -> Any:
    """Return a figure: rates over the number of decode threads, a line a name, and where more give nothing."""
    figure = _figure(6.5, 4.4)
    axes = figure.subplots()
    for name, rates in curves.items():
        colour = _CURVES.get(name, _GREY)
        axes.plot(list(rates), list(rates.values()), marker="o", markersize=4, color=colour, label=name)
        enough = enough_threads(rates)
        if enough is not None:
            axes.plot([enough], [rates[enough]], "o", markersize=12, fillstyle="none", color=colour)
            text = f"more than {enough} threads\ngive nothing"
            below = {"textcoords": "offset points", "ha": "center", "va": "top", "fontsize": 7, "color": colour}
            axes.annotate(text, (enough, rates[enough]), (0, -9), **below)
    axes.set_xticks(sorted({threads for rates in curves.values() for threads in rates}))
    axes.set_xmargin(0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("decode threads")
    axes.set_ylabel("decoded GB/s")
    _plain(axes, "both")
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(textwrap.fill(machine, 100), fontsize=7, color=_GREY)
    return figure


def enough_threads(rates: Mapping[int, float]) -> int | None:
    """Return the number of threads from which on each further one gives less than a tenth of its share.

    Its share is the rate there, divided by that number. None if there is no such number, or only the last.
    """
    counts = sorted(rates)
    for row, threads in enumerate(counts[:-1]):
        share = rates[threads] / threads
        if all(rates[m] - rates[threads] < _NOTHING * share * (m - threads) for m in counts[row + 1 :]):
            return threads
    return None


def _bars(
    rates: Mapping[tuple[str, str], float], layout: str, bars: Mapping[str, Sequence[str]]
) -> list[tuple[str, list[float]]]:
    """Return for each label the rates that were measured on a layout, of which the largest is drawn."""
    return [(label, [rates[layout, n] for n in names if (layout, n) in rates]) for label, names in bars.items()]


_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Any, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=7.5)
    axes.set_axisbelow(True)


def _title(layout: str) -> str:
    """Return the name with its description, in lines of a panel's width."""
    description = LAYOUTS[layout].description if layout in LAYOUTS else ""
    return textwrap.fill(f"{layout}: {description}", 52)

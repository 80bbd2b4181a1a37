"""What people see: the table of a run, and its chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.layouts import LAYOUTS
from benchmarks.loaders import CEILINGS, LOADERS, OURS, YARDSTICK
from benchmarks.results import Summary

_COLUMNS = (*("GB/s", "slowest-fastest", "first epoch", f"{OURS} / it", "it / ceiling", "CPU s/GB", "chunks/batch"),)
_LINE_STYLES: tuple[Literal["-", ":"], ...] = ("-", ":")
_COLOURS = (
    *("#0b6e4f", "#5b8fd6", "#9dbce8", "#d98b3a", "#ecc08f", "#8e6bb8", "#c3aedd"),
    *("#b8434e", "#7a8b3c", "#b9c48a", "#4aa6a6", "#777777", "#bbbbbb"),
)


def print_table(console: Console, summaries: Sequence[Summary]) -> None:
    """Print medians and ratios, a section a layout."""
    table = Table()
    for column in ("layout", "loader"):
        table.add_column(column, no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for number, s in enumerate(summaries):
        starts = number == 0 or summaries[number - 1].layout != s.layout
        if starts and number:
            table.add_section()
        table.add_row(
            s.layout if starts else "",
            s.loader if s.whole_epoch else f"{s.loader} *",
            _number(s.gb_per_s),
            f"{_number(s.slowest)}-{_number(s.fastest)}",
            _number(s.first_epoch),
            _number(s.ours_over_it) if s.loader in LOADERS else "",
            _number(s.it_over_ceiling),
            _number(s.cpu_s_per_gb),
            _number(s.chunks_per_batch),
            style="bold" if s.loader == OURS else None,
        )
    console.print(table)
    console.print(
        "GB/s: decoded bytes delivered (10**9), median of the rounds; ratios are medians of the ratios in a round.\n"
        "first epoch: with fresh memory, and with the start of workers.\n"
        f"ceiling: {YARDSTICK}, a bare C++ loop over the same chunks.\n"
        "chunks/batch: how many chunks a batch has samples of, on average.\n"
        "* timed on a random part of an epoch, since it decodes a chunk for every sample.",
        highlight=False,
        soft_wrap=True,
    )


def _number(value: float | None) -> str:
    """Return about three digits, so that 0.0004 is seen and 4000 is no more exact than it is."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def write_chart(path: Path, summaries: Sequence[Summary], machine: str) -> None:
    """Write a PNG: a group of bars a layout on a logarithmic axis, with the ceilings as lines above them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layouts = list(dict.fromkeys(s.layout for s in summaries))
    loaders = [name for name in LOADERS if any(s.loader == name for s in summaries)]
    rates = {(s.layout, s.loader): s for s in summaries}
    figure = Figure(figsize=(max(7.0, 2.2 * len(layouts) + 2.0), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    width = 0.84 / max(1, len(loaders))
    lowest = min(s.gb_per_s for s in summaries)
    axes.set_yscale("log")
    axes.set_ylim(lowest / 3, 3 * max(s.gb_per_s for s in summaries))
    for number, loader in enumerate(loaders):
        colour = _COLOURS[list(LOADERS).index(loader) % len(_COLOURS)]
        for group, layout in enumerate(layouts):
            summary = rates.get((layout, loader))
            if summary is None:
                continue
            x = group - 0.42 + width * (number + 0.5)
            axes.bar(x, summary.gb_per_s, 0.92 * width, color=colour, label=loader if group == 0 else None)
            axes.annotate(
                _number(summary.gb_per_s),
                (x, summary.gb_per_s),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                zorder=5,  # a ceiling's line goes behind it
            )
    for name, style in zip(CEILINGS, _LINE_STYLES, strict=True):
        for group, layout in enumerate(layouts):
            if (layout, name) in rates:
                rate = rates[layout, name].gb_per_s
                line = axes.hlines(rate, group - 0.45, group + 0.45, colors="#333333", linestyles=style)
                line.set_label(name if group == 0 else "")
    axes.set_xticks(range(len(layouts)), [_tick(layout) for layout in layouts], fontsize=8)
    axes.set_ylabel("decoded GB/s, logarithmic")
    axes.set_title(machine.replace("; ", "\n"), fontsize=7, loc="left", color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=7 if len(layouts) > 2 else 4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def write_curves(path: Path, curves: Mapping[str, Mapping[int, float]], machine: str) -> None:
    """Write a PNG: rates over the number of decode threads, a line for each name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, rates) in enumerate(curves.items()):
        style = "-" if name == OURS else "--"
        axes.plot(list(rates), list(rates.values()), style, marker="o", color=_COLOURS[number], label=name)
    axes.set_xticks(sorted({threads for rates in curves.values() for threads in rates}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("decode threads")
    axes.set_ylabel("decoded GB/s")
    axes.set_title(machine.replace("; ", "\n"), fontsize=7, loc="left", color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _tick(layout: str) -> str:
    """Return the name with its description in lines of a group's width."""
    parts = LAYOUTS[layout].description.split(", ") if layout in LAYOUTS else []
    return "\n".join([layout, *parts])

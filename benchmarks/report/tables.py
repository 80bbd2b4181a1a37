"""The tables that people see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.harness.options import QUIET_CORES
from benchmarks.loaders import LIBRARY_CEILING, OURS, YARDSTICK
from benchmarks.report.results import Summary

_COLUMNS = (*("GB/s", "slowest-fastest", "first epoch", f"{OURS} / it", "it / ceiling", "CPU s/GB", "chunks/batch"),)


def make_console() -> Console:
    """Return what is printed to, wide enough for the tables where that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    return console


def print_rows(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> None:
    """Print a table whose first `words` columns are words, and the others numbers."""
    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < words else "right", no_wrap=i < words)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def say_if_not_quiet(console: Console, foreign_cores: float | None, how: str) -> None:
    """Warn where others kept so many cores busy, `how`: on average, or up to."""
    if foreign_cores is not None and foreign_cores > QUIET_CORES:
        console.print(f"NOT QUIET: others kept {how} {foreign_cores:.1f} cores busy meanwhile", highlight=False)


def print_table(console: Console, summaries: Sequence[Summary]) -> None:
    """Print medians and ratios, a section a layout."""
    table = Table()
    for column in ("layout", "loader"):
        table.add_column(column, no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for i, s in enumerate(summaries):
        starts = i == 0 or summaries[i - 1].layout != s.layout
        if starts and i:
            table.add_section()
        table.add_row(
            s.layout if starts else "",
            s.loader if s.whole_epoch else f"{s.loader} *",
            number(s.gb_per_s),
            f"{number(s.slowest)}-{number(s.fastest)}",
            number(s.first_epoch),
            number(s.ours_over_it),
            number(s.it_over_ceiling),
            number(s.cpu_s_per_gb),
            number(s.chunks_per_batch),
            style="bold" if s.loader == OURS else None,
        )
    console.print(table)
    console.print(
        "GB/s: decoded bytes delivered (10**9), median of the rounds; ratios are medians of the ratios in a round.\n"
        "first epoch: with fresh memory, and with the start of workers.\n"
        f"ceiling: {YARDSTICK}, a bare C++ loop over the same chunks with our own codecs and copies;\n"
        f"{LIBRARY_CEILING} has the codec library's own calls and memcpy in their place.\n"
        "chunks/batch: how many chunks a batch has samples of, on average.\n"
        "* timed on a random part of an epoch, since a whole one takes too long (benchmarks/README.md says where).",
        highlight=False,
        soft_wrap=True,
    )


def number(value: float | None) -> str:
    """Return about three digits, so that 0.0004 is seen and 4000 is no more exact than it is."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"

"""The common parts of the drawings: a figure, its colours, its colour bar, lanes, and the file."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.tools.plot.lane_rows import LaneRows

#: Early is dark, late is light. The same colours for people who see fewer.
COLOURS = mpl.colormaps["viridis"]
UNREAD, GREY = "#e6e8eb", "#5b6470"
#: Dark colours, of which neighbours differ also for people who see fewer.
_OF_RANKS = ("#1f77b4", "#d95f02", "#1b9e77", "#c51b7d", "#6a51a3", "#8c564b", "#525252", "#a6761d")
#: A file with the same content for the same figure.
_SAME: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "zarrfeed",
    "font.size": 9.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # a browser without it takes another sans-serif
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that no window system knows."""
    figure = Figure(figsize=(width, height), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG or PNG, as the path ends; on white, so that it can be read on pages of any colour."""
    picture, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    with mpl.rc_context(_SAME):
        figure.savefig(picture, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else {})
    content = picture.getvalue()
    if kind == "svg":  # lines do not end in blanks, which tools for text files would change
        content = b"\n".join(line.rstrip() for line in content.split(b"\n"))
    write_whole(path, content)


def style() -> Any:
    """Return a context in which text has the size and the font of all pictures."""
    return mpl.rc_context(_SAME)


def time_scale(steps: Int64) -> Normalize:
    """Return the colours of the steps of an epoch."""
    return Normalize(0, max(1, int(steps.max(initial=0))))


def add_colour_bar(
    figure: Figure, axes: Any, scale: Normalize, batch_size: int | None, num_ranks: int, what: str
) -> None:
    """Add a bar that says which colour is when, beside some axes."""
    bar = figure.colorbar(ScalarMappable(scale, COLOURS), ax=axes, pad=0.015, fraction=0.03, aspect=28)
    bar.set_label(f"{what}\n({unit_of_time(batch_size, num_ranks)})")
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    format_time(bar.ax.yaxis, batch_size)


def unit_of_time(batch_size: int | None, num_ranks: int) -> str:
    """Return the unit of the axis of time."""
    return ("samples" if batch_size is None else f"batches of {batch_size}") + " on each rank" * (num_ranks > 1)


def format_time(axis: Any, batch_size: int | None) -> None:
    """Let an axis of steps show batches, at whole numbers of them."""
    size = batch_size or 1
    axis.set_major_locator(_Batches(size))
    axis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / size:,.0f}"))


class _Batches(MaxNLocator):
    """Ticks at whole batches."""

    def __init__(self, batch_size: int) -> None:
        super().__init__(7, integer=True, steps=[1, 2, 5, 10])
        self._batch_size = batch_size

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return ticks between two steps."""
        return np.asarray(super().tick_values(vmin / self._batch_size, vmax / self._batch_size)) * self._batch_size


def rank_colour(rank: int, num_ranks: int) -> str:
    """Return the colour of the lines and the name of a rank; black, if there is one."""
    return "black" if num_ranks == 1 else _OF_RANKS[rank % len(_OF_RANKS)]


def plain_axes(axes: Axes) -> None:
    """Take the frame away, and leave the labels."""
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=3, color=GREY)
    axes.tick_params(axis="y", length=0)


def add_caption(figure: Figure, sentences: list[str], width: int) -> None:
    """Write a caption below the picture."""
    figure.supxlabel("\n".join(textwrap.wrap(" ".join(sentences), width)), fontsize=8.5, color="#3a424d", ha="center")


def lanes_height(lanes: LaneRows) -> float:
    """Return the height of a drawing of lanes in inches; groups of several pieces need more."""
    of_row = 0.16 if lanes.group_size.max(initial=1) <= 2 else 0.24
    return max(0.6, of_row * len(lanes.rank)) + 0.4


def draw_lanes(
    axes: Axes, lanes: LaneRows, scale: Normalize, batch_size: int | None, epoch: int, num_ranks: int, noun: str
) -> None:
    """Draw one row for each lane: from when to when it reads which block."""
    most = int(lanes.group_size.max(initial=1))
    height = 0.8 / np.maximum(1, lanes.group_size)
    bottom = lanes.row - 0.4 + height * lanes.in_group
    cells = [
        Rectangle((first, low), until - first, tall)
        for first, until, low, tall in zip(lanes.first_step, lanes.until, bottom, height, strict=True)
    ]
    colours = COLOURS(scale(lanes.first_step))
    axes.add_collection(
        PatchCollection(cells, facecolor=colours, edgecolor="white", linewidth=0.6 if most <= 2 else 0.2)
    )
    _label(axes, lanes, colours, noun)
    axes.set_xlim(0, max(1, lanes.steps))
    axes.set_ylim(len(lanes.rank) - 0.4, -0.6)
    begins = np.flatnonzero(np.diff(lanes.rank, prepend=-1))
    for begin in begins[1:]:
        axes.axhline(begin - 0.5, color=GREY, linewidth=1)
    names = [str(lane) for lane in lanes.lane]
    if num_ranks > 1:
        names = [f"rank {lanes.rank[n]}   {name}" if n in begins else name for n, name in enumerate(names)]
    axes.set_yticks(range(len(names)), names, fontsize=7 if len(names) > 12 else 8.5)
    for text, rank in zip(axes.get_yticklabels(), lanes.rank, strict=True):
        text.set_color(rank_colour(rank, num_ranks))
    axes.set_ylabel("lane")
    axes.set_xlabel(f"time ({unit_of_time(batch_size, num_ranks)})")
    format_time(axes.xaxis, batch_size)
    left_out = lanes.num_rows - len(lanes.rank)
    some = f" ({left_out:,} more lanes are not drawn)" * (left_out > 0)
    begin = " at the beginning of" if lanes.steps < lanes.of_steps else " in"
    axes.set_title(f"What the lanes read{begin} epoch {epoch}, side by side{some}", loc="left", fontsize=9.5)
    plain_axes(axes)


def _label(axes: Axes, lanes: LaneRows, colours: Any, noun: str) -> None:
    """Write the label of its pieces into each group that has room for it."""
    for piece in np.flatnonzero(lanes.in_group == 0).tolist():
        size = int(lanes.group_size[piece])
        label = " ".join(map(str, lanes.label[piece : piece + size]))
        first, end = int(lanes.first_step[piece]), min(int(lanes.until[piece]), lanes.steps)
        room = (end - first) * 110 / max(1, lanes.steps)
        if size > 2 and len(label) > room:
            label = f"{size} {noun}s"
        if len(label) <= room:
            text = "white" if colours[piece][:3] @ (0.3, 0.59, 0.11) < 0.55 else "black"
            middle = ((first + end) / 2, lanes.row[piece])
            axes.text(*middle, label, ha="center", va="center", fontsize=7, color=text)

"""Draw a `RowFigure`: the sample axis, the first batches below it, and the lanes over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import FuncFormatter

from zarrfeed.tools.plot.canvas import (
    COLOURS,
    UNREAD,
    add_caption,
    add_colour_bar,
    draw_lanes,
    lanes_height,
    new_figure,
    plain_axes,
    rank_colour,
    save,
    style,
    time_scale,
)
from zarrfeed.tools.plot.row_figure import RowFigure

#: Cells above which no line is drawn between them, and above which they are one image.
_MOST_EDGED, _MOST_VECTORS = 120, 3000


def draw(drawn: RowFigure, path: Path, *, name: str, shuffle: bool) -> None:
    """Write the picture; `name` is the name of the store."""
    ranks = len(drawn.steps)
    heights = (0.4 + 0.2 * ranks, 0.5 + (0.16 + 0.04 * ranks) * len(drawn.first_batches[0]), lanes_height(drawn.lanes))
    with style():
        figure = new_figure(9.6, sum(heights) + 2.2)
        where, first, lanes = figure.subplots(3, 1, height_ratios=heights)
        scale = time_scale(drawn.steps)
        _draw_axis(where, drawn, scale)
        _draw_first(first, drawn)
        draw_lanes(lanes, drawn.lanes, scale, drawn.batch_size, drawn.epoch, ranks, drawn.unit)
        add_colour_bar(figure, [where, first, lanes], scale, drawn.batch_size, ranks, f"{drawn.unit} is decoded")
        several = f", shared by {ranks} ranks" * (ranks > 1)
        order = "shuffled" if shuffle else "in order"
        figure.suptitle(f"{name}: epoch {drawn.epoch}, {order}{several}", fontsize=12, fontweight="bold")
        add_caption(figure, _caption(drawn), 120)
        save(figure, path)


def _caption(drawn: RowFigure) -> list[str]:
    unit = drawn.unit
    of = f" of {drawn.source}" if drawn.source not in ("", "samples") else ""
    sentences = [f"{drawn.num_samples:,} samples in {drawn.num_blocks:,} {unit}s{of}."]
    if drawn.every > 1:
        sentences.append(
            f"There are too many to draw: each cell on the sample axis stands for {drawn.every:,} {unit}s."
        )
        sentences.append("Its colour is that of the one in the middle.")
    sentences.append(
        f"In the lanes, numbers are those of {unit}s, counted from 0 on the sample axis, in the same colours."
    )
    if len(drawn.steps) > 1:
        sentences.append(f"Grey: the rank does not read the {unit}.")
    elif np.isnan(drawn.when).any():
        sentences.append("Grey: not read.")
    return sentences


def _draw_axis(axes: Axes, drawn: RowFigure, scale: Normalize) -> None:
    ranks, cells = drawn.when.shape
    axes.pcolormesh(
        drawn.edges,
        np.arange(ranks + 1) - 0.5,
        np.ma.masked_invalid(drawn.when),
        cmap=COLOURS.with_extremes(bad=UNREAD),
        norm=scale,
        edgecolor="white" if cells <= _MOST_EDGED else "none",
        linewidth=0.5,
        rasterized=drawn.when.size > _MOST_VECTORS,
    )
    for number in range(1, ranks):
        axes.axhline(number - 0.5, color="white", linewidth=2)
    axes.set_ylim(ranks - 0.5, -0.5)
    _name_ranks(axes, ranks)
    by = " by each rank" * (ranks > 1)
    title = f"The {drawn.unit}s on the sample axis, coloured by when they are decoded{by}"
    _finish(axes, drawn, title)


def _name_ranks(axes: Axes, ranks: int) -> None:
    if ranks == 1:
        axes.set_yticks([])
        return
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    for rank, text in enumerate(axes.get_yticklabels()):
        text.set_color(rank_colour(rank, ranks))


def _draw_first(axes: Axes, drawn: RowFigure) -> None:
    batches, ranks = len(drawn.first_batches[0]), len(drawn.first_batches)
    height = 0.8 / ranks
    for rank, of_rank in enumerate(drawn.first_batches):
        for number, samples in enumerate(of_rank):
            low = number - 0.4 + rank * height
            at = samples[samples >= 0] + 0.5
            axes.vlines(at, low, low + height, color=rank_colour(rank, ranks), linewidth=0.9)
    noun = "batch" if drawn.batch_size else "sample"
    axes.set_ylim(max(batches, 1) - 0.5, -0.5)
    axes.set_yticks(range(batches), [f"{noun} {number}" for number in range(batches)])
    for number in range(1, batches):
        axes.axhline(number - 0.5, color=UNREAD, linewidth=0.8)
    plural = {"batch": "batches", "sample": "samples"}[noun]
    several = ", in the colours of ranks" * (ranks > 1)
    _finish(axes, drawn, f"Where the samples of the first {plural} come from: a line is a sample{several}")


def _finish(axes: Axes, drawn: RowFigure, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_xlim(0, drawn.num_samples)
    axes.set_xlabel("sample axis (samples)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda sample, _: f"{sample:,.0f}"))
    plain_axes(axes)

"""Draw a `PatchFigure`: the tiles of two epochs in a section through a volume, and the lanes over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

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
from zarrfeed.tools.plot.patch_figure import SEVERAL, Float64, PatchFigure, Section

_CHUNKS, _FIRST, _SEVERAL = "#ffb000", "#ff2d55", "#9aa1ab"
#: Tiles above which they are one image; above which no line is drawn between them; columns and chunks that are drawn.
_MOST_VECTORS, _MOST_EDGED, _MOST_LINES = 3000, 40, 40
#: The line styles of patches of the first batch: True for patches that the section goes through, False for others.
_LINES: dict[bool, dict[str, Any]] = {
    True: {"linewidth": 2.0, "linestyle": "-", "zorder": 6},
    False: {"linewidth": 1.1, "linestyle": (0, (1.5, 1.2)), "zorder": 5},
}


def draw(drawn: PatchFigure, path: Path, *, name: str, dims: Sequence[str], shuffle: bool) -> None:
    """Write the picture; `name` is the name of the store, and `dims` are the dimensions of patches."""
    ranks, low = len(drawn.steps), lanes_height(drawn.lanes)
    panels = len(drawn.sections) + (ranks > 1)
    (left, right), (begin, end) = _limits(drawn)
    width = 9.0 / max(2, panels)
    tall = float(np.clip(width * (end - begin) / (right - left), 1.2, 6.0))
    with style():
        figure = new_figure(10.4, tall + low + 3.0)
        top, bottom = list(figure.subfigures(2, 1, height_ratios=(tall + 1.5, low + 1.1)).flat)  # type: ignore[union-attr]
        scale = time_scale(drawn.steps)
        axes = list(np.atleast_1d(top.subplots(1, panels)))
        for one, section in zip(axes, drawn.sections, strict=False):
            _draw_section(one, drawn, section, dims)
            _draw_tiles(one, section, section.when, COLOURS.with_extremes(bad=UNREAD), scale)
        if ranks > 1:
            _draw_ranks(axes[-1], drawn, dims, ranks)
        for one in axes[1:]:
            one.set_yticklabels([])
        axes[0].set_ylabel(f"{dims[drawn.plane.along]} (voxels)")
        add_colour_bar(top, axes, scale, drawn.batch_size, ranks, "a layer of a column is decoded")
        _add_legend(top, drawn)
        draw_lanes(bottom.subplots(), drawn.lanes, scale, drawn.batch_size, drawn.sections[0].epoch, ranks, "layer")
        order = "shuffled" if shuffle else "in order"
        several = f", shared by {ranks} ranks" * (ranks > 1)
        size = " x ".join(map(str, drawn.patch_size))
        figure.suptitle(f"{name}: patches of {size} voxels, {order}{several}", fontsize=12, fontweight="bold")
        add_caption(bottom, _caption(drawn, dims), 130)
        save(figure, path)


def _caption(drawn: PatchFigure, dims: Sequence[str]) -> list[str]:
    plane = drawn.plane
    through = " and ".join(f"{dims[d]} = {at}" for d, at in enumerate(plane.at.tolist()) if at >= 0)
    volume = f" through volume {plane.volume} of {plane.num_volumes}" * (plane.num_volumes > 1)
    sentences = []
    if through or volume:
        sentences.append(f"The upper panels are a section{volume}" + f" at {through}" * bool(through) + ".")
    if max(drawn.sections[0].every) > 1:
        along, across = drawn.sections[0].every
        sentences.append(f"Too many patches to draw them all: one is drawn of {along:,} along, of {across:,} across.")
    if drawn.overlaps:
        sentences.append("Patches overlap, and each is drawn up to where the next one begins.")
    begin = ", from a random layer on" * (len(drawn.sections) > 1)
    sentences.append(
        f"A column is read layer by layer along {dims[plane.along]}{begin}. Each layer hands its chunks on."
    )
    sentences.append("In the lanes, numbers are those of columns, in the same colours.")
    return sentences


def _limits(drawn: PatchFigure) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the limits of all sections across and along, in voxels."""
    pairs = []
    for axis, extent in ((1, drawn.extent[1]), (0, drawn.extent[0])):
        least = min(0, *(int(one.edges[axis][0]) for one in drawn.sections))
        most = max(extent, *(int(one.edges[axis][-1]) for one in drawn.sections))
        margin = 0.02 * (most - least)
        pairs.append((least - margin, most + margin))
    return pairs[0], pairs[1]


def _draw_tiles(axes: Axes, section: Section, values: Float64, colours: Colormap, scale: Normalize) -> None:
    along, across = section.edges
    few = max(np.shape(values)) <= _MOST_EDGED
    axes.pcolormesh(
        across,
        along,
        np.ma.masked_invalid(values),
        cmap=colours,
        norm=scale,
        edgecolor="white" if few else "none",
        linewidth=0.6,
        rasterized=np.size(values) > _MOST_VECTORS,
        zorder=1,
    )


def _draw_section(axes: Axes, drawn: PatchFigure, section: Section, dims: Sequence[str]) -> None:
    """Draw everything but the colours of the tiles."""
    plane = drawn.plane
    _draw_frame(axes, drawn, section, dims)
    for (y, x), inside in zip(section.boxes, section.inside, strict=True):
        line = _LINES[bool(inside)]
        axes.add_patch(Rectangle((x, y), drawn.size[1], drawn.size[0], fill=False, edgecolor=_FIRST, **line))
    if len(section.lane) <= _MOST_LINES:
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        for lane, (y, x) in zip(section.lane, section.lane_at, strict=True):
            axes.text(x, y, f"{lane} ↓", ha="center", va="center", fontsize=7.5, bbox=box, zorder=7)
    first = [f"{dims[plane.along]} = {section.edges[0][0]}"]
    if plane.across is not None:
        first.append(f"{dims[plane.across]} = {section.edges[1][0]}")
    axes.set_title(
        f"Epoch {section.epoch}: {section.num_patches:,} patches\nfirst tile at {', '.join(first)}", fontsize=9.5
    )


def _draw_frame(axes: Axes, drawn: PatchFigure, section: Section, dims: Sequence[str]) -> None:
    """Draw the volume, its chunks and its columns."""
    (left, right), (begin, end) = _limits(drawn)
    for extent, chunk, draw_lines, other in (
        (drawn.extent[0], drawn.chunk[0], axes.hlines, drawn.extent[1]),
        (drawn.extent[1], drawn.chunk[1], axes.vlines, drawn.extent[0]),
    ):
        if extent // chunk <= _MOST_LINES:
            draw_lines(
                np.arange(chunk, extent, chunk), 0, other, color=_CHUNKS, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3
            )
    walls = section.walls
    if len(walls) <= _MOST_LINES:
        wide = 2.6 if len(walls) <= 10 else 1.2
        axes.vlines(walls[1:-1], section.edges[0][0], section.edges[0][-1], color="black", linewidth=wide, zorder=4)
        if drawn.plane.across is not None and len(walls) <= 14:
            above = axes.secondary_xaxis("top")
            word = "column " * (len(walls) <= 4)
            above.set_xticks((walls[:-1] + walls[1:]) / 2, [f"{word}{number}" for number in section.column], fontsize=8)
            above.set_xlabel("" if word else "column", fontsize=8)
            above.tick_params(length=0, pad=1)
            above.spines["top"].set_visible(False)
    frame: dict[str, Any] = {
        "fill": False,
        "edgecolor": "black",
        "linewidth": 1.4,
        "linestyle": (0, (6, 2)),
        "zorder": 4,
    }
    axes.add_patch(Rectangle((0, 0), drawn.extent[1], drawn.extent[0], **frame))
    axes.set_xlim(left, right)
    axes.set_ylim(end, begin)
    if drawn.plane.across is not None:
        axes.set_xlabel(f"{dims[drawn.plane.across]} (voxels)")
        if 0.2 < (end - begin) / (right - left) < 5:
            axes.set_aspect("equal")
    else:
        axes.set_xticks([])
    plain_axes(axes)


def _draw_ranks(axes: Axes, drawn: PatchFigure, dims: Sequence[str], ranks: int) -> None:
    section = drawn.sections[0]
    _draw_frame(axes, drawn, section, dims)
    colours = ListedColormap([_SEVERAL, *(rank_colour(rank, ranks) for rank in range(ranks))])
    rank = np.where(section.rank == SEVERAL, -1.0, np.where(section.rank < 0, np.nan, section.rank))
    _draw_tiles(axes, section, rank, colours.with_extremes(bad=UNREAD), Normalize(-1.5, ranks - 0.5))
    axes.set_title(f"Epoch {section.epoch}:\nwhich rank reads", fontsize=9.5)


def _add_legend(figure: SubFigure, drawn: PatchFigure) -> None:
    handles: list[Artist] = [
        Line2D(
            [], [], color="black", linewidth=1.4, linestyle=(0, (6, 2)), label="volume; what is beyond it is padded"
        ),
        Line2D([], [], color=_CHUNKS, linewidth=1.1, linestyle=(0, (4, 2)), label="chunks"),
        Line2D([], [], color="black", linewidth=2.6, label="walls between columns"),
        Line2D([], [], color=_FIRST, label="patches of the first batch", **_LINES[True]),
    ]
    if not all(one.inside.all() for one in drawn.sections):
        handles.append(Line2D([], [], color=_FIRST, label="the same, before or behind the section", **_LINES[False]))
    handles.append(
        Line2D([], [], linestyle="none", marker="$3↓$", markersize=12, color="black", label="lane 3 begins here")
    )
    ranks = len(drawn.steps)
    if ranks > 1:
        handles += [Patch(color=rank_colour(rank, ranks), label=f"rank {rank}") for rank in range(ranks)]
        handles += [Patch(color=_SEVERAL, label="several ranks")] * bool((drawn.sections[0].rank == SEVERAL).any())
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if ranks > 1 else 3, fontsize=8, frameon=False)

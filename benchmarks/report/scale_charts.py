"""The pictures of docs/scale.md, from the results of `python -m benchmarks.scale --full`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from benchmarks.suites.scale_cluster import Cluster, formula_hits
from benchmarks.suites.scale_rates import LAYOUTS, S3_GETS
from zarrfeed.tools.plot.canvas import GREY, new_figure, save, style

Json = Mapping[str, Any]

_GREEN, _BLUE, _ORANGE, _PURPLE = "#0b6e4f", "#1f77b4", "#d95f02", "#6a51a3"
_EPOCHS = 30


def draw_all(results: Path, folder: Path) -> None:
    """Write all pictures of a file of results into a folder."""
    document = json.loads(results.read_text())
    for name, draw in PICTURES.items():
        with style():
            save(draw(document), folder / name)


def draw_plans(document: Json) -> Figure:
    """Return seconds and memory of planning over the number of chunks."""
    figure = new_figure(7.6, 3.8)
    seconds, memory = figure.subplots(1, 2)
    series: list[tuple[str, str, str, Callable[[Json], bool]]] = [
        ("no affinity, every epoch", _ORANGE, "epoch 1", lambda one: not one.get("affinity")),
        ("affinity, once", _BLUE, "dataset", lambda one: bool(one.get("affinity"))),
        ("affinity, every epoch", _GREEN, "epoch 1", lambda one: bool(one.get("affinity"))),
    ]
    chunked = [one for one in document["plans"] if one["status"] == "ok" and not one.get("per_shard")]
    sharded = [one for one in document["plans"] if one["status"] == "ok" and one.get("per_shard")]
    for label, colour, step, wanted in series:
        cases = [one for one in chunked if wanted(one)]
        _line(seconds, cases, _seconds(step), label, colour)
        if step != "epoch 1" or label.startswith("no"):
            _line(memory, cases, _gib, label.partition(",")[0], colour)
    cases = [one for one in sharded if not one.get("affinity")]
    _line(seconds, cases, _seconds("epoch 1"), "shards of 64 chunks are blocks", _PURPLE)
    _line(memory, cases, _gib, "shards of 64 chunks are blocks", _PURPLE)
    for axes, what in ((seconds, "CPU seconds, one rank"), (memory, "GiB beyond those of torch, one rank")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axvline(document["most_blocks"], color=GREY, linewidth=1, linestyle="--")
        axes.set_xlabel("chunks")
        axes.set_title(what, loc="left", fontsize=9)
        axes.annotate("limit of blocks", (document["most_blocks"], 0.02), (-3, 0), **_ROTATED)
        _plain(axes)
    seconds.plot([], [], "o", fillstyle="none", color=GREY, label="with the limit lifted")
    handles, labels = seconds.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def draw_hits(document: Json) -> Figure:
    """Return hit ratios over epochs, of clusters of several sizes: lines by the formula, dots by simulation."""
    nodes = sorted({one["cluster"]["nodes"] for one in document["hits"]})
    figure = new_figure(7.6, 3.2)
    panels = figure.subplots(1, len(nodes), sharey=True, squeeze=False)[0]
    for axes, count in zip(panels, nodes, strict=True):
        for one in document["hits"]:
            if one["cluster"]["nodes"] == count and one["status"] == "ok":
                _draw_rooms(axes, one)
        axes.set_title(f"{count} nodes", loc="left", fontsize=9)
        axes.set_xlabel("epoch")
        axes.set_ylim(-4, 104)
        axes.set_xlim(0.5, _EPOCHS + 0.5)
        _plain(axes)
    panels[0].set_ylabel("reads that hit, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=7.5)
    return figure


def _draw_rooms(axes: Axes, one: Json) -> None:
    cluster, epochs = Cluster(**one["cluster"]), np.arange(_EPOCHS)
    for room, found in zip(one["rooms"], one["hit_ratios"], strict=True):
        if cluster.affinity:
            label = f'affinity = "node", a cache for {room:g} of the part of the node'
            colour, line = _GREEN, "-" if room == 1 else "--"
        else:
            whole, half = room is None, room == cluster.nodes / 2
            size = "all data" if whole else "half of all data" if half else "1 part of a node"
            label, colour, line = f"no affinity, a cache for {size}", _ORANGE, "-" if whole else "--" if half else ":"
        held = math.inf if room is None else room
        formula = [100 * formula_hits(cluster, held, int(epoch)) for epoch in epochs]
        axes.plot(epochs + 1, formula, color=colour, linestyle=line, linewidth=1.4, label=label)
        axes.plot(np.arange(len(found)) + 1, 100 * np.array(found), "o", color=colour, markersize=2.6)


def draw_requests(document: Json) -> Figure:
    """Return the requests a second of all ranks, by scenario and layout, beside what prefixes of S3 take."""
    figure = new_figure(7.6, 3.8)
    axes = figure.subplots()
    loads = document["loads"]
    scenarios = list(dict.fromkeys(one["scenario"] for one in loads))
    colours = dict(zip(LAYOUTS, (_ORANGE, _PURPLE, _GREEN), strict=True))
    labels = dict(
        zip(LAYOUTS, ("a chunk is an object", "shards, blocks are chunks", "shards, blocks are shards"), strict=True)
    )
    for number, layout in enumerate(LAYOUTS):
        rates = [one["gets_s"] for one in loads if one["layout"] == layout]
        heights = np.arange(len(scenarios)) + 0.27 * (number - 1)
        axes.barh(heights, rates, 0.25, color=colours[layout], label=labels[layout])
        for height, gets in zip(heights, rates, strict=True):
            text = f"{gets:,.0f}" if gets < 1e6 else f"{gets / 1e6:.1f} million"
            where: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7, "bbox": _WHITE}
            axes.annotate(text, (gets, height), (3, 0), **where)
    axes.set_xscale("log")
    axes.set_xlim(10, 3e8)
    for prefixes in (1, 10, 100, 1000):
        axes.axvline(prefixes * S3_GETS, color=GREY, linewidth=0.9, linestyle="--")
        text = f"{prefixes:,} prefix" + "es" * (prefixes > 1)
        axes.annotate(text, (prefixes * S3_GETS, -0.62), (3, 0), textcoords="offset points", fontsize=7, color=GREY)
    axes.set_ylim(len(scenarios) - 0.5, -0.75)
    axes.set_yticks(range(len(scenarios)), scenarios)
    axes.set_xlabel("GET requests a second of all ranks, without caches")
    _plain(axes, "x")
    axes.legend(frameon=False, fontsize=7.5, loc="lower right")
    return figure


def draw_evenness(document: Json) -> Figure:
    """Return how often a chunk is read by the number of ranks, and how evenly bytes are spread over all ranks."""
    figure = new_figure(7.6, 3.2)
    shared, even = figure.subplots(1, 2, width_ratios=[3, 2])
    cases = document["sharing"]
    colours = [_GREEN if one["formula"] == 1 else _ORANGE for one in cases]
    shared.bar(range(len(cases)), [one["reads"] for one in cases], 0.7, color=colours)
    for i, one in enumerate(cases):
        text = {"ha": "center", "va": "bottom", "fontsize": 7, "textcoords": "offset points"}
        shared.annotate(f"{one['reads']:.0f}", (i, one["reads"]), (0, 1), **text)
    shared.set_xticks(range(len(cases)), [f"{one['ranks']:,}" for one in cases], rotation=60, fontsize=7.5)
    shared.set_xlabel("ranks")
    shared.set_title(f"reads of a chunk with {cases[0]['lanes']} lanes", loc="left", fontsize=9)
    _plain(shared, "y")
    found = next(one["bytes_per_rank"] for one in document["evenness"] if "bytes_per_rank" in one)
    edges, counts = np.array(found["edges"]), np.array(found["counts"])
    even.stairs(counts, edges, fill=True, color=_BLUE, alpha=0.6)
    deviation, total, width = found["formula_deviation"], counts.sum(), edges[1] - edges[0]
    x = np.linspace(edges[0], edges[-1], 120)
    normal = np.exp(-(((x - 1) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    even.plot(x, normal * total * width, color=GREY, linewidth=1.3, label="by formula")
    even.set_xlabel("bytes of a rank over the mean")
    even.set_title(f"{total:,} ranks, chunks that vary", loc="left", fontsize=9)
    even.legend(frameon=False, fontsize=7.5, loc="upper left")
    _plain(even)
    return figure


_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
_ROTATED: dict[str, Any] = {
    "xycoords": ("data", "axes fraction"),
    "textcoords": "offset points",
    "rotation": 90,
    "ha": "right",
    "va": "bottom",
    "fontsize": 7,
    "color": GREY,
}


def _seconds(step: str) -> Callable[[Json], float]:
    def of(one: Json) -> float:
        seconds: float = one["steps"][step]["cpu_s"]
        return seconds

    return of


def _gib(one: Json) -> float:
    """Return the memory that planning took beyond what the process had."""
    made: float = (one["steps"]["resumed"]["peak_mib"] - one["base_mib"]) / 1024
    return made


def _line(axes: Axes, cases: Sequence[Json], value: Callable[[Json], float], label: str, colour: str) -> None:
    """Draw values over chunks; hollow where the planner's limit was lifted."""
    chunks, values = [one["chunks"] for one in cases], [value(one) for one in cases]
    axes.plot(chunks, values, color=colour, linewidth=1.3, label=label)
    for lifted in (False, True):
        here = [n for n, one in enumerate(cases) if bool(one.get("lifted")) == lifted]
        fill = "none" if lifted else "full"
        points = [chunks[i] for i in here], [values[i] for i in here]
        axes.plot(*points, "o", markersize=5, fillstyle=fill, color=colour)


def _plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=7.5)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_minor_formatter(NullFormatter())
            axis.set_minor_locator(NullLocator())


PICTURES: dict[str, Callable[[Json], Figure]] = {
    "scale-plans.svg": draw_plans,
    "scale-hits.svg": draw_hits,
    "scale-requests.svg": draw_requests,
    "scale-evenness.svg": draw_evenness,
}

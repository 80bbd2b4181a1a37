"""The page and the picture of `python -m benchmarks.gpu`, from its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.options import QUIET_CORES
from benchmarks.report.tables import markdown_rows
from zarrfeed.base.atomic_file import write_whole

Json = Mapping[str, Any]

#: Goal for the share of the rate on preloaded batches, where the host delivers `_ENOUGH` times as much by itself.
GOAL_SHARE, _ENOUGH = 0.99, 1.1
#: Goal for the share of time in which the device waits between steps.
GOAL_IDLE = 0.01

_COLUMNS = (
    *("layout", "network", "side", "samples/s", "of the ceiling", "lowest, highest", "idle", "idle, ceiling"),
    *("delivered / needed", "CPU s/GB", "CPU s/GB, ceiling", "first batch, s"),
)
_CHECK = "**A check that everything runs, and no result:** the device is a CPU, or data and networks are tiny."
_COLOURS = {"zarrfeed": "#0b6e4f", "plain": "#5b8fd6"}


def write_report(document: Json, folder: Path, *, picture: bool) -> None:
    """Write gpu.json, gpu.md and, if asked and where matplotlib is installed, gpu.png."""
    write_whole(folder / "gpu.json", json.dumps(document, indent=1).encode())
    write_whole(folder / "gpu.md", page(document).encode())
    if picture and document["parts"] and find_spec("matplotlib") is not None:
        draw(document, folder / "gpu.png")


def share(part: Json) -> list[float]:
    """Return the rate of a side over that of the ceiling, in each round."""
    return [_rate(own) / _rate(best) for own, best in zip(part["windows"], part["ceiling"], strict=True)]


def idle(windows: Sequence[Json]) -> float:
    """Return the part of the time in which the device waited between steps: the median of the rounds."""
    return float(median(window["idle_s"] / window["wall_s"] for window in windows))


def is_allowed(part: Json) -> bool:
    """Return whether the host delivers more than the ceiling needs while nothing trains."""
    needed = median(_rate(window) for window in part["ceiling"])
    fed = part["feed_samples_per_s"]
    return fed is not None and fed >= _ENOUGH * needed


def page(document: Json) -> str:
    """Return the page in Markdown."""
    device = document["device"]
    lines = ["# Training steps on a GPU", ""]
    if document["is_check"]:
        lines += [
            "**A check that everything runs, and no result:** the device is a CPU, or data and networks are tiny.",
            "",
        ]
    lines += [document["machine_line"] + ".", "", "Device: " + _device(device) + ".", ""]
    if document["parts"]:
        lines += [markdown_rows(_COLUMNS, [_row(part) for part in document["parts"]]), *_legend(document), ""]
        windows = [window for part in document["parts"] for window in (*part["ceiling"], *part["windows"])]
        busy = max(window["foreign_cores"] or 0.0 for window in windows)
        if busy > QUIET_CORES:
            lines += [f"**Not quiet:** others kept up to {busy:.1f} cores busy meanwhile.", ""]
        lines += _verdicts(document) if not document["is_check"] else []
        feeds = {part["layout"]: part["feed"] for part in document["parts"]}
        lines += ["", "## Layouts and networks", "", *(f"- {name}: {text}." for name, text in feeds.items())]
        networks = {(part["layout"], part["model"]): part["network"] for part in document["parts"]}
        lines += [f"- {model} on {layout}: {text}." for (layout, model), text in networks.items()]
    if document["failed"]:
        lines += ["", "## Failed", "", *(f"- {one}" for one in document["failed"])]
    if document.get("left_out"):
        lines += ["", "## Left out", "", *(f"- {one}" for one in document["left_out"])]
    return "\n".join(lines).rstrip() + "\n"


def _device(device: Json) -> str:
    if "copy_gb_per_s" not in device:
        return str(device["name"])
    return (
        f"{device['name']}, {device['memory_gib']} GiB, CUDA {device['cuda']}, driver {device['driver']}; pinned "
        f"memory is copied to it at {device['copy_gb_per_s']:.1f} GB/s"
    )


def _row(part: Json) -> list[str]:
    shares = share(part)
    own, best = part["windows"], part["ceiling"]
    fed = part["feed_samples_per_s"]
    of_ceiling, waits = median(shares), idle(own)
    is_ours = part["side"] == "zarrfeed"
    misses = is_ours and is_allowed(part) and of_ceiling < GOAL_SHARE
    needed = median(_rate(window) for window in best)
    return [
        part["layout"],
        part["model"],
        part["side"],
        f"{median(_rate(window) for window in own):.0f}",
        _bold(f"{of_ceiling:.3f}", misses),
        f"{min(shares):.3f}, {max(shares):.3f}",
        _bold(f"{100 * waits:.2f} %", is_ours and is_allowed(part) and waits >= GOAL_IDLE),
        f"{100 * idle(best):.2f} %",
        "" if fed is None else f"{fed / needed:.1f}",
        f"{median(_cpu_s_per_gb(window) for window in own):.2f}",
        f"{median(_cpu_s_per_gb(window) for window in best):.2f}",
        f"{part['first_batch_s']:.2f}",
    ]


def _legend(document: Json) -> list[str]:
    return [
        "- Ceiling: the same network on batches that lie on the device. Both train for "
        f"{document['seconds']:g} s a round; a ratio is the median of {document['rounds']} rounds, that of plain is of "
        "one round.",
        f"- Goals of zarrfeed: {GOAL_SHARE} of the ceiling and an idle share below {100 * GOAL_IDLE:g} %, wherever the "
        f"host delivers at least {_ENOUGH} times what the ceiling needs (delivered / needed, while nothing trains). "
        "Bold: missed.",
        "- Idle: from the last kernel of a step to the first one of the next step, by CUDA events. On a CPU it is the "
        "wait for a batch.",
        "- CPU s/GB: of the process and its workers, for each 10^9 bytes of batches on the device; the step's own are "
        "in it, and alone in the ceiling's column.",
        f"- plain: a map-style dataset over zarr-python in a DataLoader with {document['workers']} workers and pinned "
        "memory.",
        f"- zarrfeed decodes on {document['threads'] or 'as many threads as there are cores'}"
        f"{' threads' if document['threads'] else ''}.",
        "- First batch: from opening the store until the batch is on the device; of plain, with the start of its "
        "workers.",
    ]


def _verdicts(document: Json) -> list[str]:
    ours = [part for part in document["parts"] if part["side"] == "zarrfeed"]
    allowed = [part for part in ours if is_allowed(part)]
    reached = [part for part in allowed if median(share(part)) >= GOAL_SHARE and idle(part["windows"]) < GOAL_IDLE]
    slow = [f"{part['layout']} with {part['model']}" for part in ours if not is_allowed(part)]
    lines = [f"Both goals are reached by {len(reached)} of the {len(allowed)} pairs for which the host is fast enough."]
    if slow:
        lines.append(f"Too slow is the host for {', '.join(slow)}.")
    return ["", *lines]


def _bold(text: str, is_missed: bool) -> str:
    return f"**{text}**" if is_missed else text


def _rate(window: Json) -> float:
    rate: float = window["samples"] / window["wall_s"]
    return rate


def _cpu_s_per_gb(window: Json) -> float:
    seconds: float = window["cpu_s"] / window["batch_bytes"] * 1e9
    return seconds


def draw(document: Json, path: Path) -> None:
    """Draw the rates of all sides as shares of the ceiling, a pair a row."""
    from zarrfeed.tools.plot.canvas import GREY, new_figure, save, style  # which need matplotlib

    parts = document["parts"]
    pairs = list(dict.fromkeys((part["layout"], part["model"]) for part in parts))
    sides = list(dict.fromkeys(part["side"] for part in parts))
    with style():
        figure = new_figure(6.6, 1.2 + 0.55 * len(pairs))
        axes = figure.subplots()
        for part in parts:
            y = pairs.index((part["layout"], part["model"])) + 0.38 * (sides.index(part["side"]) - 0.5)
            of_ceiling = median(share(part))
            axes.barh(y, of_ceiling, 0.36, color=_COLOURS[part["side"]])
            text = f"{of_ceiling:.3f}, idle {100 * idle(part['windows']):.1f} %"
            axes.annotate(text, (of_ceiling, y), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.axvline(GOAL_SHARE, color=GREY, linewidth=0.9, linestyle="--")
        for side in sides:
            axes.barh([0], [0], color=_COLOURS[side], label=side)
        axes.set_yticks(range(len(pairs)), [f"{layout}, {model}" for layout, model in pairs])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.4)
        axes.set_xlabel(f"rate over that on preloaded batches; the goal is {GOAL_SHARE}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        check = "a check, and no result; " if document["is_check"] else ""
        figure.suptitle(f"{check}{document['device']['name']}", fontsize=8, color=GREY)
        save(figure, path)

"""The result of the demo as a picture: the loss curve, and the two rates."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.tools.demo.rates import BATCH_SIZE, Comparison
from zarrfeed.tools.demo.training import Training

_BLUE, _ORANGE, _GREY = "#1f6fb4", "#d95f02", "#8a8f98"


def save_plot(path: Path, training: Training, comparison: Comparison) -> None:
    """Write a PNG with two panels.

    Parameters
    ----------
    path
        Path of the PNG file; it is overwritten.
    training
        The training, with its loss curve and its baseline.
    comparison
        The comparison, with the rates.
    """
    # The canvas of its own, not pyplot: no window system, and nothing global to close.
    figure = Figure(figsize=(11, 4.6), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    loss, rates = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_loss(loss, training)
    _draw_rates(rates, comparison)
    for axes in (loss, rates):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())


def _draw_loss(axes: Axes, training: Training) -> None:
    epochs = range(1, len(training.epochs) + 1)
    held_out = [epoch.held_out_rmse_k for epoch in training.epochs]
    marker = "o" if len(epochs) == 1 else ""
    train = [epoch.train_rmse_k for epoch in training.epochs]
    axes.plot(epochs, train, color=_GREY, linewidth=1.4, marker=marker, label="model, training (A1B)")
    axes.plot(epochs, held_out, color=_BLUE, linewidth=2.2, marker=marker, label="model, held out (E1)")
    axes.axhline(
        training.baseline_rmse_k,
        color=_ORANGE,
        linewidth=1.8,
        linestyle="--",
        label="no learning, held out: climatology + interpolation",
    )
    for value, color in ((held_out[-1], _BLUE), (training.baseline_rmse_k, _ORANGE)):
        axes.annotate(
            f"{value:.3f} K",
            (len(epochs), value),
            xytext=(0, 5),
            textcoords="offset points",
            ha="right",
            color=color,
            fontsize=10,
        )
    gain = 1 - training.rmse_k / training.baseline_rmse_k
    side = f"{gain:.0%} below" if gain > 0 else f"{-gain:.0%} above"
    axes.set_title(f"Temperature field from 63 stations: error {side} the baseline", fontsize=11.5)
    axes.set_xlabel("epoch")
    axes.set_ylabel("root mean square error (K)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylim(0, 1.35 * max(training.baseline_rmse_k, *train, *held_out))
    axes.legend(frameon=False, fontsize=9.5, loc="upper right")


def _draw_rates(axes: Axes, comparison: Comparison) -> None:
    rates = (comparison.plain.gb_per_s, comparison.zarrfeed.gb_per_s)
    bars = axes.bar(["plain zarr", "zarrfeed"], rates, width=0.55, color=[_GREY, _BLUE])
    axes.bar_label(bars, fmt="{:.2f} GB/s", padding=3, fontsize=11)
    axes.set_title(f"Shuffled batches: {comparison.ratio:.1f} times the rate", fontsize=11.5)
    axes.set_ylabel("decoded data (GB/s)")
    axes.set_xlabel(f"batches of {BATCH_SIZE}, from the page cache, {comparison.num_threads} threads each")
    axes.set_ylim(0, 1.15 * max(rates))

"""The result of the demo as a picture: the loss curve, and the two rates."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zarrfeed.demo.training import Training

_BLUE, _ORANGE, _GREY = "#1f6fb4", "#d95f02", "#8a8f98"


def save_plot(path: Path, training: Training, *, plain_gb_per_s: float, zarrfeed_gb_per_s: float) -> None:
    """Write a PNG with two panels.

    Parameters
    ----------
    path
        Of the file; it is overwritten.
    training
        Gives the loss curve and the baseline.
    plain_gb_per_s, zarrfeed_gb_per_s
        Rates of decoded data.
    """
    # The canvas of its own, not pyplot: no window system, and nothing global to close.
    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    loss, rates = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_loss(loss, training)
    _draw_rates(rates, plain_gb_per_s, zarrfeed_gb_per_s)
    for axes in (loss, rates):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
    figure.savefig(path, format="png")


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
    gain = 1 - training.rmse_k / training.baseline_rmse_k
    axes.set_title(f"Temperature field from 63 stations: error {gain:.0%} below the baseline", fontsize=11.5)
    axes.set_xlabel("epoch")
    axes.set_ylabel("root mean square error (K)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.35 * max(training.baseline_rmse_k, *train, *held_out))
    axes.legend(frameon=False, fontsize=9.5, loc="upper right")


def _draw_rates(axes: Axes, plain_gb_per_s: float, zarrfeed_gb_per_s: float) -> None:
    bars = axes.bar(["plain zarr", "zarrfeed"], [plain_gb_per_s, zarrfeed_gb_per_s], width=0.55, color=[_GREY, _BLUE])
    axes.bar_label(bars, fmt="{:.2f} GB/s", padding=3, fontsize=11)
    axes.set_title(f"Shuffled batches: {zarrfeed_gb_per_s / plain_gb_per_s:.1f} times the rate", fontsize=11.5)
    axes.set_ylabel("decoded data (GB/s)")
    axes.set_ylim(0, 1.15 * max(plain_gb_per_s, zarrfeed_gb_per_s))

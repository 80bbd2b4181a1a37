"""The demo from end to end: runs the parts, shows progress, prints the results."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.report.explain import Explanation
from zarrfeed.tools.demo.climate import ClimateStore, write_climate_stores
from zarrfeed.tools.demo.generated import GeneratedStore, generate_store
from zarrfeed.tools.demo.rates import (
    BATCH_SIZE,
    NUM_PASSES,
    PLAIN_BUFFER_CHUNKS,
    PLAIN_LIMIT_S,
    Check,
    Comparison,
    compare,
)
from zarrfeed.tools.demo.training import EpochLoss, Training, train

_PLOT_NAME = "zarrfeed-demo.png"


def run_demo(
    *,
    directory: Path | None = None,
    epochs: int = 60,
    seed: int = 0,
    stream_mib: int = 512,
    plot_path: Path | None = None,
) -> list[str]:
    """Run the demo and print its results.

    Parameters
    ----------
    directory
        The folder in which the stores are kept and reused. None: a temporary folder, which is removed at the end.
    epochs, seed
        Number of epochs, and seed, of the training.
    stream_mib
        Decoded size of the generated store in MiB.
    plot_path
        Path of the PNG. None: in `directory`, or else in the current directory, if matplotlib is installed.

    Returns
    -------
    The promises that did not come true, a sentence each; empty if all is well.

    Raises
    ------
    ConfigError
        If `directory` holds other stores, the disk is too small, or the plot that was asked for cannot be drawn or
        written.
    """
    begin = time.perf_counter()
    draws = importlib.util.find_spec("matplotlib") is not None
    if plot_path is not None and not draws:
        raise ConfigError(f'--plot {plot_path}: a plot needs matplotlib: pip install "zarrfeed[plot]"')
    console = Console(highlight=False, soft_wrap=True)
    with ExitStack() as stack:
        if directory is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zarrfeed-demo-")))
        else:
            work = directory
            work.mkdir(parents=True, exist_ok=True)
        plot_path = plot_path or (directory or Path.cwd()) / _PLOT_NAME
        if draws and (plot_path.is_dir() or not os.access(plot_path.parent, os.W_OK)):
            raise ConfigError(f"{plot_path}: the plot cannot be written there; name another file with --plot")

        training = _show_training(console, work, epochs=epochs, seed=seed)
        comparison = _show_streaming(console, work, stream_mib=stream_mib, seed=seed)
        if draws:
            from zarrfeed.tools.demo.plot import save_plot

            save_plot(plot_path, training, comparison)
    plot = str(plot_path) if draws else 'none: it needs matplotlib: pip install "zarrfeed[plot]"'
    console.print(f"\n[bold]plot[/]      {escape(plot)}")
    if directory is not None:
        console.print(f"stores    kept in {escape(str(directory))}")
    console.print(f"took      {time.perf_counter() - begin:.1f} s")
    return _problems(training, comparison)


def _show_training(console: Console, work: Path, *, epochs: int, seed: int) -> Training:
    console.print("[bold]1  Train on real climate-model output[/]")
    train_store, held_out_store = write_climate_stores(work)
    console.print(
        "data      annual means of air temperature over North America, Met Office Unified Model\n"
        f"training  {_described(train_store)}\n"
        f"held out  {_described(held_out_store)}\n"
        f"          The scenarios part in {held_out_store.first_year}: no held-out field is in training, which alone "
        "gives means and scales.\n"
        "task      reconstruct the 1813 grid points from 63 stations (every sixth point each way)\n"
        "baseline  climatology + anomalies, interpolated bilinearly between the stations: no learning\n"
    )
    begin = time.perf_counter()
    with _progress(console, "{task.fields[losses]}") as progress:
        bar = progress.add_task("training", total=epochs, losses="")

        def on_epoch(losses: EpochLoss, baseline_rmse_k: float) -> None:
            text = f"held out {losses.held_out_rmse_k:.3f} K, baseline {baseline_rmse_k:.3f} K"
            progress.update(bar, advance=1, losses=text)

        training = train(train_store, held_out_store, epochs=epochs, seed=seed, on_epoch=on_epoch)
    seconds = time.perf_counter() - begin

    rmse_k, baseline_rmse_k, stats = training.rmse_k, training.baseline_rmse_k, training.stats
    console.print(
        f"\nerror     held out [bold]{rmse_k:.4f} K[/] against {baseline_rmse_k:.4f} K of the baseline: "
        f"[bold]{rmse_k / baseline_rmse_k - 1:+.1%}[/] (training {training.epochs[-1].train_rmse_k:.4f} K; "
        f"{training.num_parameters} parameters)\n"
        f"loader    {stats.samples} samples in {stats.batches} batches from {stats.chunks_read} chunk reads; the model "
        f"waited {stats.consumer_wait_s:.2f} of {seconds:.2f} s for them\n"
        f"{_explained(training.explanation)}"
    )
    return training


def _show_streaming(console: Console, work: Path, *, stream_mib: int, seed: int) -> Comparison:
    console.print("\n[bold]2  Stream a larger store, beside plain zarr[/]")
    store = _generate(console, work, stream_mib)
    console.print(
        f"store     {format_bytes(store.decoded_bytes)} of float32 in chunks of 1 MiB, Blosc lz4 with shuffle, "
        f"{store.decoded_bytes / store.stored_bytes:.1f} : 1{', reused' if store.reused else ''}; batches of "
        f"{BATCH_SIZE}, from the page cache"
    )
    with console.status("checking and measuring"):
        result = compare(store, seed=seed)
    ours, plain = result.zarrfeed_check, result.plain_check
    extent = "all of it" if result.plain.complete else f"stopped after {PLAIN_LIMIT_S:.0f} s"
    spent = ", ".join(f"{stage} {share:.0%}" for stage, share in result.stats.thread_shares.items() if share >= 0.005)
    console.print(
        f"checked   CRC-32 of each sample: zarrfeed {ours.num_samples - ours.num_wrong} of {ours.num_samples} right, "
        f"plain zarr {plain.num_samples - plain.num_wrong} of {plain.num_samples}; sums {ours.crc_sum:#x}, "
        f"{plain.crc_sum:#x}\n"
        f"plain     [bold]{result.plain.gb_per_s:5.2f} GB/s[/]  zarr-python: whole chunks in random order, read ahead "
        f"by {result.num_threads} threads, {PLAIN_BUFFER_CHUNKS} permuted together; {extent}\n"
        f"zarrfeed  {result.first_epoch.gb_per_s:5.2f} GB/s  first epoch: starts threads, touches new memory\n"
        f"          [bold]{result.zarrfeed.gb_per_s:5.2f} GB/s[/]  later epochs: [bold]{result.ratio:.1f} times "
        "plain zarr[/]\n"
        f"          Medians of {NUM_PASSES} passes, but for the first epoch; nothing is computed with the batches.\n"
        f"limit     {result.stats.limiting_stage}; zarrfeed's {result.num_threads} threads: {spent}\n"
        f"{_explained(result.explanation)}"
    )
    return result


def _generate(console: Console, work: Path, stream_mib: int) -> GeneratedStore:
    with _progress(console, "chunks") as progress:
        bar = progress.add_task("generating", total=stream_mib)
        store = generate_store(work, stream_mib, lambda done, total: progress.update(bar, completed=done, total=total))
        progress.update(bar, visible=not store.reused)
    return store


def _problems(training: Training, comparison: Comparison) -> list[str]:
    """Return a sentence for each promise that was not kept."""
    problems = []
    if not training.beats_baseline:
        problems.append(
            f"the model does not beat the baseline on held-out fields: {training.rmse_k:.4f} K against "
            f"{training.baseline_rmse_k:.4f} K after {len(training.epochs)} epochs (--epochs)"
        )
    ours, plain = comparison.zarrfeed_check, comparison.plain_check
    for name, check in (("zarrfeed", ours), ("plain zarr", plain)):
        problems += _wrong(name, check)
    if ours.num_samples != comparison.num_samples:
        problems.append(f"zarrfeed delivered {ours.num_samples} samples of {comparison.num_samples}")
    if ours.num_samples == plain.num_samples and ours.crc_sum != plain.crc_sum:
        problems.append("zarrfeed and plain zarr delivered different data")
    return problems


def _wrong(name: str, check: Check) -> list[str]:
    if check.num_wrong == 0 and check.num_repeated == 0:
        return []
    return [
        f"{name} delivered {check.num_samples} samples: {check.num_wrong} with a wrong checksum, {check.num_repeated} "
        "more than once"
    ]


def _described(store: ClimateStore) -> str:
    return (
        f"scenario {store.scenario}, {store.first_year} to {store.last_year}: {store.num_years} fields of 37 x 49 in "
        f"{store.path.name}{', reused' if store.reused else ''}"
    )


def _explained(explanation: Explanation) -> str:
    fields = ", ".join(f"{f.name} {f.amplification:.2f} times" for f in explanation.fields if f.chunks)
    return (
        f"explain   {explanation.num_blocks} blocks of {explanation.block_rows} samples in {explanation.lanes} lanes; "
        f"a batch draws from {explanation.chunks_per_batch:.1f} blocks (perfect shuffle: "
        f"{explanation.ideal_chunks_per_batch:.1f});\n"
        f"          chunks decoded: {fields}; memory at most {format_bytes(explanation.memory_bytes)}"
    )


def _progress(console: Console, text: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(text),
        TimeElapsedColumn(),
        console=console,
    )

"""The demo from end to end: runs the parts, shows progress, prints what came out."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zarrfeed.dataset import ZarrIterableDataset
from zarrfeed.demo import streaming
from zarrfeed.demo.climate import write_climate_stores
from zarrfeed.demo.plot import save_plot
from zarrfeed.demo.training import EpochLoss, Training, train
from zarrfeed.errors import ConfigError
from zarrfeed.explain import Explanation
from zarrfeed.stats import format_bytes

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
        Where the stores are kept and reused; None: in a temporary directory, which is removed at the end.
    epochs, seed
        Of the training.
    stream_mib
        Decoded size of the generated store in MiB.
    plot_path
        Of the PNG; None: in `directory`, or else in the current directory.

    Returns
    -------
    What did not come out as promised, a sentence each: none, if all is well.

    Raises
    ------
    ConfigError
        If `directory` holds other stores, or the plot cannot be written.
    """
    begin = time.perf_counter()
    console = Console(highlight=False, soft_wrap=True)
    with ExitStack() as stack:
        if directory is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zarrfeed-demo-")))
        else:
            work = directory
            work.mkdir(parents=True, exist_ok=True)
        plot_path = plot_path or (directory or Path.cwd()) / _PLOT_NAME
        if not os.access(plot_path.parent, os.W_OK) or plot_path.is_dir():
            raise ConfigError(f"{plot_path}: the plot cannot be written there; name another file with --plot")

        training, problems = _show_training(console, work, epochs=epochs, seed=seed)
        rates, more_problems = _show_streaming(console, work, stream_mib=stream_mib, seed=seed)
        plain_gb_per_s, zarrfeed_gb_per_s = rates
        save_plot(plot_path, training, plain_gb_per_s=plain_gb_per_s, zarrfeed_gb_per_s=zarrfeed_gb_per_s)
        console.print(f"\n[bold]Plot[/]      {plot_path}")
        if directory is not None:
            console.print(f"[bold]Stores[/]    {directory} (kept)")
        console.print(f"[bold]Took[/]      {time.perf_counter() - begin:.1f} s")
    return problems + more_problems


def _show_training(console: Console, work: Path, *, epochs: int, seed: int) -> tuple[Training, list[str]]:
    console.print("[bold]1  Train on real climate-model output[/]")
    train_store, held_out_store = write_climate_stores(work)
    console.print(
        "data      annual mean air temperature over North America, Met Office Unified Model (iris-sample-data)"
    )
    for name, store in (("training", train_store), ("held out", held_out_store)):
        console.print(
            f"{name}  scenario {store.scenario}, {store.first_year} to {store.last_year}: {store.num_years} fields of "
            f"37 x 49, {store.path.name} {'(reused)' if store.reused else ''}".rstrip()
        )
    console.print(
        f"          The scenarios part in {held_out_store.first_year}; no held-out field is in training, and means and "
        "scales are of training only."
    )
    console.print("task      reconstruct the 1813 grid points from 63 stations (every sixth point each way)")
    console.print("baseline  climatology + anomalies interpolated bilinearly between stations: no learning\n")

    begin = time.perf_counter()
    with _progress(console, "{task.fields[losses]}") as progress:
        bar = progress.add_task("training", total=epochs, losses="")

        def on_epoch(losses: EpochLoss, baseline_rmse_k: float) -> None:
            text = f"held out {losses.held_out_rmse_k:.3f} K, baseline {baseline_rmse_k:.3f} K"
            progress.update(bar, advance=1, losses=text)

        training = train(train_store, held_out_store, epochs=epochs, seed=seed, on_epoch=on_epoch)
    seconds = time.perf_counter() - begin

    rmse_k, baseline_rmse_k = training.rmse_k, training.baseline_rmse_k
    console.print(
        f"\n{'error':<10}training {training.epochs[-1].train_rmse_k:.4f} K; held out [bold]{rmse_k:.4f} K[/] against "
        f"{baseline_rmse_k:.4f} K of the baseline: {rmse_k / baseline_rmse_k - 1:+.1%}"
    )
    stats = training.stats
    console.print(
        f"loader    {stats.samples} samples in {stats.batches} batches from {stats.chunks_read} chunk reads; waited for "
        f"batches {stats.consumer_wait_s:.2f} of {seconds:.2f} s ({training.num_parameters} parameters)"
    )
    console.print(_explained(training.explanation))
    if training.beats_baseline:
        return training, []
    return training, [
        f"the model does not beat the baseline on held-out fields: {rmse_k:.4f} K against {baseline_rmse_k:.4f} K after "
        f"{epochs} epochs (--epochs)"
    ]


def _show_streaming(
    console: Console, work: Path, *, stream_mib: int, seed: int
) -> tuple[tuple[float, float], list[str]]:
    console.print("\n[bold]2  Stream a larger store, beside plain zarr[/]")
    with _progress(console, "chunks of 1 MiB") as progress:
        bar = progress.add_task("generating", total=None)
        path, reused = streaming.generate_stream_store(
            work, stream_mib, lambda done, total: progress.update(bar, completed=done, total=total)
        )
        progress.update(bar, visible=not reused)
    stored_bytes = sum(file.stat().st_size for file in (path / "samples").rglob("*") if file.is_file())
    num_bytes = stream_mib << 20
    console.print(
        f"store     {format_bytes(num_bytes)} of float32 in chunks of 1 MiB, Blosc lz4 with shuffle, compressed "
        f"{num_bytes / stored_bytes:.1f} : 1{' (reused)' if reused else ''}; batches of {streaming.BATCH_SIZE}, from the "
        "page cache"
    )
    num_threads = _usable_cores()
    limit_s = streaming.PLAIN_LIMIT_S
    with streaming.open_zarrfeed(path, seed=seed) as dataset:
        ours = streaming.check(_indexed(dataset), path)
    plain = streaming.check(streaming.plain_zarr(path, seed=seed, num_threads=num_threads), path, limit_s=limit_s)
    problems = _wrong("zarrfeed", ours) + _wrong("plain zarr", plain)
    expected = num_bytes // (4 * 4 * 64 * 64)
    if ours.num_samples != expected:
        problems.append(f"zarrfeed delivered {ours.num_samples} samples of {expected}")
    if plain.num_samples == expected and ours.crc_sum != plain.crc_sum:
        problems.append("zarrfeed and plain zarr delivered different data")
    if not problems:
        console.print(
            f"checked   zarrfeed {ours.num_samples} samples, plain zarr {plain.num_samples}: all have the CRC-32 noted "
            f"when they were made; sums {ours.crc_sum:#x}, {plain.crc_sum:#x}"
        )

    with streaming.open_zarrfeed(path, seed=seed) as dataset:
        first = streaming.measure(_indexed(dataset))
        before = dataset.stats()
        second = streaming.measure(_indexed(dataset))
        after = dataset.stats()
        explanation = dataset.explain()
    slow = streaming.measure(streaming.plain_zarr(path, seed=seed, num_threads=num_threads), limit_s=limit_s)

    extent = "all of it" if slow.complete else f"stopped after {limit_s:.0f} s"
    console.print(
        f"plain     [bold]{slow.gb_per_s:5.2f} GB/s[/]  zarr-python, whole chunks in random order read ahead by "
        f"{num_threads} threads, buffers of {streaming.PLAIN_BUFFER_CHUNKS} chunks permuted ({extent})"
    )
    console.print(
        f"zarrfeed  {first.gb_per_s:5.2f} GB/s  first epoch: starts threads, touches its memory for the first time"
    )
    console.print(
        f"          [bold]{second.gb_per_s:5.2f} GB/s[/]  second epoch: [bold]{second.gb_per_s / slow.gb_per_s:.1f} times "
        "plain zarr[/]"
    )
    waited_share = (after.consumer_wait_s - before.consumer_wait_s) / second.seconds
    shares = streaming.thread_shares(before, after)
    stage = streaming.limiting_stage(shares, waited_share=waited_share)
    spent = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    console.print(f"limit     {stage}; time of zarrfeed's threads: {spent}")
    console.print(_explained(explanation))
    return (slow.gb_per_s, second.gb_per_s), problems


def _progress(console: Console, text: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(text),
        TimeElapsedColumn(),
        console=console,
    )


def _explained(explanation: Explanation) -> str:
    fields = "; ".join(f"{f.name} decoded {f.amplification:.2f} times" for f in explanation.fields if f.chunks)
    return (
        f"explain   {explanation.num_blocks} blocks of {explanation.block_rows} samples in {explanation.lanes} lanes: a "
        f"batch draws from {explanation.chunks_per_batch:.1f} blocks (perfect shuffle: "
        f"{explanation.ideal_chunks_per_batch:.1f}); {fields}; memory at most {format_bytes(explanation.memory_bytes)}"
    )


def _wrong(name: str, check: streaming.Check) -> list[str]:
    if check.num_wrong == 0 and check.num_repeated == 0:
        return []
    return [
        f"{name} delivered {check.num_samples} samples, {check.num_wrong} of them wrong and "
        f"{check.num_repeated} more than once"
    ]


def _indexed(dataset: ZarrIterableDataset) -> Iterator[streaming.IndexedBatch]:
    return cast("Iterator[streaming.IndexedBatch]", iter(dataset))


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

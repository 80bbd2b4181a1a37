"""Train on a store while simulations write it, and delete the oldest samples before the disk is full.

    python examples/growing_dataset.py

starts two simulations in processes of their own, which append to one store in a temporary directory. Training reads
what is complete when an epoch begins, of that the newest samples, shuffled. Every sample is checked: it has its number
at both ends, and the number of its simulation beside it.

To see how fast that goes on a machine, take large samples, a directory on the disk in question, and more time:

    python examples/growing_dataset.py --directory /scratch --sample-kib 1024 --simulations 1 --window 4GiB --seconds 60

`--step-ms` is the time that the model would take for a batch on a GPU: the loop sleeps so long. At the end, the loop is
run once more with a batch that is in memory, and the slow-down of a step by loading is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zarrfeed

PER_SIMULATION = 1 << 20  # numbers of samples: float32 holds 8 simulations' exactly


def simulate(path: Path, number: int, options: argparse.Namespace) -> None:
    """Append fields that look random until training ends this process."""
    torch.set_num_threads(1)
    items = options.sample_kib * 256
    fields = np.random.default_rng(number).standard_normal((options.chunk, items), dtype="f4")
    begin, count = time.monotonic(), 0
    with zarrfeed.Appender(path, chunk_rows=options.chunk, compressors=None, disposable=True) as appender:
        while True:
            ids = number * PER_SIMULATION + (count + np.arange(options.chunk)) % PER_SIMULATION
            fields[:, 0] = fields[:, -1] = ids
            appender.append({"field": fields, "id": ids})  # a whole chunk: it is written when this returns
            count += options.chunk
            ahead = begin + count * fields[0].nbytes / (options.rate * 1e6 / options.simulations) - time.monotonic()
            time.sleep(max(0.0, ahead))


def check(batch: dict[str, torch.Tensor]) -> int:
    """Return how many samples of a batch are torn."""
    ids = batch["id"].float()
    return int(((batch["field"][:, 0] != ids) | (batch["field"][:, -1] != ids)).sum())


def open_store(path: Path, options: argparse.Namespace, processes: list[Any]) -> zarrfeed.Data:
    """Open the store as soon as it has samples."""
    while True:
        try:
            return zarrfeed.open(path, refresh="epoch", window=options.window, evict=True)
        except (zarrfeed.ConfigError, zarrfeed.StoreReadError):  # nothing is written yet
            if not all(process.is_alive() for process in processes):
                raise
            time.sleep(0.05)


def stored_bytes(path: Path) -> int:
    """Return what the store takes on the disk."""
    total = 0
    for directory, _, files in os.walk(path):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # it was evicted
                total += (Path(directory) / file).stat().st_size
    return total


def train(path: Path, options: argparse.Namespace, processes: list[Any]) -> None:
    """Read epochs for some seconds, and say what was read."""
    data = open_store(path, options, processes)
    dataset = zarrfeed.ZarrIterableDataset(
        data, batch_size=options.batch, shuffle=True, memory_budget=options.memory, num_threads=options.threads
    )
    read = torn = steps = epoch = 0
    waited = 0.0
    first = data_end(dataset)
    begin, cpu_begin = time.monotonic(), time.process_time()
    while epoch < 2 or time.monotonic() < begin + options.seconds:
        start, of_epoch = time.monotonic(), 0
        iterator = iter(dataset)
        while True:
            asked = time.monotonic()
            batch = next(iterator, None)
            if batch is None:
                break
            waited += time.monotonic() - asked
            time.sleep(options.step_ms / 1e3)  # the model
            torn += check(batch)
            of_epoch += len(batch["id"])
            steps += 1
            example = batch
        read += of_epoch
        rate = of_epoch * options.sample_kib * 1024 / (time.monotonic() - start) / 1e6
        print(f"epoch {epoch}: {of_epoch} samples, up to {data_end(dataset)}, {rate:.0f} MB/s", flush=True)
        epoch += 1
    seconds = time.monotonic() - begin
    dataset.refresh()
    written = data_end(dataset) - first
    megabytes = options.sample_kib * 1024 / 1e6
    print(f"{torn} torn samples of {read}; written {written * megabytes / seconds:.0f} MB/s, ", end="")
    print(f"read {read * megabytes / seconds:.0f} MB/s, on the disk {stored_bytes(path) / 1e6:.0f} MB")
    with_loading, of_training = seconds / steps, time.process_time() - cpu_begin
    for process in processes:
        process.kill()
        process.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the simulations, with their start
    print(f"CPU s per GB: {of_training / (read * megabytes / 1e3):.2f} to read and to train, ", end="")
    print(f"{(used.ru_utime + used.ru_stime) / (data_end(dataset) * megabytes / 1e3):.2f} to simulate and to write")
    begin = time.monotonic()
    for _ in range(min(steps, 200)):
        time.sleep(options.step_ms / 1e3)
        check(example)
    alone = (time.monotonic() - begin) / min(steps, 200)
    print(
        f"a step took {with_loading * 1e3:.2f} ms, {alone * 1e3:.2f} ms alone: {with_loading / alone - 1:+.1%}; "
        f"waited {waited / steps * 1e3:.2f} ms for a batch"
    )


def data_end(dataset: zarrfeed.ZarrIterableDataset) -> int:
    """Return how many samples were ever written, as of the version that was read last."""
    return dataset.explain().num_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the store is made, and removed at the end")
    parser.add_argument("--simulations", type=int, default=2)
    parser.add_argument("--sample-kib", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=8, help="samples of a chunk")
    parser.add_argument("--rate", type=float, default=50, help="MB/s that all simulations write at most")
    parser.add_argument("--window", default="16MiB", help="newest samples that are kept")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--memory", default=None, help="memory budget of the loader")
    parser.add_argument("--threads", type=int, default=None, help="decode threads of the loader")
    parser.add_argument("--step-ms", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    options.window = int(options.window) if options.window.isdecimal() else options.window
    directory = Path(tempfile.mkdtemp(prefix="growing-", dir=options.directory))
    context = multiprocessing.get_context("spawn")
    path = directory / "runs.zarr"
    processes = [
        context.Process(target=simulate, args=(path, number, options), daemon=True)
        for number in range(options.simulations)
    ]
    try:
        for process in processes:
            process.start()
        train(path, options, processes)
    finally:
        for process in processes:
            process.kill()
        while directory.exists():  # a thread may still evict
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

"""What a loader costs besides time: one probe a process, which prints what it measured as JSON.

`costs.py` starts them; each begins with fresh memory and without the threads of another one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.data.stores import Store, prepare_store, store_path, tree_bytes
from benchmarks.harness.measure import time_ceiling, time_loader
from benchmarks.harness.process import Heartbeat, reset_peak, status_mib
from benchmarks.harness.steps import run_steps
from benchmarks.loaders import LOADERS, Ceiling, Loader
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.loaders.ours import Zarrfeed
from zarrfeed import MemoryBudgetError, ZarrIterableDataset

#: Name -> number.
Figures = dict[str, float]

#: Samples of which map-style loaders are timed.
_PART_SAMPLES = 512


def probe_cpu(store: Store, loader: str, seconds: float) -> Figures:
    """CPU seconds of this process and its workers for each decoded GB, from the second epoch on."""
    with closing(LOADERS[loader](store, _PART_SAMPLES)) as made:
        time_loader(made, store, first_epoch=0, min_wall_s=0)
        timing = time_loader(made, store, first_epoch=1, min_wall_s=seconds)
    return {"cpu_s_per_gb": timing.cpu_s_per_gb or 0.0, "gb_per_s": timing.gb_per_s}


def probe_step(store: Store, how: str, seconds: float) -> Figures:
    """How much longer a fixed step of Python and torch takes beside the loader, which has all cores but one.

    `loop`: each step takes a batch, as in training, and the time to take it counts. `full`: another thread takes the
    batches as fast as they come, so that the loader never rests. The second figure leaves out when the step's thread
    waited for a core, which on a machine that is not quiet is the work of others, and else the loader's. The third is
    by how much the steps before and after differ, where no loader is beside them.
    """
    torch.set_num_threads(1)
    with closing(Zarrfeed(store, num_threads=max(1, usable_cores() - 1))) as loader:
        batches = _endless(loader)
        ratios: list[list[float]] = []
        noise: list[float] = []
        next(batches)
        deadline = time.perf_counter() + seconds
        while not ratios or time.perf_counter() < deadline:
            # alone, beside, alone: a machine that becomes slower or faster meanwhile counts on both sides
            before = run_steps(None)
            if how == "loop":
                beside = run_steps(batches)
            else:
                with _in_thread(batches):
                    beside = run_steps(None)
            after = run_steps(None)
            ratios.append([2 * b / (a + c) for a, b, c in zip(before, beside, after, strict=True)])
            noise.append(abs(after[0] / before[0] - 1))
    whole, on_a_core = (100 * (median(column) - 1) for column in zip(*ratios, strict=True))
    return {"slowdown_percent": whole, "on_a_core_percent": on_a_core, "noise_percent": 100 * median(noise)}


def probe_heartbeat(store: Store, beside: str, seconds: float) -> Figures:
    """Gaps between the wake-ups of a Python thread, every half millisecond, while something else runs.

    `nothing` and `ceiling` tell what the system's scheduler does to it: the first has no load, the second has that of
    a loader, and no thread that ever takes the GIL. `on_a_core_ms` is the longest gap without the time in which the
    thread could have run and had no core; that for the GIL is in it.
    """
    loader = None if beside in ("nothing", "ceiling") else LOADERS[beside](store, _PART_SAMPLES)
    ceiling = Ceiling(store, scatter=True) if beside == "ceiling" else None
    batches = iter(()) if loader is None else _endless(loader)
    next(batches, None)
    with Heartbeat() as heartbeat:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if ceiling is not None:
                ceiling.measure()
            elif loader is None:
                time.sleep(0.05)
            else:
                next(batches)
    if loader is not None:
        loader.close()
    return heartbeat.figures()


def probe_first(store: Store, loader: str, seconds: float) -> Figures:  # noqa: ARG001 (all probes have it)
    """Milliseconds from nothing but imports to the first batch; opening the array is a part of it.

    Of a process in which zarr-python has opened nothing before.
    """
    if loader == "tensorstore":
        import tensorstore  # noqa: F401 (or it would be imported while the clock runs)
    begin = time.perf_counter()
    if loader == "zarrfeed":
        batches: Iterator[Any] = iter(
            ZarrIterableDataset(
                store.samples_path, store.targets_path, batch_size=store.layout.batch_size, shuffle=True
            )
        )
    else:
        batches = LOADERS[loader](store, _PART_SAMPLES).epoch(0)
    next(batches)
    return {"ms": 1e3 * (time.perf_counter() - begin)}


def probe_memory(store: Store, budget: str, seconds: float) -> Figures:  # noqa: ARG001
    """Peak resident memory of two epochs beyond what the process had before, in MiB.

    Where the budget is too small for the array, and construction says so, `refused` is 1.
    """
    reset_peak()
    before = status_mib("VmRSS")
    try:
        with closing(Zarrfeed(store, memory_budget=budget)) as loader:
            for epoch in range(2):
                for _ in loader.epoch(epoch):
                    pass
    except MemoryBudgetError:
        return {"refused": 1}
    peak = status_mib("VmHWM")
    return {"refused": 0, "grown_mib": peak - before, "peak_mib": peak}


def probe_growth(store: Store, epochs: str, seconds: float) -> Figures:  # noqa: ARG001
    """Resident memory after the last of many epochs, beyond that after the second, in MiB."""
    resident = []
    with closing(Zarrfeed(store)) as loader:
        for epoch in range(int(epochs)):
            for _ in loader.epoch(epoch):
                pass
            resident.append(status_mib("VmRSS"))
    return {"grown_mib": resident[-1] - resident[1]}


def probe_epochs(store: Store, _: str, seconds: float) -> Figures:  # noqa: ARG001
    """Time of the second epoch of a process over that of its first one."""
    with closing(Zarrfeed(store)) as loader:
        first, second = (time_loader(loader, store, first_epoch=e, min_wall_s=0).wall_s for e in (0, 1))
    return {"second_over_first": second / first, "first_gb_per_s": store.layout.decoded_bytes / first / 1e9}


def probe_threads(store: Store, num_threads: str, seconds: float) -> Figures:
    """Rate with a number of decode threads, and of both ceilings with as many."""
    ceilings = {
        name: Ceiling(store, scatter=scatter, num_threads=int(num_threads))
        for name, scatter in (("ceiling_scatter", True), ("ceiling_decode", False))
    }
    rates: dict[str, list[float]] = {name: [] for name in ("zarrfeed", *ceilings)}
    with closing(Zarrfeed(store, num_threads=int(num_threads))) as loader:
        time_loader(loader, store, first_epoch=0, min_wall_s=0)
        for turn in range(3):
            timing = time_loader(loader, store, first_epoch=1 + 1000 * turn, min_wall_s=seconds / 9)
            rates["zarrfeed"].append(timing.gb_per_s)
            for name, ceiling in ceilings.items():
                rates[name].append(time_ceiling(ceiling, store, min_wall_s=seconds / 9).gb_per_s)
    ratio = median(a / b for a, b in zip(rates["zarrfeed"], rates["ceiling_scatter"], strict=True))
    return {**{name: median(values) for name, values in rates.items()}, "of_ceiling": ratio}


def probe_python(store: Store, batch_size: str, seconds: float) -> Figures:
    """CPU time of the consumer's thread for each batch but the first and the last of an epoch, in microseconds.

    Python and what it calls: to take a batch, and to drop it. The median of the epochs.
    """
    spent_s: list[float] = []
    with closing(
        ZarrIterableDataset(store.samples_path, store.targets_path, batch_size=int(batch_size), shuffle=True)
    ) as dataset:
        deadline = time.perf_counter() + seconds
        while not spent_s or time.perf_counter() < deadline:
            iterator = iter(dataset)
            next(iterator)
            begin = time.thread_time()
            batches = sum(1 for _ in islice(iterator, len(dataset) - 2))
            spent_s.append((time.thread_time() - begin) / max(1, batches))
            for _ in iterator:
                pass
    return {"us_per_batch": 1e6 * median(spent_s)}


PROBES: dict[str, Callable[[Store, str, float], Figures]] = {
    "cpu": probe_cpu,
    "step": probe_step,
    "heartbeat": probe_heartbeat,
    "first": probe_first,
    "memory": probe_memory,
    "growth": probe_growth,
    "epochs": probe_epochs,
    "threads": probe_threads,
    "python": probe_python,
}


def _endless(loader: Loader) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


@contextmanager
def _in_thread(batches: Iterator[Any]) -> Iterator[None]:
    """Let another thread take batches meanwhile."""
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            next(batches)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one probe and print its figures, as JSON in the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.cost_probes")
    parser.add_argument("probe", choices=PROBES)
    parser.add_argument("case")
    parser.add_argument("--layout", choices=LAYOUTS, default="A")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args(arguments)
    layout = LAYOUTS[options.layout].scaled(options.scale)
    path = store_path(layout, options.data, scale=options.scale)
    if path.exists():  # `costs.py` has looked whether it is the right one; to look again would open it with zarr-python
        store = Store(layout, path, tree_bytes(path))
    else:
        store = prepare_store(layout, options.data, scale=options.scale)
    figures = PROBES[options.probe](store, options.case, options.seconds)
    print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    os._exit(0)  # loaders are left as they are: what their threads do at exit is no part of a probe


if __name__ == "__main__":
    main()

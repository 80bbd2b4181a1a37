"""What a far store costs: the same store with and without 20 ms added to each request, both through the event loop.

A third side waits for a nanosecond: what it loses is what the timers cost that the benchmark itself sets.

python -m benchmarks.latency
python -m benchmarks.latency --layouts main --stores memory --budget 2GiB --repeats 5
python -m benchmarks.latency --scale small --checksum-only
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from zarr.abc.store import Store as ZarrStore
from zarr.buffer import cpu
from zarr.storage import LocalStore, MemoryStore

from benchmarks.data.far_store import SAMPLES, FarStore
from benchmarks.data.layouts import LAYOUTS, SCALES, Layout
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.checksum import Checksum, ChecksumError, Hashes, hash_batches
from benchmarks.harness.machine import machine_line
from benchmarks.harness.measure import Timing, expected_hashes, time_loader
from benchmarks.harness.options import names, positive
from benchmarks.loaders import Batch, fields_of
from benchmarks.report.tables import make_console, print_rows, say_if_not_quiet
from zarrfeed import ZarrIterableDataset

_HERE = Path(__file__).parents[1]

#: Of the speed without latency. What falls short is marked.
GOAL = 0.9

#: A timer is set, and nothing is waited for.
_TIMER_S = 1e-9

#: How often the array is repeated when what is delivered is verified.
_VERIFIED_TIMES = 2


@dataclass(frozen=True)
class Case:
    """What is measured: a stored layout, and how often it is repeated in an epoch that is timed."""

    layout: Layout
    times: int

    def small(self) -> Case:
        """Return the same with two stored objects, of few chunks each."""
        layout = replace(self.layout, chunks_per_shard=min(4, self.layout.chunks_per_shard))
        rows = 2 * layout.rows_per_chunk * max(1, layout.chunks_per_shard)
        return Case(replace(layout, shape=(rows, *layout.shape[1:])), 2)


#: 128 MiB decoded are stored (64 MiB in small chunks), a timed epoch has 8 GiB (1 GiB): start and end weigh little.
CASES = {
    "main": Case(replace(LAYOUTS["A"], name="far-main", shape=(2048, 4, 64, 64)), 64),
    "small-chunks": Case(
        replace(LAYOUTS["A"], name="far-small-chunks", shape=(4096, 1, 64, 64), chunks=(4, 1, 64, 64)), 16
    ),
    "sharded": Case(replace(LAYOUTS["E"], name="far-sharded", shape=(2048, 4, 64, 64)), 64),
}

STORES = ("local", "memory")


class FarLoader:
    """zarrfeed over a far store, with no option but the batch size, `shuffle` and perhaps the memory."""

    def __init__(self, store: FarStore, layout: Layout, budget: str | None) -> None:
        array = zarr.open_array(store, path=SAMPLES, mode="r")
        self._dataset = ZarrIterableDataset(array, batch_size=layout.batch_size, shuffle=True, memory_budget=budget)
        self.samples_per_epoch: int = array.shape[0]
        self.max_requests = self._dataset.explain().memory.max_requests
        self.settings: dict[str, object] = {"max_requests": self.max_requests}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._dataset.set_epoch(epoch)
        return iter(self._dataset)

    def close(self) -> None:
        self._dataset.close()

    def totals(self) -> tuple[int, float]:
        """Return the requests to the store, and the seconds that chunks were awaited, summed over chunks."""
        stats = self._dataset.stats()
        return stats.requests, stats.fetch_s


@dataclass(frozen=True)
class Turn:
    """One epoch, its start and its end inside of the clock.

    Attributes
    ----------
    timing
        Of its batches.
    requests_per_s
        To the store.
    in_flight
        Chunks that were asked for and not answered yet, on average.
    """

    timing: Timing
    requests_per_s: float
    in_flight: float


class Round(NamedTuple):
    """Epochs that followed one another."""

    at_once: Turn
    timers: Turn
    far: Turn


def open_store(store: Store, kind: str) -> ZarrStore:
    """Return a layout's store as zarr-python opens it: its directory, or a copy of it in memory."""
    if kind == "local":
        return LocalStore(store.path, read_only=True)
    files = {str(f.relative_to(store.path)): f.read_bytes() for f in store.path.rglob("*") if f.is_file()}
    return MemoryStore({key: cpu.Buffer.from_bytes(data) for key, data in files.items()})


def make_far(store: ZarrStore, layout: Layout, latency_s: float | None, times: int) -> FarStore:
    """Return a store of a layout, as if it were far away and `times` times as long."""
    objects = layout.num_chunks // max(1, layout.chunks_per_shard)
    return FarStore(store, objects=objects, latency_s=latency_s, times=times)


def verify_repeated(expected: Hashes, delivered: Hashes, times: int) -> None:
    """Raise ChecksumError unless each sample of the store was delivered `times` times, and nothing else was."""
    wanted = np.repeat(expected, times)
    if not np.array_equal(np.sort(wanted), np.sort(delivered)):
        raise ChecksumError(f"delivered {Checksum.of(delivered)}; {times} times the store is {Checksum.of(wanted)}")


def time_epoch(loader: FarLoader, store: Store, epoch: int) -> Turn:
    """Take all batches of an epoch."""
    requests, awaited_s = loader.totals()
    timing = time_loader(loader, store, first_epoch=epoch, min_wall_s=0)
    all_requests, all_awaited_s = loader.totals()
    return Turn(timing, (all_requests - requests) / timing.wall_s, (all_awaited_s - awaited_s) / timing.wall_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if wrong data were delivered, before anything is timed."""
    options = _parse(arguments)
    console = make_console()
    console.print(machine_line(), highlight=False, soft_wrap=True)
    options.data.mkdir(parents=True, exist_ok=True)
    cases = {name: CASES[name] if options.scale == "full" else CASES[name].small() for name in options.layouts}
    stores = {name: prepare_store(case.layout, options.data, scale=options.scale) for name, case in cases.items()}
    latencies_s = (None, _TIMER_S, options.latency_ms / 1000)
    for name, store in stores.items():
        expected = expected_hashes(store)
        for kind in options.stores:
            for latency_s in latencies_s:
                far = make_far(open_store(store, kind), store.layout, latency_s, _VERIFIED_TIMES)
                with closing(FarLoader(far, store.layout, options.budget)) as loader:
                    delivered, _ = hash_batches([t.numpy() for t in fields_of(b)] for b in loader.epoch(0))
                what = f"{name}, {kind}, " + ("at once" if latency_s is None else f"{1000 * latency_s:g} ms")
                try:
                    verify_repeated(expected, delivered, _VERIFIED_TIMES)
                except ChecksumError as error:
                    console.print(f"{what}: WRONG: {error}; nothing was timed", highlight=False, soft_wrap=True)
                    return 1
                console.print(f"{what}: {len(delivered)} samples are right", highlight=False)
    if options.checksum_only:
        return 0
    rows: list[list[str]] = []
    foreign_cores = 0.0
    for name, store in stores.items():
        warm_page_cache(store)
        for kind in options.stores:
            inner = open_store(store, kind)
            with ExitStack() as stack:
                sides = []
                for latency_s in latencies_s:
                    far = make_far(inner, store.layout, latency_s, cases[name].times)
                    sides.append(stack.enter_context(closing(FarLoader(far, store.layout, options.budget))))
                # the first epochs pay for fresh memory
                rounds = [
                    Round(*(time_epoch(side, store, len(sides) * n + i) for i, side in enumerate(sides)))
                    for n in range(options.repeats + 1)
                ][1:]
            rows.append(_row(name, kind, sides[-1].max_requests, rounds))
            console.print(f"{name}, {kind}: timed", highlight=False)
            busy = [turn.timing.foreign_cores or 0.0 for one in rounds for turn in one]
            foreign_cores = max(foreign_cores, *busy)
    rates = ("at once", "timers", f"{options.latency_ms:g} ms")
    columns = ("layout", "store", "epoch", *rates, "ratio", "lowest-highest", "waiting", "requests/s", "in flight")
    print_rows(console, columns, rows, words=2)
    console.print(_LEGEND, highlight=False, soft_wrap=True)
    say_if_not_quiet(console, foreign_cores, "up to")
    return 0


_LEGEND = (
    "GB/s: decoded bytes delivered (10**9) over whole epochs, median of the rounds; ratios are of one round.\n"
    f"ratio: to the speed at once; * if below {GOAL}. waiting: to the speed with timers that wait for nothing.\n"
    "requests/s: to the store, at once and with latency.\n"
    "in flight: chunks that were asked for and not answered yet, on average, and how many may be at once."
)


def _row(name: str, kind: str, max_requests: int, rounds: Sequence[Round]) -> list[str]:
    at_once, timers, far = zip(*rounds, strict=True)
    ratios = [r.far.timing.gb_per_s / r.at_once.timing.gb_per_s for r in rounds]
    ratio = statistics.median(ratios)
    waiting = statistics.median(r.far.timing.gb_per_s / r.timers.timing.gb_per_s for r in rounds)
    return [
        name,
        kind,
        f"{far[0].timing.decoded_bytes / 2**30:.2f} GiB",
        *(f"{statistics.median(turn.timing.gb_per_s for turn in side):.2f}" for side in (at_once, timers, far)),
        f"{ratio:.2f}" + " *" * (ratio < GOAL),
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{waiting:.2f}",
        ", ".join(f"{statistics.median(turn.requests_per_s for turn in side):.0f}" for side in (at_once, far)),
        f"{statistics.median(turn.in_flight for turn in far):.0f} of {max_requests}",
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layouts", type=names(CASES), default=list(CASES), help=f"of {', '.join(CASES)}")
    add("--stores", type=names(STORES), default=list(STORES), help=f"of {', '.join(STORES)}")
    add("--latency-ms", type=float, default=20.0, help="added to each request")
    add("--budget", help="memory_budget of the datasets; the default unless given")
    add("--scale", choices=SCALES, default="full", help="full: epochs of 8 GiB; small: a few MiB, not to be timed")
    add("--repeats", type=positive, default=3, help="rounds of one epoch without latency and one with it")
    add("--checksum-only", action="store_true", help="verify, and time nothing")
    add("--data", type=Path, default=_HERE / "stores", help="where the stores are kept, 2 GB at most")
    return parser.parse_args(arguments)

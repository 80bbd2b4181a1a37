"""Compare loaders on one machine in one run: verify what each delivers, then time them, then say so.

python -m benchmarks.run
python -m benchmarks.run --quick
python -m benchmarks.run --layouts A,D --loaders zarrfeed,zarr-chunkwise-0w --repeats 5
python -m benchmarks.run --scale small --checksum-only
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.data.layouts import LAYOUTS, QUICK, SCALES
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.checksum import Checksum, ChecksumError
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.measure import expected_hashes, time_ceiling, time_loader, verify_library_ceiling, verify_loader
from benchmarks.harness.options import names, positive
from benchmarks.loaders import CEILINGS, LOADERS, OURS, OURS_IN_WORKERS, LibraryCeiling, why_not
from benchmarks.report.charts import draw_results
from benchmarks.report.goals import to_markdown, verdicts
from benchmarks.report.results import FIRST_EPOCH, Measurement, summarise, write_rows
from benchmarks.report.tables import make_console, print_table, say_if_not_quiet
from zarrfeed.base.atomic_file import write_whole

_HERE = Path(__file__).parents[1]

#: What `--quick` chooses, where nothing else is said: at most 4 minutes on 2 cores.
QUICK_LAYOUTS = ("A", "D", "E", "G")
QUICK_LOADERS = (OURS, OURS_IN_WORKERS, "zarr-chunkwise-0w", "zarr-chunkwise-workers", *CEILINGS)
_QUICK_REPEATS, _QUICK_MIN_S = 5, 0.3

#: Loader -> mean number of chunks that a batch of it has samples of.
Quality = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if a loader delivered wrong data, before its layout is timed."""
    options = _parse(arguments)
    console = make_console()
    options.data.mkdir(parents=True, exist_ok=True)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    measurements: list[Measurement] = []
    for name in options.layouts:
        begin = time.perf_counter()
        store = prepare_store(LAYOUTS[name].scaled(options.scale), options.data, scale=options.scale)
        console.print(
            f"{name}: {store.layout.description}; {store.layout.decoded_bytes / 2**20:.0f} MiB decoded, "
            f"compressed {store.compression_ratio:.2f} : 1, batches of {store.layout.batch_size}",
            highlight=False,
            soft_wrap=True,
        )
        quality = _verify(console, store, options)
        if quality is None:
            console.print(f"{name} was not timed, nor what comes behind it: a loader delivered wrong data")
            return 1
        if not options.checksum_only:
            measurements += _time(console, store, quality, options)
            _write(options, measurements)  # also if the next layout fails
        console.print(f"{name} took {time.perf_counter() - begin:.0f} s, its store included", highlight=False)
    if options.checksum_only:
        return 0
    summaries = summarise(measurements)
    print_table(console, summaries)
    foreign_cores = max((m.timing.foreign_cores or 0.0 for m in measurements), default=0.0)
    say_if_not_quiet(console, foreign_cores, "up to")
    write_whole(options.out / "results.md", to_markdown(verdicts(summaries)).encode())
    console.print((options.out / "results.md").read_text(), highlight=False, soft_wrap=True, markup=False)
    draw_results(summaries, machine_line()).savefig(options.out / "results.png")
    console.print(f"wrote results.json, results.md and results.png to {options.out}", highlight=False, soft_wrap=True)
    return 0


def _write(options: argparse.Namespace, measurements: Sequence[Measurement]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    common: dict[str, object] = {
        "scale": options.scale,
        "machine": describe_machine(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_rows(options.out / "results.json", measurements, common)


def _verify(console: Console, store: Store, options: argparse.Namespace) -> Quality | None:
    """Compare every loader with zarr-python on a store; None if one differs."""
    quality: Quality = {}
    failed = False
    expected = expected_hashes(store)
    console.print(f"  zarr-python reads {Checksum.of(expected)}", highlight=False)
    for name in options.loaders:
        if reason := why_not(name, store.layout):
            console.print(f"  {name}: skipped, {reason}", highlight=False, soft_wrap=True)
            continue
        if name not in LOADERS:
            ceiling = CEILINGS[name](store)
            if isinstance(ceiling, LibraryCeiling):
                try:
                    verify_library_ceiling(ceiling, expected)
                except ChecksumError as error:
                    failed = True
                    console.print(f"  {name}: WRONG: {error}", highlight=False, soft_wrap=True)
                else:
                    console.print(f"  {name}: {store.layout.num_samples} samples are right", highlight=False)
            continue
        with closing(LOADERS[name](store, options.part_samples)) as loader:
            try:
                quality[name] = verify_loader(loader, store, expected)
            except ChecksumError as error:
                failed = True
                console.print(f"  {name}: WRONG: {error}", highlight=False, soft_wrap=True)
            else:
                console.print(f"  {name}: {loader.samples_per_epoch} samples are right", highlight=False)
    return None if failed else quality


def _time(console: Console, store: Store, quality: Quality, options: argparse.Namespace) -> list[Measurement]:
    """Time all loaders on one store: each one's first epoch, then rounds in which each has its turn."""
    layout = store.layout
    measurements: list[Measurement] = []
    console.print(f"{layout.name}: timing", highlight=False)
    warm_page_cache(store)
    with ExitStack() as stack:
        loaders = {
            name: stack.enter_context(closing(LOADERS[name](store, options.part_samples)))
            for name in options.loaders
            if name in quality
        }
        ceilings = {
            name: CEILINGS[name](store) for name in options.loaders if name in CEILINGS and not why_not(name, layout)
        }
        for repeat in (FIRST_EPOCH, *range(options.repeats)):
            for name, loader in loaders.items():
                # epoch 0 was verified; rounds are far apart, since a round is as many epochs as fit into its time
                timing = time_loader(
                    loader,
                    store,
                    first_epoch=1 + (repeat + 1) * 100_000,
                    min_wall_s=0 if repeat == FIRST_EPOCH else options.min_seconds,
                )
                measurements.append(
                    Measurement(
                        layout=layout,
                        loader=name,
                        repeat=repeat,
                        timing=timing,
                        settings=loader.settings,
                        whole_epoch=loader.samples_per_epoch == layout.num_samples,
                        chunks_per_batch=quality[name],
                    )
                )
            for name, ceiling in ceilings.items():
                if repeat != FIRST_EPOCH:
                    timing = time_ceiling(ceiling, store, min_wall_s=options.min_seconds)
                    measurements.append(Measurement(layout, name, repeat, timing, ceiling.settings))
    return measurements


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    everything = [*LOADERS, *CEILINGS]
    quick = f"layouts {','.join(QUICK_LAYOUTS)} of 128 MiB, {len(QUICK_LOADERS)} loaders and ceilings, short turns"
    add("--quick", action="store_true", help=f"other defaults, for a run of at most 4 minutes: {quick}")
    add("--layouts", type=names(LAYOUTS), help=f"of {', '.join(LAYOUTS)}; default: all")
    add("--loaders", type=names(everything), help=f"of {', '.join(everything)}; default: all")
    add("--scale", choices=(*SCALES, QUICK), help="full: 512 MiB a layout; quick: 128; small: not to be timed")
    add("--repeats", type=positive, help="rounds in which every loader is timed once; default: 3")
    add("--min-seconds", type=float, help="a turn is as many whole epochs as this takes; default: 1")
    add("--part-samples", type=positive, default=512, help="samples on which map-style loaders are timed")
    add("--checksum-only", action="store_true", help="verify, and time nothing")
    add("--data", type=Path, default=_HERE / "stores", help="where stores are kept; 2 GB at most")
    add("--out", type=Path, default=_HERE / "results", help="where results.json and results.png go")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        defaults = (list(QUICK_LAYOUTS), list(QUICK_LOADERS), QUICK, _QUICK_REPEATS, _QUICK_MIN_S)
    else:
        defaults = (list(LAYOUTS), everything, "full", 3, 1.0)
    for option, default in zip(("layouts", "loaders", "scale", "repeats", "min_seconds"), defaults, strict=True):
        if getattr(chosen, option) is None:
            setattr(chosen, option, default)
    return chosen

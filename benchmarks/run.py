"""Compare loaders on one machine in one run: verify what each delivers, then time them, then say so.

python -m benchmarks.run
python -m benchmarks.run --layouts main,rows-512 --loaders zarrfeed,zarr-chunkwise-0w --repeats 5
python -m benchmarks.run --scale small --checksum-only
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.checksum import Checksum, ChecksumError
from benchmarks.layouts import LAYOUTS, SCALES
from benchmarks.loaders import CEILINGS, LOADERS
from benchmarks.machine import describe_machine, machine_line
from benchmarks.measure import expected_hashes, time_ceiling, time_loader, verify_loader
from benchmarks.options import QUIET_CORES, names, positive
from benchmarks.report import print_table, write_chart
from benchmarks.results import FIRST_EPOCH, Measurement, summarise, write_rows
from benchmarks.stores import Store, prepare_store, warm_page_cache

_HERE = Path(__file__).parent

#: (layout, loader) -> mean number of chunks that a batch has samples of.
Quality = dict[tuple[str, str], float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if a loader delivered wrong data, before anything is timed."""
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 140
    options.data.mkdir(parents=True, exist_ok=True)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    stores = []
    for name in options.layouts:
        store = prepare_store(LAYOUTS[name].scaled(options.scale), options.data, scale=options.scale)
        stores.append(store)
        console.print(
            f"{name}: {store.layout.description}; {store.layout.decoded_bytes / 2**20:.0f} MiB decoded, "
            f"compressed {store.compression_ratio:.2f} : 1, batches of {store.layout.batch_size}",
            highlight=False,
            soft_wrap=True,
        )
    quality = _verify(console, stores, options)
    if quality is None:
        console.print("nothing was timed: a loader delivered wrong data")
        return 1
    if options.checksum_only:
        return 0
    measurements = [m for store in stores for m in _time(console, store, quality, options)]
    summaries = summarise(measurements)
    print_table(console, summaries)
    foreign_cores = max((m.timing.foreign_cores or 0.0 for m in measurements), default=0.0)
    if foreign_cores > QUIET_CORES:
        console.print(
            f"NOT QUIET: others kept up to {foreign_cores:.1f} cores busy meanwhile; see foreign_cores in the rows"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    common: dict[str, object] = {
        "scale": options.scale,
        "machine": describe_machine(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_rows(options.out / "results.json", measurements, common)
    write_chart(options.out / "results.png", summaries, machine_line())
    console.print(f"wrote results.json and results.png to {options.out}", highlight=False, soft_wrap=True)
    return 0


def _verify(console: Console, stores: Sequence[Store], options: argparse.Namespace) -> Quality | None:
    """Compare every loader with zarr-python on every store; None if one differs."""
    quality: Quality = {}
    failed = False
    for store in stores:
        layout = store.layout.name
        expected = expected_hashes(store)
        console.print(f"{layout}: zarr-python reads {Checksum.of(expected)}", highlight=False)
        for name in options.loaders:
            if name not in LOADERS:
                continue
            with closing(LOADERS[name](store, options.part_samples)) as loader:
                try:
                    quality[layout, name] = verify_loader(loader, store, expected)
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
            if name in LOADERS
        }
        ceilings = {name: CEILINGS[name](store) for name in options.loaders if name in CEILINGS}
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
                        chunks_per_batch=quality[layout.name, name],
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
    add("--layouts", type=names(LAYOUTS), default=list(LAYOUTS), help=f"of {', '.join(LAYOUTS)}")
    everything = [*LOADERS, *CEILINGS]
    add("--loaders", type=names(everything), default=everything, help=f"of {', '.join(everything)}")
    add("--scale", choices=SCALES, default="full", help="full: 512 MiB a layout; small: a few MiB, not to be timed")
    add("--repeats", type=positive, default=3, help="rounds in which every loader is timed once")
    add("--min-seconds", type=float, default=1.0, help="a turn is as many whole epochs as this takes")
    add("--part-samples", type=positive, default=2048, help="samples on which map-style loaders are timed")
    add("--checksum-only", action="store_true", help="verify, and time nothing")
    add("--data", type=Path, default=_HERE / "data", help="where the stores are kept, 2 GB at most")
    add("--out", type=Path, default=_HERE / "results", help="where results.json and results.png go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

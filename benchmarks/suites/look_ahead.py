"""How fast a `ZarrDataset` is read in random order by torch's samplers, with `LookAhead` and without it.

python -m benchmarks.look_ahead
python -m benchmarks.look_ahead --layouts A,E --workers 0 --batches 16,64,256 --repeats 7

`plain` is `DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), ...))`; the other sides wrap the same
batch sampler, and look ahead so many batches. All have the same cache. Each side reads a whole epoch in each round,
and keeps its dataset and its workers; a ratio is the median of those within a round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.report.tables import make_console, print_rows
from zarrfeed import LookAhead, ZarrDataset

_ROOT = Path(__file__).parents[2]
_PLAIN = "plain"


@dataclass(frozen=True)
class Row:
    """One epoch of one side: GB/s."""

    layout: str
    workers: int
    side: str
    repeat: int
    gb_per_s: float


def loader_of(store: Store, ahead: int, num_workers: int) -> Any:
    """Return a loader that looks ahead so many batches; 0: none."""
    dataset = ZarrDataset(store.samples_path, return_index=True)
    random = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    batches: Any = BatchSampler(random, store.layout.batch_size, drop_last=False)
    sampler = LookAhead(batches, ahead) if ahead else batches
    return DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers, persistent_workers=num_workers > 0)


def read(loader: Any, num_samples: int) -> int:
    """Read an epoch; return its bytes, or raise AssertionError if it has not every sample once."""
    size = 0
    seen = torch.zeros(num_samples, dtype=torch.int64)
    for batch, index in loader:
        size += batch.nbytes
        seen[index] += 1
    if not bool((seen == 1).all()):
        raise AssertionError("samples are missing, or came twice")
    return size


def measure(store: Store, aheads: Sequence[int], num_workers: int, repeats: int) -> list[Row]:
    """Return the rows of one layout, after an epoch of each side that is not counted."""
    sides = {_PLAIN if not ahead else f"{ahead} ahead": loader_of(store, ahead, num_workers) for ahead in (0, *aheads)}
    samples = store.layout.num_samples
    for loader in sides.values():
        read(loader, samples)
    rows = []
    for repeat in range(repeats):
        for side, loader in sides.items():
            begin = time.perf_counter()
            size = read(loader, samples)
            rows.append(Row(store.layout.name, num_workers, side, repeat, size / 1e9 / (time.perf_counter() - begin)))
    return rows


def table_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return a line for each side: the median rate, and the ratio to the plain side."""
    groups: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row.layout, row.workers, row.side), []).append(row.gb_per_s)
    table = []
    for (layout, workers, side), rates in groups.items():
        ratio = median(a / b for a, b in zip(rates, groups[layout, workers, _PLAIN], strict=True))
        table.append([layout, str(workers), side, f"{median(rates):.2f}", f"{ratio:.2f}"])
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    rows: list[Row] = []
    options.data.mkdir(parents=True, exist_ok=True)
    for name in options.layouts:
        store = prepare_store(LAYOUTS[name].scaled(options.scale), options.data, scale=options.scale)
        warm_page_cache(store)
        for num_workers in options.workers:
            rows += measure(store, options.batches, num_workers, options.repeats)
    print_rows(console, ["", "workers", "", "GB/s", "to plain"], table_of(rows), words=3)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    write_document(options.out / "look_ahead.json", rows=[asdict(row) for row in rows])
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.look_ahead", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=["A"])
    parser.add_argument("--batches", type=lambda text: [positive(part) for part in text.split(",")], default=[16, 64])
    parser.add_argument("--workers", type=lambda text: [int(part) for part in text.split(",")], default=[0, 2])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

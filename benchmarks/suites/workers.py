"""How fast batches come out of the workers of a torch DataLoader, beside the same batches without workers.

python -m benchmarks.workers
python -m benchmarks.workers --layouts A --batches 64 --workers 1,2 --repeats 9

Decoding needs no workers: the engine's threads do it. So this is what sending the batches costs. `numbers` are workers
that send an integer in place of each batch: the messages of torch alone. Workers persist, and each side reads a whole
epoch in each round; a ratio is the median of those within a round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.report.tables import make_console, print_rows
from zarrfeed import ZarrIterableDataset

_ROOT = Path(__file__).parents[2]
_NUMBERS = "numbers"


@dataclass(frozen=True)
class Row:
    """One epoch of one side: how long each batch took, and decoded GB/s, 0 where nothing is decoded."""

    layout: str
    batch_size: int
    side: str
    repeat: int
    batch_us: float
    gb_per_s: float


class Numbers(torch.utils.data.IterableDataset[int]):
    """As many integers as an epoch has batches, shared out to the workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        worker, of = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(worker, self.count, of))


def loader_of(dataset: Any, num_workers: int) -> Any:
    """Return a DataLoader of a dataset of batches, whose workers stay."""
    return torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def sides_of(store: Store, batch_size: int, workers: Sequence[int]) -> dict[str, Callable[[], tuple[int, int]]]:
    """Return what each side does in an epoch: it returns the number of batches, and their bytes.

    Raises
    ------
    AssertionError
        By an epoch: samples are missing, or came twice.
    """
    layout = store.layout
    expected = sum(range(layout.num_samples))

    def epoch(loader: Any) -> tuple[int, int]:
        batches = samples = size = 0
        for batch in loader:
            batches += 1
            samples += len(batch)
            size += batch.nbytes
        if samples != layout.num_samples:
            raise AssertionError(f"{samples} samples of {layout.num_samples}")
        return batches, size

    def numbers(loader: Any) -> tuple[int, int]:
        return sum(1 for _ in loader), 0

    def check(num_workers: int) -> None:
        indexed = ZarrIterableDataset(store.samples_path, batch_size=batch_size, shuffle=True, return_index=True)
        if sum(int(index.sum()) for _, index in loader_of(indexed, num_workers)) != expected:
            raise AssertionError(f"{num_workers} workers: samples are missing, or came twice")

    sides: dict[str, Callable[[], tuple[int, int]]] = {}
    for num_workers in (0, *workers):
        check(num_workers)
        dataset = ZarrIterableDataset(store.samples_path, batch_size=batch_size, shuffle=True)
        loader = loader_of(dataset, num_workers)
        sides[str(num_workers)] = lambda loader=loader: epoch(loader)  # type: ignore[misc]
    count = -(-layout.num_samples // batch_size)
    for num_workers in workers:
        loader = loader_of(Numbers(count), num_workers)
        sides[f"{_NUMBERS}, {num_workers}"] = lambda loader=loader: numbers(loader)  # type: ignore[misc]
    return sides


def measure(store: Store, batch_size: int, workers: Sequence[int], repeats: int) -> list[Row]:
    """Return the rows of one layout and batch size, after an epoch of each side that is not counted."""
    sides = sides_of(store, batch_size, workers)
    for epoch in sides.values():
        epoch()
    rows = []
    for repeat in range(repeats):
        for side, epoch in sides.items():
            begin = time.perf_counter()
            batches, size = epoch()
            seconds = time.perf_counter() - begin
            rows.append(Row(store.layout.name, batch_size, side, repeat, 1e6 * seconds / batches, size / 1e9 / seconds))
    return rows


def table_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return a line for each side: the medians, and the ratio to the side without workers."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.layout, row.batch_size, row.side), []).append(row)
    table = []
    for (layout, batch_size, side), own in groups.items():
        alone = groups[layout, batch_size, "0"]
        ratio = median(a.gb_per_s / b.gb_per_s for a, b in zip(own, alone, strict=True))
        rate = median(row.gb_per_s for row in own)
        table.append(
            [
                layout,
                str(batch_size),
                side,
                f"{median(row.batch_us for row in own):.0f}",
                f"{rate:.2f}" if rate else "",
                f"{ratio:.2f}" if rate else "",
            ]
        )
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
        for batch_size in options.batches:
            rows += measure(store, batch_size, options.workers, options.repeats)
    print_rows(console, ["", "batch", "workers", "us a batch", "GB/s", "to 0"], table_of(rows), words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    write_document(options.out / "workers.json", rows=[asdict(row) for row in rows])
    return 0


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.workers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=["A", "D"])
    parser.add_argument("--batches", type=_numbers, default=[64, 256, 1024])
    parser.add_argument("--workers", type=_numbers, default=[1, 2])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

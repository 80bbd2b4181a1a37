"""How fast a local disk is read whose files are not in the page cache: epochs, beside plain reading of the same bytes.

python -m benchmarks.cold
python -m benchmarks.cold --layouts A,E --repeats 9

Before each turn the kernel is told to drop the files of the store (POSIX_FADV_DONTNEED, which needs no rights). Sides:

- `cat`: 16 processes read the files, each from its beginning to its end.
- `ranges`: 16 threads read ranges that are as long as a stored chunk, in random order, and drop the bytes: what the
  disk gives to who reads chunk by chunk in random order.
- `shuffled`, `ordered`: a later epoch of a dataset, whose memory is there already.
- `warm`: a shuffled epoch from the page cache, which is what the processors allow.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.data.layouts import LAYOUTS, SCALES
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.report.tables import make_console, print_rows
from zarrfeed import ZarrIterableDataset

_ROOT = Path(__file__).parents[2]
#: As many as zarrfeed has threads that wait for the disk.
_READERS = 16


@dataclass(frozen=True)
class Row:
    """One turn of one side: stored GB/s."""

    layout: str
    side: str
    repeat: int
    gb_per_s: float


def files_of(store: Store) -> list[Path]:
    """Return the files that have chunks."""
    return sorted(path for path in store.samples_path.rglob("*") if path.is_file() and path.name != "zarr.json")


def drop(files: Sequence[Path]) -> None:
    """Have the kernel forget what it has of these files, which were written out before."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cat(files: Sequence[Path]) -> None:
    """Read the files by many processes."""
    order = random.sample(files, len(files))
    running = [
        subprocess.Popen(["cat", *map(str, order[part::_READERS])], stdout=subprocess.DEVNULL)
        for part in range(min(_READERS, len(files)))
    ]
    for one in running:
        if one.wait():
            raise OSError(f"cat ended with status {one.returncode}")


def read_ranges(files: Sequence[Path], chunk_bytes: int) -> None:
    """Read all bytes of the files in ranges of so many, in random order."""
    ranges = [(file, begin) for file in files for begin in range(0, file.stat().st_size, chunk_bytes)]
    random.shuffle(ranges)

    def read(of: tuple[Path, int]) -> None:
        descriptor = os.open(of[0], os.O_RDONLY)
        try:
            os.pread(descriptor, chunk_bytes, of[1])
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read, ranges))


def sides_of(store: Store, files: Sequence[Path], say: Callable[[str], None]) -> dict[str, Callable[[], None]]:
    """Return what each side does in a turn, whose epochs find their memory in place."""
    chunks = -(-store.layout.num_samples // store.layout.chunks[0])
    chunk_bytes = sum(file.stat().st_size for file in files) // chunks
    datasets = {
        name: ZarrIterableDataset(store.samples_path, batch_size=store.layout.batch_size, shuffle=name != "ordered")
        for name in ("shuffled", "ordered")
    }
    epochs = count()

    def epoch(name: str) -> None:
        datasets[name].set_epoch(next(epochs))
        samples = sum(len(batch) for batch in datasets[name])
        if samples != store.layout.num_samples:
            raise AssertionError(f"{name}: {samples} samples of {store.layout.num_samples}")

    for name in datasets:
        epoch(name)
    say(f"{store.layout.name}: {len(files)} files, {chunks} chunks of {chunk_bytes / 1e6:.2f} MB stored")
    return {
        "cat": lambda: cat(files),
        "ranges": lambda: read_ranges(files, chunk_bytes),
        "shuffled": lambda: epoch("shuffled"),
        "ordered": lambda: epoch("ordered"),
        "warm": lambda: epoch("shuffled"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    rows: list[Row] = []
    options.data.mkdir(parents=True, exist_ok=True)
    for name in options.layouts:
        store = prepare_store(LAYOUTS[name].scaled(options.scale), options.data, scale=options.scale)
        files = files_of(store)
        os.sync()  # what is not written out cannot be dropped
        total = sum(file.stat().st_size for file in files)
        sides = sides_of(store, files, say)
        for repeat in range(options.repeats):
            for side, turn in sides.items():
                if side == "warm":
                    warm_page_cache(store)
                else:
                    drop(files)
                begin = time.perf_counter()
                turn()
                rows.append(Row(name, side, repeat, total / 1e9 / (time.perf_counter() - begin)))
    table = []
    for name in options.layouts:
        rates = {
            side: [row.gb_per_s for row in rows if (row.layout, row.side) == (name, side)]
            for side in dict.fromkeys(row.side for row in rows)
        }
        for side, rate in rates.items():
            ratios = [median(a / b for a, b in zip(rate, rates[to], strict=True)) for to in ("cat", "ranges")]
            table.append([name, side, f"{median(rate):.2f}", *(f"{ratio:.2f}" for ratio in ratios)])
    print_rows(console, ["", "", "stored GB/s", "to cat", "to ranges"], table, words=2)
    say(machine_line())
    write_document(options.out / "cold.json", rows=[asdict(row) for row in rows])
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.cold", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=["A", "E"])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores", help="on the disk to be measured")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

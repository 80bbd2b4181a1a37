"""How well the default order mixes stores of large chunks, and what it costs.

python -m benchmarks.mixing --checksum-only
python -m benchmarks.mixing --scale full --repeats 5
python -m benchmarks.mixing --scale full --cases J,K --windows 1,2
python -m benchmarks.mixing --grid

Layout J has days of a global field in a chunk, as weather archives do, of one and of four variables; K has a year of
small fields in a chunk. Each is read alone, with the row before (a window of 2), and as windows of 6 rows, shuffled, in
batches of 16, under the budget that its window needs. The ceiling is a bare C++ loop that decodes every chunk once, and
copies each row to as many slots as windows have it. A store is made of a few distinct chunk files under many names, so
that ten gigabytes are read of one. Before anything is timed, an epoch is checked: each sample once, with the rows that
were written; and the bytes that it decoded are counted. The sides take turns.

`--grid` times nothing: it plans epochs over a grid of layouts under two budgets, with whole chunks and with the blocks
that are chosen, and prints the share of the stretches of a perfect shuffle that both draw from.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import zarr

import zarrfeed
from benchmarks.data.layouts import Layout, blosc
from benchmarks.data.stores import chunk_samples, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive, rate
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.report.tables import make_console, print_rows
from benchmarks.report.turns import Turn, rates_of, ratios_of
from zarrfeed import _core
from zarrfeed.packing.targets.timed_passes import time_passes

_BATCH = 16
#: The longest time of an epoch that a turn waits for.
_LONGEST_TURN_S = 60.0


@dataclass(frozen=True)
class Shape:
    """A store: rows of a chunk, shape of a row, variables, chunks of each, distinct chunk files; budgets by window."""

    rows: int
    row: tuple[int, ...]
    variables: int
    chunks: int
    distinct: int
    budgets: dict[int, str]


CASES: dict[str, dict[str, Shape]] = {
    "full": {
        "J": Shape(24, (721, 1440), 1, 60, 4, {1: "2 GiB", 2: "2 GiB", 6: "3 GiB"}),
        "J4": Shape(24, (721, 1440), 4, 24, 4, {1: "2 GiB", 2: "4 GiB"}),
        "K": Shape(365, (512, 512), 1, 20, 2, {1: "2 GiB", 2: "2 GiB", 6: "3 GiB"}),
    },
    "small": {
        "J": Shape(24, (64, 160), 1, 8, 2, {1: "64 MiB", 2: "64 MiB", 6: "64 MiB"}),
        "J4": Shape(24, (64, 160), 4, 6, 2, {1: "64 MiB", 2: "96 MiB"}),
        "K": Shape(60, (32, 32), 1, 8, 2, {1: "16 MiB", 2: "16 MiB", 6: "16 MiB"}),
    },
}
WINDOWS = ("1", "2", "6")
#: KiB of a row, rows of a chunk and chunks; each with windows of 1, 2 and 6 rows, 1 and 4 variables, and these budgets.
GRID = (
    (64, 16, 500),
    (256, 24, 400),
    (4096, 1, 2000),
    (4096, 24, 100),
    (16384, 24, 60),
    (1024, 365, 20),
    (1, 2048, 100),
)
_GRID_BUDGETS = ("1 GiB", "8 GiB")
#: Decodes of a byte that the grid shows.
_MANY_DECODES = 1.2


@dataclass(frozen=True)
class Case:
    """A store, and what is read of it."""

    name: str
    path: Path
    shape: Shape
    window: int

    @property
    def num_samples(self) -> int:
        """Windows that lie in the array."""
        return self.shape.rows * self.shape.chunks - self.window + 1

    @property
    def stored_bytes(self) -> int:
        """Decoded bytes of all chunks."""
        return self.shape.variables * self.shape.chunks * self.shape.rows * math.prod(self.shape.row) * 4

    def dataset(self) -> zarrfeed.ZarrIterableDataset:
        """Return a dataset with the default order."""
        data = zarrfeed.open(self.path, sample_dim="time")
        if self.window > 1:
            data = data.window(tuple(range(self.window)))
        return zarrfeed.ZarrIterableDataset(
            data,
            batch_size=_BATCH,
            shuffle=True,
            return_index=True,
            memory_budget=self.shape.budgets[self.window],
        )

    def ceiling(self) -> float:
        """Return the samples a second of the loop."""
        seconds = sum(
            _core.measure_ceiling(
                field.to_core(),
                num_threads=usable_cores(),
                window_chunks=usable_cores(),
                scatter=True,
                copies=self.window,
            )[0]
            for field in zarrfeed.open(self.path, sample_dim="time").resolved.fields
        )
        return self.num_samples / seconds

    def first_items(self, rows: Any) -> Any:
        """Return the first item of rows with these numbers, in the first variable."""
        file, row = np.divmod(rows, self.shape.rows)
        return (file % self.shape.distinct) * self.shape.rows + row


def write_case(shape: Shape, path: Path) -> None:
    """Write a store. The first item of a row is its number, in the file that its chunk is a name of."""
    group = zarr.create_group(path)
    layout = Layout(
        name="mixing",
        description="",
        shape=(shape.rows * shape.distinct, *shape.row),
        chunks=(shape.rows, *shape.row),
        codec=blosc("lz4", "shuffle"),
    )
    arrays = [
        group.create_array(
            f"v{variable}",
            shape=(shape.rows * shape.chunks, *shape.row),
            chunks=layout.chunks,
            dtype=layout.dtype,
            compressors=layout.codec,
            dimension_names=("time", "latitude", "longitude"),
        )
        for variable in range(shape.variables)
    ]
    for file in range(shape.distinct):
        arrays[0][file * shape.rows : (file + 1) * shape.rows] = chunk_samples(layout, file, shape.rows)
    for variable, chunk in itertools.product(range(shape.variables), range(shape.chunks)):
        name = path / f"v{variable}" / "c" / str(chunk) / "0" / "0"
        if not name.exists():
            name.parent.mkdir(parents=True, exist_ok=True)
            os.link(path / "v0" / "c" / str((variable + chunk) % shape.distinct) / "0" / "0", name)


def wrong_samples(batches: Iterator[dict[str, Any]], case: Case) -> str:
    """Return what is wrong with an epoch; "" if each sample came once, with its rows of each variable."""
    times = np.zeros(case.num_samples, dtype=np.int64)
    for batch in batches:
        index = batch.pop("index").numpy()
        for variable, (name, values) in enumerate(batch.items()):
            rows = index[:, None] + np.arange(case.window) + variable * case.shape.rows
            first = values.reshape(len(index), case.window, -1)[:, :, 0].numpy()
            if not np.array_equal(first, case.first_items(rows)):
                return f"samples {index.tolist()} have other rows of {name}"
        times += np.bincount(index, minlength=len(times))
    wrong = np.flatnonzero(times != 1)
    return f"samples {wrong.tolist()} came {times[wrong].tolist()} times" if len(wrong) else ""


def _by_name(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for samples, index in batches:
        yield {**(samples if isinstance(samples, dict) else {"v0": samples}), "index": index}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    if options.grid:
        warnings.simplefilter("ignore")  # of orders that hardly shuffle: the table says it
        with tempfile.TemporaryDirectory() as directory:
            head = ["row x rows of a chunk", "variables", "budget", "1 row a sample", "2 rows", "6 rows"]
            print_rows(console, head, _grid(Path(directory)), words=1)
        return 0
    turns: list[Turn] = []
    known: dict[str, list[str]] = {}
    for name in options.cases:
        shape = CASES[options.scale][name]
        with tempfile.TemporaryDirectory(dir=options.data) as directory:
            path = Path(directory) / f"{name}.zarr"
            write_case(shape, path)
            warm_page_cache(path)
            for window in (int(one) for one in options.windows if int(one) in shape.budgets):
                case = Case(f"{name}, windows of {window}" if window > 1 else name, path, shape, window)
                with closing(case.dataset()) as dataset:
                    wrong = wrong_samples(_by_name(iter(dataset)), case)
                    decodes = dataset.stats().bytes_decoded / case.stored_bytes
                    said = wrong or f"{case.num_samples} samples, each once; {decodes:.2f} decodes"
                    console.print(f"{case.name}: {said}", highlight=False, soft_wrap=True)
                    if wrong:
                        return 1
                    known[case.name] = [*_figures(dataset), f"{decodes:.2f}"]
                    for repeat in range(0 if options.checksum_only else options.repeats):
                        took = time_passes(dataset, least_s=options.seconds, limit_s=_LONGEST_TURN_S)
                        turns.append(Turn(case.name, "order", repeat, took.per_s))
                        turns.append(Turn(case.name, "ceiling", repeat, case.ceiling()))
    if options.checksum_only:
        return 0
    write_document(
        options.out / "mixing.json", scale=options.scale, orders=known, turns=[asdict(turn) for turn in turns]
    )
    head = ["", "order", "of perfect", "correlation", "memory", "decodes", "samples/s", "of the ceiling", "range"]
    print_rows(console, head, _table(turns, known), words=2)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _figures(dataset: zarrfeed.ZarrIterableDataset) -> list[str]:
    """Return the order, its share of perfect stretches, its correlation, and the memory that is planned."""
    told = dataset.explain()
    order = f"blocks of {told.block_rows}, {told.lanes} lanes, mix {told.mix}"
    measure = told.shuffling
    figures = ["", ""] if measure is None else [f"{measure.share:.2f}", f"{measure.correlation:.2f}"]
    return [order, *figures, f"{told.memory_bytes / 2**30:.2f} GiB"]


def _table(turns: Sequence[Turn], known: dict[str, list[str]]) -> Iterator[list[str]]:
    """Return a line for each case: its order, the rate, and the ratios to the ceiling of each round."""
    for case, figures in known.items():
        rate, ratios = median(rates_of(turns, case, "order")), ratios_of(turns, case, "order", "ceiling")
        yield [case, *figures, f"{rate:.0f}", f"{median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"]


def _grid(folder: Path) -> Iterator[list[str]]:
    """Return a line for each layout of the grid and budget: how whole chunks mix, and how the chosen blocks do."""
    for (kib, rows, chunks), variables in itertools.product(GRID, (1, 4)):
        path = folder / f"{kib}-{rows}-{variables}.zarr"
        _plan_store(path, kib, rows, chunks, variables)
        for budget in _GRID_BUDGETS:
            cells = []
            for window in (1, 2, 6):
                whole, chosen = _mixes(path, window, budget, "chunk"), _mixes(path, window, budget, "auto")
                cells.append(whole if whole == chosen else f"{whole} -> {chosen}")
            yield [f"{kib} KiB x {rows}", str(variables), budget, *cells]


def _mixes(path: Path, window: int, budget: str, block: Literal["chunk", "auto"]) -> str:
    """Return the share of the stretches of a perfect shuffle, and the decodes in brackets if they are many."""
    data = zarrfeed.open(path, sample_dim="time")
    if window > 1:
        data = data.window(tuple(range(window)))
    try:
        dataset = zarrfeed.ZarrIterableDataset(
            data, batch_size=_BATCH, shuffle=True, memory_budget=budget, mixing={"block": block}
        )
    except zarrfeed.MemoryBudgetError:
        return "refused"
    with closing(dataset):
        told = dataset.explain()
    assert told.shuffling is not None
    decodes = max(field.amplification for field in told.fields)
    return f"{told.shuffling.share:.2f}" + (f" ({decodes:.1f})" if decodes > _MANY_DECODES else "")


def _plan_store(path: Path, kib: int, rows: int, chunks: int, variables: int) -> None:
    """Write the metadata of a store, and the first chunk of each variable, from which an order may be chosen."""
    group = zarr.create_group(path)
    with zarr.config.set({"array.write_empty_chunks": True}):
        for variable in range(variables):
            array = group.create_array(
                f"v{variable}",
                shape=(rows * chunks, kib * 256),
                chunks=(rows, kib * 256),
                dtype="float32",
                compressors=blosc("lz4", "shuffle"),
                dimension_names=("time", "cell"),
            )
            array[:rows] = 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.mixing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=names(CASES["full"]), default=list(CASES["full"]))
    parser.add_argument("--windows", type=names(dict.fromkeys(WINDOWS)), default=list(WINDOWS), help="rows of a sample")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--seconds", type=rate, default=0.5, help="of whole epochs that a turn takes at least")
    parser.add_argument("--grid", action="store_true", help="plan orders over a grid of layouts, and time nothing")
    parser.add_argument("--data", type=Path, default=None, help="folder for the stores; None: that of temporary files")
    add_suite_options(parser, CASES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

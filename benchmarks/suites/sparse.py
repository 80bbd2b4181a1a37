"""What rows of sparse matrices cost: shuffled batches of a csr_matrix of AnnData, beside annbatch.

python -m benchmarks.sparse
python -m benchmarks.sparse --scale full --sides zarrfeed,annbatch-512x32 --peer-python peers/bin/python
python -m benchmarks.sparse --checksum-only

Every side delivers `torch.sparse_csr` batches. Before anything is timed, the sums over all elements of an epoch must be
those of the matrix that was written. Sides take turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr

from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.report.tables import make_console, print_rows
from benchmarks.suites.sparse_probe import SIDES

_PROBE = Path(__file__).with_name("sparse_probe.py")
#: Rows, columns, and rows of a batch.
SCALES = {"full": (100_000, 2000, 4096), "small": (3000, 200, 256)}
_DENSITY = 0.07
_TIMEOUT_S = 600
WRONG, MISSING = 1, 2

#: How the two arrays of elements are stored: as annbatch writes what it shuffled, and as zarr-python does by itself.
LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"chunks": (32_768,), "shards": (32_768 * 64,), "compressors": zarr.codecs.BloscCodec(cname="lz4")},
    "plain": {"chunks": "auto"},
}


@dataclass(frozen=True)
class Row:
    """One turn of one side: rows a second, the median of its epochs."""

    layout: str
    side: str
    repeat: int
    rows_per_s: float


def write(folder: Path, layouts: Sequence[str], rows: int, columns: int) -> dict[str, float]:
    """Write a random matrix, some columns fuller than others, in each layout; return the sums over its elements."""
    rng = np.random.default_rng(0)
    share = rng.beta(0.5, 6.0, columns)
    share = np.clip(share * (_DENSITY / share.mean()), 0, 0.9)
    found, counts = [], []
    for first in range(0, rows, 5000):
        has = rng.random((min(5000, rows - first), columns), dtype=np.float32) < share
        found.append(np.nonzero(has)[1].astype("i4"))
        counts.append(has.sum(axis=1))
    indices, indptr = np.concatenate(found), np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    data = rng.geometric(0.4, len(indices)).astype("f4")
    for layout in layouts:
        root = zarr.create_group(folder / f"{layout}.zarr")
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        group = root.create_group("X")
        attributes: dict[str, Any] = {
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [rows, columns],
        }
        group.attrs.update(attributes)
        group.create_array("data", data=data, **LAYOUTS[layout])
        group.create_array("indices", data=indices, **LAYOUTS[layout])
        group.create_array("indptr", data=indptr, chunks=(rows + 1,))
    return {
        "rows": float(rows),
        "elements": float(len(data)),
        "columns": float(indices.sum(dtype=np.int64)),
        "values": float(data.sum(dtype=np.float64)),
        "products": float((indices.astype(np.float64) * data).sum()),
    }


def probe(python: str, side: str, path: Path, batch_size: int, epochs: int) -> list[dict[str, float]] | str:
    """Return what one side printed; or the last line of its error."""
    command = [python, str(_PROBE), side, str(path), str(batch_size), str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no error message"])[-1]
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    count, columns, batch_size = SCALES[options.scale]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        expected = write(Path(directory), options.layouts, count, columns)
        for repeat in range(1 if options.checksum_only else options.repeats):
            for layout in options.layouts:
                for side in options.sides:
                    python = sys.executable if side == "zarrfeed" else options.peer_python
                    path = Path(directory) / f"{layout}.zarr"
                    printed = probe(python, side, path, batch_size, 0 if options.checksum_only else options.epochs)
                    if isinstance(printed, str):
                        console.print(f"{side} is missing: {printed}", highlight=False)
                        return MISSING
                    if printed[0] != expected:
                        console.print(f"{layout}, {side}: {printed[0]}, must be {expected}", highlight=False)
                        return WRONG
                    rates = [one["rows"] / one["seconds"] for one in printed[1:]]
                    rows += [Row(layout, side, repeat, median(rates))] if rates else []
    console.print(f"{', '.join(options.sides)}: the sums of the matrix", highlight=False)
    if options.checksum_only:
        return 0
    write_document(options.out / "sparse.json", rows=[asdict(row) for row in rows])
    table = []
    for layout in options.layouts:
        rate = {
            side: median(row.rows_per_s for row in rows if (row.layout, row.side) == (layout, side))
            for side in options.sides
        }
        first = rate[options.sides[0]]
        table += [[layout, side, f"{one:.0f}", f"{one / first:.2f}"] for side, one in rate.items()]
    print_rows(console, ["", "", "rows/s", f"ratio to {options.sides[0]}"], table, words=2)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.sparse", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", type=names(SIDES), default=["zarrfeed"])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has annbatch, zarrs and torch")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--epochs", type=positive, default=3, help="that are timed, in each turn")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

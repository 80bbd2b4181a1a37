"""What buckets of objects cost: to list many keys, and to read objects of several sizes, beside other loaders.

python -m benchmarks.objects
python -m benchmarks.objects --peer-python peers/bin/python
python -m benchmarks.objects --sizes 100KiB --sides zarrfeed,obstore --repeats 1
python -m benchmarks.objects --listing-only
python -m benchmarks.objects --scale small --checksum-only

Peers that are not installed here can be installed in a virtual environment of their own, whose Python is given:
pip install gcs-torch-dataflux s3torchconnector gcsfs obstore
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.fake_gcs import NoFakeGcsError, serving_directory
from benchmarks.harness.listing_server import serving_in_process
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.options import names, not_negative, positive
from benchmarks.harness.slow_proxy import NoProxyError, Slowness, slowed
from benchmarks.report.tables import make_console, number, print_rows
from benchmarks.suites.object_probe import BUCKET, NUMBER_BYTES, PREFIX, SIDES
from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.units import format_bytes, parse_bytes
from zarrfeed.objects import list_objects

_ROOT = Path(__file__).parents[2]
_PROBE = Path(__file__).with_name("object_probe.py")
#: Those of dataflux-pytorch's own table, and how many objects of each there are; few, since a server holds them.
SIZES = {"100KiB": 1000, "500KiB": 400, "3MiB": 80, "150MiB": 3}
_SMALL = {"100KiB": 20, "500KiB": 10, "3MiB": 3}
#: Run by the Python of `--peer-python`.
PEERS = ("gcsfs", "dataflux", "dataflux-compose", "s3torchconnector")
_TIMEOUT_S = 600
WRONG, MISSING = 1, 2


@dataclass(frozen=True)
class Row:
    """One turn of one side."""

    size: str
    side: str
    repeat: int
    figures: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables and write objects.json; return another status than 0 if something is wrong or missing."""
    options = _parse(arguments)
    console = make_console()
    console.print(machine_line(), highlight=False, soft_wrap=True)
    found: dict[str, Any] = {"machine": describe_machine(), "options": {k: str(v) for k, v in vars(options).items()}}
    try:
        if not options.checksum_only:
            found["listing"] = measure_listing(options.keys, options.page_ms / 1000)
            rows = [[f"{one['requests']}", number(one["seconds"]), number(one["gain"])] for one in found["listing"]]
            console.print(f"{options.keys} keys, {options.page_ms:g} ms a page of 1000", highlight=False)
            print_rows(console, ["requests at once", "s", "gain"], rows, words=0)
        if not options.listing_only:
            rows_of_sides = measure_reading(options)
            found["reading"] = [asdict(row) for row in rows_of_sides]
            _print_reading(console, rows_of_sides, options)
    except (NoFakeGcsError, NoProxyError, NoCompilerError) as error:
        console.print(str(error), highlight=False)
        return MISSING
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "objects.json", json.dumps(found, indent=1).encode())
    return WRONG if any(map(_is_wrong, found.get("reading", ()))) else 0


def _is_wrong(row: dict[str, Any]) -> bool:
    """Return whether a side delivered something else, or is missing though it comes with zarrfeed."""
    return "wrong" in row["figures"] or ("missing" in row["figures"] and row["side"].startswith("zarrfeed"))


def measure_listing(keys: int, page_s: float) -> list[dict[str, float]]:
    """Return what listing so many keys takes, by one request after the other and by more at once."""
    found: list[dict[str, float]] = []
    with serving_in_process(keys, page_s) as url:
        options = {"endpoint": url, "region": "us-east-1", "anon": True, "allow_http": True}
        for requests in (1, 4, 16):
            begin = time.perf_counter()
            listing = list_objects("s3://bucket", requests=requests, storage_options=options, progress=False)
            seconds = time.perf_counter() - begin
            assert len(listing) == keys
            first = found[0]["seconds"] if found else seconds
            found.append({"requests": requests, "seconds": seconds, "gain": first / seconds})
    return found


def measure_reading(options: argparse.Namespace) -> list[Row]:
    """Return what each side took, size by size, one side behind the other in each repeat."""
    rows: list[Row] = []
    counts = _SMALL if options.scale == "small" else SIZES
    for size in [size for size in options.sizes if size in counts]:
        with _served(counts[size], parse_bytes(size), options.latency_ms) as url:
            task = {
                "url": url,
                "count": counts[size],
                "size": parse_bytes(size),
                "batch_size": max(1, min(64, counts[size] // 8)),
                "workers": options.workers,
            }
            for repeat in range(1 if options.checksum_only else options.repeats):
                for side in options.sides:
                    python = options.peer_python if side in PEERS else sys.executable
                    figures = _probe(python, side, task)
                    print(f"{size:>8} {side:<18} {_short(figures)}", file=sys.stderr, flush=True)
                    rows.append(Row(size, side, repeat, figures))
    return rows


@contextmanager
def _served(count: int, size: int, latency_ms: float) -> Iterator[str]:
    """Serve objects that begin with their numbers; yield the URL, behind a proxy that delays requests."""
    with tempfile.TemporaryDirectory(prefix="zarrfeed-objects-") as directory:
        folder = Path(directory) / BUCKET / PREFIX
        folder.mkdir(parents=True)
        noise = np.random.default_rng(0).bytes(size)
        for i in range(count):
            with (folder / f"{i:06d}").open("wb") as file:
                file.write(i.to_bytes(NUMBER_BYTES, "little"))
                file.write(memoryview(noise)[NUMBER_BYTES:])
        with serving_directory(Path(directory)) as url, slowed(url, Slowness(latency_ms=latency_ms)) as slow:
            yield slow.url


def _probe(python: str, side: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run one side in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))}
    more = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
    if python != sys.executable:
        more["PYTHONPATH"] = ""  # which is of this Python
    try:
        done = subprocess.run(
            [python, "-W", "ignore", str(_PROBE), side],
            input=json.dumps(task),
            env=kept | more | {"GOOGLE_CLOUD_PROJECT": "project"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"wrong": f"took more than {_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"wrong": done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _short(figures: dict[str, Any]) -> str:
    return figures.get("missing") or figures.get("wrong") or f"{figures['bytes'] / figures['seconds'] / 1e6:.1f} MB/s"


def _print_reading(console: Any, rows: list[Row], options: argparse.Namespace) -> None:
    def rate(size: str, side: str) -> float | None:
        rates = [
            row.figures["bytes"] / row.figures["seconds"] / 1e6
            for row in rows
            if (row.size, row.side) == (size, side) and "seconds" in row.figures
        ]
        return median(rates) if rates else None

    sizes = list(dict.fromkeys(row.size for row in rows))
    lines = []
    for side in options.sides:
        cells = []
        for size in sizes:
            own, found = rate(size, "zarrfeed"), rate(size, side)
            ratio = f" ({found / own:.2f})" if found and own and side != "zarrfeed" else ""
            cells.append("-" if found is None else f"{found:.0f}{ratio}")
        lines.append([side, *cells])
    how = f"{options.latency_ms:g} ms added to each request, {options.workers} workers"
    console.print(f"MB/s (ratio to zarrfeed), {how}", highlight=False)
    print_rows(console, ["", *sizes], lines, words=1)
    for side in options.sides:
        said = [row.figures for row in rows if row.side == side and "seconds" not in row.figures]
        if said:
            console.print(f"{side}: {_short(said[0])}", highlight=False, soft_wrap=True)
    total = {size: format_bytes(parse_bytes(size) * SIZES[size]) for size in sizes}
    console.print(f"An epoch is of {', '.join(f'{total[size]} of {size}' for size in sizes)}", highlight=False)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.objects", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=names(SIZES), default=list(SIZES), help="of objects")
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--workers", type=positive, default=8, help="of a DataLoader, for sides that need some")
    parser.add_argument("--latency-ms", type=not_negative, default=20.0)
    parser.add_argument("--keys", type=positive, default=200_000, help="that are listed")
    parser.add_argument("--page-ms", type=not_negative, default=50.0)
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has the peers")
    parser.add_argument("--listing-only", action="store_true")
    parser.add_argument("--checksum-only", action="store_true", help="time nothing")
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)

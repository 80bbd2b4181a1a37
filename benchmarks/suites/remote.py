"""What reading from a server costs: nginx on this machine, obstore alone, zarrfeed over HTTP and S3, and peers.

python -m benchmarks.remote
python -m benchmarks.remote --layouts objects --sides obstore-threads,zarrfeed-local,zarrfeed-http --repeats 5
python -m benchmarks.remote --latency-ms 20 --cap-mb-s 200
python -m benchmarks.remote --slow-share 0.01 --slow-s 2 --seconds 20
python -m benchmarks.remote --series
python -m benchmarks.remote --scale small --checksum-only
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.data.layouts import SCALES
from benchmarks.data.stores import Store, prepare_store, store_path, warm_page_cache
from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.measure import CpuWatch, process_cpu_s
from benchmarks.harness.nginx import Nginx, NoNginxError, find_nginx, serve
from benchmarks.harness.options import names, not_negative, positive, rate, share
from benchmarks.harness.slow_proxy import NoProxyError, Slowed, Slowness, slowed
from benchmarks.report.tables import make_console, number, print_rows, say_if_not_quiet
from benchmarks.suites.remote_series import CONDITIONS, measure_series, print_series
from benchmarks.suites.remote_sides import CEILINGS, HTTP, LOCAL, REMOTE_LAYOUTS, SIDES, remote_layout, why_not
from zarrfeed.base.atomic_file import write_whole

_HERE = Path(__file__).parents[1]

#: What reading over HTTP may cost above local and the best way to use obstore, in CPU seconds per stored GB, ...
GOAL_CPU_S = 0.15
#: ... where stored objects are large.
GOAL_LAYOUTS = ("objects", "shards")

#: A step of 10 ms beside the reading may take so much longer.
GOAL_STEP_PERCENT = 5

#: Exit statuses: a side delivered wrong data; or nginx, or what the proxy needs, is not there.
WRONG, NO_NGINX = 1, 2

#: Variables of the environment that lead clients to credentials or to a proxy.
_REMOVED_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
_REMOVED_SUFFIX = "_PROXY"

#: All probes of one side together, and the verification of all sides.
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Row:
    """One turn of one side: `figures` are those of `remote_probe.measure`."""

    layout: str
    side: str
    repeat: int
    figures: Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify, measure, print a table and write remote.json; return `WRONG` or `NO_NGINX` if that is so."""
    options = _parse(arguments)
    console = make_console()
    console.print(machine_line(), highlight=False, soft_wrap=True)
    try:
        find_nginx()
        return _run(console, options)
    except (NoNginxError, NoProxyError, NoCompilerError) as error:
        console.print(str(error), highlight=False, soft_wrap=True)
        return NO_NGINX


def clean_environment() -> dict[str, str]:
    """Return the environment of the clients: without credentials and proxies, and with metadata services turned off."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_REMOVED_PREFIXES) and not name.upper().endswith(_REMOVED_SUFFIX)
    }
    no_files = dict.fromkeys(("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"), os.devnull)
    off = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "NO_PROXY": "127.0.0.1"}
    return {**kept, **no_files, **off}


def _run(console: Console, options: argparse.Namespace) -> int:
    options.data = options.data.resolve()  # probes have another working directory
    options.data.mkdir(parents=True, exist_ok=True)
    stores = _prepare(console, options)
    sides = [side for side in options.sides if not why_not(side)]
    for side in options.sides:
        if reason := why_not(side):
            console.print(f"{side}: skipped, {reason}", highlight=False, soft_wrap=True)
    if not sides:
        console.print("no side is left to be measured", highlight=False)
        return 0
    with ExitStack() as stack:
        nginx = stack.enter_context(serve(options.data))
        how = _slowness(options)
        server = stack.enter_context(slowed(nginx.url, how))
        console.print(f"{nginx.version} at {nginx.url}, {how}", highlight=False)
        common = ["--scale", options.scale, "--data", str(options.data), "--server", server.url, "--nginx", nginx.url]
        done = _probe("verify", options.layouts, sides, common)
        console.print(done.stdout.rstrip(), highlight=False, soft_wrap=True, markup=False)
        if done.returncode == WRONG and "WRONG" in done.stdout:
            console.print("nothing was timed", highlight=False)
            return WRONG
        _check(done, "the verification")
        if options.checksum_only:
            return 0
        if options.series:
            return _run_series(console, stores, sides, common, nginx, options)
        rows, foreign_cores = _measure(console, stores, sides, common, nginx, server, options)
        _write(options, rows, nginx, foreign_cores)
    columns = ("GB/s", "stored GB/s", "CPU s/GB", "above local", "goal", "requests", "peak MiB", "grown MiB")
    print_rows(console, ("layout", "side", *columns), _table(rows), words=2)
    columns = ("step %", "step on a core %", "longest", "p99.9", "on a core", "wait p50", "wait p99", "wait longest")
    print_rows(console, ("layout", "side", *columns), _table_beside(rows), words=2)
    console.print(_LEGEND, highlight=False, soft_wrap=True)
    say_if_not_quiet(console, foreign_cores, "on average")
    console.print(f"wrote remote.json to {options.out}", highlight=False, soft_wrap=True)
    return 0


_LEGEND = (
    "GB/s: decoded bytes delivered (10**9); stored GB/s: bytes of chunks or shards. Medians of the rounds.\n"
    "CPU s/GB: CPU seconds of the client's process alone per stored GB.\n"
    f"above local: CPU s/GB of zarrfeed over HTTP or S3, less that of {LOCAL} in the same round; * if it misses\n"
    f"goal: CPU s/GB of the better obstore side, and {GOAL_CPU_S}; for large stored objects alone.\n"
    "requests: in an epoch, counted by nginx, of so many stored objects.\n"
    "peak MiB, grown MiB: resident memory of the client's process; and above what it had before it read.\n"
    "step %: how much longer a step of about 10 ms takes beside the reading; in the next column without the time in\n"
    f"which the step had no core, * if more than {GOAL_STEP_PERCENT}.\n"
    "longest, p99.9, on a core: ms between wake-ups of a Python thread beside the reading; the last without the time\n"
    "in which the thread had no core.\n"
    "wait: ms from a batch to the next one of the same epoch, which are taken as fast as they come."
)


def _prepare(console: Console, options: argparse.Namespace) -> dict[str, Store]:
    layouts = {name: remote_layout(name, options.scale) for name in options.layouts}
    keep = [store_path(layout, options.data, scale=options.scale) for layout in layouts.values()]
    stores = {}
    for name, layout in layouts.items():
        stores[name] = store = prepare_store(layout, options.data, scale=options.scale, keep=keep)
        console.print(
            f"{name}: {layout.description}; {store.stored_bytes / 2**20:.0f} MiB stored, "
            f"compressed {store.compression_ratio:.2f} : 1",
            highlight=False,
            soft_wrap=True,
        )
    return stores


def _slowness(options: argparse.Namespace) -> Slowness:
    return Slowness(options.latency_ms, options.cap_mb_s, options.slow_share, options.slow_s)


def _run_series(
    console: Console,
    stores: Mapping[str, Store],
    sides: Sequence[str],
    common: Sequence[str],
    nginx: Nginx,
    options: argparse.Namespace,
) -> int:
    """Measure all of `CONDITIONS`, print the table, and write remote-series.json."""

    def probe(layout: str, side: str, url: str, times: int) -> Mapping[str, Any]:
        more = ["--server", url, "--times", str(times), "--seconds", str(options.seconds)]
        done = _probe("rate", [layout], [side], [*common, *more])
        _check(done, f"{side} on {layout}")
        figures: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    watch = CpuWatch()
    turns = measure_series(console, stores, sides, nginx, options.repeats, probe)
    _, foreign_cores = watch.stop()
    print_series(console, turns)
    everything = _described(options, nginx) | {"turns": [asdict(turn) for turn in turns], "busy_cores": foreign_cores}
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "remote-series.json", json.dumps(everything, indent=1).encode())
    console.print(f"wrote remote-series.json to {options.out}", highlight=False, soft_wrap=True)
    return 0


def _measure(
    console: Console,
    stores: Mapping[str, Store],
    sides: Sequence[str],
    common: Sequence[str],
    nginx: Nginx,
    server: Slowed,
    options: argparse.Namespace,
) -> tuple[list[Row], float | None]:
    """Give each side its turn in each round; return the rows, and the cores that were busy for others."""

    def servers_cpu_s() -> float:
        return nginx.cpu_s() + (0.0 if server.pid is None else process_cpu_s(server.pid))

    rows = []
    watch, begin, servers_s = CpuWatch(), time.perf_counter(), servers_cpu_s()
    for name, store in stores.items():
        warm_page_cache(store)
        for repeat in range(options.repeats):
            for side in sides:
                done = _probe("measure", [name], [side], [*common, "--seconds", str(options.seconds)])
                _check(done, f"{side} on {name}")
                rows.append(Row(name, side, repeat, json.loads(done.stdout.splitlines()[-1])))
        console.print(f"{name}: timed", highlight=False)
    _, foreign_cores = watch.stop()  # nginx and the proxy are among the others
    if foreign_cores is not None:
        foreign_cores = max(0.0, foreign_cores - (servers_cpu_s() - servers_s) / (time.perf_counter() - begin))
    return rows, foreign_cores


def _probe(
    task: str, layouts: Sequence[str], sides: Sequence[str], common: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.suites.remote_probe", task, *common]
    command += ["--layouts", ",".join(layouts), "--sides", ",".join(sides)]
    environment = clean_environment()
    return subprocess.run(
        command, cwd=_HERE.parent, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def _check(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        raise RuntimeError(f"{what} failed with exit status {done.returncode}:\n{done.stdout}{done.stderr}")


def _write(options: argparse.Namespace, rows: Sequence[Row], nginx: Nginx, foreign_cores: float | None) -> None:
    everything = _described(options, nginx) | {
        "latency_ms": options.latency_ms,
        "cap_mb_s": options.cap_mb_s,
        "slow_share": options.slow_share,
        "slow_s": options.slow_s,
        "foreign_cores": foreign_cores,
        "rows": [{"layout": row.layout, "side": row.side, "repeat": row.repeat, **row.figures} for row in rows],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "remote.json", json.dumps(everything, indent=1).encode())


def _described(options: argparse.Namespace, nginx: Nginx) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": nginx.version,
        "scale": options.scale,
        "seconds": options.seconds,
    }


def above_local(rows: Sequence[Row], layout: str, side: str) -> float | None:
    """Return the CPU seconds per stored GB of a side less those of the local one in the same round: the median."""
    of_side, of_local = (_costs(rows, layout, name) for name in (side, LOCAL))
    differences = [cost - of_local[repeat] for repeat, cost in of_side.items() if repeat in of_local]
    return median(differences) if differences else None


def goal_of(rows: Sequence[Row], layout: str) -> float | None:
    """Return what may be above local: the CPU seconds per stored GB of the better obstore side, and `GOAL_CPU_S`."""
    if layout not in GOAL_LAYOUTS:
        return None
    medians = [median(costs.values()) for side in CEILINGS if (costs := _costs(rows, layout, side))]
    return min(medians) + GOAL_CPU_S if medians else None


def _costs(rows: Sequence[Row], layout: str, side: str) -> dict[int, float]:
    """Return the CPU seconds per stored GB of a side by round."""
    return {row.repeat: row.figures["cpu_s_per_stored_gb"] for row in rows if (row.layout, row.side) == (layout, side)}


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each side on each layout."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.layout, row.side), []).append(row)
    return groups


def _middle(group: Sequence[Row], name: str) -> float | None:
    """Return the median of a figure, or None where there is none."""
    values = [row.figures[name] for row in group if row.figures[name] is not None]
    return median(values) if values else None


def _table(rows: Sequence[Row]) -> list[list[str]]:
    table = []
    for (layout, side), group in _groups(rows).items():
        is_remote = side.startswith("zarrfeed-") and side != LOCAL
        above = above_local(rows, layout, side) if is_remote else None
        goal = goal_of(rows, layout) if side == HTTP else None
        missed = above is not None and goal is not None and above > goal
        table.append(
            [
                layout,
                side,
                *(number(_middle(group, name)) for name in ("gb_per_s", "stored_gb_per_s", "cpu_s_per_stored_gb")),
                number(above) + " *" * missed,
                number(goal),
                f"{_middle(group, 'requests_per_epoch'):.0f}/{group[0].figures['objects']}",
                *(f"{_middle(group, name):.0f}" for name in ("peak_mib", "grown_mib")),
            ]
        )
    return table


def _table_beside(rows: Sequence[Row]) -> list[list[str]]:
    """Return what the reading does to what runs beside it, and how long batches are waited for."""
    table = []
    names = ("longest_ms", "p99_9_ms", "on_a_core_ms", "wait_p50_ms", "wait_p99_ms", "wait_longest_ms")
    for (layout, side), group in _groups(rows).items():
        whole, on_a_core = _middle(group, "step_percent"), _middle(group, "step_on_a_core_percent")
        assert whole is not None
        assert on_a_core is not None
        steps = [f"{whole:.0f}", f"{on_a_core:.0f}" + " *" * (on_a_core > GOAL_STEP_PERCENT)]
        table.append([layout, side, *steps, *(number(_middle(group, name)) for name in names)])
    return table


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layouts", type=names(REMOTE_LAYOUTS), default=list(REMOTE_LAYOUTS), help=f"of {', '.join(REMOTE_LAYOUTS)}")
    add("--sides", type=names(SIDES), default=list(SIDES), help=f"of {', '.join(SIDES)}")
    add("--latency-ms", type=not_negative, default=0.0, help="added to each request by a proxy before nginx")
    add("--cap-mb-s", type=rate, help="10**6 bytes a second that the proxy lets pass; no cap unless given")
    add("--slow-share", type=share, default=0.0, help="of the requests that take longer: of 0.01 every 100th")
    add("--slow-s", type=not_negative, default=2.0, help="so many seconds longer")
    add("--series", action="store_true", help=f"rates of {', '.join(CONDITIONS)}, and the ratios of them")
    add("--scale", choices=SCALES, default="full", help="full: 64 to 110 MiB stored a layout; small: not to be timed")
    add("--repeats", type=positive, default=3, help="rounds in which every side is measured once, in a new process")
    add("--seconds", type=not_negative, default=2.0, help="a turn is as many whole epochs as this takes")
    add("--checksum-only", action="store_true", help="verify, and time nothing")
    add("--data", type=Path, default=_HERE / "stores", help="where stores are kept; nginx serves this directory")
    add("--out", type=Path, default=_HERE / "results", help="where remote.json goes")
    options = parser.parse_args(arguments)
    if options.series and _slowness(options).needs_proxy:
        parser.error("--series has its own latencies and caps: leave out --latency-ms, --cap-mb-s and --slow-share")
    return options

"""Rates from one thread to all cores, beside the bare loop on as many threads, and beside the model of locks.

python -m benchmarks.cores
python -m benchmarks.cores --threads 1,2,4,8,16 --rounds 3
python -m benchmarks.cores --cases A,remote --limit 120

A case is read by a process of its own, with each number of threads in turn. The efficiency on n threads is the rate
over n times the rate on one. Where the loop's efficiency falls as well, memory or caches are what limits; what zarrfeed
loses beyond that is compared with the model of `locks.py` and with the time that the consumer's thread takes for a
batch. Machines with several memory nodes are measured once more on the cores of one node. The JSON file and the page
are written anew after each part, the most telling one first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.deadline import Deadline
from benchmarks.harness.file_server import serving_files
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.nginx import NoNginxError, serve
from benchmarks.harness.numa import nodes, threads_of_a_core
from benchmarks.harness.options import names, not_negative, positive, rate
from benchmarks.harness.stream import memory_gb_per_s
from benchmarks.report.cores_page import write_report
from benchmarks.report.tables import make_console
from benchmarks.suites import locks
from benchmarks.suites.cores_probe import PATCHES, REMOTE, ROWS, Task, remote_store, scale_of
from benchmarks.suites.remote import clean_environment
from zarrfeed.base.system import usable_cores

_ROOT = Path(__file__).parents[2]

#: In the order in which they are measured.
CASES = ("A", "D-1024", "E", "G", "B-zstd", PATCHES, REMOTE)
SCALES = ("full", "small")

#: Seconds of a process besides its windows: imports, and data that are written.
_START_S = {"full": 12.0, "small": 0.0}
_STREAM_S = 0.5
_STREAM_MIB = {"full": 96, "small": 4}
_LOCKS_EPOCHS = {"full": 4, "small": 1}
_TIMEOUT_S = 600


def usable_threads(wanted: Sequence[int], cores: int) -> list[int]:
    """Return the numbers of threads that are no more than there are cores; with all cores, where more were wanted."""
    return sorted({threads for threads in wanted if threads <= cores} | {min(cores, max(wanted))})


class Run:
    """One run of the suite: its options, its time, and the document that it fills."""

    def __init__(self, console: Console, options: argparse.Namespace) -> None:
        self._console, self._options = console, options
        self._deadline = Deadline(options.limit)
        self.nodes = nodes()
        self.threads = usable_threads(options.threads, usable_cores())
        self.document: dict[str, Any] = {
            "machine": describe_machine(),
            "machine_line": machine_line(),
            "nodes": {str(node): cpus for node, cpus in self.nodes.items()},
            "threads_of_a_core": threads_of_a_core(),
            "is_check": options.scale != "full",
            "threads": self.threads,
            "stream": [],
            "parts": [],
            "locks": [],
            "server": "",
            "failed": [],
            "left_out": self._deadline.left_out,
        }

    def measure(self) -> None:
        """Measure everything that there is time for."""
        for threads in self.threads:
            self._stream(threads, None)
        for case in self._options.cases:
            self._case(case, "all cores", self.threads, None)
        for case in self._options.cases:
            if case in ROWS:
                self._locks(case)
        if len(self.nodes) > 1:
            self._on_one_node()
        self._write(picture=True)

    def _on_one_node(self) -> None:
        node, cpus = next(iter(self.nodes.items()))
        threads = usable_threads(self.threads, len(cpus))
        self._stream(threads[-1], cpus)
        for case in self._options.cases:
            self._case(case, f"node {node}", threads, cpus)

    def _stream(self, threads: int, cpus: Sequence[int] | None) -> None:
        part = f"memory bandwidth on {threads} threads"
        if not self._deadline.allows(part, _STREAM_S):
            return
        try:
            found = memory_gb_per_s(threads, seconds=_STREAM_S, cpus=cpus, mib=_STREAM_MIB[self._options.scale])
        except NoCompilerError as error:
            self._deadline.left_out.append(f"{part}: {error}")
            return
        self.document["stream"].append({"threads": threads, "on_one_node": cpus is not None, "gb_per_s": found})

    def _case(self, case: str, where: str, threads: Sequence[int], cpus: Sequence[int] | None) -> None:
        options, part = self._options, f"{case} on {where}"
        if case == REMOTE and find_spec("obstore") is None:
            self._deadline.left_out.append(f"{part}: obstore is not installed")
            return
        each_s = options.warm + options.rounds * (options.warm / 4 + 2 * options.seconds) + options.counters
        if not self._deadline.allows(part, _START_S[options.scale] + len(threads) * each_s):
            return
        begin = time.perf_counter()
        with self._server(case) as server:
            task = Task(
                case,
                options.scale,
                str(options.data),
                threads,
                options.seconds,
                options.warm,
                options.rounds,
                cpus,
                server,
                options.counters and cpus is None,
            )
            try:
                result = _measure_apart(task)
            except subprocess.SubprocessError as error:
                self.document["failed"].append(f"{part}: {_said(error)}")
                self._console.print(f"{part}: failed", highlight=False)
            else:
                self.document["parts"].append({"case": case, "where": where, **result})
                self._console.print(f"{part}: {time.perf_counter() - begin:.0f} s", highlight=False)
        self._write()

    @contextmanager
    def _server(self, case: str) -> Iterator[str]:
        """Serve the folder of the stores, for the case that reads from a server; yield its URL."""
        if case != REMOTE:
            yield ""
            return
        remote_store(self._options.scale, self._options.data)  # which nginx would not see if it came later
        processes = max(1, usable_cores() // 4)
        with ExitStack() as stack:
            try:
                nginx = stack.enter_context(serve(self._options.data, workers=processes))
            except NoNginxError:
                url = stack.enter_context(serving_files(self._options.data, processes))
                server = "harness/file_server.py"
            else:
                url, server = nginx.url, nginx.version
            self.document["server"] = f"{server}, processes: {processes}"
            yield url

    def _locks(self, case: str) -> None:
        scale = self._options.scale
        if not self._deadline.allows(f"locks of {case}", _START_S[scale]):
            return
        try:
            found = locks.measure(case, scale_of(case, scale), self._options.data, _LOCKS_EPOCHS[scale])
        except NoCompilerError as error:
            self._deadline.left_out.append(f"locks of {case}: {error}")
        except subprocess.SubprocessError as error:
            self.document["failed"].append(f"locks of {case}: {_said(error)}")
        else:
            self.document["locks"].append({"measured_on": usable_cores(), **asdict(found)})
        self._write()

    def _write(self, *, picture: bool = False) -> None:
        write_report(self.document, self._options.out, picture=picture)


def _measure_apart(task: Task) -> dict[str, Any]:
    """Measure a task in a process of its own.

    Raises
    ------
    subprocess.SubprocessError
        If the process fails or does not end.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.suites.cores_probe", json.dumps(asdict(task))],
        cwd=_ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _said(error: subprocess.SubprocessError) -> str:
    """Return how a process ended, without its command."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"its process ended with {error.returncode}"
    return f"its process did not end within {_TIMEOUT_S} s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if a part failed."""
    options = _parse(arguments)
    console = make_console()
    for folder in (options.data, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    options.data = options.data.resolve()  # probes have another working directory
    run = Run(console, options)
    run.measure()
    console.print((options.out / "cores.md").read_text(), highlight=False, soft_wrap=True, markup=False)
    return 1 if run.document["failed"] else 0


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.cores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=names(CASES), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--threads", type=_numbers, default=[1, 4, 16], help="of these, as many as there are cores")
    parser.add_argument("--scale", choices=SCALES, default="full", help="small: as a check")
    parser.add_argument("--limit", type=rate, default=None, help="seconds, after which no part is begun; none: all")
    parser.add_argument("--seconds", type=rate, default=0.8, help="of each side in a round")
    parser.add_argument("--warm", type=not_negative, default=1.0, help="seconds of zarrfeed before the first round")
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--no-counters", dest="counters", action="store_false", help="leave out perf's counters")
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

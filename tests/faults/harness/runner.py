"""Makes the tries of a row in processes of their own, and counts what came of them.

Every try ends in one of three ways: as specified, otherwise, or not at all. One that does not end within the row's
timeout, or that ends its process, is counted as such, and the rest goes on in a new process: so the counts of a row
always add up to the number of its tries.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.harness.row import Row
from tests.support import warm
from tests.support.paths import ROOT

# Of a process's first try: it imports torch on a busy machine.
_START_S = 60.0
_STDERR_CHARACTERS = 4000


@dataclass
class Count:
    """What became of the tries of one row.

    Attributes
    ----------
    outcomes
        Outcome, as the row names it -> number of tries, of those that ended as specified.
    wrong
        Number of the try -> what was not as specified.
    hangs
        Numbers of the tries that did not end.
    stuck
        Number of such a try -> where its threads of Python stood.
    seconds
        Wall clock time of all of them.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)
    hangs: list[int] = field(default_factory=list)
    stuck: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def runs(self) -> int:
        """All tries."""
        return self.outcomes.total() + len(self.wrong) + len(self.hangs)

    @property
    def is_good(self) -> bool:
        """Whether all ended as specified."""
        return not self.wrong and not self.hangs


def run_row(row: Row, runs: int, first: int = 0) -> Count:
    """Make `runs` tries of a row, numbered from `first`."""
    count = Count()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        done = 0
        while done < runs:
            done += _run_process(row, first + done, runs - done, Path(directory), count)
    count.seconds = time.perf_counter() - begin
    return count


def _run_process(row: Row, first: int, runs: int, directory: Path, count: Count) -> int:
    """Start a process for the tries from `first` on; return how many of them it has settled, at least 1."""
    (directory / "shared").mkdir(exist_ok=True)
    (directory / "tmp").mkdir(exist_ok=True)
    results = directory / f"results-{first}"
    results.touch()
    function = f"{row.attempt.__module__}:{row.attempt.__qualname__}"
    python = warm.command(*row.modules)
    command = [*python, "-m", "tests.faults.harness.child", row.name, function, str(first), str(runs)]
    environment = os.environ | {"TMPDIR": str(directory / "tmp")} | dict(row.variables())
    with (directory / f"stderr-{first}").open("w+") as stderr:
        process = subprocess.Popen(
            [*command, str(directory / "shared"), str(results)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,  # what it started is killed with it
        )
        try:
            hung = not _watch(process, results, row.timeout_s)
            if hung:
                _ask_where(process)
        finally:
            _kill_session(process)
        settled = _read(results, count)
        if settled == runs:
            return settled
        stderr.seek(0)
        said = stderr.read()[-_STDERR_CHARACTERS:]
    if hung:
        count.hangs.append(first + settled)
        count.stuck[first + settled] = said
    else:
        count.wrong[first + settled] = f"the process ended with status {process.returncode}: {said}"
    return settled + 1


def _watch(process: subprocess.Popen[bytes], results: Path, timeout_s: float) -> bool:
    """Wait for the process to end; return False if it made no progress for too long."""
    size, deadline = 0, time.monotonic() + _START_S + timeout_s
    while time.monotonic() < deadline:
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
        else:
            return True
        if results.stat().st_size > size:
            size, deadline = results.stat().st_size, time.monotonic() + timeout_s
    return False


def _ask_where(process: subprocess.Popen[bytes]) -> None:
    """Let the child write to stderr where its threads stand; it ends by that."""
    process.send_signal(signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(results: Path, count: Count) -> int:
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for line in lines:
        if "wrong" in line:
            count.wrong[line["number"]] = line["wrong"]
        else:
            count.outcomes[line["outcome"]] += 1
    return len(lines)

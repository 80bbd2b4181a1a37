"""Interpreters without the seconds of their start: processes forked from one that has all modules and no threads.

A child leaves the way any program does, off the end of its main module: what runs at exit runs, and the interpreter is
finalised. Its standard output and error go to files. `python -m tests.faults.process.zygote` serves one child at a
time: it reads a line of JSON for each, and answers with its process and then with its exit status.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What children run is in here: functions by name. These import all that is slow to import.
BODIES = ("tests.faults.process.bodies", "tests.faults.process.losses")
_PATIENCE_S = 80.0


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (below 0: by that signal), and what it wrote."""

    status: int
    out: str
    err: str


class Zygote:
    """Starts children, one after the other."""

    def __init__(self) -> None:
        # Threads of BLAS would not be in the children, and there are to be none.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.process.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._directory = Path()
        self._child = 0

    def run(self, body: str, directory: Path, *arguments: Any) -> Ended:
        """Call a function of BODIES in a child."""
        self.start(body, directory, *arguments)
        return self.wait()

    def start(self, body: str, directory: Path, *arguments: Any) -> int:
        """Start a child; return its process.

        Its temporary files are in a new folder `tmp` of `directory`, which is left there.
        """
        self._directory = directory
        (directory / "tmp").mkdir(exist_ok=True)
        request = {"body": body, "arguments": arguments, "directory": str(directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        self._child = self._answer()
        return self._child

    def ends_within(self, patience_s: float) -> bool:
        """Return whether the child ends in so many seconds."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], patience_s)[0])

    def wait(self) -> Ended:
        """Wait for the end of the child; one that hangs is made to tell where, by SIGABRT."""
        if not self.ends_within(_PATIENCE_S):
            os.kill(self._child, signal.SIGABRT)
        status = self._answer()
        return Ended(status, (self._directory / "out").read_text(), (self._directory / "err").read_text())

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with status {self._process.wait()}")
        return int(line)


@functools.cache
def zygote() -> Zygote:
    """Return the one of this process."""
    return Zygote()


def fresh(body: str, directory: Path, *arguments: Any) -> Ended:
    """Do what `Zygote.run` does, in an interpreter that starts from nothing."""
    (directory / "tmp").mkdir(exist_ok=True)
    request = {"body": body, "arguments": arguments, "directory": str(directory)}
    with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
        process = subprocess.run(
            [sys.executable, "-m", "tests.faults.process.zygote", json.dumps(request, default=str)],
            stdout=out,
            stderr=err,
            check=False,
            timeout=_PATIENCE_S,
        )
    return Ended(process.returncode, (directory / "out").read_text(), (directory / "err").read_text())


def serve() -> dict[str, Any]:
    """Start children; return in each of them what it is to do. The server itself never returns."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, threads
        child = os.fork()
        if child == 0:
            _redirect(Path(request["directory"]))
            return request
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def _redirect(directory: Path) -> None:
    """Give a child files of its own in place of the server's pipes."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)


def _run(request: dict[str, Any]) -> None:
    temporary = f"{request['directory']}/tmp"
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module in map(importlib.import_module, BODIES):
        if hasattr(module, request["body"]):
            getattr(module, request["body"])(*request["arguments"])


if __name__ == "__main__":
    for name in BODIES:
        importlib.import_module(name)
    gc.freeze()  # else children copy all memory that holds an object, only to count references
    _run(json.loads(sys.argv[1]) if len(sys.argv) > 1 else serve())

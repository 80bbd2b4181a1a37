"""Processes that the rows start: a function of BODIES, in a warm interpreter or a new one.

`python -m tests.faults.process.started BODY ARGUMENTS` is such a process. It leaves the way any program does, off the
end of its main module: what runs at exit runs, and the interpreter is finalised. Its standard output and error go to
files.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.paths import ROOT

#: Functions that children run are in here, by name.
BODIES = ("tests.faults.process.bodies", "tests.faults.process.losses")
_TIMEOUT_S = 80.0


@dataclass(frozen=True)
class Ended:
    """The end of a process: its exit status (below 0: by that signal), and what it wrote."""

    status: int
    out: str
    err: str


class Started:
    """A process that calls a function of BODIES.

    Its temporary files are in a new folder `tmp` of `directory`, which is left there.
    """

    def __init__(self, body: str, directory: Path, *arguments: Any, python: list[str] | None = None) -> None:
        self._directory = directory
        (directory / "tmp").mkdir(exist_ok=True)
        command = [*(python or preloaded()), "-m", __name__, body, json.dumps(arguments, default=str)]
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(directory / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pid = self._process.pid if python else warm.child_of(self._process.pid)

    def ends_within(self, timeout_s: float) -> bool:
        """Return whether the process ends in so many seconds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait(self) -> Ended:
        """Wait for the end of the process; one that hangs is made to tell where, by SIGABRT."""
        if not self.ends_within(_TIMEOUT_S):
            self._process.send_signal(signal.SIGABRT)
        status = self._process.wait()
        return Ended(status, (self._directory / "out").read_text(), (self._directory / "err").read_text())


def preloaded() -> list[str]:
    """Return the command of a warm Python that has BODIES."""
    return warm.command(*BODIES, PYTHONPATH=str(ROOT))


def run(body: str, directory: Path, *arguments: Any, python: list[str] | None = None) -> Ended:
    """Call a function of BODIES in a process, to its end."""
    return Started(body, directory, *arguments, python=python).wait()


if __name__ == "__main__":
    _body, _arguments = sys.argv[1:]
    for _module in map(importlib.import_module, BODIES):
        if hasattr(_module, _body):
            getattr(_module, _body)(*json.loads(_arguments))

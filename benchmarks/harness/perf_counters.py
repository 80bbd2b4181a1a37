"""The processor's counters of this process, by `perf stat`, where perf is installed and may read them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

#: Events in user space: a process that is not root may count no others.
EVENTS = ("cycles:u", "instructions:u", "cache-references:u", "cache-misses:u")
_START_S, _STOP_S = 0.2, 10.0


class PerfCounters:
    """Count while a block runs, in all threads that this process has or starts.

    Attributes
    ----------
    counts
        Event -> count, behind the block; empty if nothing was counted.
    why_not
        The reason why nothing was counted; "" if something was.
    """

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.why_not = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        program = shutil.which("perf")
        if program is None:
            self.why_not = "perf is not installed"
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="zarrfeed-perf-")
        self._file = Path(self._folder.name) / "counts"
        command = [program, "stat", "-x", ",", "-e", ",".join(EVENTS), "-p", str(os.getpid()), "-o", str(self._file)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(_START_S)  # perf does not say when it has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            said = self._process.communicate(timeout=_STOP_S)[1]
        except subprocess.TimeoutExpired:
            self._process.kill()
            said = self._process.communicate()[1]
        text = self._file.read_text() if self._file.exists() else ""
        self._folder.cleanup()
        self.counts = parse_counts(text)
        if not self.counts:
            refused = "this machine's processor tells no counters" if "<not supported>" in text else said.strip()
            self.why_not = refused.partition("\n")[0] or "perf counted nothing"


def parse_counts(text: str) -> dict[str, float]:
    """Return the counts in what `perf stat -x ,` writes; lines without a count are left out."""
    counts = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[0].replace(".", "", 1).isdigit():
            counts[fields[2]] = float(fields[0])
    return counts

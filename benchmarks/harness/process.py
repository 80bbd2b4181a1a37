"""What the system says about this process: its memory, the wait of its threads for a core, and for the GIL."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

_BEAT_S = 0.0005


class Heartbeat:
    """A Python thread that wakes up every half millisecond, and the gaps between its wake-ups.

    A gap is long where another thread holds the GIL, or where the system's scheduler has no core for the thread. Use it
    as a context manager around the work, and call `figures` afterwards.
    """

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._on_a_core: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """Return the longest gap, the 99.9th percentile, and the longest one on a core, in milliseconds.

        `on_a_core_ms` is the longest gap without the time in which the thread could have run and had no core; the wait
        for the GIL is in it.
        """
        p99_9 = float(np.quantile(self._gaps, 0.999))
        longest, on_a_core = max(self._gaps), max(self._on_a_core)
        return {"longest_ms": 1e3 * longest, "p99_9_ms": 1e3 * p99_9, "on_a_core_ms": 1e3 * on_a_core}

    def _beat(self) -> None:
        last, last_waited = time.perf_counter(), waited_for_core()
        while not self._gaps or not self._done.is_set():
            time.sleep(_BEAT_S)
            now, waited = time.perf_counter(), waited_for_core()
            self._gaps.append(now - last)
            self._on_a_core.append(now - last - (waited - last_waited))
            last, last_waited = now, waited


def waited_for_core() -> float:
    """Return the seconds in which this thread could have run and had no core; 0 where the system does not say."""
    try:
        # Linux, Documentation/scheduler/sched-stats.rst: time on a core, time in the run queue, turns
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def status_mib(name: str) -> float:
    """Return a line of /proc/self/status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")


def reset_peak() -> None:
    """Let VmHWM begin anew: imports may have taken more than what is measured."""
    Path("/proc/self/clear_refs").write_text("5")

"""Tests whose subject is a timeout of a moment, on a machine that stalls.

Such a test lets one read hang, and needs answers from all others within half a second. If the process does not run for
a second in between, because the machine is busy with other things, another read is late as well, and the test fails
though nothing is wrong. `again_after_a_stall` tells the two apart: it measures whether the process stalled, and runs a
test again that failed meanwhile. A test that fails while the process runs as it should fails at once.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Test = TypeVar("_Test", bound=Callable[..., None])

#: How often a test is run: a machine that stalls each time is no place for tests of timeouts.
TRIES = 8
#: A thread that sleeps this long, and wakes up so much later, has seen a stall.
_SLEEP_S, STALL_S = 0.01, 0.1


class StallWatch:
    """Measures from its start to its end for how long this process did not run: at a stretch, and in all stalls."""

    def __init__(self) -> None:
        self.longest_s = self.total_s = 0.0
        self._begin_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def __enter__(self) -> StallWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Begin to watch: a thread that starts late has seen a stall."""
        self._begin_s = time.monotonic()
        self._thread.start()

    def end(self) -> None:
        """End the watch; what it measured stays."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over, begin_s = False, self._begin_s
        while not is_over:
            is_over = self._ended.wait(_SLEEP_S)
            now_s = time.monotonic()
            late_s, begin_s = now_s - begin_s - _SLEEP_S, now_s
            self.longest_s = max(self.longest_s, late_s)
            self.total_s += late_s if late_s >= STALL_S else 0.0


def again_after_a_stall(test: _Test) -> _Test:
    """Run a test again, with a `tmp_path` of its own, if it failed while the process stalled."""
    import pytest  # rows of faults, which watch for stalls as well, run without it

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        path = fixtures.get("tmp_path")
        for number in range(1, TRIES + 1):
            if path is not None:
                fixtures["tmp_path"] = path / f"try-{number}"
                fixtures["tmp_path"].mkdir()
            watch = StallWatch()
            try:
                with watch:
                    test(*arguments, **fixtures)
                return
            except (Exception, pytest.fail.Exception) as error:
                if watch.longest_s < STALL_S or number == TRIES:
                    raise
                print(f"try {number} failed while the process stalled for {watch.longest_s:.1f} s: {error!r:.200}")

    return run  # type: ignore[return-value]

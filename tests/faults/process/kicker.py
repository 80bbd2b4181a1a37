"""A process that sends SIGINT after a while, as a person does: the signal comes from outside, at any moment.

`python -m tests.faults.process.kicker` reads lines "delay target" and answers with the time at which it sent. A target
below 0 is a process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


class Kicker:
    """Sends SIGINT to this process, or to its group."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready, and ignores what it sends to the group

    def start(self, delay_s: float, *, group: bool = False) -> None:
        """Send in so many seconds."""
        target = -os.getpgid(0) if group else os.getpid()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{delay_s} {target}\n")
        self._process.stdin.flush()

    def sent_at(self) -> float:
        """Return when it sent, on the clock `time.monotonic`."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())


def main() -> None:
    """Send until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        delay_s, target = line.split()
        time.sleep(float(delay_s))
        now = time.monotonic()
        os.kill(int(target), signal.SIGINT)
        print(now, flush=True)


if __name__ == "__main__":
    main()

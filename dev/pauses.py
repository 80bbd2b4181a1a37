"""Stop the processes of a command for some seconds, again and again: a test that fails then depends on time.

    python dev/pauses.py -- pytest -n 0 tests/process/test_elastic.py
    python dev/pauses.py --seconds 3 --every 1 --seed 7 -- pytest -n 0 tests/faults

A machine that is busy with other things lets a process wait when it likes. Here all processes that the command started
wait at once, or each of them with a chance of one half, at moments that `--seed` draws. The exit status is that of the
command. Stopped processes need no processor, so that several runs go on side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of prctl(2): processes whose parent has ended stay below this one


def descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, theirs, and so on."""
    with contextlib.suppress(OSError):  # it ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text().split()):
                    yield child
                    yield from descendants(child)


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pause(choose: random.Random, every_s: float, seconds: float, ended: threading.Event) -> int:
    """Stop processes below this one until `ended` is set; return how often."""
    times = 0
    while not ended.wait(choose.uniform(0, 2 * every_s)):
        below = list(descendants(os.getpid()))
        some = [pid for pid in below if choose.random() < 1 / 2]
        stopped = some if some and choose.random() < 2 / 3 else below
        send(signal.SIGSTOP, stopped)
        try:
            ended.wait(seconds)
        finally:
            send(signal.SIGCONT, stopped)
        times += 1
    return times


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a pause (default: 3)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between pauses, in the mean (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(options.command)
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    times = pause(random.Random(options.seed), options.every, options.seconds, ended)
    print(f"{times} pauses of {options.seconds:g} s, seed {options.seed}: exit status {process.returncode}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

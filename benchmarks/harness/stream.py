"""Memory bandwidth: the bytes a second that several threads read and write, by the loop of stream.c."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from benchmarks.harness.compile import compiled

_SOURCE = Path(__file__).with_name("stream.c")
#: Memory of each thread: more than its share of any cache.
_MIB = 96


def memory_gb_per_s(threads: int, *, seconds: float, cpus: Collection[int] | None = None, mib: int = _MIB) -> float:
    """Return the gigabytes (10**9 bytes) a second that threads move together.

    Parameters
    ----------
    threads
        Number of threads, each with arrays of its own.
    seconds
        Duration of the loop.
    cpus
        The cores that they may use; None: those of this process.
    mib
        Memory of a thread, in MiB.

    Raises
    ------
    NoCompilerError
        If there is no C compiler.
    """
    program = compiled(_SOURCE, "-O3", "-march=native", "-pthread", "-Wall", "-Wextra", "-Werror")
    bound = None if cpus is None else lambda: os.sched_setaffinity(0, cpus)
    command = [str(program), str(threads), str(mib), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=bound)
    return float(done.stdout) / 1e9

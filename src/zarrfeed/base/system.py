"""The machine: cores that this process may use, memory, and processes."""

from __future__ import annotations

import os

from zarrfeed.base.native import core


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_bytes() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_name(pid: int) -> str:
    """Return a name of a process that no other process gets: its pid is given to another one after its end."""
    return f"{pid}-{core.process_start(pid)}"

"""Entries of /proc, each of which may be gone before it is read.

A descriptor is closed, a thread joins or a process ends between the listing of a folder of /proc and the look at one of
its entries. So one place lists them, and leaves such entries out; `tests/repo/test_proc.py` finds other places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")


def open_files(process: int | None = None) -> dict[int, str]:
    """Return the descriptors of a process, of this one by default, with the names of their files.

    The descriptor of the listing itself is not among them.
    """
    found = {}
    with suppress(OSError):  # the process has ended
        for number in _numbers(_folder(process) / "fd"):
            with suppress(OSError):  # another thread, or the listing, has closed it
                found[number] = str((_folder(process) / "fd" / str(number)).readlink())
    return found


def thread_ids() -> set[int]:
    """Return the ids of the threads of this process, those that Python does not know included."""
    return set(_numbers(_folder(None) / "task"))


def thread_file(thread: int, name: str) -> str | None:
    """Return the text of a file about a thread of this process, or None if the thread has ended."""
    try:
        return (_folder(None) / "task" / str(thread) / name).read_text()
    except OSError:
        return None


def children(process: int) -> list[int]:
    """Return the processes that the first thread of a process started; none if the process has ended."""
    try:
        return [int(child) for child in (_folder(process) / "task" / str(process) / "children").read_text().split()]
    except OSError:
        return []


def resident_bytes(process: int | None = None, kind: Literal["Rss", "Anonymous"] = "Rss") -> int:
    """Return the memory of a process, of this one by default, that is resident; 0 if the process has ended.

    The counters of statm and status, which cost less, are late by some MiB on a machine with many processors.
    """
    try:
        lines = (_folder(process) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:"))


@dataclass(frozen=True)
class Process:
    """A process, as the kernel describes it in /proc/PID/stat."""

    number: int
    parent: int
    group: int
    session: int
    cpu_s: float

    def command(self) -> str:
        """Return the command line; nothing if the process has ended."""
        try:
            return (_folder(self.number) / "cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()
        except OSError:
            return ""

    def inodes_below(self, folder: str) -> set[int]:
        """Return the inodes below a folder that the process has open or mapped, maybe under a name that is gone."""
        found = set()
        for number, name in open_files(self.number).items():
            if name.startswith(folder):
                with suppress(OSError):
                    found.add((_folder(self.number) / "fd" / str(number)).stat().st_ino)
        with suppress(OSError):
            maps = [line.split(maxsplit=5) for line in (_folder(self.number) / "maps").read_text().splitlines()]
            found |= {int(fields[4]) for fields in maps if fields[-1].startswith(folder)}
        return found


def living(process: int) -> Process | None:
    """Return a process, or None if it has ended, whether or not its parent has waited for it."""
    try:
        text = (_folder(process) / "stat").read_text()
    except OSError:
        return None
    # proc(5): the name before these fields may hold blanks, but ends with ")"
    state, parent, group, session, *fields = text.rpartition(")")[2].split()
    if state in "ZX":
        return None
    ticks = int(fields[7]) + int(fields[8])  # in user mode and in the kernel
    return Process(process, int(parent), int(group), int(session), ticks / os.sysconf("SC_CLK_TCK"))


def all_living() -> Iterator[Process]:
    """Yield the processes of this machine that live."""
    for number in _numbers(_PROC):
        if (process := living(number)) is not None:
            yield process


def _folder(process: int | None) -> Path:
    return _PROC / ("self" if process is None else str(process))


def _numbers(folder: Path) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 - names alone are needed

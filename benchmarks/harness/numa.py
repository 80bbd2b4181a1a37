"""The memory nodes of the machine, as Linux tells them, and the cores of each that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def parse_cpus(text: str) -> list[int]:
    """Return the numbers of a list such as "0-3,8".

    >>> parse_cpus("0-3,8")
    [0, 1, 2, 3, 8]
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def nodes(folder: Path = _NODES) -> dict[int, list[int]]:
    """Return the usable cores of each node that has some; all of them in one node where the system tells none."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    found = {}
    for path in folder.glob("node[0-9]*"):
        cpus = [cpu for cpu in parse_cpus((path / "cpulist").read_text()) if cpu in usable]
        if cpus:
            found[int(path.name.removeprefix("node"))] = cpus
    return dict(sorted(found.items())) or {0: sorted(usable)}


def threads_of_a_core(folder: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return how many hardware threads share a core: 2 where `usable_cores` are half as many; None: not known."""
    try:
        return len(parse_cpus((folder / "cpu0" / "topology" / "thread_siblings_list").read_text()))
    except OSError:
        return None

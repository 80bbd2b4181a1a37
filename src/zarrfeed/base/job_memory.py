"""The memory that this job may use on its machine: less than the machine has, in containers and under Slurm."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Mapping
from pathlib import Path

from zarrfeed.base.system import physical_bytes

#: The folder in which Linux tells about this process and its control groups.
_PROC = Path("/proc/self")
#: File that holds the limit of a control group, by the version of the control groups.
_LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
_MIB = 1 << 20


@functools.cache
def job_bytes() -> int:
    """Return the bytes of memory that all processes of this job may use on this machine, as found at the first call.

    The result is the least of these: the machine's memory, the limits of control groups of either version (of a
    container, of systemd or of Slurm), the memory that the job asked Slurm for on each node, and the limit of the
    address space.
    """
    return min([physical_bytes(), *cgroup_limits(_PROC), *slurm_limits(os.environ), *_process_limits()])


def cgroup_limits(process: Path) -> list[int]:
    """Return the limits of the control groups of a process, given by its folder in /proc, and of those around them."""
    limits: list[int] = []
    groups = [line.split(":", 2) for line in _lines(process / "cgroup")]
    for mount in _lines(process / "mountinfo"):
        before, _, after = mount.partition(" - ")
        kind, _, options = after.split(" ", 2) if after.count(" ") >= 2 else ("", "", "")
        if kind not in _LIMIT_FILES or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, folder = before.split(" ")[3:5]
        for _, controllers, path in groups:
            if ("memory" in controllers.split(",")) if kind == "cgroup" else not controllers:
                limits += _limits_up_to(Path(folder), os.path.relpath(path, root), _LIMIT_FILES[kind])
    return limits


def slurm_limits(environment: Mapping[str, str]) -> list[int]:
    """Return the memory that a job of Slurm asked for on each node, if it is one and asked; 0 means all of a node."""
    names = "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"
    of_node, of_cpu, cpus = [_number(environment.get(name)) or 0 for name in names]
    return [limit * _MIB for limit in (of_node, of_cpu * cpus) if limit]


def _process_limits() -> list[int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return [] if soft == resource.RLIM_INFINITY else [soft]


def _limits_up_to(top: Path, group: str, file: str) -> list[int]:
    """Return the limits of a group and of those that it lies in, below the folder where groups are mounted."""
    inside = [] if group.startswith("..") else [part for part in group.split("/") if part not in ("", ".")]
    limits: list[int] = []
    for depth in range(len(inside) + 1):  # a group outside of the mount has the limit of the mount, too
        for line in _lines(top.joinpath(*inside[:depth]) / file):
            limit = _number(line)
            limits += [] if limit is None else [limit]
    return limits


def _number(text: str | None) -> int | None:
    """Return a whole number; None for anything else, such as "max"."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []

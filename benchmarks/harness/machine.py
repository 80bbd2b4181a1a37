"""Where and with what a measurement was made."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.loaders.ceiling import usable_cores
from zarrfeed.base.atomic_file import write_whole

_PACKAGES = ("zarrfeed", "zarr", "numcodecs", "numpy", "torch")


def describe_machine() -> dict[str, str | int]:
    """Return the processor, its cores, the system, and the versions that matter."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def write_document(path: Path, **found: Any) -> None:
    """Write results and the machine to a JSON file, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"machine": describe_machine(), **found}, indent=1).encode())


def processor() -> tuple[str, int]:
    """Return the processor's name with its family, model and stepping, since names are shared, and the usable cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return _cpu_model(), usable_cores()
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    numbers = [known[name] for name in ("cpu family", "model", "stepping") if name in known]
    return f"{_cpu_model()} {'/'.join(numbers)}".strip(), usable_cores()


def machine_line() -> str:
    """Return `describe_machine` for people."""
    m = describe_machine()
    packages = ", ".join(f"{name} {m[name]}" for name in _PACKAGES)
    return f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB; {m['system']}, Python {m['python']}, {packages}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")

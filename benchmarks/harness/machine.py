"""Where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks.loaders.ceiling import usable_cores

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

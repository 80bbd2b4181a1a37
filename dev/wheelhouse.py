"""A folder with the wheels that a machine without a network needs beside torch: zarrfeed's own, and those it imports.

dev/wheels.py --gather FOLDER makes it; dev/gpu.sh installs from it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "dev" / "gpu-requirements.txt"

#: The wheels of a folder together: what is copied to a machine, or lent one, has to be small.
MAX_BYTES = 60_000_000

#: The file of a folder that names the wheels which were brought there.
LISTING = "gathered.txt"

#: Names of packages that the machine's own torch brings, or that belong to it.
OF_TORCH = ("torch", "nvidia-", "triton", "cuda-")

#: Wheels of pure Python are a fifth of those with compiled modules, which make nothing faster that is used here.
PURE = ("fonttools",)

#: Names of a platform under which wheels for glibc 2.28 and older lie: pip takes each name as it is.
GLIBCS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")


def requirements() -> list[str]:
    """Return the requirements of zarrfeed, without torch, and those of the tests and benchmarks for a GPU."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [line for line in project["dependencies"] if not line.startswith("torch")]
    lines = REQUIREMENTS.read_text().splitlines()
    return own + [line for line in lines if line and not line.startswith("#")]


def gather(
    folder: Path, wheel: Path, *, python: str = "3.12", machine: str = "x86_64", without: Sequence[str] = ()
) -> int:
    """Fill a folder with a wheel of zarrfeed and the wheels of `requirements()`; print what each takes.

    Parameters
    ----------
    folder
        Is made if it is not there. Only wheels that an earlier call brought may lie in it; those are replaced.
    wheel
        Of zarrfeed, for that Python and machine.
    python, machine
        For which the wheels are: any interpreter can bring them.
    without
        Names of packages that the machine has, such as numpy.

    Returns
    -------
    The bytes of all wheels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content, listing = wheel.read_bytes(), folder / LISTING
    brought_before = listing.read_text().split() if listing.exists() else []
    if others := sorted({one.name for one in folder.glob("*.whl")} - {*brought_before, wheel.name}):
        raise SystemExit(f"{folder} holds wheels that were not gathered, such as {others[0]}: name an empty folder")
    for old in folder.glob("*.whl"):
        old.unlink()
    (folder / wheel.name).write_bytes(content)
    with tempfile.TemporaryDirectory() as name:
        brought = Path(name)
        needed = [one for one in requirements() if name_of(one) not in without]
        _download(brought, needed, python, [f"manylinux_{glibc}_{machine}" for glibc in GLIBCS]
                  + [f"{old}_{machine}" for old in OLD_NAMES])  # fmt: skip
        for pure in PURE:
            for found in brought.glob(f"{pure}-*.whl"):
                version = found.name.split("-")[1]
                found.unlink()
                _download(brought, [f"{pure}=={version}"], python, ["any"], "--no-deps")
        for found in sorted(brought.glob("*.whl")):
            if name_of(found.name) not in without and not name_of(found.name).startswith(OF_TORCH):
                (folder / found.name).write_bytes(found.read_bytes())
    sizes = {one.name: one.stat().st_size for one in folder.glob("*.whl")}
    listing.write_text("".join(f"{name}\n" for name in sorted(sizes)))
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size:>12,}  {name}")
    total = sum(sizes.values())
    print(f"{total:>12,}  bytes in {len(sizes)} wheels")
    return total


def name_of(requirement: str) -> str:
    """Return the name of a requirement or of a wheel's file, as an index spells it."""
    name = requirement.partition("-")[0] if requirement.endswith(".whl") else requirement
    for sign in "[<>=!~; ":
        name = name.partition(sign)[0]
    return name.lower().replace("_", "-").replace(".", "-")


def _download(folder: Path, needed: Sequence[str], python: str, platforms: Sequence[str], *options: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *options]
    command += ["--dest", str(folder), "--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", python, "--constraint", str(ROOT / "constraints.txt")]
    command += [part for platform in platforms for part in ("--platform", platform)]
    done = subprocess.run([*command, *needed], text=True, check=False, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-6000:]}\nended with {done.returncode}")

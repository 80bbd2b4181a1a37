"""Whether zarrfeed works with the oldest and the newest torch, zarr and numpy that its metadata promise.

python dev/matrix.py dist                                 every row, for the Python that runs this
python dev/matrix.py dist --row torch-oldest              one row (again --row for more); --list names them
python dev/matrix.py dist --python python3.13             another Python

Each row is a fresh environment, in which pip resolves the wheel of the folder with the versions of the row pinned and
chooses the others, and in which an epoch is read (tests/support/small_epoch.py). Torch is the one of constraints.txt
where a row does not say which. Rows of torch take gigabytes where a build is one for CUDA.
A version that fails does not belong into the metadata. Exits with 1 if a row failed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from try_wheel import ROOT, SUPPORT, Failed, call

PACKAGES = ("torch", "zarr", "numpy")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def oldest(package: str) -> str:
    """Return the oldest version that the metadata promise."""
    found = (re.fullmatch(rf"{package}>=([\d.]+)(,.*)?", requirement) for requirement in PROJECT["dependencies"])
    return next(str(match[1]) for match in found if match)


def newest(package: str, python: str) -> str:
    """Return the newest version that the index has for an interpreter."""
    said = call(sys.executable, "-m", "pip", "--python", python, "index", "versions", package)
    return str(re.findall(r"\((.+?)\)", said)[0])


def tested(package: str) -> str:
    """Return the version of constraints.txt."""
    return str(re.findall(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0])


def rows(python: str | None = None) -> dict[str, dict[str, str]]:
    """Return the rows; with an interpreter also the newest versions, which are asked of the index."""
    newest_versions = {package: newest(package, python) if python else "newest" for package in PACKAGES}
    oldest_versions = {package: oldest(package) for package in PACKAGES}
    found = {
        "tested": {package: tested(package) for package in PACKAGES},
        "all-oldest": oldest_versions,
        "all-newest": newest_versions,
    }
    for package in PACKAGES:
        found[f"{package}-oldest"] = {"torch": tested("torch"), package: oldest_versions[package]}
        found[f"{package}-newest"] = {"torch": tested("torch"), package: newest_versions[package]}
    return found


def try_row(wheel: Path, python: str, versions: dict[str, str]) -> str:
    """Install the wheel with these versions into a fresh environment, and return what the epoch said."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        call(python, "-m", "venv", work / "venv")
        interpreter = work / "venv" / "bin" / "python"
        pins = [f"{package}=={version}" for package, version in versions.items()]
        call(interpreter, "-m", "pip", "install", "--quiet", "--no-cache-dir", wheel.resolve(), *pins)
        call(interpreter, "-m", "pip", "check")
        return call(interpreter, "-I", SUPPORT / "small_epoch.py", cwd=work).strip().splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the rows; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the wheels are")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--row", action="append", choices=list(rows()), help="instead of all rows")
    parser.add_argument("--list", action="store_true", help="say which rows there are")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(rows()))
        return 0
    tag = call(options.python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()
    (wheel,) = options.folder.glob(f"zarrfeed-*-{tag}-*.whl")
    failed = False
    for name, versions in rows(options.python).items():
        if options.row and name not in options.row:
            continue
        try:
            print(f"{name}: {try_row(wheel, options.python, versions)}", flush=True)
        except Failed as failure:
            failed = True
            print(f"{name}: {versions} failed: {failure}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

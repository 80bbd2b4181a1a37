"""Install a built wheel as a user does, where there is neither compiler, CMake, index nor checkout, and read an epoch.

python dev/try_wheel.py dist                      for the Python that runs this
python dev/try_wheel.py dist --python python3.13  for another one (again --python for more)
python dev/try_wheel.py dist --gather             before that, put the wheels of what zarrfeed requires there, too
python dev/try_wheel.py dist --extra cli          with an extra, whose wheels --gather brings as well
python dev/try_wheel.py dist --without-torch      without its requirement torch: tests/support/without_torch.py

Exits with 1 if an installation, `pip check` or the epoch fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
FORBIDDEN = ("cc", "c++", "gcc", "g++", "clang", "clang++", "zig", "cmake", "ninja", "make", "git")

#: What zarrfeed needs where torch is not installed.
WITHOUT_TORCH = ("google-crc32c", "numpy", "xxhash", "zarr")


class Failed(Exception):  # noqa: N818 - what failed, for the caller's report
    """A command ended with another status than 0; the text is what it said."""


def call(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command, and return what it said."""
    words = [str(part) for part in command]
    done = subprocess.run(words, env=env, cwd=cwd, text=True, check=False, stdout=PIPE, stderr=STDOUT)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}\n{done.stdout[-6000:]}")
    return done.stdout


def bare_environment(venv: Path, home: Path) -> dict[str, str]:
    """Return the variables of a user who has an interpreter and nothing to build with."""
    environment = {"PATH": str(venv / "bin"), "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    if found := [name for name in FORBIDDEN if shutil.which(name, path=environment["PATH"])]:
        raise Failed(f"{venv} is not bare: it has {', '.join(found)}")
    return environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def gather(folder: Path, python: str, requirements: Sequence[str]) -> None:
    """Put the wheels of requirements, and of theirs, into `folder`: the one step that asks an index."""
    pins = ("-c", ROOT / "constraints.txt") if is_pinned(python) else ()
    pip = (sys.executable, "-m", "pip", "--python", shutil.which(python) or python, "download", "--quiet")
    call(*pip, *pins, "--only-binary", ":all:", "--find-links", folder, "--dest", folder, *requirements)


def is_pinned(python: str) -> bool:
    """Return whether constraints.txt, which is for Python 3.11, holds for an interpreter."""
    return call(python, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip() == "3.11"


def try_wheel(folder: Path, python: str, *, extras: Sequence[str] = (), without_torch: bool = False) -> str:
    """Install zarrfeed from `folder` alone into a fresh environment, and return what the epoch said."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        venv = work / "venv"
        call(python, "-m", "venv", venv)
        environment = bare_environment(venv, work)
        pip = (
            venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--find-links",
            folder.resolve(),
        )
        what = f"zarrfeed[{','.join(extras)}]" if extras else "zarrfeed"
        if without_torch:
            call(*pip, *WITHOUT_TORCH, env=environment, cwd=work)
            call(*pip, "--no-deps", "--pre", "zarrfeed", env=environment, cwd=work)
        else:
            call(*pip, "--pre", what, env=environment, cwd=work)
            call(venv / "bin" / "python", "-m", "pip", "check", env=environment, cwd=work)
        script = shutil.copy(SUPPORT / ("without_torch.py" if without_torch else "small_epoch.py"), work)
        call(venv / "bin" / "zarrfeed", "--version", env=environment, cwd=work)
        return call(venv / "bin" / "python", "-I", script, env=environment, cwd=work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the wheels; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the wheels are")
    parser.add_argument("--python", action="append", help="the interpreters, instead of the one that runs this")
    parser.add_argument("--gather", action="store_true", help="first bring what zarrfeed requires")
    parser.add_argument("--extra", action="append", default=[], help="an extra to install as well")
    parser.add_argument("--without-torch", action="store_true", help="torch is neither gathered nor installed")
    options = parser.parse_args(arguments)
    failed = False
    for python in options.python or [sys.executable]:
        extras = f"[{','.join(options.extra)}]" if options.extra else ""
        try:
            if options.gather:
                wheels = sorted(options.folder.glob("zarrfeed-*.whl"))
                if not wheels:
                    raise Failed(f"no wheel of zarrfeed in {options.folder}")
                own = [f"zarrfeed{extras}", "--pre"]
                gather(options.folder, python, WITHOUT_TORCH if options.without_torch else own)
            said = try_wheel(options.folder, python, extras=options.extra, without_torch=options.without_torch)
            print(f"{python}: {said.strip().splitlines()[-1]}")
        except Failed as failure:
            failed = True
            print(f"{python}: failed: {failure}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

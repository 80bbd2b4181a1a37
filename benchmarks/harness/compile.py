"""Small C programs and libraries of the benchmarks, compiled when they are needed."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path


class NoCompilerError(Exception):
    """There is no C compiler, or it refuses the source."""


@functools.cache
def compiled(source: Path, *flags: str) -> Path:
    """Compile a C source; return the program or library, which is deleted when this process ends.

    Raises
    ------
    NoCompilerError
        If there is no compiler, or it refuses the source.
    """
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompilerError(f"a C compiler is needed for {source.name}: apt install gcc")
    directory = Path(tempfile.mkdtemp(prefix=f"zarrfeed-{source.stem}-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = directory / source.stem
    done = subprocess.run(
        [compiler, "-O2", *flags, "-o", str(made), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NoCompilerError(f"{source.name} cannot be compiled:\n{done.stderr}")
    return made

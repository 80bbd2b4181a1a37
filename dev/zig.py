"""`zig cc` and `zig c++`, from the PyPI wheel ziglang, as compilers for another system or an older one.

Zig has the headers and symbol lists of every glibc, and libc++ as sources that it links statically. So what it makes
for `x86_64-linux-gnu.2.28` runs wherever glibc is 2.28 or newer, whatever this machine has.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def find_zig() -> Path:
    """Return the program of the wheel ziglang, of the environment that runs this."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise SystemExit("there is no zig here: pip install -c constraints.txt '.[release]'")
    return Path(spec.origin).parent / "zig"


def write_compilers(folder: Path, target: str) -> dict[str, str]:
    """Write programs to `folder` that compile for `target`; return them as the variables CC, CXX, AR and RANLIB.

    A program without arguments of its own is what CMake takes as a compiler everywhere.
    """
    zig = find_zig()
    folder.mkdir(parents=True, exist_ok=True)
    programs = {"CC": f"cc -target {target}", "CXX": f"c++ -target {target}", "AR": "ar", "RANLIB": "ranlib"}
    for variable, command in programs.items():
        program = folder / variable.lower()
        program.write_text(f'#!/bin/sh\nexec "{zig}" {command} "$@"\n')
        program.chmod(0o755)
    return {variable: str(folder / variable.lower()) for variable in programs}

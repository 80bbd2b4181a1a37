"""Compile the engine for systems that are not this one: aarch64 Linux, whose tests are run, and macOS, where none are.

python dev/cross.py aarch64    the C++ tests, compiled by zig and run by qemu-aarch64, against libblosc2.a of aarch64
python dev/cross.py macos      every source of the engine, compiled for macOS on arm64 and neither linked nor run

Needs the extra `release`, CMake and Ninja, an index for blosc2's wheel; and for aarch64, of Debian: `apt install
qemu-user libc6-arm64-cross libgcc-s1-arm64-cross`. Exits with 1 if something does not compile or a test fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zig import write_compilers

ROOT = Path(__file__).resolve().parent.parent
SYSROOT = Path("/usr/aarch64-linux-gnu")  # where Debian's cross packages put the C library
REQUIRES = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

#: Nothing but the bindings, which need Python's headers, and what no user runs.
ENGINE = [
    path
    for path in sorted((ROOT / "cpp").rglob("*.cc"))
    if path.relative_to(ROOT).parts[1] not in ("bindings", "tests", "fuzz")
]


def fetch_blosc2(folder: Path, platform: str) -> Path:
    """Unpack the wheel of blosc2 for another platform, and return the folder with its headers and its library."""
    (requirement,) = (one for one in REQUIRES if one.startswith("blosc2=="))
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    where = ("--only-binary", ":all:", "--platform", platform, "--dest", str(folder))
    subprocess.run([*pip, *where, requirement], check=True)
    (wheel,) = folder.glob("blosc2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "blosc2"


def run_aarch64(build: Path, jobs: int) -> int:
    """Build the C++ tests for aarch64, and run them under emulation; return ctest's exit status."""
    if not SYSROOT.is_dir():
        raise SystemExit(f"{SYSROOT} is not there: apt install qemu-user libc6-arm64-cross libgcc-s1-arm64-cross")
    blosc2 = fetch_blosc2(build / "blosc2", "manylinux_2_28_aarch64")
    environment = os.environ | write_compilers(build / "compilers", "aarch64-linux-gnu.2.28")
    configure = [
        *("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DZARRFEED_BINDINGS=OFF", "-DZARRFEED_TESTS=ON"),
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        f"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;{SYSROOT}",
        *(f"-DBlosc2_DIR={blosc2}/lib/cmake/blosc2", f"-DPython_EXECUTABLE={sys.executable}"),
        # Zig adds UBSan to what is not optimised, and does not take CMake's precompiled headers.
        *("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -fno-sanitize=undefined"),
        "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON",
        *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=5"),
    ]
    subprocess.run(configure, check=True, env=environment)
    programs = sorted(f"{path.stem}" for path in (ROOT / "cpp" / "tests").rglob("*_test.cc"))
    subprocess.run(["cmake", "--build", str(build), "-j", str(jobs), "--target", *programs], check=True)
    names = "|".join(name.removesuffix("_test") for name in programs)
    test = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-j", str(jobs)]
    return subprocess.run([*test, "-R", f"^({names})$", "--timeout", "1200"], check=False).returncode


def compile_for_macos(build: Path, jobs: int) -> int:
    """Compile every source of the engine for macOS; return 1 if one does not compile."""
    blosc2 = fetch_blosc2(build / "blosc2", "macosx_11_0_arm64")
    compiler = write_compilers(build / "compilers", "aarch64-macos")["CXX"]
    flags = ["-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-I", str(ROOT / "cpp"), "-isystem", f"{blosc2}/include"]

    def compile_one(path: Path) -> str:
        out = build / f"{path.parent.name}-{path.stem}.o"
        done = subprocess.run(
            [compiler, *flags, "-c", str(path), "-o", str(out)], check=False, capture_output=True, text=True
        )
        return "" if done.returncode == 0 else f"{path.relative_to(ROOT)}\n{done.stderr}"

    with ThreadPoolExecutor(jobs) as threads:
        failed = [text for text in threads.map(compile_one, ENGINE) if text]
    print("\n".join(failed))
    print(f"macOS on arm64: {len(ENGINE) - len(failed)} of {len(ENGINE)} sources compile; nothing was run")
    return int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile for one system; return 1 if that or a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("system", choices=["aarch64", "macos"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", type=Path, help="keep what is built there, instead of in a folder that goes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        build: Path = (options.build or Path(name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        return int((run_aarch64 if options.system == "aarch64" else compile_for_macos)(build, options.jobs) != 0)


if __name__ == "__main__":
    sys.exit(main())

"""Compile the engine for systems that are not this one: aarch64 Linux, whose tests are run, and macOS, where none are.

python dev/cross.py aarch64    the C++ tests, compiled by zig and run by qemu-aarch64, with libblosc2.a of aarch64
python dev/cross.py aarch64 --kernel vmlinuz --busybox busybox                 run on that kernel of aarch64
python dev/cross.py macos      every source of the engine, compiled for macOS on arm64 and neither linked nor run

qemu-aarch64 runs one program, and this machine's kernel does what that asks for, with pages of this machine. Two
subjects are left out: qemu-aarch64 passes on neither a limit of memory (engine_end) nor that pages are given back
(shared_pool). With a kernel, qemu-system-aarch64 emulates a whole system, and all subjects run. Debian has kernels:
`dpkg --add-architecture arm64 && apt update`, `apt download` of busybox-static:arm64 and of
linux-image-VERSION-arm64:arm64, or of trixie's linux-image-VERSION-arm64-16k, whose pages have 16 KiB; then `dpkg -x`.

Needs the extra `release`, CMake and Ninja, an index for blosc2's wheel; and for aarch64, of Debian: `apt install
qemu-user libc6-arm64-cross libgcc-s1-arm64-cross`, or `cpio qemu-system-arm` and the same. Exits with 1 if something
does not compile or a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zig import write_compilers

ROOT = Path(__file__).resolve().parent.parent
SYSROOT = Path("/usr/aarch64-linux-gnu")  # where Debian's cross packages put the C library
REQUIRES = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

#: Tests of what qemu-aarch64 does not emulate.
NEED_A_KERNEL = {"engine_end", "shared_pool"}

#: The first process of a kernel that runs the tests.
INIT = """#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /tmp
uname -r -m
grep -m 1 KernelPageSize /proc/self/smaps
while read program subject; do
  if timeout 1200 /tests/$program $subject </dev/null >/tmp/log 2>&1; then result=passed
  else result=failed; cat /tmp/log; fi
  echo "$result: $subject"
done </subjects
poweroff -f
"""

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


def build_for_aarch64(build: Path, jobs: int) -> dict[str, Path]:
    """Build the C++ tests for aarch64, and return the program of each subject."""
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
        "-DCMAKE_EXE_LINKER_FLAGS=-s",  # else each has 20 MB of what zig says of libc++
        *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=12"),
    ]
    subprocess.run(configure, check=True, env=environment)
    subprocess.run(["cmake", "--build", str(build), "-j", str(jobs), "--target", "zarrfeed_tests"], check=True)
    return find_tests(build)


def find_tests(build: Path) -> dict[str, Path]:
    """Return the program of each subject of the C++ tests that ctest knows of."""
    listed = subprocess.check_output(["ctest", "--test-dir", str(build), "--show-only=json-v1"], text=True)
    commands = {test["name"]: test.get("command", []) for test in json.loads(listed)["tests"]}
    return {name: Path(command[-2]) for name, command in commands.items() if command and command[-1] == name}


def run_by_user_emulation(build: Path, tests: Mapping[str, Path], jobs: int) -> int:
    """Run the tests, each as a process of this machine; return ctest's exit status."""
    names = "|".join(tests.keys() - NEED_A_KERNEL)
    test = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-j", str(jobs)]
    return subprocess.run([*test, "-R", f"^({names})$", "--timeout", "1200"], check=False).returncode


def run_on_kernel(build: Path, tests: Mapping[str, Path], kernel: Path, busybox: Path) -> int:
    """Start a kernel whose first process runs the tests one by one; return how many did not pass."""
    root = build / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "dev", "proc", "tests", "tmp"):
        (root / name).mkdir(parents=True)
    for_linkers = shutil.ignore_patterns("*.a", "*.o")
    shutil.copytree(SYSROOT / "lib", root / "lib", symlinks=True, ignore=for_linkers)
    for program in set(tests.values()):
        shutil.copy(program, root / "tests")
    subjects = "".join(f"{program.name} {subject}\n" for subject, program in tests.items())
    (root / "subjects").write_text(subjects)
    for name in ("busybox", "sh"):
        shutil.copy(busybox, root / "bin" / name)
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = ["cpio", "--create", "--format=newc", "--quiet"]
    with (build / "initramfs").open("wb") as file:
        subprocess.run(archive, cwd=root, input=names.encode(), stdout=file, check=True)
    machine = ["-machine", "virt", "-cpu", "max", "-smp", "2", "-m", "4G", "-nographic", "-no-reboot"]
    boot = ["-kernel", str(kernel), "-initrd", str(build / "initramfs"), "-append", "console=ttyAMA0 quiet panic=-1"]
    passed = 0
    command = ["qemu-system-aarch64", *machine, *boot]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as system:
        for line in system.stdout or ():
            print(line, end="", flush=True)
            passed += line.startswith("passed: ")
    print(f"{passed} of {len(tests)} subjects passed")
    return len(tests) - passed


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
    parser.add_argument("--kernel", type=Path, help="of aarch64, to run the tests on in qemu-system-aarch64")
    parser.add_argument("--busybox", type=Path, help="of aarch64, linked statically; needed with --kernel")
    options = parser.parse_args(arguments)
    if (options.kernel is None) != (options.busybox is None):
        parser.error("--kernel and --busybox are given together")
    with tempfile.TemporaryDirectory() as name:
        build: Path = (options.build or Path(name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        if options.system == "macos":
            return compile_for_macos(build, options.jobs)
        tests = build_for_aarch64(build, options.jobs)
        if options.kernel:
            return int(run_on_kernel(build, tests, options.kernel, options.busybox) != 0)
        return int(run_by_user_emulation(build, tests, options.jobs) != 0)


if __name__ == "__main__":
    sys.exit(main())

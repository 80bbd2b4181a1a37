"""The engine's own tests: built without Python, run by ctest, one test here for each of theirs.

ZARRFEED_SANITIZE=address,undefined in the environment builds and runs them under these sanitizers, as .ci/run does.
Fuzz targets, which are tests as well, take a quarter of the build: they are run with --large, and under sanitizers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.paths import ROOT

UNITS = sorted(path.name.removesuffix("_test.cc") for path in (ROOT / "cpp" / "tests").rglob("*_test.cc"))
FUZZ = sorted(path.stem for path in (ROOT / "cpp" / "fuzz").rglob("*_fuzz.cc"))

#: What CMake calls the same: sanitizers to build with.
SANITIZE = os.environ.get("ZARRFEED_SANITIZE", "")

# The first test waits for the build, which takes long on a machine that is busy with other things.
pytestmark = pytest.mark.timeout(1800)


def tool(name: str) -> str:
    """Return the executable of a PyPI package (cmake, ninja) of the environment that runs this."""
    path = Path(sysconfig.get_path("scripts")) / name
    assert path.exists(), f"{path} is not there: pip install '.[test]'"
    return str(path)


def run(*command: str) -> str:
    environment = os.environ | {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    directory = tmp_path_factory.mktemp("cpp")
    run(
        *(tool("cmake"), "-S", str(ROOT), "-B", str(directory), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}",
        *("-DZARRFEED_BINDINGS=OFF", "-DZARRFEED_TESTS=ON", f"-DZARRFEED_SANITIZE={SANITIZE}"),
        # With sanitizers, GCC warns of overflows in code that is never reached; without -O, of the tests, it does not.
        f"-DZARRFEED_WERROR={'OFF' if SANITIZE else 'ON'}",
        # Compiling takes longer than running: -O1 costs little of both, and tests spend their time in the engine. For
        # the lines of a stack, -g1 is enough.
        *("-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS=-O1{' -g1' if SANITIZE else ''}"),
        "-DZARRFEED_TEST_FLAGS=-O0;-Werror",
        # Several files of a library are compiled as one, with their headers once: half of the time.
        *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=5"),
    )
    programs = [f"{name}_test" for name in UNITS] + (FUZZ if SANITIZE or pytestconfig.getoption("--large") else [])
    run(tool("cmake"), "--build", str(directory), "--target", *programs)
    return directory


@pytest.mark.parametrize(
    "name", [*UNITS, *(pytest.param(name, marks=[] if SANITIZE else pytest.mark.slow) for name in FUZZ)]
)
def test_cpp(build: Path, name: str) -> None:
    run(tool("ctest"), "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-R", f"^{name}$")


def test_every_cpp_test_is_listed_here(build: Path) -> None:
    listing = run(tool("ctest"), "--test-dir", str(build), "-N")
    assert sorted(re.findall(r"Test +#\d+: (\w+)", listing)) == sorted([*UNITS, *FUZZ])

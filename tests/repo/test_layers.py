"""The layers of cpp/: which folder may include what. CMakeLists.txt enforces the same when it compiles and links."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CPP = ROOT / "cpp"

#: Folder -> the folders below it, whose headers it may include. A folder may include its own headers, too.
BELOW: dict[str, set[str]] = {
    "base": set(),
    "spec": {"base"},
    "plan": {"base", "spec"},
    "codecs": {"base", "spec"},
    "transform": {"base", "spec", "codecs"},
    "storage": {"base", "spec", "codecs"},
    "engine": {"base", "spec", "plan", "codecs", "transform", "storage"},
    "tools": {"base", "spec", "plan", "codecs", "transform", "storage", "engine"},
    "bindings": {"base", "spec", "plan", "codecs", "transform", "storage", "engine", "tools"},
    "tests": {"base", "spec", "plan", "codecs", "transform", "storage", "engine", "tools"},
    "fuzz": {"base", "spec", "plan", "codecs", "transform", "storage", "engine", "tools", "tests"},
}
#: What a header of another library looks like, and the folders that may include it.
LIBRARIES: dict[str, set[str]] = {
    r"pybind11/.*|Python\.h": {"bindings"},
    r"blosc2\.h": {"codecs", "tools", "tests", "fuzz"},
}
#: Headers of the C library and of the system; every other header in angle brackets must be one of C++ itself.
SYSTEM = re.compile(r"(c?[a-z_0-9]+)|((sys/)?[a-z]+\.h)|(linux/[a-z_]+\.h)")

FILES = sorted(p for p in CPP.rglob("*") if p.suffix in {".cc", ".h"})


def find_violations(folder: str, source: str) -> list[str]:
    """Return the #include lines of a file in cpp/<folder>/ that its layer forbids."""
    found = []
    for line, opening, name in re.findall(r"^(\s*#\s*include\s*([<\"])([^>\"]+)[>\"])", source, flags=re.MULTILINE):
        if opening == '"':
            target, *rest = name.split("/")
            allowed = target in BELOW[folder] | {folder} and rest and (CPP / name).is_file() and ".." not in rest
        else:
            users = [users for pattern, users in LIBRARIES.items() if re.fullmatch(pattern, name)]
            allowed = folder in users[0] if users else SYSTEM.fullmatch(name) is not None
        if not allowed:
            found.append(line.strip())
    return found


def test_every_folder_has_a_rule() -> None:
    assert {p.name for p in CPP.iterdir() if p.is_dir()} == set(BELOW)
    assert {p.relative_to(CPP).parts[0] for p in FILES} == set(BELOW)


def test_includes_point_downwards() -> None:
    found = {str(path): find_violations(path.relative_to(CPP).parts[0], path.read_text()) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("base", '#include "spec/array_spec.h"'),
        ("base", "#include <blosc2.h>"),
        ("base", "#include <boost/crc.hpp>"),
        ("plan", '#include "storage/file_store.h"'),
        ("storage", '#include "plan/row_order.h"'),
        ("storage", '#include "engine/engine.h"'),
        ("codecs", '#include "../base/error.h"'),
        ("codecs", '#include "blosc.h"'),
        ("engine", "#include <pybind11/pybind11.h>"),
        ("engine", "#  include <Python.h>"),
        ("engine", '#include "tools/ceiling.h"'),
        ("engine", '#include "storage/no_such_file.h"'),
        ("tools", '#include "tests/support/check.h"'),
    ],
)
def test_a_forbidden_include_is_found(folder: str, line: str) -> None:
    assert find_violations(folder, f"#pragma once\n{line}\n#include <vector>\n") == [line]


def test_a_folder_links_the_folders_below_it() -> None:
    listed = re.findall(
        r"^zarrfeed_library\((\w+)(.*?)\)$", (ROOT / "CMakeLists.txt").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    direct = {folder: set(rest.partition("BELOW")[2].split()) for folder, rest in listed}

    def reachable(folder: str) -> set[str]:
        return direct[folder].union(*(reachable(below) for below in direct[folder]))

    assert {folder: reachable(folder) for folder in direct} == {
        folder: below for folder, below in BELOW.items() if folder not in ("bindings", "tests", "fuzz")
    }


def test_an_include_that_points_upwards_does_not_compile(tmp_path: Path) -> None:
    """Compile copies of two files with the include roots that CMake gives them: as they are, and with one line more."""
    scripts = Path(sysconfig.get_path("scripts"))
    command = [str(scripts / "cmake"), "-S", str(ROOT), "-B", str(tmp_path / "build"), "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run([*command, "-DZARRFEED_BINDINGS=OFF"], check=True, capture_output=True, timeout=120)
    entries = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    (compiler,) = [e["command"] for e in entries if e["file"].endswith("/cpp/storage/shard_index.cc")]
    roots = re.findall(r"-I\S+/include/\w+", compiler)
    assert {Path(root).name for root in roots} == BELOW["storage"] | {"storage"}
    for line, works in (('#include "codecs/codec.h"', True), ('#include "engine/engine.h"', False)):
        source = tmp_path / "source.cc"
        source.write_text(f'#include "storage/shard_index.h"\n{line}\n')
        done = subprocess.run(
            [compiler.split()[0], "-std=c++20", "-fsyntax-only", *roots, str(source)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode == 0) == works, done.stderr

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

#: Folder or room -> those below it, whose headers it may include. Each may include its own headers, too.
BELOW: dict[str, set[str]] = {
    "base": set(),
    "spec": {"base"},
    "plan": {"base", "spec"},
    "codecs": {"base", "spec"},
    "transform/convert": {"base", "spec"},
    "transform/patches": {"base", "spec", "transform/convert"},
    "transform": {"base", "spec", "codecs", "transform/convert", "transform/patches"},
    "storage/access": {"base"},
    "storage/cache": {"base", "spec", "codecs", "storage/access"},
    "storage": {"base", "spec", "codecs", "storage/access", "storage/cache"},
}
BELOW["engine/chunks"] = {*BELOW["transform"], "transform", "plan", "storage/access"}
BELOW["engine"] = {*BELOW["engine/chunks"], *BELOW["storage"], "engine/chunks", "storage"}
BELOW["tools"] = {*BELOW["engine"], "engine"}
BELOW["bindings"] = BELOW["tests"] = {*BELOW["tools"], "tools"}
BELOW["fuzz"] = {*BELOW["tests"], "tests"}
#: What a header of another library looks like, and the folders that may include it.
LIBRARIES: dict[str, set[str]] = {
    r"pybind11/.*|Python\.h": {"bindings"},
    r"blosc2\.h": {"codecs", "tools", "tests", "fuzz"},
}
#: Headers of the C library and of the system; every other header in angle brackets must be one of C++ itself.
SYSTEM = re.compile(r"(c?[a-z_0-9]+)|((sys/)?[a-z]+\.h)|(linux/[a-z_]+\.h)")

FILES = sorted(p for p in CPP.rglob("*") if p.suffix in {".cc", ".h"})
NAMES = [p.relative_to(CPP).as_posix() for p in FILES]


def folder_of(name: str) -> str:
    """Return the folder or room of a file, which has a path below cpp/."""
    folder = name.rpartition("/")[0]
    return folder if folder in BELOW else folder.partition("/")[0]


def find_violations(folder: str, source: str) -> list[str]:
    """Return the #include lines of a file in cpp/<folder>/ that its layer forbids."""
    found = []
    for line, opening, name in re.findall(r"^(\s*#\s*include\s*([<\"])([^>\"]+)[>\"])", source, flags=re.MULTILINE):
        if opening == '"':
            below = folder_of(name) in BELOW[folder] | {folder}
            allowed = below and (CPP / name).is_file() and ".." not in name.split("/")
        else:
            users = [users for pattern, users in LIBRARIES.items() if re.fullmatch(pattern, name)]
            allowed = folder in users[0] if users else SYSTEM.fullmatch(name) is not None
        if not allowed:
            found.append(line.strip())
    return found


def test_every_folder_has_a_rule() -> None:
    folders = {p.relative_to(CPP).as_posix() for p in CPP.rglob("*") if p.is_dir()}
    assert {p for p in folders if not p.startswith(("tests/", "fuzz/"))} == set(BELOW)
    assert {folder_of(name) for name in NAMES} == set(BELOW)


def test_includes_point_downwards() -> None:
    found = {path: find_violations(folder_of(path), (CPP / path).read_text()) for path in NAMES}
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
        ("storage/access", '#include "storage/file_store.h"'),
        ("storage/cache", '#include "storage/stores.h"'),
        ("transform/convert", '#include "transform/patches/patch_copy.h"'),
        ("engine/chunks", '#include "storage/cache/node_cache.h"'),
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
        r"^zarrfeed_library\(([\w/]+)(.*?)\)$", (ROOT / "CMakeLists.txt").read_text(), flags=re.MULTILINE | re.DOTALL
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
    assert {Path(root).name for root in roots} == {name.replace("/", "_") for name in BELOW["storage"] | {"storage"}}
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

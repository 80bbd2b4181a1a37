"""The developers' tools: what a log of a sanitizer means, and which Python the newest releases are tried on."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT

ERROR = """=================================================================
==17==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602
    #0 0x7f in zarrfeed::BoxCopy::copy_rows cpp/transform/scatter.cc:150
"""
UNDEFINED = """cpp/storage/shard_index.cc:20:5: runtime error: shift exponent 64 is too large for 64-bit type
    #0 0x7f in zarrfeed::load_word cpp/storage/shard_index.cc:20
"""
FATAL = """==19==FATAL: AddressSanitizer: internal allocator is out of memory trying to allocate 0x8d bytes
"""
LEAKS = """=================================================================
==18==ERROR: LeakSanitizer: detected memory leaks

Direct leak of 64 byte(s) in 1 object(s) allocated from:
    #0 0x7f in malloc
    #1 0x7f in PyObject_Malloc

Direct leak of 8 byte(s) in 1 object(s) allocated from:
    #0 0x7f in operator new(unsigned long)
    #1 0x7f in zarrfeed::Engine::start cpp/engine/engine.cc:99

Direct leak of 9 byte(s) in 1 object(s) allocated from:
    #0 0x7f in operator new(unsigned long)
    #1 0x7f in zarrfeed::pybind11_init__core
    #2 0x7f in PyInit__core

SUMMARY: AddressSanitizer: 81 byte(s) leaked in 3 allocation(s).
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "dev" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_errors_count_and_leaks_only_if_the_engine_allocated_them() -> None:
    findings = load("sanitizer_report").findings
    assert findings("") == []
    (error,) = findings(ERROR)
    assert "BoxCopy::copy_rows" in error
    (error,) = findings(UNDEFINED)
    assert "shift exponent" in error
    (leak,) = findings(LEAKS)
    assert "Engine::start" in leak
    assert findings(FATAL) == [FATAL]
    assert len(findings(ERROR + LEAKS)) == 2


# --- dev/matrix.py --------------------------------------------------------------------------------------------


def test_the_rows_of_the_matrix_pin_what_the_metadata_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "dev")
    rows = load("matrix").rows()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    for name, versions in rows.items():
        for package, version in versions.items():
            assert version == "newest" or version in promised[package], name
    assert set(rows["all-oldest"]) == {"torch", "zarr", "numpy"}
    for package, version in rows["all-oldest"].items():
        assert f">={version}" in map(str, promised[package])
        assert rows[f"{package}-oldest"][package] == version


# --- dev/newest.sh --------------------------------------------------------------------------------------------


def run_newest(tmp_path: Path, *arguments: str, pyenv: str = "3.9.1") -> subprocess.CompletedProcess[str]:
    """Run where PATH has a python3.13 that does not start, as pyenv's is, and pyenv one that notes what it is asked."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("dirname", "mktemp", "chmod", "mkdir", "rm"):
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    python = tmp_path / "pyenv" / "versions" / pyenv / "bin" / "python"
    python.parent.mkdir(parents=True)
    bash = shutil.which("bash")
    assert bash is not None
    note = f'[ "$1" = -c ] || {{ echo "{pyenv} $*" >> "{tmp_path}/asked"; exit 3; }}'
    for path, body in ((commands / "python3.13", "exit 127"), (python, note)):
        path.write_text(f"#!{bash}\n{body}\n")
        path.chmod(0o755)
    environment = {"PATH": str(commands), "PYENV_ROOT": str(tmp_path / "pyenv"), "HOME": str(tmp_path)}
    return subprocess.run(
        [bash, ROOT / "dev" / "newest.sh", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment | {"TMPDIR": str(tmp_path)},
    )


def test_without_a_newer_python_the_check_is_skipped_in_plain_words(tmp_path: Path) -> None:
    done = run_newest(tmp_path, "--without-torch")
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout == ("newest.sh: neither python3.14, python3.13 nor python3.12 is on PATH or in pyenv: skipped\n")


def test_the_newest_python_that_starts_is_taken(tmp_path: Path) -> None:
    done = run_newest(tmp_path, "--without-torch", pyenv="3.13.7")
    assert done.returncode == 3
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("3.13.7 -m venv ")


def test_an_argument_that_it_does_not_have_is_refused(tmp_path: Path) -> None:
    done = run_newest(tmp_path, "--torch")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: dev/newest.sh")

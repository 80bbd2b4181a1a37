"""Tests that start scripts read what these print, also where the package rebuilds itself on import."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.editable import rebuild_quietly


def _finder(build: Path) -> Any:
    """Return scikit-build-core's finder of an install that rebuilds in a directory, and says so."""
    redirect = pytest.importorskip("scikit_build_core.resources._editable_redirect")
    wanted = inspect.signature(redirect.ScikitBuildRedirectingFinder).parameters
    given: dict[str, Any] = {
        "known_source_files": {},
        "known_wheel_files": {},
        "known_directories": {},
        "known_packages": [],
        "build_options": [],
        "install_options": [],
        "rebuild": True,
        "verbose": True,
        "path": str(build),
        "install_dir": str(build / "to"),
        "dir": str(build),
    }
    if not set(wanted) <= set(given):
        pytest.skip(f"this release of scikit-build-core also wants {', '.join(set(wanted) - set(given))}")
    return redirect.ScikitBuildRedirectingFinder(**{name: given[name] for name in wanted})


def test_a_script_that_tests_start_prints_what_cmake_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert os.environ["SKBUILD_EDITABLE_VERBOSE"] == "0", "conftest.py does not say so"
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\necho built\n")
    cmake.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    finder = _finder(tmp_path)
    monkeypatch.delenv("SKBUILD_EDITABLE_VERBOSE")
    finder.rebuild()
    assert "Running cmake" in capfd.readouterr().out
    quiet: dict[str, str] = {}
    rebuild_quietly(quiet)
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    finder.rebuild()
    assert capfd.readouterr() == ("", "")

"""`tests.support.collected`: what a server collected is imported once for all processes that are forked from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import warm
from tests.support.collected import python_of

_MODULE = """
with open("imports", "a") as file:
    file.write("x")
def test_passes(tmp_path): assert tmp_path.exists()
"""
_THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True, name='left').start()"


def _run(tmp_path: Path, monkeypatch: Any) -> tuple[list[subprocess.CompletedProcess[str]], str]:
    """Run the tests of a folder in two processes, one after the other; return them, and what their server said."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\n")
    arguments = [str(tmp_path), "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    config: Any = SimpleNamespace(invocation_params=SimpleNamespace(args=arguments))
    code = f"import os, pytest, sys; sys.exit(pytest.main({[*arguments, '-n', '0']}))"
    folder = Path(warm.new_folder())
    monkeypatch.chdir(tmp_path)  # the server's, too
    python = python_of(config, folder)
    ended = [subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=240) for _ in range(2)]
    return ended, (folder / "stderr").read_text() if folder.exists() else ""


def test_each_test_process_imports_what_was_collected_or_hides_what_cannot_be(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "test_good.py").write_text(_MODULE)
    (tmp_path / "test_bad.py").write_text("1 / 0")
    before = os.environ.get("PYTHONPATH")
    ended, said = _run(tmp_path, monkeypatch)
    for process in ended:
        assert process.returncode == 1, process.stdout
        assert "1 passed, 1 error" in process.stdout, process.stdout
        assert "ZeroDivisionError" in process.stdout, process.stdout
    assert (tmp_path / "imports").read_text() == "x", said
    assert os.environ.get("PYTHONPATH") == before


@pytest.mark.slow
def test_a_test_module_that_leaves_a_thread_or_a_file_is_not_named(tmp_path: Path, monkeypatch: Any) -> None:
    for code, said in ((_THREAD, "test_bad.py starts the threads ['left']"), ("file = open(__file__)", "test_bad.py'")):
        (tmp_path / "test_bad.py").write_text(code)
        for process in _run(tmp_path, monkeypatch)[0]:
            assert process.returncode == 1
            assert said in process.stderr, process.stderr

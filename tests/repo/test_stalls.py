"""Tests on a machine that stalls: dev/pauses.py, which stops processes, and tests that are run again after a stall."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.stalls import STALL_S, TRIES, again_after_a_stall


def _hold_the_interpreter() -> None:
    """Keep all other threads from running for longer than `STALL_S`, as a machine that is busy does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        end = time.monotonic() + 3 * STALL_S
        while time.monotonic() < end:
            pass
    finally:
        sys.setswitchinterval(before)


def test_a_test_that_failed_while_the_process_stalled_is_not_run_again(tmp_path: Path) -> None:
    folders = []

    @again_after_a_stall
    def test(tmp_path: Path) -> None:
        folders.append(tmp_path)
        if len(folders) < 3:
            time.sleep(0.05)  # the watch has begun to sleep
            _hold_the_interpreter()
            pytest.fail("late")

    test(tmp_path=tmp_path)
    assert len(set(folders)) == 3


@pytest.mark.parametrize(("stall_s", "runs"), [(1e9, 1), (0.0, TRIES)])
def test_a_test_that_fails_for_another_reason_is_run_for_ever(
    monkeypatch: pytest.MonkeyPatch, stall_s: float, runs: int
) -> None:
    """Once on a machine that does not stall, and so often on one that always does."""
    monkeypatch.setattr("tests.support.stalls.STALL_S", stall_s)
    count = 0

    @again_after_a_stall
    def test() -> None:
        nonlocal count
        count += 1
        raise AssertionError("always")

    with pytest.raises(AssertionError, match="always"):
        test()
    assert count == runs


# --- dev/pauses.py ----------------------------------------------------------------------------------------------------

_SCRIPT = """
import os, sys, threading, time

def longest_stall():
    longest = 0.0
    end = time.monotonic() + 100
    while time.monotonic() < end and longest < 0.3:
        begin = time.monotonic()
        time.sleep(0.01)
        longest = max(longest, time.monotonic() - begin)
    return longest

child = os.fork()
stall = longest_stall()
if child == 0:
    os._exit(0 if stall >= 0.3 else 1)
sys.exit(7 if os.waitpid(child, 0)[1] == 0 and stall >= 0.3 else 1)
"""


def test_pauses_stop_a_command_or_its_children_only() -> None:
    """The command ends when it and its child have been stopped, with a status that is handed on."""
    command = [sys.executable, str(ROOT / "dev" / "pauses.py"), "--seconds", "0.4", "--every", "0.05", "--seed", "3"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "pauses of 0.4 s, seed 3: exit status 7" in done.stdout

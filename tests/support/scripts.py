"""Scripts in processes of their own. One that hangs tells where, for all its threads and forked children."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support import warm
from tests.support.paths import ROOT

#: zarr-python says this at exit if the thread of its event loop does not run within 0.2 s.
_OF_ZARR = re.compile(
    r"Thread did not finish cleanly; forcefully closing the event loop\.\n"
    r"|Exception ignored in atexit callback: <function cleanup_resources.*\n(.*\n)*?RuntimeError: Cannot close a r.*\n"
)


def without_words_of_zarr(err: str) -> str:
    """Return what a process wrote to stderr without zarr-python's complaint of a machine that is busy at its exit."""
    return _OF_ZARR.sub("", err)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that has to succeed, and return what it prints."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def run_script(body: str, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run `python -c body arguments` in a warm process; `body` may be indented.

    Raises
    ------
    AssertionError
        After `timeout` seconds, with the stacks of all its processes.
    """
    return _run_script(warm.command(), body, arguments, timeout)


def run_new_script(body: str, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Do what `run_script` does, in a new interpreter; `tests.support.warm` says which tests need one."""
    return _run_script([sys.executable], body, arguments, timeout)


def _run_script(
    python: list[str], body: str, arguments: tuple[str, ...], timeout: float
) -> subprocess.CompletedProcess[str]:
    command = [*python, "-X", "faulthandler", "-c", textwrap.dedent(body), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # for which faulthandler prints stacks
            out, err = process.communicate()
            raise AssertionError(f"hangs after {timeout} s:\n{out}\n{err}") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, without_words_of_zarr(err))

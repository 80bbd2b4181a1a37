"""Scripts in processes of their own. One that hangs tells where, for all its threads and forked children."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.support.paths import ROOT


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that has to succeed, and return what it prints."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def run_script(body: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run `python -c body arguments`; `body` may be indented.

    Raises
    ------
    AssertionError
        After `timeout` seconds, with the stacks of all its processes.
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(body), *arguments]
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
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_forked_script(body: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Do what `run_script` does, in an interpreter that has imported torch and zarrfeed already and has no threads.

    The interpreter is forked, which saves the seconds of its start. It ends as any other does. For what depends on the
    order of imports, or of what is registered to be done at exit, there is `run_script`.
    """
    with tempfile.TemporaryDirectory(prefix="script-") as directory:
        out, err = Path(directory) / "out", Path(directory) / "err"
        request: dict[str, object] = {
            "body": textwrap.dedent(body),
            "arguments": arguments,
            "out": str(out),
            "err": str(err),
        }
        status = _server().run(request, timeout)
        said = out.read_text(), err.read_text()
    if status is None:
        raise AssertionError(f"hangs after {timeout} s:\n" + "\n".join(said))
    return subprocess.CompletedProcess(["-c", body, *arguments], status, *said)


class _Server:
    """The process of script_server.py, which serves one script at a time; it ends with this one."""

    def __init__(self) -> None:
        # Threads of BLAS would not be in the forked processes, and there are to be none.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.script_server"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        self._owner = os.getpid()
        atexit.register(self._close)

    def run(self, request: dict[str, object], timeout: float) -> int | None:
        """Return the exit status of a script; None if it was killed as it hangs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        script = int(self._answer())
        hangs = False
        try:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                hangs = True
                os.killpg(script, signal.SIGABRT)  # for which faulthandler prints stacks
        except BaseException:
            os.killpg(script, signal.SIGKILL)
            raise
        finally:
            status = int(self._answer())
        return None if hangs else status

    def _close(self) -> None:
        if os.getpid() == self._owner:  # not one that was forked from it
            with self._process:  # ends as its input does
                pass

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server of scripts ended with status {self._process.wait()}")
        return line


@functools.cache
def _server() -> _Server:
    return _Server()

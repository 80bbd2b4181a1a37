"""Scripts in processes of their own. One that hangs tells where, for all its threads and forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap


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

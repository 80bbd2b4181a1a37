"""A pytest plugin that writes the start, the failure and the end of each test into the file MUTANT_LOG at once.

So dev/mutate.py knows which test ran in a process that it had to kill. Times are of a clock that stands still while the
process waits for a processor, so that tests get as far on a busy machine as on a quiet one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest


def clock_s(process: int) -> float:
    """Return the time in seconds, less the time for which the main thread of a process waited for a processor."""
    try:
        with open(f"/proc/{process}/schedstat") as file:  # noqa: PTH123 - tests may replace what pathlib uses
            waited_ns = int(file.read().split()[1])
    except (OSError, IndexError):  # the process has ended, or the kernel does not count
        waited_ns = 0
    return time.monotonic() - waited_ns / 1e9


def note(event: str, test: str) -> None:
    """Write one line."""
    with open(os.environ["MUTANT_LOG"], "a") as file:  # noqa: PTH123 - tests may replace what pathlib uses
        file.write(json.dumps([event, test, clock_s(os.getpid())]) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        note("failed", report.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the test that begins."""
    note("began", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure, and the end of a test."""
    if report.failed:
        note("failed", report.nodeid)
    if report.when == "teardown":
        note("ended", report.nodeid)


def pytest_sessionfinish() -> None:
    """Note a package that was imported from another folder than MUTANT_PACKAGES."""
    folder = os.environ["MUTANT_PACKAGES"]
    for package in Path(folder).iterdir():
        file = getattr(sys.modules.get(package.name), "__file__", None)
        if file and not file.startswith(folder + os.sep):
            note("elsewhere", file)

"""A pytest plugin that notes each test in a file as soon as it begins and ends, so that a crash loses nothing.

python -m pytest -p tests.gpu.recorder --records FILE ...; dev/gpu_parts.py reads the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_MOST_OF_ERROR = 8000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--records", type=Path, required=True, help="the file to which a line is added for each step")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("--records")), "records")


class Recorder:
    """Adds lines of JSON to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _add(self, **record: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add(test=nodeid, outcome="cut off")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = (
                report.outcome if report.when == "call" or report.skipped else f"{report.outcome} in {report.when}"
            )
            record: dict[str, Any] = {"test": report.nodeid, "outcome": outcome, "seconds": report.duration}
            if report.skipped:
                reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                record["error"] = reason.removeprefix("Skipped: ")
            elif report.failed:
                record["error"] = report.longreprtext[-_MOST_OF_ERROR:]
            self._add(**record, measured=dict(report.user_properties))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(test=report.nodeid, outcome="failed to collect", error=str(report.longrepr)[-_MOST_OF_ERROR:])

"""A process that has collected all tests: test processes are forked from it, and find their modules imported.

To collect takes ten seconds of CPU, nearly all of them for imports. `python_of` starts a server of warm processes, see
`tests.support.warm`, which imports this module, and collects by that; a test process then collects in a second. A
test module must leave neither a thread nor an open file behind when it is imported: the server ends with an error that
names it, and so does the run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.paths import ROOT

#: Variable of the server: the arguments of pytest.
_ARGUMENTS = "COLLECTED_BY_ARGUMENTS"
#: The memory allocator of pyarrow starts a thread unless a variable says otherwise.
_NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def python_of(config: pytest.Config, folder: Path) -> Path:
    """Start to collect the tests that a run of pytest asks for; return a Python whose processes have done so."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    arguments = json.dumps(config.invocation_params.args)
    variables = os.environ | _NO_THREADS | {"PYTHONPATH": path, _ARGUMENTS: arguments}
    return warm.Server((__name__,), variables, folder).executable


class _Modules:
    """Watches what test modules leave behind that a process which is forked cannot have.

    It removes those that cannot be imported: pytest leaves them in sys.modules, where they seem imported.
    """

    def __init__(self) -> None:
        self.threads = len(threading.enumerate())
        self.offenders: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        threads = [thread.name for thread in threading.enumerate()][self.threads :]
        if threads:
            self.threads += len(threads)
            self.offenders.append(f"{report.nodeid} starts the threads {threads} as it is imported")
        if report.failed:
            path = str(Path.cwd() / report.nodeid.partition("::")[0])
            for name in [
                name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == path
            ]:
                del sys.modules[name]


def _collect(arguments: list[str]) -> None:
    """Collect, and say nothing: each test process collects once more, and says which modules cannot be imported."""
    modules = _Modules()
    pytest.main([*arguments, "--collect-only", "--numprocesses=0", "-qq"], plugins=[modules])
    if modules.offenders:
        raise RuntimeError(f"test processes are forked, without threads: {modules.offenders}; use a fixture")


if _ARGUMENTS.encode() in os.environb:  # bytes, as the server takes names that are looked up for settings of modules
    _collect(json.loads(os.environb[_ARGUMENTS.encode()]))

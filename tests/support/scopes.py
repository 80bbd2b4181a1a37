"""Tests that run in one process, one after the other: those of a file, and of files that share a large library.

A test process that first uses Lightning imports it, which takes 2 CPU seconds, and each process that it forks maps the
190 MB.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

#: Files whose tests use Lightning in the test process itself.
LIGHTNING = {
    "integration/test_key_names.py",
    "integration/test_lightning.py",
    "integration/test_lightning_checkpoints.py",
    "integration/test_lightning_states.py",
    "integration/test_secrets.py",
}


def scope_of(nodeid: str) -> str:
    """Return a name that tests of one process share.

    >>> scope_of("tests/unit/test_a.py::test_b[1]"), scope_of("tests/integration/test_secrets.py::test_c")
    ('tests/unit/test_a.py', 'lightning')
    """
    file = nodeid.partition("::")[0]
    return "lightning" if file.removeprefix("tests/") in LIGHTNING else file


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Hand out whole scopes, in the order in which their first tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scheduler(config: Any, log: Any) -> Scheduling | None:
    """Return the scheduler of a run with `--dist=loadfile`, and None for another."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None

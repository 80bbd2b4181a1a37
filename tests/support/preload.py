"""The modules that a forkserver of the tests imports, so that each process that it forks starts with them imported.

A process of "spawn" imports them anew, which takes 2 CPU seconds and more. A Process and a DataLoader pickle the same
objects for both methods. So tests use "forkserver" where an object has to be pickled, and "spawn" where a test is about
a process that starts with nothing. The workers of `tests.support.ranks` start by "spawn" from a warm interpreter.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

#: The last one freezes what the others made. pytest and hypothesis are what the import of a test module would import.
MODULES = (
    "pytest",
    "hypothesis",
    "torch",
    "zarr",
    "zarrfeed.torch.datasets.iterable_dataset",
    "zarrfeed.torch.datasets.loader",
    "zarrfeed.torch.datasets.map_dataset",
    "zarrfeed.tools.bench.store_bench",
    "tests.support.frozen",
)


def preload_forkserver(*others: str) -> None:
    """Tell the forkserver of this process, which starts with the first process that is asked of it, what to import."""
    multiprocessing.set_forkserver_preload([*others, *MODULES])


def start_forkserver(python: str, *others: str) -> None:
    """Start the forkserver of this process at once, by a command of `tests.support.warm`, for which it takes no time.

    For a process that is a child of tests itself: each has a forkserver of its own.
    """
    preload_forkserver(*others)
    own = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(python)
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing.set_executable(os.fsdecode(own))


def start_forkserver_when_needed(python: Callable[[], str]) -> None:
    """Do so once a process is asked of the forkserver; `python` returns the command, whose server starts then, too."""
    preload_forkserver()
    server: Any = forkserver._forkserver

    def start() -> None:
        del server.ensure_running  # the method of the class is what is found then
        start_forkserver(python())

    server.ensure_running = start


def preloaded_by() -> int | None:
    """Return the forkserver that imported `MODULES` for this process; None if it imports them itself."""
    frozen = sys.modules.get("tests.support.frozen")
    return frozen.PROCESS if frozen else None

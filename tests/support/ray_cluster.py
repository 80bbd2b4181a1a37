"""A small Ray cluster, on loopback alone.

It takes seconds to start, so all tests that need one are in one file, test_ray.py, which one test process runs.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.proc import all_living, living

#: Otherwise Ray writes one to the home directory. One for a process: Ray keeps the first one that it was given, and
#: cannot reach a second cluster that has another.
_TOKEN = secrets.token_hex(32)

#: Ray Train gives its workers 60 s to start, of which each imports torch, and begins anew until that is enough: on a
#: busy machine for minutes. Its watcher of nodes that a cloud takes away is a process more for each start.
_TRAIN = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


@contextmanager
def ray_cluster(cores: int, environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Start a cluster of some cores, and yield the module `ray`; its workers get the variables.

    Ray's handlers of signals are taken away at the end.
    """
    ray: Any = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        # Ray sets the last one in this process, and processes of other tests would start with Ray's debugger.
        private = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": _TOKEN, "PYTHONBREAKPOINT": ""}
        for name, value in {**private, **_TRAIN, **(environment or {})}.items():
            patch.setenv(name, value)
        handler = signal.getsignal(signal.SIGINT)
        ray.init(
            num_cpus=cores,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.2",  # for 127.0.0.1, Ray listens on all interfaces
        )
        try:
            yield ray
        finally:
            ray.shutdown()
            signal.signal(signal.SIGINT, handler)  # Ray Train leaves its own, which starts a cluster when it is called


def processes_with_a_task(function: str) -> list[int]:
    """Return the processes of this process's cluster that run a task of a function; so they call themselves."""
    workers = [process for process in all_living() if process.command() == f"ray::{function}"]
    # The parent of a worker is the raylet, which `ray.init` started.
    return [worker.number for worker in workers if (raylet := living(worker.parent)) and raylet.parent == os.getpid()]

"""A Ray cluster of two cores, on loopback alone, for the tests of one module."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

#: Otherwise Ray writes one to the home directory. One for a process: Ray keeps the first one that it was given, and
#: cannot reach a second cluster that has another.
_TOKEN = secrets.token_hex(32)


@contextmanager
def ray_cluster(environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Start a cluster, and yield the module `ray`; its workers get the variables.

    Ray's handlers of signals are taken away at the end.
    """
    ray: Any = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": _TOKEN, **(environment or {})}.items():
            patch.setenv(name, value)
        handler = signal.getsignal(signal.SIGINT)
        ray.init(
            num_cpus=2,
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

"""A TCP proxy on 127.0.0.1 that delays what clients send, and caps the rate of what they receive; in its own process.

Each request waits for the latency before the server gets it, and so does each new connection before its first byte is
read: the round trips that a far server costs. A share of the requests can wait for longer. The cap is shared by all
connections. The relay is slow_proxy.c, compiled when it is needed: it moves answers without copying them, so that it
takes little of the processor that client and server need.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.harness.compile import compiled

_SOURCE = Path(__file__).with_name("slow_proxy.c")
_START_TIMEOUT_S = 10


class NoProxyError(Exception):
    """The proxy does not start."""


@dataclass(frozen=True)
class Slowness:
    """How a server is slowed down.

    Attributes
    ----------
    latency_ms
        Milliseconds that each request waits.
    cap_mb_s
        10**6 bytes a second that pass; None: no cap.
    slow_share, slow_s
        Of 0.01, every 100th request waits for so many seconds more.
    always
        Whether there is a proxy where it would slow nothing down: to measure what the proxy itself costs.
    """

    latency_ms: float = 0.0
    cap_mb_s: float | None = None
    slow_share: float = 0.0
    slow_s: float = 2.0
    always: bool = False

    def __str__(self) -> str:
        parts = [f"{self.latency_ms:g} ms added to each request"] if self.latency_ms else []
        parts += [f"capped to {self.cap_mb_s:g} MB/s"] if self.cap_mb_s is not None else []
        parts += [f"{100 * self.slow_share:g} % of the requests take {self.slow_s:g} s more"] if self.slow_share else []
        return ", ".join(parts) or ("through the proxy" if self.always else "not slowed")

    @property
    def needs_proxy(self) -> bool:
        """Whether there is anything to do for a proxy."""
        return bool(self.latency_ms or self.cap_mb_s is not None or self.slow_share or self.always)


class Slowed(NamedTuple):
    """Where a server is reached: the URL, and the process of the proxy, if there is one."""

    url: str
    pid: int | None


@contextmanager
def slowed(url: str, how: Slowness) -> Iterator[Slowed]:
    """Start a proxy for a server, and end it with the block; start none where it would slow nothing down.

    Raises
    ------
    NoCompilerError
        If the proxy cannot be compiled.
    NoProxyError
        If it does not start.
    """
    if not how.needs_proxy:
        yield Slowed(url, None)
        return
    host, _, port = urlsplit(url).netloc.rpartition(":")
    settings = (how.latency_ms / 1000, 1e6 * (how.cap_mb_s or 0.0), how.slow_share, how.slow_s)
    command = [str(compiled(_SOURCE)), host, port, *map(str, settings)]
    # a parent that is killed cannot stop the proxy, but its end of the pipe to stdin closes
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
            line = process.stdout.readline().strip() if ready else ""
            if not line:
                raise NoProxyError(f"the proxy for {url} does not start: exit status {process.poll()}")
            yield Slowed(f"http://127.0.0.1:{line}", process.pid)
        finally:
            process.kill()

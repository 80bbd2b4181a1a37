"""A TCP proxy on 127.0.0.1 that delays what clients send, and caps the rate of what they receive; in its own process.

Each request waits for the latency before the server gets it, and so does each new connection before its first byte is
read: the round trips that a far server costs. The cap is shared by all connections. Latencies are exact to about a
millisecond; without a cap, one core relays about 1 GB/s.

python -m benchmarks.harness.slow_proxy 127.0.0.1:8080 --latency-ms 20 --cap-mb-s 200
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_PIECE_BYTES = 256 << 10
#: Of a cap, connections may send so much ahead: sleeps are no shorter than about a millisecond.
_BURST_S = 0.005
_START_TIMEOUT_S = 10
_ROOT = Path(__file__).parents[2]


class Slowed(NamedTuple):
    """Where a server is reached: the URL, and the process of the proxy, if there is one."""

    url: str
    pid: int | None


class Cap:
    """A rate that many senders share; None: as fast as it goes."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, num_bytes: int) -> None:
        """Wait until so many bytes may be sent."""
        if self._bytes_per_s is None:
            return
        now = time.monotonic()
        self._free_at = max(now - _BURST_S, self._free_at) + num_bytes / self._bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


async def run(listener: socket.socket, server: tuple[str, int], latency_s: float, cap: Cap) -> None:
    """Relay all connections to a listener, until cancelled."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while True:
            client, _ = await loop.sock_accept(listener)
            group.create_task(_relay(client, server, latency_s, cap))


async def _relay(client: socket.socket, server: tuple[str, int], latency_s: float, cap: Cap) -> None:
    loop = asyncio.get_running_loop()
    with client, socket.socket() as upstream, contextlib.suppress(OSError):
        for end in (client, upstream):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.sleep(latency_s)
        await loop.sock_connect(upstream, server)
        ways = [
            asyncio.create_task(_pump(client, upstream, latency_s, Cap(None))),
            asyncio.create_task(_pump(upstream, client, 0.0, cap)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pump(source: socket.socket, sink: socket.socket, delay_s: float, cap: Cap) -> None:
    """Copy bytes until the source ends. HTTP/1.1 has one request at a time, so each delay is that of one request."""
    loop = asyncio.get_running_loop()
    piece = memoryview(bytearray(_PIECE_BYTES))
    while num_bytes := await loop.sock_recv_into(source, piece):
        if delay_s:
            await asyncio.sleep(delay_s)
        await cap.take(num_bytes)
        await loop.sock_sendall(sink, piece[:num_bytes])


@contextmanager
def slowed(url: str, *, latency_ms: float, cap_mb_s: float | None) -> Iterator[Slowed]:
    """Start a proxy for a server, and end it with the block; start none where there is no latency and no cap."""
    if not latency_ms and cap_mb_s is None:
        yield Slowed(url, None)
        return
    command = [sys.executable, "-m", __name__, urlsplit(url).netloc, "--latency-ms", str(latency_ms)]
    command += [] if cap_mb_s is None else ["--cap-mb-s", str(cap_mb_s)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=_ROOT, **pipes) as process:
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
            port = process.stdout.readline().strip() if ready else ""
            if not port:
                raise RuntimeError(f"the proxy for {url} does not start: exit status {process.poll()}")
            yield Slowed(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.kill()


async def _run_until_stdin_ends(listener: socket.socket, server: tuple[str, int], latency_s: float, cap: Cap) -> None:
    relays = asyncio.create_task(run(listener, server, latency_s, cap))
    # a parent that is killed cannot stop the proxy, but its end of the pipe closes
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((relays, ended), return_when=asyncio.FIRST_COMPLETED)
    relays.cancel()
    await asyncio.gather(relays, return_exceptions=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the port, and relay until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.slow_proxy")
    parser.add_argument("server", help="host:port")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--cap-mb-s", type=float)
    options = parser.parse_args(arguments)
    host, _, port = options.server.rpartition(":")
    cap = Cap(None if options.cap_mb_s is None else options.cap_mb_s * 1e6)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        asyncio.run(_run_until_stdin_ends(listener, (host, int(port)), options.latency_ms / 1000, cap))


if __name__ == "__main__":
    main()

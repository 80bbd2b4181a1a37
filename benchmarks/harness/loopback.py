"""A web server on 127.0.0.1 that ends with its block: for benchmarks and tests."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

_TIMEOUT_S = 60.0
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def asked_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return begin and end of the bytes that a Range header asks for of an object; None if it asks for all.

    The header names [a, b], all from a on, or the last ones. A range that begins at the end or later comes as it is.
    """
    found = _RANGE.fullmatch(header or "")
    if found is None:
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2]) + 1) if found[2] else size


class LoopbackServer(http.server.ThreadingHTTPServer):
    """Answers on a thread of its own, with a thread for each connection; a context manager.

    Clients keep their connections open. At the end they are closed, so that no thread waits for a next request: a
    process that has a thousand such threads forks and exits slowly.

    Parameters
    ----------
    handler
        Makes the handler of a connection, as `http.server` has it.
    port
        0: any that is free.
    """

    daemon_threads = True
    request_queue_size = 256  # with 5, clients that connect at once have to try again

    def __init__(self, handler: Callable[..., socketserver.BaseRequestHandler], port: int = 0) -> None:
        self._connections: set[socket.socket] = set()
        self._connecting = threading.Lock()
        super().__init__(("127.0.0.1", port), handler)
        self._serving = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._serving.join(_TIMEOUT_S)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a body waits 40 ms behind its headers
        with self._connecting:
            self._connections.add(connection)
        return connection, address

    def close_request(self, request: Any) -> None:
        self.take(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say on stderr what a handler raised, but not that a client left before its answer: tests make clients do so.

        The answer is written on a thread, so what is said about it lands in the output of whichever test runs then.
        """
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for connection in self.take():
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)

    def take(self, connection: socket.socket | None = None) -> list[socket.socket]:
        """Take a connection, or all of them, from those that are closed at the end; return those that were there."""
        with self._connecting:
            taken = self._connections & {connection} if connection else set(self._connections)
            self._connections -= taken
        return list(taken)

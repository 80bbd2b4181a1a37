"""A web server of a directory that answers some requests in a wrong way: refusals, resets, bodies that are cut.

It speaks HTTP/1.1 with connections that stay open, ranges and HEAD, and words its errors as S3 does. A `Fault` says
what is wrong with an answer; which request gets it is decided by counting, so a test gets the same each time. A server
can die and come back at the same port, which stays reserved meanwhile: connections to it are refused.
"""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.harness.loopback import LoopbackServer, asked_range

TIMEOUT_S = 60.0


@dataclass
class Reply:
    """An answer: status, headers without Content-Length, and body. `length` is what the header says."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


class Exchange(http.server.BaseHTTPRequestHandler):
    """One connection; its `server` is a `_Listener`."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        self.server.owner.answer(self)

    def do_HEAD(self) -> None:
        self.server.owner.answer(self)

    def send(self, reply: Reply, share: float = 1.0) -> None:
        """Send the headers of an answer, and this share of its body."""
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: int(share * len(reply.body))])
            self.wfile.flush()

    def leave(self, *, reset: bool = False) -> None:
        """End the connection: in the usual way, or by a reset."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.server.reset(self.connection)

    def log_message(self, *_: Any) -> None:
        pass


class _Listener(LoopbackServer):
    allow_reuse_port = True

    def __init__(self, port: int, owner: FaultServer) -> None:
        self.owner = owner
        super().__init__(Exchange, port)

    def shutdown_request(self, request: Any) -> None:
        if self.take(request):  # it was not reset, which a polite end would undo
            super().shutdown_request(request)

    def reset(self, connection: socket.socket) -> None:
        """Close a connection with a reset: `SO_LINGER` is set, and nothing may shut it down in a polite way before."""
        self.take(connection)
        connection.close()

    def server_close(self) -> None:
        """Reset every connection, whatever is under way on it."""
        for connection in self.take():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(socket.SHUT_RD)  # wakes the thread that reads
            connection.close()
        super().server_close()

    def handle_error(self, *_: Any) -> None:
        pass


#: Sends something in place of the right answer.
Act = Callable[[Exchange, Reply], None]


@dataclass
class Fault:
    """What is done to answers to GETs of some paths.

    Attributes
    ----------
    act
        Sends the answer.
    paths
        Of requests, as they stand in the URL behind the port; None: all.
    times
        How many answers it is done to; -1: to all.
    skip
        How many such requests are answered in the right way before.
    acted
        How many it was done to.
    """

    act: Act
    paths: Collection[str] | None = None
    times: int = -1
    skip: int = 0
    acted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, path: str) -> bool:
        """Return whether the answer to this request is one of those, and count it."""
        with self._lock:
            if (self.paths is not None and path not in self.paths) or self.acted == self.times:
                return False
            if self.skip > 0:
                self.skip -= 1
                return False
            self.acted += 1
            return True


class FaultServer:
    """Serves a directory on a free port of 127.0.0.1, until `close`.

    Parameters
    ----------
    root
        Directory; `url` + "/a/b" is its file a/b.
    authorization
        What requests must have in that header, at its beginning, else they get 403.

    Attributes
    ----------
    url
        Without a slash at the end.
    fault
        What is done wrong now; None: nothing.
    requests
        Method and path of each request, and the status that was right for it.
    """

    def __init__(self, root: Path, authorization: str = "") -> None:
        self.root = root
        self.authorization = authorization
        self.fault: Fault | None = None
        self.requests: list[tuple[str, str, int]] = []
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._listener: _Listener | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Accept connections, at first and after `die`."""
        self._listener = _Listener(self._port, self)
        self._listener.__enter__()

    def die(self) -> None:
        """Accept no connections any more, and reset those that there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.__exit__()

    def close(self) -> None:
        """Stop for good."""
        self.die()
        self._reserved.close()

    def gets(self, path: str) -> int:
        """Return how many GETs of a path there were."""
        return sum((method, asked) == ("GET", path) for method, asked, _ in self.requests)

    def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        path = urllib.parse.urlsplit(exchange.path).path
        reply = self._reply(path, exchange.headers.get("Range"), exchange.headers.get("Authorization", ""))
        self.requests.append((exchange.command, path, reply.status))
        fault = self.fault
        if fault is not None and exchange.command == "GET" and fault.takes(path):
            fault.act(exchange, reply)
        else:
            exchange.send(reply)

    def _reply(self, path: str, asked: str | None, authorization: str) -> Reply:
        if not authorization.startswith(self.authorization):
            return refusal(403, "AccessDenied")
        file = self.root / urllib.parse.unquote(path).strip("/")
        if not file.is_file():
            return refusal(404, "NoSuchKey")
        data = file.read_bytes()
        headers = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": f'"{len(data)}"', "Accept-Ranges": "bytes"}
        part = asked_range(asked, len(data))
        if part is None:
            return Reply(200, data, headers)
        first, end = part
        if first >= end:
            return out_of_range(len(data))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        return Reply(206, data[first:end], headers)


def refusal(status: int, code: str, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an answer with an error, as S3 puts it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>no</Message></Error>'
    return Reply(status, body.encode(), {"Content-Type": "application/xml", **(headers or {})})


def out_of_range(size: int) -> Reply:
    """Return what servers answer if a range begins behind the end of an object."""
    return refusal(416, "InvalidRange", {"Content-Range": f"bytes */{size}"})


# --- what can be done to an answer ------------------------------------------------------------------------------


def refuses(status: int, code: str, headers: Mapping[str, str] | None = None) -> Act:
    """Answer with an error."""
    return lambda exchange, _: exchange.send(refusal(status, code, headers))


def drops(*, reset: bool) -> Act:
    """End the connection without an answer."""
    return lambda exchange, _: exchange.leave(reset=reset)


def cuts(share: float, *, reset: bool) -> Act:
    """Promise the whole body, send a part of it, and end the connection."""

    def act(exchange: Exchange, reply: Reply) -> None:
        reply.length = len(reply.body)
        exchange.send(reply, min(share, 1 - 0.5 / max(1, len(reply.body))))  # a byte is missing at least
        if reset:
            time.sleep(0.01)  # a reset overtakes what was sent: most of the time, the client has it by now
        exchange.leave(reset=reset)

    return act


def declares(length: Callable[[int], int], *, stays: bool = False) -> Act:
    """Send the whole body with another Content-Length; then end the connection, or wait for the next request on it."""

    def act(exchange: Exchange, reply: Reply) -> None:
        reply.length = length(len(reply.body))
        exchange.send(reply)
        if not stays:
            exchange.leave()

    return act


def cuts_object(length: Callable[[int], int]) -> Act:
    """Send a body that is too short or too long, with a Content-Length that fits it."""

    def act(exchange: Exchange, reply: Reply) -> None:
        wanted = length(len(reply.body))
        reply.body = (reply.body + b"\0" * wanted)[:wanted]
        exchange.send(reply)

    return act


def sends(body: bytes) -> Act:
    """Answer 200 with another body."""
    return lambda exchange, _: exchange.send(Reply(200, body, {"Content-Type": "text/html"}))


def stalls(release: threading.Event, *, after_headers: bool) -> Act:
    """Send nothing, or the headers alone, until an event is set."""

    def act(exchange: Exchange, reply: Reply) -> None:
        if after_headers:
            exchange.send(reply, 0.0)
        release.wait(TIMEOUT_S)
        exchange.leave()

    return act

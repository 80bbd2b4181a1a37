"""An object store in memory, on 127.0.0.1, as fast as a small server can be: for benchmarks and for tests of faults.

It speaks what obstore's clients of S3, Google and Azure need: PUT, GET with ranges and If-Match, HEAD, DELETE, listings
of S3, and multipart uploads (of Azure: blocks). An object appears when its upload completes. It checks no signature. A
`fault` decides, for each request, what goes wrong with it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import itertools
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeAlias
from xml.sax.saxutils import escape, unescape

import numpy as np
import numpy.typing as npt

from benchmarks.harness.loopback import LoopbackServer, asked_range

Bytes: TypeAlias = npt.NDArray[np.uint8]

BUCKET = "bucket"
_BLOCK = re.compile(r"<(?:Latest|Uncommitted|Committed)>([^<]+)</")
_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")
#: Listings have so many keys a page.
_PAGE = 1000


@dataclass(frozen=True)
class Stored:
    """An object: its bytes in pieces, as they were uploaded."""

    pieces: tuple[Bytes, ...]
    etag: str

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def slices(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes [begin, end)."""
        for piece in self.pieces:
            if begin < len(piece) and end > 0:
                yield piece[max(0, begin) : end].data
            begin, end = begin - len(piece), end - len(piece)

    def content(self) -> bytes:
        return b"".join(piece.tobytes() for piece in self.pieces)


@dataclass(frozen=True)
class Request:
    """What a fault is decided by.

    Attributes
    ----------
    kind
        "put", "part", "create", "complete", "abort", "get", "head", "list", "copy", "delete" or "delete_all".
    key
        Without the bucket.
    number
        How many requests of this kind came before.
    """

    kind: str
    key: str
    number: int


@dataclass(frozen=True)
class Act:
    """What goes wrong with a request.

    Attributes
    ----------
    what
        "status": answer `value`, and do nothing. "reset": end the connection after `share` of the body, of the request
        or of the answer. "forget": do what is asked, and end the connection instead of answering. "flip": change a byte
        at `share` of the body, of what is stored or answered. "cut": store `share` of the body, or answer with it, and
        say nothing of it. "stall": wait for `value` seconds first.
    """

    what: str
    value: float = 0
    share: float = 0.5


class _LeftError(Exception):
    """The connection was ended."""


@dataclass
class _Asked:
    exchange: _Exchange
    key: str
    query: dict[str, str]
    act: Act | None


class _Exchange(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer without a body is one packet
    server: _Listener

    def _go(self) -> None:
        try:
            self.server.owner.answer(self)
        except (_LeftError, ConnectionError):
            self.close_connection = True

    do_GET = _go  # noqa: N815 (names of the base class)
    do_HEAD = _go  # noqa: N815
    do_PUT = _go  # noqa: N815
    do_POST = _go  # noqa: N815
    do_DELETE = _go  # noqa: N815

    def body(self, share: float = 1.0) -> Bytes:
        """Return the body of the request, or a share of it."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise NotImplementedError("chunked bodies")
        # NumPy asks for huge pages, which saves the server half of its time.
        content = np.empty(int(share * int(self.headers.get("Content-Length") or 0)), np.uint8)
        if len(content) and self.rfile.readinto(content.data) != len(content):
            raise _LeftError
        return content

    def send(
        self,
        status: int,
        body: Iterator[memoryview] | bytes = b"",
        size: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send an answer; of HEAD without its body."""
        pieces = [memoryview(body)] if isinstance(body, bytes) else body
        size = len(body) if isinstance(body, bytes) and size is None else size
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.flush()
            for piece in pieces:
                self.connection.sendall(piece)

    def handle_expect_100(self) -> bool:
        """Say at once that the body may come."""
        is_wanted = super().handle_expect_100()
        self.wfile.flush()
        return is_wanted

    def leave(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        raise _LeftError

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass


class _Listener(LoopbackServer):
    def __init__(self, owner: ObjectServer) -> None:
        self.owner = owner
        super().__init__(_Exchange)

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # without a shutdown, so that a reset is one

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | _LeftError):
            super().handle_error(request, client_address)


@dataclass
class ObjectServer:
    """The server; a context manager. `objects` may be read and changed at any time.

    Attributes
    ----------
    fault
        Called with each request, on the server's threads; None: nothing goes wrong.
    delay_s
        Each request waits for so long first.
    """

    fault: Callable[[Request], Act | None] | None = None
    delay_s: float = 0.0
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[str, Bytes]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    hits: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._listener = _Listener(self)
        self.port = self._listener.server_port

    def __enter__(self) -> ObjectServer:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    def options(self, scheme: str = "s3") -> dict[str, Any]:
        """Return `storage_options` of the bucket."""
        return options(self.port, scheme)

    def keys(self) -> list[str]:
        """Return the keys of all objects, sorted."""
        with self._lock:
            return sorted(self.objects)

    def answer(self, exchange: _Exchange) -> None:
        """Answer a request."""
        parts = urllib.parse.urlsplit(exchange.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query, keep_blank_values=True).items()}
        key = urllib.parse.unquote(parts.path).lstrip("/").removeprefix("account/").removeprefix(BUCKET).lstrip("/")
        kind = _kind(exchange.command, key, query, is_copy="x-amz-copy-source" in exchange.headers)
        with self._lock:
            request = Request(kind, key, sum(other.kind == kind for other in self.requests))
            self.requests.append(request)
        if self.delay_s:
            time.sleep(self.delay_s)
        act = self.fault(request) if self.fault is not None else None
        if act is not None:
            with self._lock:
                self.hits += 1
            if act.what == "stall":
                time.sleep(act.value)
            if act.what == "status":
                exchange.body()
                exchange.send(int(act.value), b"<Error><Code>Injected</Code></Error>")
                return
            if act.what == "reset" and kind != "get":
                exchange.body(act.share)
                exchange.leave()
        getattr(self, f"_{kind}")(_Asked(exchange, key, query, act))

    def _save(self, exchange: _Exchange, act: Act | None) -> Bytes:
        content = exchange.body()
        if act is not None and act.what == "flip" and len(content):
            content[min(len(content) - 1, int(act.share * len(content)))] ^= 1 << self.hits % 8
        if act is not None and act.what == "cut":
            content = content[: int(act.share * len(content))]
        return content

    def _saved(self, exchange: _Exchange, act: Act | None, status: int, body: bytes = b"", etag: str = "") -> None:
        if act is not None and act.what == "forget":
            exchange.leave()
        exchange.send(status, body, headers=_headers(etag))

    def _put(self, asked: _Asked) -> None:
        exchange, key, act = asked.exchange, asked.key, asked.act
        content = self._save(exchange, act)
        etag = self._store(key, (content,))
        self._saved(exchange, act, 201 if exchange.headers.get("x-ms-blob-type") else 200, etag=etag)

    def _store(self, key: str, pieces: tuple[Bytes, ...]) -> str:
        with self._lock:
            etag = f'"{next(self._numbers):032x}"'
            self.objects[key] = Stored(pieces, etag)
        return etag

    def _create(self, asked: _Asked) -> None:
        exchange, key, act = asked.exchange, asked.key, asked.act
        exchange.body()
        with self._lock:
            name = f"upload-{next(self._numbers)}"
            self.uploads[name] = {}
        text = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
        self._saved(
            exchange, act, 200, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
        )

    def _part(self, asked: _Asked) -> None:
        exchange, key, query, act = asked.exchange, asked.key, asked.query, asked.act
        content = self._save(exchange, act)
        name, number = (query["uploadId"], query["partNumber"]) if "uploadId" in query else (key, query["blockid"])
        with self._lock:
            is_known = "blockid" in query or name in self.uploads
            if is_known:
                self.uploads.setdefault(name, {})[number] = content
            etag = f'"{next(self._numbers):032x}"'
        if not is_known:
            exchange.send(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        self._saved(exchange, act, 201 if "blockid" in query else 200, etag=etag)

    def _complete(self, asked: _Asked) -> None:
        exchange, key, query, act = asked.exchange, asked.key, asked.query, asked.act
        listed, blocks = exchange.body().tobytes().decode(), "uploadId" not in query
        name = key if blocks else query["uploadId"]
        numbers = _BLOCK.findall(listed) if blocks else _PART.findall(listed)
        with self._lock:
            found = self.uploads.get(name, {})
            is_whole = bool(numbers) and all(number in found for number in numbers)
            if is_whole:
                del self.uploads[name]
        if not is_whole:
            exchange.send(400 if blocks else 404, b"<Error><Code>InvalidPart</Code></Error>")
            return
        etag = self._store(key, tuple(found[number] for number in numbers))
        text = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>"
        body = b"" if blocks else f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode()
        self._saved(exchange, act, 201 if blocks else 200, body, etag=etag)

    def _abort(self, asked: _Asked) -> None:
        exchange, query = asked.exchange, asked.query
        with self._lock:
            self.uploads.pop(query["uploadId"], None)
        exchange.send(204)

    def _delete(self, asked: _Asked) -> None:
        exchange, key = asked.exchange, asked.key
        exchange.body()
        with self._lock:
            found = self.objects.pop(key, None)
        is_azure = "x-ms-version" in exchange.headers
        exchange.send((202 if found else 404) if is_azure else 204)

    def _delete_all(self, asked: _Asked) -> None:
        names = re.findall(r"<Key>([^<]+)</Key>", asked.exchange.body().tobytes().decode())
        with self._lock:
            for name in names:
                self.objects.pop(unescape(name), None)
        found = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        asked.exchange.send(200, f"<DeleteResult>{found}</DeleteResult>".encode())

    def _copy(self, asked: _Asked) -> None:
        exchange = asked.exchange
        exchange.body()
        source = urllib.parse.unquote(exchange.headers["x-amz-copy-source"]).lstrip("/").removeprefix(f"{BUCKET}/")
        with self._lock:
            found = self.objects.get(source)
        if found is None:
            exchange.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag = self._store(asked.key, found.pieces)
        when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        body = f"<CopyObjectResult><ETag>{escape(etag)}</ETag>{when}</CopyObjectResult>"
        self._saved(exchange, asked.act, 200, body.encode())

    def _get(self, asked: _Asked) -> None:
        exchange, key, act = asked.exchange, asked.key, asked.act
        with self._lock:
            stored = self.objects.get(key)
        if stored is None:
            exchange.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        size, begin, end, status = stored.size, 0, stored.size, 200
        wanted = exchange.headers.get("If-Match")
        if wanted is not None and wanted != stored.etag:
            exchange.send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        part = asked_range(exchange.headers.get("Range") or exchange.headers.get("x-ms-range"), size)
        more = _headers(stored.etag) | {"Accept-Ranges": "bytes"}
        if part is not None:
            begin, end = part
            if begin >= size:
                exchange.send(416, b"", headers={"Content-Range": f"bytes */{size}"})
                return
            status, more["Content-Range"] = 206, f"bytes {begin}-{end - 1}/{size}"
        pieces = stored.slices(begin, end)
        if act is not None and exchange.command != "HEAD" and act.what in ("reset", "flip", "cut"):
            content = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
            offset = min(len(content) - 1, int(act.share * len(content)))
            if act.what == "flip":
                content[offset] ^= 1 << self.hits % 8
                pieces = iter([content.data])
            elif act.what == "reset":
                exchange.send(status, iter([content[:offset].data]), end - begin, more)
                exchange.leave()
            else:
                pieces, end = iter([content[:offset].data]), begin + offset
        exchange.send(status, pieces, end - begin, more)

    _head = _get

    def _list(self, asked: _Asked) -> None:
        exchange, query = asked.exchange, asked.query
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        names = [name for name in self.keys() if name.startswith(prefix)]
        if delimiter := query.get("delimiter"):  # a folder is listed as one name that ends with it
            names = sorted({prefix + "".join(name[len(prefix) :].partition(delimiter)[:2]) for name in names})
        names = [name for name in names if name > after]
        page, more = names[:_PAGE], len(names) > _PAGE
        when = "2026-01-01T00:00:00.000Z"
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified>"
            f"<ETag>{escape(self.objects[name].etag)}</ETag><Size>{self.objects[name].size}</Size></Contents>"
            for name in page
            if name in self.objects
        )
        found += "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in page
            if name not in self.objects
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        head = f"<Name>{BUCKET}</Name><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        exchange.send(200, f"<ListBucketResult>{head}{token}{found}</ListBucketResult>".encode())


def _kind(command: str, key: str, query: dict[str, str], *, is_copy: bool) -> str:
    if not key:
        return "list" if command == "GET" else "delete_all" if "delete" in query else command.lower()
    if is_copy:
        return "copy"
    if command == "POST" and "uploads" in query:
        return "create"
    if (command == "POST" and "uploadId" in query) or query.get("comp") == "blocklist":
        return "complete"
    if command == "PUT":
        return "part" if "partNumber" in query or query.get("comp") == "block" else "put"
    return "abort" if command == "DELETE" and "uploadId" in query else command.lower()


def _headers(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Last-Modified": formatdate(usegmt=True), "Content-Type": "application/octet-stream"}


def options(port: int, scheme: str = "s3") -> dict[str, Any]:
    """Return `storage_options` of the bucket of a server on this machine."""
    url = f"http://127.0.0.1:{port}"
    if scheme == "gs":
        return {"endpoint_url": url, "bearer_token": "token", "allow_http": True}
    if scheme == "az":
        key = base64.b64encode(b"key").decode()
        return {"account_name": "account", "account_key": key, "endpoint": f"{url}/account", "allow_http": True}
    return {"endpoint": url, "region": "us-east-1", "allow_http": True, "key": "key", "secret": "secret"}


def main() -> None:
    """Serve until stdin ends; print the port."""
    parser = argparse.ArgumentParser(description="An object store in memory on 127.0.0.1")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each request waits for so long first")
    with ObjectServer(delay_s=parser.parse_args().delay_ms / 1000) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

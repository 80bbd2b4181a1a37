"""A server that lists keys as S3 does, page by page, with a delay for each page: for benchmarks and tests of listing.

`python -m benchmarks.harness.listing_server 200000 0.05` serves so many keys with so many seconds a page, prints its
URL, and ends when its stdin does.
"""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
import urllib.parse
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.harness.loopback import LoopbackServer

PAGE = 1000
_CODES = {403: "AccessDenied", 404: "NoSuchBucket", 503: "SlowDown"}
_HEAD = '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


class ListingServer(LoopbackServer):
    """Serves the keys of one bucket, in the order of their UTF-8 bytes.

    Attributes
    ----------
    delay_s
        Each page takes so long.
    requests
        The start of each page that was asked for, in the order of arrival.
    prefixes
        What was asked for.
    fault
        Called with the number of a request; returns a status other than 200 to answer with, or None.
    heeds_offsets
        Whether `start-after` is heeded.
    heeds_tokens
        Whether a page begins behind the one before it. If not, the first page comes again and again.
    most_at_once
        How many requests there were at once at most.
    """

    def __init__(self, objects: Iterable[tuple[str, int]], *, delay_s: float = 0.0, page: int = PAGE) -> None:
        super().__init__(_Handler)
        self.delay_s, self.page = delay_s, page
        self.requests: list[str] = []
        self.prefixes: set[str] = set()
        self.fault: Callable[[int], int | None] = lambda _: None
        self.heeds_offsets = self.heeds_tokens = True
        self.most_at_once = self.at_once = 0
        self.counting = threading.Lock()
        self.put(objects)

    def put(self, objects: Iterable[tuple[str, int]]) -> None:
        """Serve these objects from now on, by key and size."""
        self.keep_order(sorted(objects, key=lambda one: one[0]))

    def keep_order(self, found: list[tuple[str, int]]) -> None:
        """Serve these objects in the order given, as some servers do that have no order."""
        self._is_ordered = all(a < b for (a, _), (b, _) in pairwise(found))
        self.keys = [key for key, _ in found]
        self.sizes = [size for _, size in found]
        self._described = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;1&quot;</ETag><Size>{size}</Size></Contents>"
            for key, size in found
        ]

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def options(self) -> dict[str, Any]:
        """`storage_options` for s3://bucket."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "anon": True, "allow_http": True}

    def page_of(self, query: dict[str, list[str]]) -> bytes:
        """Return the answer to ListObjectsV2."""
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]) if self.heeds_offsets else [""])[0]
        after = after if self.heeds_tokens else ""
        if self._is_ordered:
            begin = max(bisect_right(self.keys, after), bisect_left(self.keys, prefix))
            end = bisect_left(self.keys, prefix + "\U0010ffff") if prefix else len(self.keys)
        else:
            begin, end = self.keys.index(after) + 1 if after in self.keys else 0, len(self.keys)
        last = min(begin + self.page, end)
        described = "".join(self._described[begin:last])
        is_cut = last < end
        token = f"<NextContinuationToken>{escape(self.keys[last - 1])}</NextContinuationToken>" if is_cut else ""
        state = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        return f"{_HEAD}<Name>bucket</Name>{state}{token}{described}</ListBucketResult>".encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    server: ListingServer

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Tell the size of an object."""
        key = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).partition("/bucket/")[2]
        if key not in self.server.keys:
            self._send(404, b"")
            return
        self._send(200, b"", self.server.sizes[self.server.keys.index(key)])

    def do_GET(self) -> None:
        """Answer with a page of keys."""
        server = self.server
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        with server.counting:
            number = len(server.requests)
            server.requests.append(query.get("start-after", [""])[0])
            server.prefixes.add(query.get("prefix", [""])[0])
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            time.sleep(server.delay_s)
            status = server.fault(number)
            if status is None:
                self._send(200, server.page_of(query))
            else:
                self._send(status, f"<Error><Code>{_CODES[status]}</Code></Error>".encode())
        finally:
            with server.counting:
                server.at_once -= 1

    def _send(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


def made_keys(number: int) -> list[tuple[str, int]]:
    """Return keys and sizes of a set of images: a few folders, and numbers with as many digits."""
    return [(f"train/{i % 7:02d}/image-{i:08d}.jpeg", 100_000 + i % 1000) for i in range(number)]


@contextmanager
def serving_in_process(number: int, delay_s: float) -> Iterator[str]:
    """Serve `made_keys` in a process of their own; yield the URL of the server."""
    command = [sys.executable, "-m", "benchmarks.harness.listing_server", str(number), str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


if __name__ == "__main__":
    with ListingServer(made_keys(int(sys.argv[1])), delay_s=float(sys.argv[2])) as _server:
        print(_server.endpoint, flush=True)
        sys.stdin.read()

"""A web server over a directory that counts what it is asked, for tests of caches."""

from __future__ import annotations

import email.utils
import http.server
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

from benchmarks.harness.loopback import LoopbackServer, asked_range


class CountingServer(LoopbackServer):
    """Serves the files below a directory, and ranges of them.

    Attributes
    ----------
    gets, heads
        Path -> number of requests.
    tells
        Headers that tell the version of a file: "tag" and "time", which are both if none is given.
    """

    def __init__(self, directory: Path, *tells: str) -> None:
        super().__init__(_Handler)
        self.directory = directory
        self.tells = tells or ("tag", "time")
        self.gets: Counter[str] = Counter()
        self.heads: Counter[str] = Counter()
        self.counting = threading.Lock()
        self.paused = threading.Event()  # a request waits
        self._left = -1  # chunks that are answered before requests wait; -1: none waits
        self._may_go_on = threading.Event()

    def pause_after(self, chunks: int) -> None:
        """Answer so many more requests for chunks; let those after them wait."""
        self._left = chunks
        self._may_go_on.clear()

    def go_on(self) -> None:
        """Answer the requests that wait, and all others."""
        self._left = -1
        self._may_go_on.set()

    def wait_turn(self, name: str) -> None:
        """Wait, if a request for a chunk is to wait."""
        with self.counting:
            if "/c/" not in name or self._left < 0:
                return
            if self._left > 0:
                self._left -= 1
                return
        self.paused.set()
        self._may_go_on.wait(240)

    def chunk_gets(self) -> Counter[str]:
        """Return how often chunks, or ranges of shards, were asked for; forget all counts."""
        with self.counting:
            chunks = Counter({path: n for path, n in self.gets.items() if "/c/" in path})
            self.gets.clear()
            self.heads.clear()
        return chunks


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    server: CountingServer

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer with the size and the version."""
        self._answer(is_head=True)

    def do_GET(self) -> None:
        """Answer with the file, or a part of it."""
        self._answer(is_head=False)

    def do_PROPFIND(self) -> None:
        """Refuse to list."""
        self._refuse(405)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, *, is_head: bool) -> None:
        name = unquote(self.path).lstrip("/")
        path = self.server.directory / name
        wanted = self.headers.get("Range", "")
        with self.server.counting:
            (self.server.heads if is_head else self.server.gets)[f"/{name} {wanted}".strip()] += 1
        try:
            data = path.read_bytes()
            changed = path.stat().st_mtime
        except OSError:
            self._refuse(404)
            return
        if not is_head:
            self.server.wait_turn(name)
        size = len(data)
        begin, end = asked_range(wanted, size) or (0, size)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - begin))
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        if "time" in self.server.tells:
            self.send_header("Last-Modified", email.utils.formatdate(changed, usegmt=True))
        if "tag" in self.server.tells:
            self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}-{size:x}"')
        self.end_headers()
        if not is_head:
            self.wfile.write(data[begin:end])

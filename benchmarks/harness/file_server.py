"""A web server on 127.0.0.1 for the files of a folder, with several processes: where nginx is not installed.

`python -m benchmarks.harness.file_server FOLDER PROCESSES` prints its URL, and ends when its stdin does.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.loopback import LoopbackServer, asked_range


class FileServer(LoopbackServer):
    """Answers GET and HEAD with the files below a folder; GET with one range, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Handler)
        self.folder = folder.resolve()
        # several processes wait for connections here: the one that comes too late goes on waiting
        self.socket.setblocking(False)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers are one packet
    server: FileServer

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Tell the size of a file."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Send a file, or a range of it."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/")
        path = (self.server.folder / name).resolve()
        if not path.is_relative_to(self.server.folder) or not path.is_file():
            self._head(404, 0)
            self.wfile.flush()
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            part = asked_range(self.headers.get("Range"), status.st_size)
            begin, end = part or (0, status.st_size)
            tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
            described = {"ETag": tag, "Accept-Ranges": "bytes", "Last-Modified": self.date_time_string(status.st_mtime)}
            if part:
                described["Content-Range"] = f"bytes {begin}-{end - 1}/{status.st_size}"
            self._head(206 if part else 200, end - begin, described)
            self.wfile.flush()
            while with_body and begin < end:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)
                if sent == 0:
                    raise ConnectionError(f"{path} became shorter while it was sent")
                begin += sent

    def _head(self, status: int, length: int, described: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in (described or {}).items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serving_files(folder: Path, processes: int) -> Iterator[str]:
    """Serve the files of a folder from processes of their own; yield the URL, without a slash at its end."""
    command = [sys.executable, "-m", "benchmarks.harness.file_server", str(folder), str(processes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()  # which ends all of its processes
            server.wait()


def main(folder: str, processes: str) -> None:
    """Serve until stdin ends, which all processes see."""
    server = FileServer(Path(folder))
    children: list[int] = []
    while len(children) < int(processes) - 1 and (child := os.fork()):
        children.append(child)
    is_first = len(children) == int(processes) - 1
    with server:
        if is_first:
            print(server.url, flush=True)
        sys.stdin.read()
    if not is_first:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

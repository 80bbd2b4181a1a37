"""An nginx of our own on a free port of 127.0.0.1, which serves the files of one directory while a block runs."""

from __future__ import annotations

import grp
import os
import pwd
import resource
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from benchmarks.harness.measure import process_cpu_s

#: Where Debian has it, which is not in the PATH of every user.
_OTHER_PATHS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 10.0, 10.0
#: Another process may take the port between our look and nginx's bind.
_ATTEMPTS = 3

# Everything that nginx writes is below its prefix, so that any user can start it. `served` is a link to the directory,
# whose path may have characters that mean something in a configuration. Where root starts it, `user` keeps
# the workers root: they may otherwise not be allowed to read the directory.
_CONFIG = """\
daemon off;
{user}
worker_processes {workers};
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    default_type application/octet-stream;
    types {{ }}
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    {file_cache}
    client_body_temp_path client_body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        root served;
        location = /.token {{ return 200 {token}; }}
        location = /.status {{ stub_status; }}
    }}
}}
"""


#: Sizes of files are looked up once, and files are kept open: half of as many as a process may have open.
_FILE_CACHE = "open_file_cache max={files} inactive=1h; open_file_cache_valid 1h;"
_MOST_FILES = 20_000


class NoNginxError(Exception):
    """nginx cannot be found, or does not start."""


@dataclass(frozen=True)
class Nginx:
    """A running nginx.

    Attributes
    ----------
    url
        Where the served directory is, without a slash at the end.
    pid
        Of its master process, whose children are the workers.
    version
        For example "nginx/1.22.1".
    """

    url: str
    pid: int
    version: str

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes; 0 where the system does not say."""
        try:
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            text = ""
        return sum(process_cpu_s(pid) for pid in (self.pid, *map(int, text.split())))


def count_requests(url: str) -> int:
    """Return how many requests the nginx at a URL has had before this one.

    Between two calls, the first call counts as a request, too.
    """
    text = _get(f"{url}/.status").decode()
    # "server accepts handled requests", and three numbers in the line behind it
    lines = text.splitlines()
    names = next(i for i, line in enumerate(lines) if line.startswith("server accepts"))
    return int(lines[names + 1].split()[2]) - 1


def find_nginx() -> str:
    """Return the path of nginx.

    Raises
    ------
    NoNginxError
        If nginx is not installed; the message says how to install it.
    """
    found = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_OTHER_PATHS)))
    if found is None:
        raise NoNginxError("nginx is not installed, and this benchmark reads from it: apt install nginx-light")
    return found


@contextmanager
def serve(directory: Path, *, workers: int = 2, files_change: bool = False) -> Iterator[Nginx]:
    """Serve the files of a directory; nginx has stopped when the block ends, however the block ends.

    Parameters
    ----------
    directory
        What is served.
    workers
        Processes of nginx.
    files_change
        Whether files are looked at for each request. Else nginx keeps them open, which is faster.

    Raises
    ------
    NoNginxError
        If nginx is not installed or does not start; the message has what nginx said.
    """
    program = find_nginx()
    with tempfile.TemporaryDirectory(prefix="zarrfeed-nginx-") as prefix:
        (Path(prefix) / "served").symlink_to(directory.resolve(), target_is_directory=True)
        files = min(_MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        file_cache = "" if files_change else _FILE_CACHE.format(files=files)
        process, port = _start(program, Path(prefix), workers, file_cache)
        try:
            yield Nginx(f"http://127.0.0.1:{port}", process.pid, _version(program))
        finally:
            _stop(process)


def _start(program: str, prefix: Path, workers: int, file_cache: str) -> tuple[subprocess.Popen[bytes], int]:
    said = ""
    for _ in range(_ATTEMPTS):
        port, token = _free_port(), uuid.uuid4().hex
        config = _CONFIG.format(user=_user_line(), workers=workers, port=port, token=token, file_cache=file_cache)
        (prefix / "nginx.conf").write_text(config)
        with (prefix / "said").open("wb") as output:
            command = [*_ended_with_us(), program, "-p", f"{prefix}/", "-c", str(prefix / "nginx.conf")]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            if _is_ready(process, f"http://127.0.0.1:{port}/.token", token.encode()):
                return process, port
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        said = "".join(path.read_text() for path in (prefix / "said", prefix / "error.log") if path.exists())
    raise NoNginxError(f"{program} does not start:\n{said}")


def _ended_with_us() -> list[str]:
    """Return what starts a command so that the kernel ends it with this process, even where that one is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []  # of util-linux; other systems do without


def _is_ready(process: subprocess.Popen[bytes], url: str, token: bytes) -> bool:
    """Wait until the server answers with its token; False if nginx ended, or another server has the port."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return _get(url) == token
        except (OSError, HTTPException):  # nobody listens yet, or it is another server
            time.sleep(0.02)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # a fast shutdown, of its workers as well
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _get(url: str) -> bytes:
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with without_proxy.open(url, timeout=5) as response:
        data: bytes = response.read()
    return data


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _user_line() -> str:
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(0).pw_name} {grp.getgrgid(os.getegid()).gr_name};"


def _version(program: str) -> str:
    done = subprocess.run([program, "-v"], capture_output=True, text=True, check=False)
    return done.stderr.strip().removeprefix("nginx version: ")

"""Python processes without the seconds of their start, for every test that needs *a* process.

`command()` stands where `[sys.executable]` stands: `subprocess.run([*command(), "-m", "zarrfeed", "info", store])`. It
names an executable called `python`, so that its folder can go on PATH, and torchrun can get it as PYTHON_EXEC. It
starts a small client, which passes its files, arguments, environment, directory, limits and signal mask to a server
with torch, zarr and zarrfeed imported. The server forks; the new process runs what the client was told to run, as
`__main__`, and leaves as any interpreter does. The client passes signals on, ends as the process ends, by the same
status or signal, and the process is killed if the client is.

A test needs the real `sys.executable` where it is about what happens before `__main__` begins, or about what is loaded:
the start or installation of Python, which modules are imported and in which order, what modules do as they are imported
or register for exit, the randomised hashes of strings, the number of threads of BLAS and OpenMP. All other tests take
`command()`.

The server itself hands some requests over to a real interpreter, which the client then becomes: options other than -c,
-m, -u, -B, -W and -X faulthandler; a variable of the environment that Python, torch or a preloaded module reads at its
start, and that the environment of all tests has not or has otherwise (OMP_NUM_THREADS and its like may be 1); a folder
on sys.path with a module that would hide a preloaded one; -W where a preloaded module warns at its import.

What differs from a real start and is not handed over: the modules of the server are in `sys.modules`; threads of BLAS
and OpenMP are one; the process is no child of the client but of the server (`child_of` tells its number), in a
session or process group of its own, and it is killed a moment after its client: `kill` is exact.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.warm.client import ask

_FOLDER = Path(__file__).parent
#: All servers import these.
DEFAULT = (
    "torch",
    "torch.distributed",
    "zarr",
    "zarrfeed.torch.loader",
    "zarrfeed.torch.iterable_dataset",
    "zarrfeed.torch.map_dataset",
    "zarrfeed.checkpoint",
)
#: Sets of more modules, for `command`.
LIGHTNING = ("lightning",)
TRAINER = ("transformers", "transformers.trainer", "accelerate")

#: Commands that installations put beside `python`, and their modules: those that `variables` makes warm.
COMMANDS = {"zarrfeed": "zarrfeed", "torchrun": "torch.distributed.run"}

#: As it is before a test changes it.
_ENVIRONMENT = dict(os.environ)
_START_S = 120.0


def command(*modules: str, **variables: str) -> list[str]:
    """Return a command that stands where `[sys.executable]` stands.

    Parameters
    ----------
    modules
        Modules that the server imports besides `DEFAULT`, such as `*LIGHTNING`. Each set of modules has a server of
        its own, which starts when it is first used.
    variables
        Variables that the server's environment has besides, such as HF_HOME: a module may read one at its import.
    """
    return _server(os.getpid(), modules, tuple(sorted(variables.items()))).command


def executable(*modules: str, **variables: str) -> Path:
    """Return the file of `command`. Its name is `python`, for PATH; torchrun takes it as PYTHON_EXEC."""
    return _server(os.getpid(), modules, tuple(sorted(variables.items()))).executable


def variables() -> dict[str, str]:
    """Return variables of the environment by which shells, torchrun and `COMMANDS` find a warm Python."""
    python = executable()
    return {"PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHON_EXEC": str(python)}


def child_of(client: int) -> int:
    """Return the process that a client stands for, such as that of `Popen(command())`; wait until it has begun."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        for server in _servers:
            if child := server.child_of(client):
                return child
        os.kill(client, 0)  # raises if it ended
        time.sleep(0.002)
    raise AssertionError(f"no server has a process for client {client} after {_START_S} s")


def kill(client: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to the process of a client. When the client has ended then, so has the process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child_of(client.pid), signal.SIGKILL)


class Server:
    """The process of server.py, which imports modules. It ends with this process, whatever ends that."""

    def __init__(self, modules: tuple[str, ...], variables: dict[str, str]) -> None:
        self._directory = tempfile.mkdtemp(prefix="warm-", dir="/tmp")  # the path of a socket has 107 bytes at most
        self._owner = os.getpid()
        self._address = f"{self._directory}/socket"
        self.executable = Path(self._directory, "python")
        # A first line has no room for a long path, and a path with a blank ends there.
        Path(self._directory, "interpreter").symlink_to(sys.executable)
        self.executable.write_text(
            f"#!{self._directory}/interpreter -IBS\n"
            f"import sys; sys.path.insert(0, {str(_FOLDER)!r})\n"
            f"import client; client.main({sys.executable!r}, {self._directory!r})\n"
        )
        for name, module in COMMANDS.items():
            Path(self._directory, name).write_text(f'#!/bin/sh\nexec {self.executable} -m {module} "$@"\n')
        for name in ("python", *COMMANDS):
            Path(self._directory, name).chmod(0o700)
        self.command = [str(self.executable)]
        with socket.socket(socket.AF_UNIX) as listener, Path(self._directory, "stderr").open("w") as said:
            listener.bind(self._address)
            listener.listen(128)
            self.process = subprocess.Popen(
                [sys.executable, str(_FOLDER / "server.py"), str(listener.fileno()), str(os.getpid()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=_ENVIRONMENT | variables,
                pass_fds=[listener.fileno()],
                process_group=0,  # a terminal interrupts those of its foreground alone
            )
        atexit.register(self.close)

    def child_of(self, client: int) -> int:
        with contextlib.suppress(OSError):
            return ask(self._address, client)
        return 0

    def close(self) -> None:
        """End the server, and all that it forked."""
        if os.getpid() == self._owner:  # not a process that was forked from it
            self.process.terminate()
            self.process.wait(60)
            shutil.rmtree(self._directory, ignore_errors=True)


_servers: list[Server] = []


@functools.cache
def _server(_owner: int, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Server:
    """Return the server of a process; one that was forked from it gets a server of its own."""
    _servers.append(Server((*DEFAULT, *modules), dict(variables)))
    return _servers[-1]

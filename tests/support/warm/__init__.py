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
and OpenMP are one; `sys.flags` is the server's; the process is no child of the client but of the server (`child_of`
tells its number), in a session or process group of its own, and it is killed a moment after its client: `kill` is
exact. When it ends, modules of other libraries and their C++ objects are not taken down; those of Python, of zarrfeed
and of the script are.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
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
#: All servers import these. The first optimizer of a process imports torch._dynamo, a second of CPU.
DEFAULT = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "zarr",
    "zarrfeed.torch.datasets.loader",
    "zarrfeed.torch.datasets.iterable_dataset",
    "zarrfeed.torch.datasets.map_dataset",
    "zarrfeed.checkpoint",
)
#: Sets of more modules, for `command`.
LIGHTNING = ("lightning", "ignite.engine", "ignite.handlers")
TRAINER = ("transformers", "transformers.trainer", "accelerate")

#: Commands that installations put beside `python`, and their modules: those that `variables` makes warm.
COMMANDS = {"zarrfeed": "zarrfeed", "torchrun": "torch.distributed.run"}

#: Variables of all tests and servers, which frameworks read as they are imported.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

#: As they are before a test changes them.
_ENVIRONMENT, _PYTHON = os.environ | OFFLINE, sys.executable
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
    return {"PATH": f"{python.parent}:{Path(_PYTHON).parent}:{os.environ['PATH']}", "PYTHON_EXEC": str(python)}


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


def new_folder() -> str:
    """Make a folder for a server, or for servers to `share`."""
    return tempfile.mkdtemp(prefix="warm-", dir="/tmp")  # the path of a socket has 107 bytes at most


def share(folder: Path, owner: int) -> None:
    """Use the servers that lie in a folder from now on, and put new ones there, which end with process `owner`.

    Test processes share them: to start one takes 3 to 6 CPU seconds.
    """
    global _shared
    _shared = folder, owner


class Server:
    """The process of server.py, which imports modules. It ends with its owner, whatever ends that.

    Parameters
    ----------
    modules, variables
        See `command`.
    directory
        Its socket and executables are here. If another process has started a server here, it is used.
    owner
        A process; by default this one.
    """

    def __init__(
        self, modules: tuple[str, ...], variables: dict[str, str], directory: Path | None = None, owner: int = 0
    ) -> None:
        self._directory = directory or Path(new_folder())
        self._address = f"{self._directory}/socket"
        self.executable = Path(self._directory, "python")
        self.command = [str(self.executable)]
        self._owner = owner or os.getpid()
        if not self.executable.exists():
            self._directory.mkdir(exist_ok=True)
            self._start(modules, variables)

    def _start(self, modules: tuple[str, ...], variables: dict[str, str]) -> None:
        # A first line has no room for a long path, and a path with a blank ends there.
        Path(self._directory, "interpreter").symlink_to(_PYTHON)
        for name, module in COMMANDS.items():
            Path(self._directory, name).write_text(f'#!/bin/sh\nexec {self.executable} -m {module} "$@"\n')
            Path(self._directory, name).chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener, Path(self._directory, "stderr").open("w") as said:
            listener.bind(self._address)
            listener.listen(128)
            self.process = subprocess.Popen(
                [_PYTHON, str(_FOLDER / "server.py"), str(listener.fileno()), str(self._owner), *modules],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=_ENVIRONMENT | variables,
                pass_fds=[listener.fileno()],
                process_group=0,  # a terminal interrupts those of its foreground alone
            )
        self.executable.write_text(
            f"#!{self._directory}/interpreter -IBS\n"
            f"import sys; sys.path.insert(0, {str(_FOLDER)!r})\n"
            f"import client; client.main({_PYTHON!r}, {str(self._directory)!r})\n"
        )
        self.executable.chmod(0o700)
        if self._owner == os.getpid():
            atexit.register(self.close)
        else:
            self.process.returncode = 0  # else Popen warns at the end of this process that it still runs

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
_shared: tuple[Path, int] | None = None


@functools.cache
def _server(_owner: int, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Server:
    """Return the server of a process; one that was forked from it gets a server of its own."""
    modules = (*DEFAULT, *modules)
    if _shared is None:
        _servers.append(Server(modules, dict(variables)))
    else:
        folder, owner = _shared
        name = hashlib.sha256(repr((modules, variables)).encode()).hexdigest()[:8]
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _servers.append(Server(modules, dict(variables), folder / name, owner))
    return _servers[-1]

"""The client of a warm process, which the executable of __init__.py calls.

It imports nothing that is slow, since it starts for each process. It sends a request to the server and waits; a signal
that it gets goes to the process. A witness, which is forked from it, knows two things that the client cannot tell: a
signal that went to the client's whole process group came to the witness, too, and then goes to the group of the
process; and where only the client is killed, the witness lives on and says so.
"""

import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

#: Messages of the server: what, and a number with it.
MESSAGE = struct.Struct("=ci")
STARTED, ENDED, REAL, FAILED = b"s", b"e", b"r", b"f"
HEADER = struct.Struct("=I")
#: Messages of the client: a signal, and whether its process group got it.
SIGNAL = struct.Struct("=B?")
ALONE = b"a"
#: The kernel passes no more at once.
MOST_FILES = 253
_KEPT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def main(interpreter: str, directory: str) -> NoReturn:
    """Stand for `interpreter` with the arguments of this process; `directory` has the socket of the server."""
    arguments = sys.argv[1:]
    files = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    files = [number for number in files if _is_inherited(number)]
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    server = socket.socket(socket.AF_UNIX)
    witness, of_server = socket.socketpair()
    # Before the process can begin: no signal that its output provokes comes to the client, and not to the witness.
    witness_pid, question = _fork_witness(witness, of_server, files)
    request = {
        "client": os.getpid(),
        "arguments": arguments,
        "environment": dict(os.environb),
        "files": files,
        "umask": _umask(),
        "limits": [(name, *resource.getrlimit(name)) for name in _LIMITS],
        "ignored": [int(number) for number in ignored],
        "mask": [int(number) for number in mask],
        "affinity": list(os.sched_getaffinity(0)),
        "leads": os.getsid(0) == os.getpid(),
    }
    is_whole = {0, 1, 2} <= set(files) and len(files) + 2 <= MOST_FILES
    what, _ = (REAL, 0)
    if is_whole:
        try:
            server.connect(f"{directory}/socket")
            here = os.open(".", os.O_PATH)
            _send(server, request, [here, of_server.fileno(), *files])
            what, _ = _receive(server)
        except OSError:
            what = FAILED
    if what == REAL:
        question.close()
        os.waitpid(witness_pid, 0)  # the interpreter finds no child that it did not start
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(interpreter, [interpreter, *arguments])
    if what != STARTED:
        with open(f"{directory}/stderr") as said:
            sys.exit(f"the server of warm processes does not answer:\n{said.read()}")
    of_server.close()
    os.close(here)
    _let_go(files)
    status = _serve(server, question)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def ask(address: str, client: int) -> int:
    """Ask a server for the process that a client stands for; 0 if there is none."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        _send(server, {"child_of": client}, [server.fileno()])
        return _receive(server)[1]


def _send(server: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    data = marshal.dumps(request)
    socket.send_fds(server, [HEADER.pack(len(data))], files)
    server.sendall(data)


def _receive(server: socket.socket) -> tuple[bytes, int]:
    data = server.recv(MESSAGE.size, socket.MSG_WAITALL)
    if len(data) < MESSAGE.size:
        return FAILED, 0
    what, number = MESSAGE.unpack(data)
    return what, number


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the one of the listing itself
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _let_go(files: list[int]) -> None:
    """Leave files open in the process alone, for whose end others may wait."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in files:
        os.dup2(nothing, number)


def _fork_witness(of_server: socket.socket, server_end: socket.socket, files: list[int]) -> tuple[int, socket.socket]:
    """Fork the witness, in which all signals stay blocked; return its number, and where to ask it about signals."""
    question, answer = socket.socketpair()
    if pid := os.fork():
        of_server.close()
        answer.close()
        return pid, question
    question.close()
    server_end.close()
    _let_go(files)
    while number := answer.recv(1):
        # A moment, as the kernel signals the processes of a group one after the other.
        got = signal.sigtimedwait(number, 0.02)
        answer.send(b"g" if got else b"c")
    with suppress(OSError):  # the server has ended, too
        of_server.send(ALONE)
    os._exit(0)


def _serve(server: socket.socket, question: socket.socket) -> int:
    """Pass signals on until the process ends; return its status, as of `os.waitpid`."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in signal.valid_signals() - _KEPT:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    while True:
        ready = select.select([server.fileno(), reading], [], [])[0]
        if reading in ready:
            for got in os.read(reading, 64):
                question.send(bytes([got]))
                is_group = question.recv(1) == b"g"
                with suppress(OSError):  # the process has ended, which is read next
                    server.send(SIGNAL.pack(got, is_group))
        if server.fileno() in ready:
            what, status = _receive(server)
            return status if what == ENDED else signal.SIGKILL

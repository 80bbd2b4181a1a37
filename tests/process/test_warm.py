"""A warm Python does what a new one does: a real interpreter is the oracle."""

from __future__ import annotations

import contextlib
import functools
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.process.census import wait_until
from tests.support import warm
from tests.support.cases import case
from tests.support.paths import ROOT
from tests.support.proc import living

_TIMEOUT_S = 60.0
_IS_WARM = "import sys; print('decimal' in sys.modules)"
_FOLDER = "tests/support/warm"


@pytest.fixture(scope="module")
def server() -> Iterator[warm.Server]:
    """Yield a server that starts at once, as it imports little."""
    started = warm.Server(("decimal", "multiprocessing.util"), {})
    yield started
    started.close()


def outcome(command: list[str], arguments: list[str], **options: Any) -> tuple[int, bytes, bytes]:
    done = subprocess.run([*command, *arguments], capture_output=True, check=False, timeout=_TIMEOUT_S, **options)
    return done.returncode, done.stdout, done.stderr


def is_warm(server: warm.Server, *options: str, **environment: str) -> bool:
    status, out, err = outcome(server.command, [*options, "-c", _IS_WARM], env=os.environ | environment)
    assert status == 0, err
    if out != b"True\n":
        print(Path(server.command[0]).with_name("stderr").read_text())  # where the server says why
    return {b"True\n": True, b"False\n": False}[out]


def has_ended(process: int) -> bool:
    return living(process) is None


#: A process tells this of itself.
_SELF = """
import gc, os, resource, signal, sys, warnings
flags = str(sys.flags).replace(f'dont_write_bytecode={sys.flags.dont_write_bytecode}', '')
print(sys.argv, sys.orig_argv[1:], sys.executable, sys.prefix, flags, sys._xoptions, sys.warnoptions)
print(sys.path, sys.dont_write_bytecode, __name__, sys.modules["__main__"].__dict__ is globals())
print({key: str(value) for key, value in globals().items() if key not in ("__loader__", "__spec__")})
print(type(__loader__).__name__, getattr(__loader__, "name", None), getattr(__spec__, "name", None))
print(sorted(os.environ.items()), os.getcwd(), oct(os.umask(0)))
print([resource.getrlimit(number) for number in range(16)], sorted(os.sched_getaffinity(0)), os.nice(0))
of_faulthandler = {4, 6, 7, 8, 11}
print([signal.getsignal(number) for number in signal.valid_signals() - of_faulthandler], signal.pthread_sigmask(0, []))
print(os.getsid(0) == os.getpid(), gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit())
for file in (sys.stdin, sys.stdout, sys.stderr):
    print(file, file.line_buffering, file.write_through, type(file.buffer).__name__, file.fileno(), file.isatty())
print(sys.stdout is sys.__stdout__, [name for name in os.listdir("/proc/self/fd")][:-1])
print([entry for entry in warnings.filters if entry[0] != "_"])
"""
_ENDS = {
    "off the end": "print('x', end='')",
    "exit 3": "import sys; sys.exit(3)",
    "exit with words": "import sys; sys.exit('so')",
    "exit None": "raise SystemExit",
    "exit 256": "import sys; sys.exit(256)",
    "error": "def f():\n    return 1 / 0\nf()",
    "two errors": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error",
    "syntax": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "abort": "import os; os.abort()",
    "SIGTERM": "import os; os.kill(os.getpid(), 15)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGSEGV with stacks": "import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), 11)",
    "exit functions": "import atexit; atexit.register(print, 'bye'); print('x'); 1 / 0",
    "an exit function that fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "a thread that goes on": "import threading\nevent = threading.Event()\n"
    "threading.Thread(target=lambda: (event.wait(), print('thread'))).start(); print('main'); event.set()",
    "own excepthook": "import sys\nsys.excepthook = lambda kind, *_: print(kind, sys.excepthook.__name__)\n1 / 0",
    "last value": "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value)))\n1 / 0",
    "a destructor": "class C:\n    def __del__(self):\n        print('gone')\nc = C()",
    "a destructor with its module": "import math\nclass C:\n    def __del__(self):\n        print(math.pi)\nc = C()",
    "stdin": "import sys; print(sys.stdin.read(), input.__name__)",
    "a warning": "import warnings; warnings.warn('old', DeprecationWarning)\n"
    "def f(): warnings.warn('f', stacklevel=9)\nf()",
}
#: Ends of processes whose server has imported numpy, of which it keeps more than an interpreter does, and our package.
_ENDS_WITH_LIBRARIES = {
    "a destructor": "import numpy, zarrfeed.base.errors as errors\nclass C:\n    def __del__(self):\n"
    "        print(numpy.float64(2) + 1, errors.ConfigError.__name__)\nc = C()",
    "a finalizer": "import numpy, weakref\na = numpy.ones(2).view(type('A', (numpy.ndarray,), {}))\n"
    "weakref.finalize(a, print, 'over')",
    "an object of our package": "import zarrfeed.base.errors as errors\nclass C:\n    def __del__(self):\n"
    "        print('gone')\nerrors.kept = C()",
    "C's files": "import ctypes\nctypes.CDLL(None).puts(b'C')\nprint('x', flush=True)\nraise SystemExit(3)",
    "C's exit functions": "import ctypes, numpy\nlibc = ctypes.CDLL(None)\nlibc.strdup.restype = ctypes.c_void_p\n"
    "libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(b'C')), None)\nprint('x', flush=True)\n1 / 0",
}
_SPAWNING = """
import multiprocessing, pickle, sys
class Thing: pass
def square(x): return x * x, __name__, type(pickle.loads(pickle.dumps(Thing()))).__module__
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(square, [3]))
"""


@pytest.mark.slow
def test_a_process_is_told_apart_from_a_new_interpreter(server: warm.Server, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "whoami.py").write_text(_SELF)
    (tmp_path / "link.py").symlink_to("own/whoami.py")
    quiet = os.open(os.devnull, os.O_RDONLY)
    commands: dict[str, list[str]] = {
        "-c": ["-c", _SELF, "a", "-b", "ü", "\udcff"],
        "script": ["own/whoami.py", "a"],
        "absolute script": [str(tmp_path / "own" / "whoami.py")],
        "link to a script": ["link.py"],
        "-m": ["-m", "own.whoami", "a"],
        "-W": ["-W", "error", "-Wignore::DeprecationWarning", "-c", _SELF],
        "-u": ["-u", "-c", _SELF],
        "-B -X faulthandler": ["-B", "-X", "faulthandler", "-c", _SELF],
    }
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    blocking = {"preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})}
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))}
    one_core = {"preexec_fn": lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})}
    surroundings: dict[str, dict[str, Any]] = {
        "usual": {},
        "session": {"start_new_session": True},
        "umask": {"umask": 0o27},
        "environment": {"env": {**os.environ, "ÄÖ": "\udcff", "PYTHONPATH": f"own:{ROOT}", "HOME": "/nowhere"}},
        "small environment": {
            "env": {"PATH": "/bin", **{k: v for k, v in os.environ.items() if k[:2] in ("LC", "LA", "PY")}}
        },
        "PYTHONWARNINGS": {
            "env": os.environ | {"PYTHONWARNINGS": "error::UserWarning,ignore", "PYTHONUNBUFFERED": "1"}
        },
        "SIGINT ignored": ignoring,
        "SIGUSR1 blocked": blocking,
        "limits": limited,
        "affinity": one_core,
        "files": {"pass_fds": [quiet]},
    }
    for name, arguments in commands.items():
        for around, options in surroundings.items():
            if name != "-c" and around not in ("usual", "environment", "PYTHONWARNINGS"):
                continue
            with case(name, around):
                expected = outcome([sys.executable], arguments, cwd=tmp_path, **options)
                assert expected[0] == 0, expected
                got = outcome(server.command, arguments, cwd=tmp_path, **options)
                assert got[1].decode(errors="replace").splitlines() == expected[1].decode(errors="replace").splitlines()
                assert got == expected
    os.close(quiet)


@pytest.mark.slow
def test_a_process_ends_otherwise_than_a_new_interpreter(server: warm.Server, tmp_path: Path) -> None:
    for name, body in _ENDS.items():
        (tmp_path / "script.py").write_text(body)
        (tmp_path / "module.py").write_text(body)
        forms = (["-c", body], ["script.py"], ["-m", "module"])
        for arguments in forms if name in ("error", "syntax", "interrupt") else forms[:1]:
            with case(name, arguments[0]):
                (tmp_path / "in").write_text("input")
                with (tmp_path / "in").open() as text:
                    expected = outcome([sys.executable, "-B"], arguments, cwd=tmp_path, stdin=text)
                    text.seek(0)
                    got = outcome([*server.command, "-B"], arguments, cwd=tmp_path, stdin=text)
                assert _comparable(got) == _comparable(expected)


@pytest.mark.slow
def test_a_process_leaves_out_what_runs_at_its_end(tmp_path: Path) -> None:
    """Destructors of libraries are left out; those of the script, of our package and of C code loaded later are not."""
    buffered = {"PYTHONUNBUFFERED": ""}
    server = warm.Server(("numpy", "zarrfeed.base.errors"), buffered)
    for name, body in _ENDS_WITH_LIBRARIES.items():
        with case(name):
            expected = outcome([sys.executable], ["-c", body], cwd=tmp_path, env=os.environ | buffered)
            assert expected[1], expected
            assert outcome(server.command, ["-c", body], cwd=tmp_path, env=os.environ | buffered) == expected
    server.close()


def _comparable(ended: tuple[int, bytes, bytes]) -> tuple[int, bytes, bytes]:
    """Drop from faulthandler's lines the numbers of threads, and the frame of the server."""
    lines = [line for line in ended[2].splitlines(keepends=True) if f"{_FOLDER}/server.py".encode() not in line]
    return ended[0], ended[1], re.sub(rb"0x[0-9a-f]+", b"0x", b"".join(lines))


def test_a_script_cannot_start_processes_by_every_method(server: warm.Server, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SPAWNING)
    status, out, err = outcome(server.command, ["script.py"], cwd=tmp_path)
    of_others = "(9, '__mp_main__', '__mp_main__')"
    assert (status, err) == (0, b"")
    assert out.decode().splitlines() == [
        "fork [(9, '__main__', '__main__')]",
        f"spawn [{of_others}]",
        f"forkserver [{of_others}]",
    ]


def test_a_process_at_a_terminal_is_told_apart(server: warm.Server) -> None:
    code = "import os, sys; print(sys.stdout, sys.stdout.line_buffering, os.isatty(0), os.isatty(2))"

    def said(command: list[str]) -> bytes:
        ours, theirs = pty.openpty()
        subprocess.run(
            [*command, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, check=True, timeout=_TIMEOUT_S
        )
        os.close(theirs)
        with os.fdopen(ours, "rb") as terminal:
            return terminal.read1()

    assert said(server.command) == said([sys.executable])


def test_a_signal_does_not_reach_the_process_alone_or_its_group(server: warm.Server) -> None:
    """A signal to the client is one to the process; a signal to the client's group is one to the process's group."""
    code = """
import os, signal, sys
reading, writing = os.pipe()
numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
worker = os.fork()
if worker == 0:
    os.close(writing)
    os.read(reading, 1)
    print("worker", sorted(int(n) for n in signal.sigpending()), flush=True)
    os._exit(0)
print("ready", flush=True)
os.close(reading)
print("main", int(signal.sigwait(numbers)), flush=True)
sys.stdin.read()
print("more", signal.sigpending(), flush=True)
os.close(writing)
os.waitpid(worker, 0)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    late = f"import sys, time; sys.path.insert(0, {str(ROOT / _FOLDER)!r}); import client; receive = client._receive\n"
    late += "client._receive = lambda server: (receive(server), time.sleep(0.3))[0]\n"  # the process begins before
    late += f"client.main({sys.executable!r}, {str(server.executable.parent)!r})"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        for send in (os.kill, os.killpg):
            for command in (
                [sys.executable],
                server.command,
                *([[sys.executable, "-IBS", "-c", late]] if number == signal.SIGTERM else []),
            ):
                with (
                    case(number.name, send.__name__, command[0]),
                    subprocess.Popen([*command, "-c", code], **pipes, text=True, start_new_session=True) as process,  # type: ignore[call-overload]
                ):
                    assert process.stdout.readline() == "ready\n"
                    send(process.pid, number)
                    assert process.stdout.readline() == f"main {int(number)}\n"
                    group = [int(number)] if send is os.killpg else []
                    said = process.communicate(timeout=_TIMEOUT_S)[0].splitlines()
                    assert said == ["more set()", f"worker {group}"]
                    assert process.returncode == 0


def test_a_process_outlives_a_killed_client_or_takes_its_workers_with_it(server: warm.Server) -> None:
    """SIGKILL of the client ends the process alone, and SIGKILL of its group ends the process's group."""
    code = "import os, signal\nworker = os.fork()\nos.write(1, b'%d\\n' % os.getpid())\nsignal.pause()"
    for send in (os.kill, os.killpg):
        with (
            case(send.__name__),
            subprocess.Popen(
                [*server.command, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
            ) as process,
        ):
            assert process.stdout is not None
            pids = sorted(int(process.stdout.readline()) for _ in range(2))
            child = server.child_of(process.pid)
            (worker,) = set(pids) - {child}
            send(process.pid, signal.SIGKILL)
            assert process.wait(_TIMEOUT_S) == -signal.SIGKILL
            assert wait_until(functools.partial(has_ended, child), _TIMEOUT_S)
            if send is os.kill:
                assert not has_ended(worker)
                os.kill(worker, signal.SIGKILL)
            assert wait_until(functools.partial(has_ended, worker), _TIMEOUT_S)


def test_the_end_of_the_output_comes_late(server: warm.Server) -> None:
    """A process that closes its files lets the reader go on, although its client still waits."""
    code = "import os, signal\nprint(1, flush=True)\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nsignal.pause()"
    with subprocess.Popen([*server.command, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"1\n"
        assert process.poll() is None
        process.terminate()
        assert process.wait(_TIMEOUT_S) == -signal.SIGTERM


def test_processes_do_not_run_at_once(server: warm.Server) -> None:
    """Each of three waits for the others."""
    code = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    print(connection.recv(1))
"""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        port = str(listener.getsockname()[1])
        processes = [
            stack.enter_context(subprocess.Popen([*server.command, "-c", code, port], stdout=subprocess.PIPE))
            for _ in range(3)
        ]
        listener.settimeout(_TIMEOUT_S)
        connections = [stack.enter_context(listener.accept()[0]) for _ in processes]
        for connection in connections:
            connection.send(b"x")
        for process in processes:
            assert process.communicate(timeout=_TIMEOUT_S)[0] == b"b'x'\n"


_OWNER = """
import os, signal, subprocess, sys
from tests.support import warm
server = warm.Server(("decimal",), {})
code = "import signal; print(flush=True); signal.pause()"
child = subprocess.Popen([*server.command, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(server.executable.parent, server.process.pid, server.child_of(child.pid), child.pid, flush=True)
exec(sys.argv[1])
"""


def test_a_server_outlives_its_owner() -> None:
    ends: list[tuple[str, Callable[[int], None]]] = [
        ("signal.pause()", lambda pid: os.kill(pid, signal.SIGKILL)),
        ("os.abort()", lambda _: None),
        ("os._exit(1)", lambda _: None),
        ("sys.exit(1)", lambda _: None),
        ("if os.fork() == 0: signal.pause()", lambda _: None),  # a process that inherited all files of the owner
    ]
    for how, end in ends:
        with (
            case(how),
            subprocess.Popen(
                [sys.executable, "-c", _OWNER, how],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,
            ) as owner,
        ):
            assert owner.stdout is not None
            folder, *started = owner.stdout.readline().decode().split()
            assert len(started) == 3
            end(owner.pid)
            for process in started:
                assert wait_until(functools.partial(has_ended, int(process)), _TIMEOUT_S)
            assert not Path(folder).exists()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


def test_a_request_that_differs_in_its_start_is_warm(server: warm.Server, tmp_path: Path) -> None:
    """A variable that is read at the start, an option, or a module that hides a preloaded one, and the like."""
    assert is_warm(server)
    assert is_warm(server, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1", RANK="3", PYTHON_EXEC="python")
    assert is_warm(server, "-W", "error", "-u", "-B", "-X", "faulthandler")
    for name, value in (
        ("OMP_NUM_THREADS", "7"),
        ("OPENBLAS_NUM_THREADS", "7"),
        ("PYTHONHASHSEED", "17"),
        ("PYTHONDEVMODE", ""),
        ("PYTHONIOENCODING", "utf-8"),
        ("ZARR_CONFIG", str(tmp_path)),
        ("ZARRFEED_OTHER", "1"),
        ("LC_ALL", "C"),
    ):
        assert not is_warm(server, **{name: value}), name
    for option in ("-I", "-S", "-E", "-s", "-O", "-P", "-Xdev", "-Ximporttime", "-Xutf8", "-bb"):
        assert not is_warm(server, option), option
    for hidden in ("decimal.py", "decimal/__init__.py", "sitecustomize.py"):
        with case(hidden):
            path = tmp_path / hidden.replace("/", "-") / hidden
            path.parent.mkdir(parents=True)
            path.write_text("")
            folder = str(tmp_path / hidden.replace("/", "-"))
            assert not is_warm(server, PYTHONPATH=folder)
            done = outcome(server.command, ["-c", "import decimal; print(decimal.__file__)"], cwd=folder)
            assert hidden == "sitecustomize.py" or done[1].decode() == f"{folder}/{hidden}\n"
    (tmp_path / "in").write_text(_IS_WARM)
    for arguments in ([], ["-"]):
        with (tmp_path / "in").open() as text:
            assert outcome(server.command, arguments, stdin=text) == (0, b"False\n", b"")
    assert outcome(server.command, [str(tmp_path / "absent.py")])[0] == 2
    assert outcome(["sh", "-c", 'exec "$@" <&-', "sh", *server.command], ["-c", _IS_WARM])[1] == b"False\n"


@pytest.mark.slow
def test_an_environment_of_all_tests_makes_every_request_real(tmp_path: Path) -> None:
    """Users, test runners and clusters set variables around all tests: a request with the same ones is warm."""
    (tmp_path / "sitecustomize.py").write_text("import threading  # nothing unusual\n")
    for around in (
        {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"},
        {"PYTHONPATH": str(tmp_path)},
        {"PYTHONSAFEPATH": "1"},
        {"PYTHONHASHSEED": "17", "PYTHONBREAKPOINT": "none", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"},
        {"LC_ALL": "C", "LD_LIBRARY_PATH": "/nowhere", "MALLOC_ARENA_MAX": "2", "KMP_AFFINITY": "none"},
    ):
        with case(around):
            server = warm.Server(("decimal", "numpy"), around)
            assert is_warm(server, **around)
            code = "import sys, os; print(sys.path, {n: os.environ.get(n) for n in (*sys.argv[1:], 'OMP_NUM_THREADS')})"
            arguments, environment = ["-c", code, *around], os.environ | around
            oracle = outcome([sys.executable], arguments, env=environment)
            assert outcome(server.command, arguments, env=environment) == oracle
            server.close()


def test_a_variable_that_a_module_reads_is_not_noticed(tmp_path: Path) -> None:
    """Modules read variables at their import, and warn; what they did then is not what they would do now."""
    (tmp_path / "reading.py").write_text(
        "import decimal, os\nnames = dict(os.environ)\nos.environ.get('READ_EARLY')\nos.environ['SET_EARLY'] = '1'\n"
        "os.environ.setdefault('SET_IF_MISSING', '1')\n"
    )
    (tmp_path / "warning.py").write_text("import decimal, warnings\nwarnings.warn('x', DeprecationWarning)\n")
    (tmp_path / "filtering.py").write_text("import decimal, warnings\nwarnings.simplefilter('ignore', BytesWarning)\n")
    server = warm.Server(("reading", "filtering"), {"PYTHONPATH": str(tmp_path), "ANY": "1"})
    assert is_warm(server, ANY="2")
    assert not is_warm(server, READ_EARLY="2")
    assert is_warm(server, SET_IF_MISSING="1")  # a process that has imported the module has it so
    assert not is_warm(server, SET_IF_MISSING="2")
    code = "import os, sys; print(os.environ['SET_EARLY'], 'reading' in sys.modules)"
    assert outcome(server.command, ["-c", code])[1] == b"1 True\n"
    code = "import filtering, warnings; print(warnings.filters)"
    arguments = ["-W", "error", "-c", code]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert outcome(server.command, arguments, env=environment) == outcome([sys.executable], arguments, env=environment)
    server.close()
    server = warm.Server(("warning",), {"PYTHONPATH": str(tmp_path)})
    assert is_warm(server)
    assert not is_warm(server, "-W", "error")
    assert not is_warm(server, PYTHONWARNINGS="error")
    server.close()


def test_a_server_with_a_thread_a_file_or_a_failed_import_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='of a module').start()\n"
    )
    (tmp_path / "opening.py").write_text("file = open(__file__)\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for module, said in (("threaded", b"of a module"), ("opening", b"opening.py'"), ("broken", b"ZeroDivisionError")):
        server = warm.Server((module,), {"PYTHONPATH": str(tmp_path)})
        status, out, err = outcome(server.command, ["-c", "print('here')"])
        assert (status, out) == (1, b""), module
        assert said in err, module
        server.close()


def test_the_default_server_lacks_a_module_or_repeats_itself() -> None:
    """Two processes draw different numbers from the global generators that a new interpreter seeds."""
    code = "import sys, random, tempfile, uuid; before = set(sys.modules)\n"
    code += "import numpy; print(len(set(sys.modules) - before))\n"
    code += "print(random.random(), numpy.random.random(), tempfile.mktemp(), uuid.uuid4())\n"
    code += f"print(all(name in sys.modules for name in {warm.DEFAULT!r}))"
    command = warm.command()
    assert warm.command() == command
    said = [
        subprocess.run([*command, "-c", code], capture_output=True, text=True, check=True, timeout=250) for _ in "ab"
    ]
    lines = [done.stdout.splitlines() for done in said]
    assert [line[0] for line in lines] == ["0", "0"]
    assert [line[2] for line in lines] == ["True", "True"]
    assert not set(lines[0][1].split()) & set(lines[1][1].split())


@pytest.mark.slow
def test_the_executable_is_no_python_of_a_path_or_of_torchrun(tmp_path: Path) -> None:
    """The agent of torchrun and its ranks are warm."""
    module = "zarrfeed.torch.datasets.loader"
    (tmp_path / "rank.py").write_text(
        f"import os, sys; print(os.environ['RANK'] + ' ' + str({module!r} in sys.modules) + '\\n', end='')"
    )
    path = f"{warm.executable().parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHON_EXEC": str(warm.executable()), "OMP_NUM_THREADS": "1"}
    launch = "python -m torch.distributed.run --standalone --nproc-per-node 2 rank.py"
    done = subprocess.run(
        ["sh", "-c", launch], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert sorted(done.stdout.splitlines()) == ["0 True", "1 True"], done.stderr


def test_the_process_of_a_client_is_not_found() -> None:
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen([*warm.command(), "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = warm.child_of(process.pid)
        assert int(process.stdout.readline()) == child
        warm.kill(process)
        assert process.wait(_TIMEOUT_S) == -signal.SIGKILL
        assert has_ended(child)

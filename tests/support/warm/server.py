"""The server of warm processes: `server.py LISTENER MODULE...` imports modules, and forks for each request of a client.

It has one thread, so that what it forks is whole. It ends with the process that started it, and kills its children.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import io
import linecache
import marshal
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Iterable
from importlib.machinery import BuiltinImporter, SourceFileLoader
from pathlib import Path
from typing import Any

_HERE = __file__
_OWN_FOLDER = str(Path(__file__).parent)
if not sys.flags.safe_path:
    sys.path.pop(0)
sys.path.append(_OWN_FOLDER)
# fmt: off
from client import (  # type: ignore[import-not-found]  # noqa: E402
    ALONE,
    ENDED,
    HEADER,
    MESSAGE,
    MOST_FILES,
    REAL,
    SIGNAL,
    STARTED,
)

# fmt: on

sys.path.remove(_OWN_FOLDER)
del sys.modules["client"]  # scripts may have a module of that name

#: Begins of the names of variables that C or C++ reads at the start, or that modules find by going through all.
_READ_AT_START = (
    *(
        "PYTHON",
        "LC_",
        "LANG",
        "LD_",
        "MALLOC_",
        "GLIBC_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "OPENBLAS_",
        "GOTO_",
        "MKL",
        "DNNL_",
    ),
    *(
        "ONEDNN_",
        "GFORTRAN_",
        "NPY_",
        "NUMPY_",
        "OPENSSL_",
        "TORCH_SHOW_",
        "TORCH_CPP_",
        "TORCH_ALLOW_",
        "TORCH_CUSTOM_",
    ),
    *("TORCH_BLAS_", "TORCH_LINALG_", "PYTORCH_API_", "TORCH_DISTRIBUTED_DEBUG", "ZARR_", "ZARRFEED_"),
)
#: Variables that are set anew in a process, or that only those read who start others.
_APPLIED = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHON_EXEC"}
#: Variables that modules look at as they are imported, without an effect on what they do later.
#: Lightning takes its rank from LOCAL_RANK, and again when a strategy begins.
_WITHOUT_EFFECT = {"PATH", "TMPDIR", "TMP", "TEMP", "COLUMNS", "LINES", "LOCAL_RANK"}
#: Variables that are 1 while the server imports, as a process with threads cannot be forked.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


#: The package under test, whose modules end as in any interpreter.
_OWN_PACKAGE = "zarrfeed"


def _is_of_others(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in (_OWN_PACKAGE, "tests", "__main__") and top not in sys.stdlib_module_names


def _keep_modules_of_others() -> None:
    """Let the modules of other libraries live on while a forked process ends; it calls this last before it clears them.

    To take down torch by destructors is 0.2 s of CPU, as each object that a process frees lies in a page that the
    process has to copy first. Modules of Python and our own end as ever, and so does what the process itself made.
    """
    kept = [sys.modules.pop(name) for name in list(sys.modules) if _is_of_others(name)]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _keep_what_libraries_registered() -> None:
    """Drop the finalizers that other libraries made at their import: torch has one for each library of operators."""
    registry: Any = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer, info in list(registry.items()):
        if _is_of_others(getattr(info.func, "__module__", None) or "__main__"):
            finalizer.atexit = False


@functools.cache
def _skip_destructors_until_now() -> None:
    """Let a process that ends leave out the destructors of C++ objects that libraries have made so far.

    `exit` runs destructors in the reverse order. So those of what is loaded later run, then C's files are written out.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


class Preloaded:
    """Traces of the server's start: variables that it read, and values that a process must find as they were before."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.environment = dict(os.environ)
        #: sys.path without what differs from process to process.
        self.path = [entry for entry in sys.path if entry not in _entries(self.environment)]
        self.filters = list(warnings.filters)
        self.warned: list[str] = []
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        self.read = self._import(modules)
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update({name: self.environment[name] for name in _ONE_THREAD if name in self.environment})
        self.set = {name: value for name, value in os.environ.items() if self.environment.get(name) != value}
        self.added_filters = [entry for entry in warnings.filters if entry not in self.filters]
        self.tops = {name for name in list(sys.modules) if "." not in name and _folder_of(name)} - {"__main__"}

    def _import(self, modules: Iterable[str]) -> set[str]:
        """Import modules; return the names of the variables that they read."""
        names: set[str] = set()
        going_through: set[str] = set()
        environment: Any = os.environ
        encode, decode = environment.encodekey, environment.decodekey

        def look_up(name: str) -> bytes:
            if name in going_through:
                going_through.discard(name)  # as in `os.environ.copy()`
            else:
                names.add(name)
            return encode(name)  # type: ignore[no-any-return]

        def go_through(name: bytes) -> str:
            going_through.add(decode(name))
            return decode(name)  # type: ignore[no-any-return]

        environment.encodekey, environment.decodekey = look_up, go_through
        show = warnings.showwarning
        warnings.showwarning = lambda message, *_, **__: self.warned.append(repr(message))
        always = ("always", None, Warning, None, 0)
        warnings.filters.insert(0, always)  # type: ignore[attr-defined]
        files = _open_file_names()
        gc.disable()  # all that lives then is kept: collections took a tenth of the time
        try:
            for name in modules:
                if name.partition(".")[0] == _OWN_PACKAGE:
                    _skip_destructors_until_now()
                importlib.import_module(name)
        finally:
            gc.enable()
            environment.encodekey, environment.decodekey = encode, decode
            warnings.showwarning = show
            warnings.filters.remove(always)  # type: ignore[attr-defined]
        # A forked process closes them and uses their numbers anew: the end of an old object would close another file.
        if opened := {number: name for number, name in _open_file_names().items() if number not in files}:
            raise RuntimeError(f"modules opened files at their import and keep them: {opened}")
        return names

    def objection(self, environment: dict[str, str], command: "Command") -> str:
        """Return why a request needs a real interpreter; empty if it does not."""
        if command.objection:
            return command.objection
        for name in {*environment, *self.environment}:
            mine, other = self.environment.get(name), environment.get(name)
            is_read = name in self.read or name.startswith(_READ_AT_START)
            if name in _ONE_THREAD and other in (None, "1"):
                continue
            if name in self.set and other == self.set[name]:  # as where the client's owner has imported the module, too
                continue
            if mine != other and is_read and name not in _APPLIED and name not in _WITHOUT_EFFECT:
                return f"the environment variable {name} is {other!r}, and {mine!r} in the server"
        if self.warned and (command.warnings or environment.get("PYTHONWARNINGS")):
            return f"modules warn at their import: {self.warned[0]}"
        of_server = _entries(self.environment)
        for entry in [*command.path, *_entries(environment)]:
            folder = os.path.realpath(entry)
            for name in _listing(entry):
                top = name.partition(".")[0]
                if top in ("sitecustomize", "usercustomize") and entry not in of_server:
                    return f"{entry} has {name}"
                if top in self.tops and _folder_of(top) != folder and _is_module(entry, name):
                    return f"{entry}/{name} would be imported as {top}"
        return ""


class Command:
    """The arguments of an interpreter."""

    def __init__(self, arguments: list[str]) -> None:
        self.warnings: list[str] = []
        self.is_unbuffered = self.has_faulthandler = self.writes_no_bytecode = False
        self.objection = ""
        #: The folder that Python puts at the head of sys.path.
        self.path: list[str] = []
        self.arguments = arguments
        rest = list(arguments)
        while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m", "-"):
            option = rest.pop(0)
            if option[:2] in ("-W", "-X"):
                value = option[2:] or (rest.pop(0) if rest else "")
                if option[1] == "W":
                    self.warnings.append(value)
                    continue
                option = f"-X {value}"
            if option == "-X faulthandler":
                self.has_faulthandler = True
            elif option == "-u":
                self.is_unbuffered = True
            elif option == "-B":
                self.writes_no_bytecode = True
            else:
                self.objection = f"the option {option}"
                return
        self.kind, self.what, self.argv = "script", "", rest
        try:
            directory = os.getcwd()
        except FileNotFoundError:
            self.objection = "a directory that is gone"
            return
        if not rest or rest[0] == "-" or (rest[0] in ("-c", "-m") and len(rest) < 2):
            self.objection = "no script"
        elif rest[0] in ("-c", "-m"):
            self.kind, self.what, self.argv = rest[0], rest[1], [rest[0], *rest[2:]]
            path = directory if self.kind == "-m" else ""
            if self.kind == "-m" and self.what in sys.modules and not hasattr(sys.modules[self.what], "__path__"):
                self.objection = f"{self.what} is imported"
        else:
            self.what = rest[0]
            if not os.path.isabs(self.what):
                self.what = f"{directory}/{self.what.removeprefix('./')}"
            path = os.path.dirname(os.path.realpath(self.what))
            if not os.path.isfile(self.what) or self.what.endswith((".pyc", ".zip", ".pyz")):
                self.objection = f"{self.what} is no script"
        if not (sys.flags.safe_path or self.objection):
            self.path = [path]


def _open_file_names() -> dict[int, str]:
    names = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            names[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return names


def _entries(environment: dict[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH, as `site` writes them."""
    entries = environment.get("PYTHONPATH", "")
    return [os.path.abspath(entry) for entry in entries.split(os.pathsep)] if entries else []


def _listing(entry: str) -> list[str]:
    try:
        return os.listdir(entry or ".")
    except OSError:
        return []


def _is_module(entry: str, name: str) -> bool:
    path = Path(entry, name)
    return name.endswith((".py", ".so", ".pyc")) or (path.is_dir() and (path / "__init__.py").exists())


def _folder_of(top: str) -> str | None:
    """Return the folder in which a preloaded module was found; None for those that are in no folder."""
    file: str | None = getattr(sys.modules[top], "__file__", None)
    if not file:
        return None
    module = os.path.dirname(file) if os.path.basename(file).startswith("__init__.") else file
    return os.path.realpath(os.path.dirname(module))


class Child:
    """A forked process, and its client."""

    def __init__(self, pid: int, connection: socket.socket, witness: socket.socket) -> None:
        self.pid, self.connection, self.witness = pid, connection, witness
        self.handle = os.pidfd_open(pid)

    def signal(self, number: int, *, is_group: bool) -> None:
        try:
            (os.killpg if is_group else os.kill)(self.pid, number)
        except ProcessLookupError:  # no group as yet, or no process any more
            if is_group:
                os.kill(self.pid, number)

    def close(self) -> None:
        self.connection.close()
        self.witness.close()
        os.close(self.handle)


class Server:
    """Takes requests, and waits for children."""

    def __init__(self, listener: socket.socket, owner: int, preloaded: Preloaded) -> None:
        self._listener, self._preloaded = listener, preloaded
        self._children: dict[int, Child] = {}
        #: Client -> the process that it stands for, itself where it is a real interpreter.
        self._started: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        try:
            self._owner = os.pidfd_open(owner)
        except ProcessLookupError:
            self.end()
        self._selector.register(self._owner, selectors.EVENT_READ, self.end)
        signal.signal(signal.SIGTERM, lambda *_: self.end())

    def serve(self) -> tuple[Command, dict[str, str]]:
        """Serve; return in each forked process its command and environment. The server itself never returns."""
        while True:
            key, _ = self._selector.select()[0]  # an action may close what else is ready
            if task := key.data():
                return task  # type: ignore[no-any-return]

    def end(self) -> None:
        """End all children and the server, and remove its folder."""
        for child in self._children.values():
            child.signal(signal.SIGKILL, is_group=True)
        shutil.rmtree(os.path.dirname(self._listener.getsockname()), ignore_errors=True)
        os._exit(0)

    def _accept(self) -> tuple[Command, dict[str, str]] | None:
        connection = self._listener.accept()[0]
        connection.settimeout(60)
        files: list[int] = []
        try:
            request, files = _receive(connection)
            if "child_of" in request:
                connection.sendall(MESSAGE.pack(STARTED, self._started.get(request["child_of"], 0)))
                return None
            connection.settimeout(None)
            return self._start(connection, request, files)
        except (OSError, EOFError):  # the client was killed
            return None
        finally:
            for number in files:
                os.close(number)

    def _start(
        self, connection: socket.socket, request: dict[str, Any], files: list[int]
    ) -> tuple[Command, dict[str, str]] | None:
        os.fchdir(files[0])
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in request["environment"].items()}
        command = Command(request["arguments"])
        if objection := self._preloaded.objection(environment, command):
            print(f"{request['arguments']}: a real interpreter, for {objection}", file=sys.stderr, flush=True)
            self._started[request["client"]] = request["client"]
            connection.sendall(MESSAGE.pack(REAL, 0))
            connection.close()
            return None
        if len(threads := os.listdir("/proc/self/task")) > 1:
            names = [thread.name for thread in threading.enumerate()]
            raise RuntimeError(f"modules started {len(threads) - 1} threads at their import; Python knows {names}")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            self._forget(connection)
            _take_place(request, files[2:])
            files.clear()
            return command, environment
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.chdir("/")
        self._started[request["client"]] = pid
        child = Child(pid, connection, socket.socket(fileno=os.dup(files[1])))
        self._children[pid] = child
        self._selector.register(child.handle, selectors.EVENT_READ, lambda: self._reap(child))
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(child))
        with contextlib.suppress(OSError):  # the client was killed, which is heard next
            connection.sendall(MESSAGE.pack(STARTED, pid))
        return None

    def _forget(self, connection: socket.socket) -> None:
        """Let go of all that a forked process has of the server: its files are closed by their numbers."""
        self._selector.close()
        for other in [self._listener, connection, *(child.connection for child in self._children.values())]:
            other.detach()
        for child in self._children.values():
            child.witness.detach()
        self._children.clear()

    def _hear(self, child: Child) -> None:
        """Take a signal from a client, or its end."""
        try:
            data = child.connection.recv(SIGNAL.size, socket.MSG_WAITALL)
        except OSError:
            data = b""
        if len(data) == SIGNAL.size:
            number, is_group = SIGNAL.unpack(data)
            child.signal(number, is_group=is_group)
            return
        self._selector.unregister(child.connection)
        child.witness.settimeout(10)
        child.signal(signal.SIGKILL, is_group=child.witness.recv(1) != ALONE)

    def _reap(self, child: Child) -> None:
        """Tell a client that its process has ended."""
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.handle)
        with contextlib.suppress(KeyError):  # the client was killed, and is not listened to any more
            self._selector.unregister(child.connection)
        del self._children[child.pid]
        with contextlib.suppress(OSError):
            child.connection.sendall(MESSAGE.pack(ENDED, status))
        child.close()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, files, _, _ = socket.recv_fds(connection, HEADER.size, MOST_FILES)
    if len(header) < HEADER.size:
        raise EOFError
    size = HEADER.unpack(header)[0]
    return marshal.loads(connection.recv(size, socket.MSG_WAITALL)), files


def _take_place(request: dict[str, Any], files: list[int]) -> None:
    """Make a forked process what the client is, for the kernel."""
    if request["leads"]:
        os.setsid()
    else:
        os.setpgid(0, 0)
    numbers = request["files"]
    above = max([*numbers, *map(int, os.listdir("/proc/self/fd"))]) + 1
    for number in files:
        os.dup2(number, above + number, inheritable=False)
    os.closerange(0, above)
    for number, target in zip(files, numbers, strict=True):
        os.dup2(above + number, target)
        os.close(above + number)
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["affinity"])
    for name, soft, hard in request["limits"]:
        resource.setrlimit(name, (soft, hard))
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        wanted = signal.SIG_IGN if number in request["ignored"] else usual
        if signal.getsignal(number) not in (wanted, None):
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])


def _become(preloaded: Preloaded, command: Command, environment: dict[str, str]) -> None:
    """Make a forked process what a new interpreter is."""
    os.environ.clear()
    os.environ.update(preloaded.set | environment)
    _open_files(is_unbuffered=command.is_unbuffered or bool(environment.get("PYTHONUNBUFFERED")))
    tempfile.tempdir = None
    sys.path_importer_cache.clear()
    linecache.clearcache()
    sys.path[:] = [*command.path, *dict.fromkeys([*_entries(environment), *preloaded.path])]
    sys.dont_write_bytecode = bool(command.writes_no_bytecode or environment.get("PYTHONDONTWRITEBYTECODE"))
    faulthandler.disable()
    sys._xoptions.clear()
    if command.has_faulthandler:
        sys._xoptions["faulthandler"] = True
    if command.has_faulthandler or environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    _filter_warnings(preloaded, [*filter(None, environment.get("PYTHONWARNINGS", "").split(",")), *command.warnings])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # `random` does so itself
    sys.argv[:] = command.argv
    sys.orig_argv[:] = [sys.executable, *command.arguments]


def _open_files(*, is_unbuffered: bool) -> None:
    """Make sys.stdin, sys.stdout and sys.stderr, as the interpreter does for what they are now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        mode, buffering = ("rb", -1) if number == 0 else ("wb", 0 if is_unbuffered else -1)
        binary: Any = open(number, mode, buffering=buffering, closefd=False)  # noqa: SIM115
        raw = getattr(binary, "raw", binary)
        raw.name = f"<{name}>"
        text: Any = io.TextIOWrapper(
            binary,
            encoding=old.encoding,
            errors=old.errors,
            newline="\n",
            line_buffering=not is_unbuffered and (number == 2 or raw.isatty()),
            write_through=is_unbuffered,
        )
        text.mode = mode[0]
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _filter_warnings(preloaded: Preloaded, options: list[str]) -> None:
    """Put the filters of options between those of modules and those of Python, where they are in a new interpreter."""
    sys.warnoptions[:] = options
    warnings.filters[:] = list(preloaded.filters)  # type: ignore[index]
    warnings._processoptions(options)  # type: ignore[attr-defined]
    warnings.filters[:0] = preloaded.added_filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _new_main(command: Command) -> types.ModuleType:
    """Make the module `__main__` of a command."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"], __loader__=BuiltinImporter)
    if command.kind == "script":
        main.__dict__.update(__file__=command.what, __cached__=None)
        main.__loader__ = SourceFileLoader("__main__", command.what)
    return main


def _code_of(command: Command) -> types.CodeType:
    if command.kind == "-c":
        return compile(command.what, "<string>", "exec", dont_inherit=True)
    return compile(Path(command.what).read_bytes(), command.what, "exec", dont_inherit=True)


def _hide_own_frames() -> None:
    """Let the traceback that ends the process begin where it would begin in a new interpreter."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        sys.excepthook = hook
        while trace is not None and trace.tb_frame.f_code.co_filename == _HERE:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


if __name__ == "__main__":
    atexit.register(_keep_modules_of_others)  # the first one is called last
    _preloaded = Preloaded(sys.argv[3:])
    _keep_what_libraries_registered()
    gc.collect()
    gc.freeze()  # else new processes copy all memory that holds an object, only to count references
    _server = Server(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), _preloaded)
    _command, _environment = _server.serve()
    _become(_preloaded, _command, _environment)
    sys.modules["__main__"] = _new_main(_command)  # held by nothing else, so that it ends as any does
    try:
        if _command.kind == "-m":
            runpy._run_module_as_main(_command.what)  # type: ignore[attr-defined]
        else:
            exec(_code_of(_command), sys.modules["__main__"].__dict__)
    except BaseException:
        _hide_own_frames()
        raise

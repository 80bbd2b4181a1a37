"""Faults in `open`, `read` and `write` of this process: shim.c, compiled when it is needed and preloaded.

A row whose `variables` are `preloaded` has its tries in a process with the library; there

    with injected(Fault(Calls.READ, directory, error=errno.EIO)) as acted:
        ...
    assert acted[0] > 0

lets calls on files below a directory fail, and says how often it did. Faults end with the block: calls that are
stalled go on then, and the block waits until they do.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from tests.faults.harness.row import UnspecifiedError

_SOURCE = Path(__file__).with_name("shim.c")
_MAX_PATH = 4096
_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Calls(IntFlag):
    """Which calls, as in shim.c.

    READ_CACHED are reads that take only what the page cache has; OPENED are those opens that succeeded, before they
    return.
    """

    OPEN = 1
    READ = 2
    READ_CACHED = 4
    WRITE = 8
    OPENED = 16


class _Rule(ctypes.Structure):
    """`struct rule` of shim.c."""

    _fields_ = (
        ("path", ctypes.c_char * _MAX_PATH),
        ("calls", ctypes.c_int64),
        ("error", ctypes.c_int64),
        ("skip", ctypes.c_int64),
        ("times", ctypes.c_int64),
        ("chance", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("stall_ms", ctypes.c_int64),
        ("most_bytes", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("hook", _HOOK),
        ("seen", ctypes.c_int64),
        ("acted", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Fault:
    """What becomes of calls.

    Attributes
    ----------
    calls
        Which.
    path
        A file, or a directory for all files below; without links in it.
    error
        Error number with which they fail; 0: they are made.
    skip, times
        So many are let through first, then so many are acted on; -1: all.
    chance, seed
        Probability with which each of them is acted on.
    stall_ms
        How long they wait first.
    most_bytes
        A read or write takes from 1 to so many bytes, at random; 0: all.
    room
        So many bytes are written before writes fail with `error`.
    hook
        Called with the path of the file, by the thread that makes the call. Its own calls have no faults.
    """

    calls: Calls
    path: Path
    error: int = 0
    skip: int = 0
    times: int = -1
    chance: float = 1.0
    seed: int = 0
    stall_ms: int = 0
    most_bytes: int = 0
    room: int = -1
    hook: Callable[[Path], None] | None = None


class Acted:
    """How often the faults of a block have acted, each by its number, in the block and after it."""

    def __init__(self, library: ctypes.CDLL, hooks: list[object]) -> None:
        self._library = library
        self._hooks = hooks  # ctypes does not keep them
        self.failures: list[BaseException] = []

    def __getitem__(self, number: int) -> int:
        return int(self._library.shim_acted(number))


@contextmanager
def injected(*faults: Fault) -> Iterator[Acted]:
    """Let the faults happen in the block; of several that name a call, the first that acts on it counts.

    Raises
    ------
    RuntimeError
        If the library was not preloaded.
    UnspecifiedError
        If a hook raised.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "shim_add"):
        raise RuntimeError("shim.c is not preloaded in this process: the row's variables must be shim.preloaded")
    library.shim_acted.restype = ctypes.c_int64
    library.shim_clear()
    acted = Acted(library, [])
    try:
        for fault in faults:
            rule = _rule(fault, acted)
            if library.shim_add(ctypes.byref(rule)) < 0:
                raise RuntimeError(f"{len(faults)} faults at once are more than shim.c has room for")
        yield acted
    finally:
        library.shim_clear()
    if acted.failures:
        raise UnspecifiedError(f"the hook failed: {acted.failures[0]!r}")


def _rule(fault: Fault, acted: Acted) -> _Rule:
    def call(path: bytes) -> None:
        try:
            assert fault.hook is not None
            fault.hook(Path(os.fsdecode(path)))
        except BaseException as error:  # noqa: BLE001 (ctypes would print it, and the try would look good)
            acted.failures.append(error)

    path = os.fsencode(fault.path) + b"/" * fault.path.is_dir()
    if len(path) >= _MAX_PATH:
        raise ValueError(f"{fault.path}: is longer than shim.c takes")
    hook = _HOOK(call) if fault.hook is not None else _HOOK()
    acted._hooks.append(hook)
    return _Rule(
        path=path,
        calls=fault.calls,
        error=fault.error,
        skip=fault.skip,
        times=fault.times,
        chance=fault.chance,
        seed=fault.seed,
        stall_ms=fault.stall_ms,
        most_bytes=fault.most_bytes,
        room=fault.room,
        hook=hook,
    )


def preloaded() -> Mapping[str, str]:
    """Return the environment of a process that has the library."""
    before = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": f"{_compiled()}:{before}" if before else str(_compiled())}


@functools.cache
def _compiled() -> Path:
    """Compile the library, once in a process; it is removed when that ends."""
    compiler = next((found for name in ("cc", "gcc", "clang", "c++", "g++") if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("no C compiler: looked for cc, gcc, clang, c++ and g++")
    directory = tempfile.mkdtemp(prefix="zarrfeed-shim-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = Path(directory) / "shim.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = [compiler, "-x", "c", "-std=gnu11", "-O1", "-shared", "-fPIC", *warnings, "-o", str(library)]
    subprocess.run([*command, str(_SOURCE), "-pthread", "-ldl"], check=True, timeout=240)
    return library

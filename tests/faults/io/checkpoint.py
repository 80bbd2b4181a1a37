"""Rows of checkpoints: the writer is killed, connections are reset, bytes are lost or changed, disks are full.

What holds in each try: what a reader returns is one of the states that were saved, whole. An older checkpoint stays,
also one of the same name, unless the store says that it has the new one and changed its bytes. Each try counts that its
fault has happened.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.object_server import Act, ObjectServer, Request
from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import check_errno, check_injected
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from tests.faults.io.web import ENVIRONMENT
from tests.support import warm
from tests.support.paths import ROOT
from zarrfeed import checkpoint
from zarrfeed.base.errors import CorruptCheckpointError, StoreReadError, StoreWriteError
from zarrfeed.storage.checkpoint.checkpoint_format import PART_BYTES

_SCHEMES = ("s3", "gs", "az")
#: Elements of the large tensor: the checkpoint has four parts.
_ELEMENTS = 3 * PART_BYTES // 4 + 1000
_OLD, _NEW, _OTHER = 1, 2, 3
_ALWAYS = 1000
_UPLOADS, _DOWNLOADS = ("create", "part", "complete"), ("get", "head")


@functools.cache
def state_of(version: int) -> dict[str, Any]:
    """Return what a version saves, not to be changed: each element tells the version and its index."""
    large = torch.arange(_ELEMENTS, dtype=torch.int32) * 7 + version
    return {"version": version, "large": large, "small": [torch.full((5,), i + version) for i in range(20)]}


def version_of(state: dict[str, Any]) -> int:
    """Return the version of a state that was loaded; UnspecifiedError unless it is that version, whole."""
    expected = state_of(state["version"])
    right = torch.equal(state["large"], expected["large"]) and all(
        torch.equal(one, other) for one, other in zip(state["small"], expected["small"], strict=True)
    )
    if not right:
        raise UnspecifiedError(f"a wrong load: {state['version']}, {state['large'][:5]}, {state['small'][:2]}")
    return int(state["version"])


class Depot:
    """Where a try keeps its checkpoints: a directory, or a bucket of a server."""

    def __init__(self, kind: str, directory: Path, server: ObjectServer, retries: int = 2) -> None:
        self.kind, self.server, self.directory = kind, server, directory.resolve() / "run"
        self._options: dict[str, Any] = {"memory_budget": 2 * PART_BYTES, "retries": retries}
        if kind != "file":
            self._options["storage_options"] = server.options(kind)

    def location(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the URL and the options of a checkpoint."""
        return str(self.directory / name) if self.kind == "file" else f"{self.kind}://bucket/run/{name}", self._options

    def save(self, version: int, name: str = "step.pt") -> None:
        """Save a version."""
        url, options = self.location(name)
        with checkpoint.writer(url, **options) as file:
            torch.save(state_of(version), file)

    def load(self, name: str = "step.pt") -> int:
        """Load a checkpoint; return which version it is."""
        url, options = self.location(name)
        with checkpoint.reader(url, **options) as file:
            return version_of(torch.load(file))

    def must_have(self, *versions: int, name: str = "step.pt") -> None:
        """Raise UnspecifiedError unless a checkpoint is one of these versions, whole."""
        self.server.fault = None
        try:
            found = self.load(name)
        except (StoreReadError, CorruptCheckpointError) as error:
            raise UnspecifiedError(f"lost {name}: {error!r}") from error
        if found not in versions:
            raise UnspecifiedError(f"{name} has version {found}, must be one of {versions}")

    def check_litter(self) -> None:
        """Raise UnspecifiedError if hidden files are left."""
        left = sorted(found.name for found in self.directory.glob(".*")) if self.kind == "file" else []
        if left:
            raise UnspecifiedError(f"left behind: {left}")

    def is_refused(self, name: str = "step.pt") -> None:
        """Raise UnspecifiedError unless the reader refuses the checkpoint as damaged."""
        try:
            version = self.load(name)
        except CorruptCheckpointError:
            return
        raise UnspecifiedError(f"version {version} was loaded, though its bytes were changed")


@contextlib.contextmanager
def _depot(attempt: Try, kinds: tuple[str, ...], retries: int = 2) -> Iterator[Depot]:
    """Yield a depot with an older checkpoint of the same name and one of another name."""
    with ObjectServer() as server:
        depot = Depot(kinds[attempt.number // 3 % len(kinds)], attempt.directory, server, retries)
        depot.save(_OLD)
        depot.save(_OTHER, "other.pt")
        yield depot
        depot.must_have(_OTHER, name="other.pt")


class Sometimes:
    """Acts on some requests of a kind: those from a number on, so many times."""

    def __init__(self, kinds: tuple[str, ...], first: int, times: int, act: Act) -> None:
        self._kinds, self._first, self._times, self._act = kinds, first, times, act
        self.hits = 0

    def __call__(self, request: Request) -> Act | None:
        """Return what goes wrong with a request."""
        if request.kind not in self._kinds or not self._first <= 0 < self._times - self.hits:
            self._first -= request.kind in self._kinds
            return None
        self.hits += 1
        return self._act


_CHILD = """
import json, sys
import torch
from tests.faults.io.checkpoint import state_of
from zarrfeed import checkpoint

url, options, version = json.loads(sys.argv[1])
state = state_of(version)

class Told:
    def __init__(self, file):
        self.file = file
    def write(self, data):
        for begin in range(0, len(data), 1 << 20):
            print(flush=True)
            self.file.write(data[begin : begin + (1 << 20)])
        return len(data)
    def flush(self):
        pass

sys.stdin.readline()
with checkpoint.writer(url, **options) as file:
    torch.save(state, Told(file))
    print("closing", flush=True)
print("closed", flush=True)
sys.stdin.read()  # until it is killed: a process that ended was not
"""


def kill(attempt: Try) -> str:
    """Kill a process that writes, at a random moment, with SIGKILL."""
    kinds = ("file", *_SCHEMES)
    with _depot(attempt, kinds) as depot:
        command = [*warm.command(), "-c", _CHILD, json.dumps([*depot.location("step.pt"), _NEW])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as child:  # type: ignore[call-overload]
            child.stdin.write("\n")
            child.stdin.flush()
            lines = _read_lines(child, attempt.random)
            warm.kill(child)
            lines += child.stdout.readlines()
        if child.returncode != -9:
            raise UnspecifiedError(f"nothing was injected: the process had ended with {child.returncode}")
        depot.must_have(*((_NEW,) if "closed\n" in lines else (_OLD, _NEW)))
        outcome = "new" if depot.load() == _NEW else "old"
        depot.save(_NEW)
        depot.must_have(_NEW)
        depot.check_litter()
        return f"killed, {outcome} whole"


def _read_lines(child: subprocess.Popen[str], chooser: random.Random) -> list[str]:
    """Read what a writer says up to a random moment: before it is half done, or while it closes."""
    assert child.stdout is not None
    lines = []
    last = chooser.choice((chooser.randrange(1, 26), 1000))
    for line in child.stdout:
        lines.append(line)
        if len(lines) == last or line == "closing\n":
            break
    time.sleep(chooser.choice((0, 0.1)) * chooser.random())
    return lines


def _save_and_load(depot: Depot, fault: Sometimes, attempt: Try) -> str:
    """Save, or load, while requests fail; the older checkpoint stays if that does not succeed."""
    is_load = attempt.number % 2 == 0
    depot.server.fault = fault
    try:
        if is_load:
            version = depot.load()
        else:
            depot.save(_NEW)
    except (StoreReadError, StoreWriteError) as error:
        check_injected(fault.hits)
        if fault.hits < 2 or is_load is isinstance(error, StoreWriteError):
            raise UnspecifiedError(f"after {fault.hits} faults: {error!r}") from error
        depot.must_have(_OLD)
        depot.check_litter()
        depot.save(_NEW)
        depot.must_have(_NEW)
        return f"{'load' if is_load else 'save'}: error, then right"
    check_injected(fault.hits)
    if is_load and version != _OLD:
        raise UnspecifiedError(f"version {version} was loaded, {_OLD} was there")
    depot.must_have(_OLD if is_load else _NEW)
    return f"{'load' if is_load else 'save'}: right"


def _fails(attempt: Try, act: Act, kinds: tuple[str, ...], first: int) -> str:
    times = attempt.random.choice((1, 2, _ALWAYS))
    with _depot(attempt, _SCHEMES) as depot:
        return _save_and_load(depot, Sometimes(kinds, first, times, act), attempt)


def _some_requests(attempt: Try) -> tuple[tuple[str, ...], int]:
    """Return kinds of requests of a save or a load, and how many of them succeed first."""
    if attempt.number % 2 == 0:
        kind = attempt.random.choice(_DOWNLOADS)
        return (kind,), attempt.random.randrange(4) if kind == "get" else 0
    kind = attempt.random.choice(("part", "part", "complete"))
    return (kind,), attempt.random.randrange(4) if kind == "part" else 0


def reset(attempt: Try) -> str:
    """Reset connections in the middle of a body, or after all was done and before the answer."""
    kinds, first = _some_requests(attempt)
    what = "reset" if kinds[0] in _DOWNLOADS else attempt.random.choice(("reset", "forget"))
    return _fails(attempt, Act(what, share=attempt.random.random()), kinds, first)


def status(attempt: Try) -> str:
    """Answer with a status of a server that is busy or broken."""
    kinds, first = _some_requests(attempt)
    return _fails(attempt, Act("status", attempt.random.choice((500, 502, 503, 504, 429))), kinds, first)


def short(attempt: Try) -> str:
    """Take or give fewer bytes than there are, without an error: a server that lies, or a disk that takes some."""
    if attempt.number % 3 == 0:
        return _short_on_disk(attempt)
    chooser, share = attempt.random, attempt.random.random()
    with _depot(attempt, _SCHEMES) as depot:
        if attempt.number % 3 == 1:  # an answer ends early, and says so
            fault = Sometimes(("get",), chooser.randrange(4), chooser.choice((1, _ALWAYS)), Act("cut", share=share))
            depot.server.fault = fault
            outcome = _load_or_refusal(depot)
            check_injected(fault.hits)
            depot.must_have(_OLD)
            return f"load: {outcome}"
        fault = Sometimes(("part",), chooser.randrange(4), 1, Act("cut", share=share))
        depot.server.fault = fault
        try:
            depot.save(_NEW, "new.pt")
        except StoreWriteError:
            check_injected(fault.hits)
        else:
            raise UnspecifiedError("a checkpoint that lacks bytes was taken for saved")
        depot.must_have(_OLD)
        depot.server.fault = None
        depot.is_refused("new.pt")
        return "save: error"


def _short_on_disk(attempt: Try) -> str:
    most = attempt.random.choice((1 << 12, 1 << 16, 1 << 20))
    with _depot(attempt, ("file",)) as depot:
        calls = attempt.random.choice((Calls.WRITE, Calls.READ))
        with injected(Fault(calls, depot.directory, most_bytes=most, seed=attempt.number)) as acted:
            if calls == Calls.WRITE:
                depot.save(_NEW)
            else:
                depot.load()
            check_injected(acted[0])
        depot.must_have(_NEW if calls == Calls.WRITE else _OLD)
        depot.check_litter()
    return "disk: right"


def _load_or_refusal(depot: Depot) -> str:
    try:
        version = depot.load()
    except CorruptCheckpointError:
        return "refused"
    if version != _OLD:
        raise UnspecifiedError(f"version {version} was loaded, {_OLD} was there")
    return "right"


def full(attempt: Try) -> str:
    """Save where there is no room, at a random byte."""
    code = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)[attempt.number % 3]
    with _depot(attempt, ("file",)) as depot:
        room = attempt.random.choice((0, attempt.random.randrange(4 * 3 * PART_BYTES // 4), 3 * PART_BYTES + 4000))
        with _no_room(depot.directory, code, room):
            try:
                depot.save(_NEW)
            except StoreWriteError as error:
                check_errno(error, code)
            else:
                raise UnspecifiedError("there was room")
        depot.must_have(_OLD)
        depot.check_litter()
        depot.save(_NEW)
        depot.must_have(_NEW)
    return f"error {errno.errorcode[code]}, then right"


@contextlib.contextmanager
def _no_room(directory: Path, code: int, room: int) -> Iterator[None]:
    if code != errno.EFBIG:
        with injected(Fault(Calls.WRITE, directory, error=code, room=room)) as acted:
            yield
            check_injected(acted[0])
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a module's would be cut off without a word
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # Python ignores the signal
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_none


def flip(attempt: Try) -> str:
    """Change a bit: of what is stored, on the way to the server, or on the way back."""
    return _FLIPS[attempt.number % len(_FLIPS)](attempt)


def _flip_stored(attempt: Try) -> str:
    with _depot(attempt, ("file", *_SCHEMES)) as depot:
        bit = 1 << attempt.random.randrange(8)
        if depot.kind == "file":
            path = depot.directory / "step.pt"
            content = bytearray(path.read_bytes())
            content[_offset(attempt.random, len(content))] ^= bit
            path.write_bytes(content)
        else:
            stored = depot.server.objects["run/step.pt"]
            offset = _offset(attempt.random, stored.size)
            for piece in stored.pieces:
                if 0 <= offset < len(piece):
                    piece[offset] ^= bit
                offset -= len(piece)
        depot.is_refused()
        return "stored: refused"


def _offset(chooser: random.Random, size: int) -> int:
    """Return an offset in an object: anywhere, or in its last bytes, which have the checksums."""
    return chooser.choice((chooser.randrange(size), size - 1 - chooser.randrange(110)))


def _flip_upload(attempt: Try) -> str:
    with _depot(attempt, _SCHEMES) as depot:
        share = attempt.random.choice((attempt.random.random(), 1.0))
        fault = Sometimes(("part",), attempt.random.randrange(4), 1, Act("flip", share=share))
        depot.server.fault = fault
        try:
            depot.save(_NEW)
            outcome = "not noticed by the writer"
        except StoreWriteError:
            outcome = "noticed by the writer"
        check_injected(fault.hits)
        depot.server.fault = None
        depot.is_refused()
        return f"upload: refused, {outcome}"


def _flip_download(attempt: Try) -> str:
    with _depot(attempt, _SCHEMES) as depot:
        times = attempt.random.choice((1, _ALWAYS))
        fault = Sometimes(("get",), attempt.random.randrange(4), times, Act("flip", share=attempt.random.random()))
        depot.server.fault = fault
        outcome = _load_or_refusal(depot)
        check_injected(fault.hits)
        depot.must_have(_OLD)
        return f"download: {outcome}"


_FLIPS: tuple[Callable[[Try], str], ...] = (_flip_stored, _flip_upload, _flip_download)

_WHOLE = "what is loaded is a state that was saved, whole; "


def _environment() -> dict[str, str]:
    return {**preloaded(), **ENVIRONMENT}


_ROWS = (
    Row(
        "checkpoint-kill",
        "SIGKILL of a process that saves a checkpoint, at any moment (local, S3, Google, Azure)",
        "the older one of that name is loaded, or the new one if it was being completed; the next save succeeds and "
        "removes what is left on a disk",
        kill,
        50,
        0,  # its process imports torch, as does each that has LD_PRELOAD
    ),
    Row(
        "checkpoint-reset",
        "connections are reset in the middle of a body or before the answer, once, twice or always",
        _WHOLE + "once or twice is made good by retries; else an error, and the older one stays",
        reset,
        50,
        1,
    ),
    Row(
        "checkpoint-503",
        "500, 502, 503, 504 or 429, once, twice or always",
        _WHOLE + "once or twice is made good by retries; else an error, and the older one stays",
        status,
        50,
        1,
    ),
    Row(
        "checkpoint-short",
        "a disk takes or gives fewer bytes a call; a server stores or sends fewer bytes and says nothing",
        _WHOLE + "a disk's are right; the writer notices missing bytes; the reader reads again, or refuses",
        short,
        50,
        1,
    ),
    Row(
        "checkpoint-full",
        "no room (ENOSPC, EDQUOT, EFBIG) from a random byte on",
        "StoreWriteError with this errno; the older one of that name stays, nothing else is left; the next save "
        "succeeds",
        full,
        50,
        1,
    ),
    Row(
        "checkpoint-flip",
        "a bit is changed in what is stored, in an upload or in a download",
        "what is stored wrong is refused; of a download the part is read again",
        flip,
        50,
        1,
    ),
)
ROWS = tuple(replace(row, variables=_environment) for row in _ROWS)

"""Rows of disks that are full when something of ours is written: reports, progress, stores of the demo, benchmarks."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import chunk_files, copied
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from zarrfeed.tools import cli
from zarrfeed.tools import verify as verification

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _run(argv: list[str]) -> tuple[int, str, str]:
    """Run the command `zarrfeed`; return its status, and what it said on stdout and stderr."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = cli.main(argv)
    return status, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _full(attempt: Try, directory: Path, room: int) -> Iterator[int]:
    """Let files below a directory take so many bytes, by the shim or by the process's limit; yield the errno."""
    code = attempt.random.choice(_FULL)
    if code != errno.EFBIG:
        with injected(Fault(Calls.WRITE, directory, error=code, room=room)):
            yield code
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a module's would be cut off without a word
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # Python ignores the signal
    try:
        yield code
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_none


def _check_complaint(status: int, err: str, code: int, *names: object) -> None:
    lines = err.splitlines()
    if status != cli.EXIT_ERROR or len(lines) != 1 or os.strerror(code) not in err:
        raise UnspecifiedError(f"status {status}, must be {cli.EXIT_ERROR} with one line about errno {code}: {err}")
    if not all(str(name) in err for name in names):
        raise UnspecifiedError(f"the error names not {names}: {err}")


def _damaged(attempt: Try) -> Path:
    path = copied(attempt, "crc32c")
    attempt.random.choice(chunk_files(path)).write_bytes(b"damaged")
    return path


def verify_progress(attempt: Try) -> str:
    """Run `verify` whose progress file finds no room; then again with room."""
    store, directory = _damaged(attempt), attempt.directory.resolve() / "state"
    directory.mkdir()
    file = directory / "progress.json"
    argv = ["verify", str(store), "--progress-file", str(file)]
    saves_every_s, verification._SAVE_EVERY_S = verification._SAVE_EVERY_S, 0.0
    try:
        with _full(attempt, directory, attempt.random.randrange(1500)) as code:
            status, out, err = _run(argv)
    finally:
        verification._SAVE_EVERY_S = saves_every_s
    outcome = "error"
    if status == cli.EXIT_FAILED:
        outcome = "there was room"
    else:
        _check_complaint(status, err, code, file)
        if out:
            raise UnspecifiedError(f"it said of a store that was not checked: {out}")
    if {left.name for left in directory.iterdir()} - {file.name}:
        raise UnspecifiedError(f"left behind: {sorted(directory.iterdir())}")
    if file.exists():
        json.loads(file.read_text())
    status, out, err = _run(argv)
    if status != cli.EXIT_FAILED or "29" not in out or file.exists():
        raise UnspecifiedError(f"the next run ended with status {status}: {out}{err}")
    return outcome


def verify_json(attempt: Try) -> str:
    """Run `verify` whose report finds no room, where there is an older report or none."""
    store, directory = _damaged(attempt), attempt.directory.resolve() / "reports"
    directory.mkdir()
    file = directory / "report.json"
    before = attempt.random.choice((None, "{}"))
    if before is not None:
        file.write_text(before)
    argv = ["verify", str(store), "--progress-file", "none", "--json", str(file)]
    with _full(attempt, directory, attempt.random.randrange(300)) as code:
        status, _, err = _run(argv)
    _check_complaint(status, err, code, file)
    left = {found.name: found.read_text() for found in directory.iterdir()}
    if left != ({} if before is None else {file.name: before}):
        raise UnspecifiedError(f"left behind: {left}")
    status, _, err = _run(argv)
    if status != cli.EXIT_FAILED or json.loads(file.read_text())["ok"]:
        raise UnspecifiedError(f"the next run ended with status {status}: {err}")
    return "error"


def stdout_full(attempt: Try) -> str:
    """Run commands whose stdout is a device without room."""
    store = _damaged(attempt)
    commands = (
        ["verify", "--progress-file", "none"],
        ["verify", "--json", "-", "--progress-file", "none"],
        ["explain"],
    )
    command = attempt.random.choice(commands)
    code = "import sys; from zarrfeed.tools.cli import main; sys.exit(main())"
    unbuffered = attempt.random.choice(("", "1"))  # what is in the buffer fails when Python ends
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *command, str(store)],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    _check_complaint(done.returncode, done.stderr, errno.ENOSPC)
    return "error"


def demo(attempt: Try) -> str:
    """Run the demo where there is no room for its stores or its plot."""
    directory = attempt.directory.resolve() / "demo"
    directory.mkdir()
    argv = ["demo", "--dir", str(directory), "--epochs", "1", "--stream-mb", "2"]
    kept = attempt.shared / "demo"
    if kept.exists() and attempt.random.random() < 0.5:  # what is left to write is the plot
        shutil.copytree(kept, directory, dirs_exist_ok=True)
        room = attempt.random.randrange(10_000)
    else:
        room = attempt.random.randrange(2000)
    with _full(attempt, directory, room) as code:
        status, _, err = _run(argv)
    _check_complaint(status, err, code)
    left = sorted(found.name for found in directory.iterdir())
    plot = directory / "zarrfeed-demo.png"
    if any("partial" in name or name.startswith(".") for name in left) or plot.exists():
        raise UnspecifiedError(f"left behind: {left}")
    if attempt.number % 4 == 3:
        status, _, err = _run(argv)
        if status == cli.EXIT_ERROR or not plot.read_bytes().endswith(b"IEND\xaeB`\x82"):
            raise UnspecifiedError(f"the next run ended with status {status}: {err}")
        if not kept.exists():
            plot.unlink()
            shutil.copytree(directory, kept)
    return "error"


def benchmark_results(attempt: Try) -> str:
    """Write the results of a benchmark."""
    results = importlib.import_module("benchmarks.report.results")
    directory = attempt.directory.resolve() / "results"
    directory.mkdir()
    file = directory / "results.json"
    with _full(attempt, directory, attempt.random.randrange(2)) as code:
        try:
            results.write_rows(file, [], {})
        except OSError as error:
            if error.errno != code or str(file) not in str(error):
                raise UnspecifiedError(f"errno must be {code}: {error!r}") from error
        else:
            raise UnspecifiedError("it was written")
    if list(directory.iterdir()):
        raise UnspecifiedError(f"left behind: {list(directory.iterdir())}")
    return "error"


_STATUS = "exit status 2 with one line that says why; "

ROWS = (
    Row(
        "full-progress",
        "no room (ENOSPC, EDQUOT, EFBIG) for the progress file of `verify`, after 0 to 1,500 bytes",
        _STATUS + "the older file stays, nothing else; the next run reports the bad chunk",
        verify_progress,
        100,
        variables=preloaded,
    ),
    Row(
        "full-report",
        "no room for the report of `verify --json`",
        _STATUS + "an older report stays, no part of the new one",
        verify_json,
        300,
        variables=preloaded,
    ),
    Row("full-stdout", "stdout of `verify` and `explain` is /dev/full", _STATUS[:-2], stdout_full, 12, 1),
    Row(
        "full-demo",
        "no room for the stores or the plot of `demo`",
        _STATUS + "no part of a store or plot is left; the next run is complete",
        demo,
        16,
        1,
        variables=preloaded,
        timeout_s=240,
    ),
    Row(
        "full-benchmark",
        "no room for the results of a benchmark",
        "OSError that names the file, no part of it is left",
        benchmark_results,
        200,
        variables=preloaded,
    ),
)

"""Try mutants: run the nearest tests on a copy of the package with one change in it."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from mutation.near import Nearness
from mutation.on_path.mutant_log import clock_s
from mutation.sites import Site, mutated

Key: TypeAlias = tuple[str, int, str, str]
KILLED = ("killed", "timed out")
ON_PATH = Path(__file__).resolve().parent / "on_path"
#: A test hangs if it has run for this share of the limit, and for this many times as long as without the mutant.
HANGS_FROM, HANGS_TIMES = 1 / 6, 3


@dataclass(frozen=True)
class Mutant:
    """A change at a site of a module, whose path is relative to the folder of packages."""

    path: str
    site: Site
    new: str

    @property
    def key(self) -> Key:
        """Return what identifies the mutant in all runs on the same source."""
        return self.path, self.site.start, self.site.old, self.new

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:50] or "nothing" for text in (self.site.old, self.new))
        return f"src/{self.path}:{self.site.line}  {old} -> {new}"


@dataclass
class Result:
    """The outcome of a mutant. `reached_by` lists the tests in which its statement ran."""

    path: str
    line: int
    start: int
    old: str
    new: str
    outcome: str = "not covered"
    test: str | None = None
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    reached_by: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """Return what identifies the mutant in all runs on the same source."""
        return self.path, self.start, self.old, self.new


@dataclass
class Run:
    """The end of a pytest process.

    `at` names the test that it was at when its time was used, None during the collection; `at_s` tells for how long.
    `longest_s` is the time of its longest test. `complaint` is what pytest wrote if it could not begin.
    """

    failed: str | None = None
    expired: bool = False
    at: str | None = None
    at_s: float = 0.0
    longest_s: float = 0.0
    seconds: float = 0.0
    complaint: str = ""

    @property
    def passed(self) -> bool:
        """Whether all tests passed in time."""
        return self.failed is None and not self.expired


class Bench:
    """A folder of copies of the package, in which mutants are tried with the tests of a checkout."""

    def __init__(self, source: Path, package: str, tests: Path, work: Path, limit_s: float) -> None:
        self.tests, self.work, self.limit_s = tests, work, limit_s
        self.package = package
        self.sound = work / "sound"
        shutil.copytree(source / package, self.sound / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        with suppress(ModuleNotFoundError):
            compiled = importlib.util.find_spec(f"{package}._core")
            if compiled is not None and compiled.origin is not None:
                shutil.copy2(compiled.origin, self.sound / package)
        compileall.compile_dir(self.sound, quiet=2)
        self._near = Nearness(source, package, tests)
        self._lock = threading.Lock()
        self._folders = 0
        self._closed = False
        self._sound_runs: dict[str, Run] = {}
        self._unsound: set[str] = set()  # tests, and files that cannot be collected, that fail without a mutant

    def try_mutant(self, mutant: Mutant) -> Result:
        """Run the nearest tests on a mutant until one fails or the time is used."""
        site = mutant.site
        result = Result(mutant.path, site.line, site.start, site.old, mutant.new)
        module = Path(mutant.path).relative_to(self.package).as_posix()
        line = (self.sound / mutant.path).read_text().splitlines()[site.line - 1]
        with self._folder() as folder:
            self._write(mutant, folder / "packages")
            for names in self._near.rounds(module, " ".join([*site.scope, line])):
                result.files += names
                if self._try_files(mutant, folder, names, result):
                    break
            lines = (folder / "reached").read_text().splitlines()
        result.reached_by = sorted({line.rpartition(" ")[0] or line for line in lines})
        if result.outcome not in KILLED and result.reached_by:
            result.outcome = "survived"
        result.seconds = round(result.seconds, 1)
        return result

    def _write(self, mutant: Mutant, packages: Path) -> None:
        """Write a copy of the package with the mutant in it."""
        shutil.copytree(self.sound, packages)
        path = packages / mutant.path
        path.write_text(mutated(path.read_text(), mutant.site, mutant.new))
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()

    def _try_files(self, mutant: Mutant, folder: Path, names: list[str], result: Result) -> bool:
        """Run test files, again without those tests that fail anyway; return whether the mutant is done with."""
        while (left_s := self.limit_s - result.seconds) > 1:
            names = [name for name in names if name not in self._unsound]
            if not names:
                return False
            site = f"{mutant.path}:{mutant.site.line}"
            run = self._run(folder / "packages", folder, names, left_s, site)
            result.seconds += run.seconds
            if run.failed is None:
                if run.expired and self._hangs(run, names):
                    result.outcome, result.test = "timed out", run.at or names[0]
                return run.expired
            if self._run_sound(run.failed).passed:
                result.outcome, result.test = "killed", run.failed
                return True
            with self._lock:
                self._unsound.add(run.failed)
        return True

    def _hangs(self, run: Run, names: list[str]) -> bool:
        """Return whether what an expired process was at takes far less time without the mutant."""
        if run.at_s < self.limit_s * HANGS_FROM:
            return False
        sound = self._run_sound(run.at) if run.at else self._run_sound(*names)
        needs_s = sound.longest_s if run.at else sound.seconds
        return sound.passed and needs_s * HANGS_TIMES <= run.at_s

    def _run_sound(self, *names: str) -> Run:
        """Run a test, or collect the tests of files, on the package without a mutant: once for all mutants."""
        key = " ".join(names)
        with self._lock:
            known = self._sound_runs.get(key)
        if known is None:
            collect = [] if "::" in key else ["--collect-only"]
            with self._folder() as folder:
                known = self._run(self.sound, folder, [*names, *collect], self.limit_s, "")
            if known.complaint and "[" in key:  # the mutant changed the cases of the test
                known = self._run_sound(key.partition("[")[0])
            if known.complaint:
                raise RuntimeError(f"pytest {key}\n{known.complaint}")
            with self._lock:
                self._sound_runs[key] = known
        return known

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Make a folder for the processes of a mutant, and remove it."""
        with self._lock:
            self._folders += 1
            folder = self.work / str(self._folders)
        (folder / "tmp").mkdir(mode=0o711, parents=True)
        (folder / "reached").touch(0o666)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, packages: Path, folder: Path, names: list[str], limit_s: float, site: str) -> Run:
        """Run tests in a process group of their own, and end whatever is left of it."""
        log = folder / "log"
        log.write_text("")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ON_PATH), os.environ.get("PYTHONPATH")])),
            "MUTANT_PACKAGES": str(packages),
            "MUTANT_SITE": site,
            "MUTANT_REACHED": str(folder / "reached"),
            "MUTANT_LOG": str(log),
            "TMPDIR": str(folder / "tmp"),
        }
        environment.pop("PYTEST_CURRENT_TEST", None)  # of a test that runs this
        with self._lock:
            unsound = sorted(self._unsound)
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutant_log"]
        command += [f"--basetemp={folder / 'tmp' / 'pytest'}", *(f"--deselect={test}" for test in unsound), *names]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.tests, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        began = now = time.monotonic()
        try:
            while not (ended := _has_ended(process)) and now - began < limit_s and not self._closed:
                time.sleep(0.1)
                now = clock_s(process.pid)
        finally:
            _kill(process)
            _kill_marked(str(log))
        if self._closed:
            raise KeyboardInterrupt
        run = self._read(log, began, now)
        run.expired = not ended and run.failed is None
        if ended and run.failed is None and process.returncode not in (0, 5):  # 5: there was no test
            # the process ended within a test, or before it could collect the tests
            run.failed = run.at or names[0]
            run.complaint = "" if run.at else (folder / "out").read_text()[-2000:]
        return run

    def _read(self, log: Path, began: float, ended: float) -> Run:
        """Return what the log says of a process."""
        run = Run(seconds=ended - began)
        since = began
        for line in log.read_text().splitlines():
            event, test, now = json.loads(line)
            if event == "elsewhere":
                raise RuntimeError(f"the tests import {test} and not the copy in {self.work}")
            if event == "failed":
                run.failed = run.failed or test
            elif event == "began":
                run.at, since = test, now
            else:
                run.at, since, run.longest_s = None, now, max(run.longest_s, now - since)
        run.at_s = ended - since
        return run

    def close(self) -> None:
        """End all processes; a run that goes on raises KeyboardInterrupt."""
        self._closed = True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended; it keeps its number, so that its group can be killed."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process that nobody has waited for yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_marked(log: str) -> None:
    """End processes that left the group of the run, which their environment tells."""
    mark = f"MUTANT_LOG={log}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)

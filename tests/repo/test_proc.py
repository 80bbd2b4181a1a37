"""Tests look at /proc through one module, which does not fail when an entry is gone before it is read."""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import proc

TESTS = Path(__file__).parents[1]
#: A listing of /proc, or a file of a process that may have ended.
LOOK = re.compile(r"/proc(/self/(fd|task))?[\"']\)?\.(iterdir|glob)|(listdir|scandir)\(f?[\"']/proc|/proc/\{")
#: Modules with a reason of their own: the warm interpreters have one thread, and import next to nothing.
OTHERS = {"support/proc.py", "support/warm/client.py", "support/warm/server.py", "repo/test_proc.py"}


def test_one_module_lists_proc() -> None:
    found = {
        f"{name}:{number}: {line.strip()}"
        for path in TESTS.rglob("*.py")
        if (name := path.relative_to(TESTS).as_posix()) not in OTHERS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LOOK.search(line) and "listdir" not in line.partition("print(")[2]  # a script that has one thread
    }
    assert not found, "use tests/support/proc.py"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that lets something happen between the next listing and the look at its entries."""
    listing = os.listdir

    def let_happen(act: Callable[[], object]) -> None:
        def list_and_act(folder: Path) -> list[str]:
            names = listing(folder)
            monkeypatch.setattr(os, "listdir", listing)
            act()
            return names

        monkeypatch.setattr(os, "listdir", list_and_act)

    return let_happen


def test_a_file_that_is_closed_meanwhile_is_left_out(tmp_path: Path, meanwhile: Any) -> None:
    (tmp_path / "closed").touch()
    closed = os.open(tmp_path / "closed", os.O_RDONLY)
    with (tmp_path / "held").open("w") as held:
        assert {held.fileno(), closed} <= set(proc.open_files())
        meanwhile(lambda: os.close(closed))
        files = proc.open_files()
        assert files[held.fileno()] == held.name
        assert closed not in files
        assert not [name for name in files.values() if name.endswith("/fd")], "the listing is left out"


def test_inodes_of_files_that_are_open_or_mapped(tmp_path: Path, meanwhile: Any) -> None:
    inodes = []
    for name in ("closed", "held", "mapped"):
        (tmp_path / name).write_bytes(b"x")
        inodes.append((tmp_path / name).stat().st_ino)
    closed = os.open(tmp_path / "closed", os.O_RDONLY)
    this = proc.living(os.getpid())
    assert this is not None
    with (tmp_path / "held").open(), (tmp_path / "mapped").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 1)
        file.close()
        (tmp_path / "mapped").unlink()
        meanwhile(lambda: os.close(closed))
        assert this.inodes_below(str(tmp_path)) == set(inodes[1:])
        mapped.close()


def test_a_thread_that_ends_meanwhile_has_no_files(meanwhile: Any) -> None:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait)
    thread.start()

    def end() -> None:
        may_end.set()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():  # a joined thread is there for a moment more
            time.sleep(0.001)

    meanwhile(end)
    threads = proc.thread_ids()
    assert {thread.native_id, threading.get_native_id()} <= threads
    texts = {number: proc.thread_file(number, "schedstat") for number in threads}
    assert len((texts[threading.get_native_id()] or "").split()) == 3
    assert thread.native_id is not None
    assert texts[thread.native_id] is None


def test_a_process_that_ends_meanwhile_is_left_out(meanwhile: Any) -> None:
    with (
        subprocess.Popen(["sleep", "1000"]) as ends,
        subprocess.Popen(["sleep", "1001"], stdin=subprocess.PIPE) as lives,
    ):

        def end() -> None:
            ends.kill()
            ends.wait()

        meanwhile(end)
        found = {process.number: process for process in proc.all_living()}
        assert ends.pid not in found
        process = found[lives.pid]
        assert (process.parent, process.group, process.session) == (os.getpid(), os.getpgid(0), os.getsid(0))
        assert process.command() == "sleep 1001"
        assert proc.resident_bytes(lives.pid) > 0
        assert proc.open_files(lives.pid)[0].startswith("pipe:")
        lives.kill()
        lives.wait()
        assert process.command() == ""
    for pid in (ends.pid, lives.pid):
        assert proc.living(pid) is None
        assert (proc.resident_bytes(pid), proc.open_files(pid), proc.children(pid)) == (0, {}, [])


@pytest.mark.parametrize("waited_for", [False, True])
def test_a_process_that_has_ended_does_not_live(waited_for: bool) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if waited_for:
        os.waitpid(child, 0)
    assert proc.living(child) is None
    if not waited_for:
        os.waitpid(child, 0)


def test_children_of_a_process() -> None:
    script = "sleep 1000 & sleep 1000 & echo started; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        children = proc.children(shell.pid)
        assert [process.parent for process in map(proc.living, children) if process] == [shell.pid] * 2
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert proc.children(shell.pid) == []


def test_the_time_of_a_process_is_that_of_its_processors() -> None:
    before = os.times()
    process = proc.living(os.getpid())
    after = os.times()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert process is not None
    assert before.user + before.system - tick_s <= process.cpu_s <= after.user + after.system + tick_s

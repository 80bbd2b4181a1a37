"""What a process has running and open, and what it leaves behind: so that nothing of it is left when it should not.

Counts are compared with those before. What ends a moment later, such as a thread that was joined and is not yet gone
from /proc, is waited for.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.harness.row import UnspecifiedError
from tests.support.proc import all_living, living, open_files, thread_ids

_SHARED_MEMORY = Path("/dev/shm")
#: A semaphore of glibc that has not got its name yet.
_UNNAMED = re.compile(r"sem\.\w{6}")
_OF_TORCH = f"{_SHARED_MEMORY}/torch_"
#: Memory for a tensor that a DataLoader worker sends. torch removes the name once it has mapped the memory, and the
#: worker does not wait for the thread that does so: a worker that leaves, or that is killed, may leave one name.
_OF_A_WORKER = re.compile(r"torch_(\d+)_\d+_\d+")
#: How long a name that is not ours may be there: that of a semaphore is, from when it is made until it is mapped.
_OF_OTHERS_S = 60.0


def native_threads() -> int:
    """Count the threads of this process that Python did not start."""
    return len(thread_ids() - {thread.native_id for thread in threading.enumerate()})


def descriptors() -> int:
    """Count open files, without what torch received from workers: an interrupt in its code may leave one open."""
    return sum(not name.startswith(_OF_TORCH) for name in open_files().values())


def session_processes() -> set[int]:
    """Return the processes of this session that live: a row's own, and what they started and left behind."""
    return {process.number for process in all_living() if process.session == os.getsid(0)}


def wait_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something holds; return whether it came to that."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(0.05, 2 * pause_s)
    return True


@dataclass(frozen=True)
class Census:
    """Native threads and open files of this process, to be compared with later ones."""

    threads: int
    files: int

    @classmethod
    def take(cls) -> Census:
        """Count now."""
        return cls(native_threads(), descriptors())

    def holds(self) -> bool:
        """Return whether there is no more now."""
        return native_threads() <= self.threads and descriptors() <= self.files

    def check(self, timeout_s: float = 60.0) -> None:
        """Raise UnspecifiedError if there is more than there was."""
        if not wait_until(lambda: native_threads() <= self.threads, timeout_s):
            raise UnspecifiedError(f"{native_threads()} native threads, there were {self.threads}")
        if not wait_until(lambda: descriptors() <= self.files, timeout_s):
            raise UnspecifiedError(
                f"{descriptors()} open files, there were {self.files}: {sorted(open_files().values())}"
            )


@dataclass(frozen=True)
class Surroundings:
    """Processes of this session, and names in shared memory, to be compared with later ones."""

    processes: set[int]
    shared_memory: set[str]

    @classmethod
    def look(cls) -> Surroundings:
        """Look now."""
        return cls(session_processes(), _names())

    def check(self, timeout_s: float) -> float:
        """Return after how many seconds there was nothing new; UnspecifiedError if there always was."""
        begin = time.monotonic()
        if not wait_until(lambda: session_processes() <= self.processes, timeout_s):
            raise UnspecifiedError(f"processes live after {timeout_s} s: {sorted(map(_command, self._new()))}")
        alone_s = time.monotonic() - begin
        suspects = self._forgotten()
        if not wait_until(lambda: suspects.isdisjoint(_names()), _OF_OTHERS_S):
            raise UnspecifiedError(f"in shared memory: {sorted(suspects & _names())}")
        return alone_s

    def _new(self) -> set[int]:
        return session_processes() - self.processes

    def _forgotten(self) -> set[str]:
        """Return new files that no process has in use: those of others come and go, too."""
        new = _names() - self.shared_memory
        used = _files_in_use() if new else set()
        return _without_last_tensors({name for name in new if _inode(name) not in used})


def _names() -> set[str]:
    """Return the names in shared memory, but for what a process that is killed in `sem_open` of glibc leaves."""
    return {path.name for path in _SHARED_MEMORY.iterdir() if path.is_file() and not _UNNAMED.fullmatch(path.name)}


def _without_last_tensors(names: set[str]) -> set[str]:
    """Return the names without that of the tensor that a worker of torch was sending when it ended: one for each."""
    senders = {name: match[1] for name in names if (match := _OF_A_WORKER.fullmatch(name))}
    sent = Counter(senders.values())
    return {name for name in names if name not in senders or sent[senders[name]] > 1}


def _inode(name: str) -> int:
    try:
        return (_SHARED_MEMORY / name).stat().st_ino
    except FileNotFoundError:
        return 0


def _files_in_use() -> set[int]:
    """Return the inodes in shared memory that a process has open or mapped, maybe under another name; and 0."""
    used = {0}
    for process in all_living():
        used |= process.inodes_below(str(_SHARED_MEMORY))
    return used


def _command(process: int) -> str:
    found = living(process)
    return f"{process}: {found.command() if found else 'ended'}"

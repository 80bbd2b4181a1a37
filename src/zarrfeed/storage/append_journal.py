"""Which units of a store are being written, and by whom: a small file beside the store that all writers share.

A unit is a run of samples that makes whole stored objects in every array. What holds, whatever process is killed when:

  - A unit has one writer at a time. Its writer is alive as long as it holds a lock on a file of its own, which the
    system releases when the process ends.
  - The store's shape covers only units before the first one that is still open. So what a writer that died left is
    never visible: the unit stays open until another writer takes it over.
  - All changes that belong together are one replacement of the journal, under a lock that all writers share.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zarrfeed.base.errors import ConfigError

#: Of the journal's file.
_FORMAT = 1
_CLOSED_IN_CHILDREN: weakref.WeakSet[Held] = weakref.WeakSet()


class Held:
    """A lock on a file, held until it is released, this object is gone or the process ends; never by a forked child.

    Parameters
    ----------
    path
        Of the file, which is made if it is not there.
    shared
        Whether others may hold it, too, if they share it.
    wait
        Whether to wait for it.

    Raises
    ------
    BlockingIOError
        If another one holds it, and `wait` is False.
    """

    def __init__(self, path: Path, *, shared: bool = False, wait: bool = True) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.forget()
            raise
        _CLOSED_IN_CHILDREN.add(self)

    def forget(self) -> None:
        """Close the file; the lock is released with the last descriptor of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.forget()


def _forget_in_child() -> None:
    for held in list(_CLOSED_IN_CHILDREN):
        held.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def is_held(path: Path) -> bool:
    """Return whether a process that lives holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def side_directory(store: Path) -> Path:
    """Return the directory beside a store where its writers and readers keep their locks."""
    return store.with_name(f"{store.name}.zarrfeed")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by another content in one step, for whoever reads it. It may be lost if the system goes down."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@dataclass
class Entries:
    """What the journal holds.

    Attributes
    ----------
    store
        Which store it is of.
    unit_rows
        Samples of a unit.
    end
        Units that were claimed are below this one.
    open
        Units that are not finished -> their writers.
    tail
        Samples of the first unit that is not finished which the store's shape covers.
    rests
        Files with samples that do not fill a unit -> the writer that took them into an open unit, if one did.
    """

    store: str
    unit_rows: int
    end: int = 0
    open: dict[int, str] = field(default_factory=dict)
    tail: int = 0
    rests: dict[str, str | None] = field(default_factory=dict)

    @property
    def complete(self) -> int:
        """Units before the first one that is not finished."""
        return min(self.open, default=self.end)

    @property
    def num_samples(self) -> int:
        """Samples that may be visible."""
        return self.complete * self.unit_rows + self.tail


class Journal:
    """The journal of one store, as one writer uses it.

    Parameters
    ----------
    directory
        Beside the store; it is made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writers = directory / "writers"
        self._writers.mkdir(parents=True, exist_ok=True)
        self.writer = f"{os.getpid()}-{secrets.token_hex(8)}"
        with self.lock():  # whoever finds the file without its lock takes this writer for dead
            self._alive: Held | None = Held(self._writers / self.writer)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other writers from changing the journal or the store's shape meanwhile."""
        held = Held(self.directory / "lock")
        try:
            yield
        finally:
            held.forget()

    def read(self) -> Entries | None:
        """Return what the journal holds; None if there is none. Under the lock.

        Raises
        ------
        ConfigError
            If it was written by another version, or is damaged.
        """
        path = self.directory / "journal.json"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            json_ = json.loads(text)
            if json_.pop("format") != _FORMAT:
                raise ValueError("another format")
            return Entries(**{**json_, "open": {int(unit): writer for unit, writer in json_["open"].items()}})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: is no journal of this version ({error!r})") from error

    def write(self, entries: Entries) -> None:
        """Replace what the journal holds. Under the lock."""
        replace_file(self.directory / "journal.json", json.dumps({"format": _FORMAT, **asdict(entries)}).encode())

    def claim(self, entries: Entries) -> int:
        """Take a unit: the lowest one that a writer which died left, else the next one. Under the lock."""
        left = [unit for unit, writer in entries.open.items() if self.is_free(writer)]
        unit = min(left, default=entries.end)
        entries.end = max(entries.end, unit + 1)
        entries.open[unit] = self.writer
        return unit

    def is_free(self, writer: str | None) -> bool:
        """Return whether what a writer holds may be taken: it died, or it is this one, which failed in between."""
        return writer is None or writer == self.writer or not self.lives(writer)

    def lives(self, writer: str) -> bool:
        """Return whether a writer is alive; what is left of one that is not is removed."""
        if writer == self.writer:
            return self._alive is not None
        path = self._writers / writer
        if is_held(path):
            return True
        path.unlink(missing_ok=True)
        return False

    def others_live(self) -> bool:
        """Return whether there is another writer. Under the lock."""
        return any(self.lives(path.name) for path in self._writers.iterdir() if path.name != self.writer)

    def leave(self) -> None:
        """End being a writer. Under the lock, so that exactly one writer knows itself to be the last one."""
        alive, self._alive = self._alive, None
        if alive is not None:
            (self._writers / self.writer).unlink(missing_ok=True)
            alive.forget()

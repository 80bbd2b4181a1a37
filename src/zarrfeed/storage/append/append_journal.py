"""The journal of the units that are being written, and by whom: a small file beside the store, shared by all writers.

A unit is a run of samples that makes whole stored objects in every array. Invariants, whatever process is killed at
whatever time:

  - A unit has one writer at a time. Its writer is alive as long as it holds a lock on a file of its own, which the
    system releases when the process ends.
  - The store's shape covers only units before the first one that is still open. So the samples of a writer that died
    are never visible: the unit stays open until another writer takes it over.
  - All changes that belong together are one replacement of the journal, under a lock that all writers share.
  - On the disk, the journal is never older than the shape, and never names a unit or a file that is not there: `sync`
    comes after the units and files that it names, before the shape, and before what it no longer names is deleted.
  - The directory beside the store, and the journal in it, are of the user who writes, of root or of the owner of the
    store (`base/own_files.py`). All of the journal is checked before it is used, and no file is opened or removed
    there whose name is not one that a writer gives. So no file outside of the directory is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.durable_files import make_folder, replace_whole, sync_folder
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.file_lock import Held, is_held
from zarrfeed.base.own_files import make_side_folder, read_side_file

#: Version of the journal's file.
_FORMAT = 1
_JOURNAL = "journal.json"
#: Names of the files that say that a writer or a reader lives, and of rests.
_HOLDER = re.compile(r"[0-9]+-[0-9a-f]{16}")
_REST = re.compile(r"rest-[0-9a-f]{16}\.npz")
#: No store has more samples.
_MOST_SAMPLES = 2**63 - 1


def is_holder(name: str) -> bool:
    """Return whether a name is one that writers and readers give to the file that says that they live."""
    return _HOLDER.fullmatch(name) is not None


def new_holder() -> str:
    """Return a name for this process that no other file has."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def new_rest() -> str:
    """Return the name of a file for samples that do not fill a unit."""
    return f"rest-{secrets.token_hex(8)}.npz"


def side_directory(store: Path) -> Path:
    """Return the directory beside a store where its writers and readers keep their locks."""
    return store.with_name(f"{store.name}.zarrfeed")


@dataclass
class Entries:
    """The content of the journal.

    Attributes
    ----------
    store
        Id of the store that the journal belongs to.
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

    def end_without_gaps(self, samples: int) -> int:
        """Return the end of the units when all gaps are closed, by `samples` that lie in no unit and by the last units.

        Units from there on have to be moved into the gaps. As few are moved as possible.
        """
        end, holes = self.end, sorted(self.open)
        while True:
            while holes and holes[-1] == end - 1:
                end = holes.pop()
            if samples >= self.unit_rows * len(holes):
                return end
            end -= 1
            samples += self.unit_rows

    def cover(self, shown: int) -> None:
        """Count the samples that the store's shape covers: these are complete, whatever else the journal says."""
        whole, self.tail = divmod(shown, self.unit_rows)
        self.end = max(self.end, whole)
        self.open = {unit: writer for unit, writer in self.open.items() if unit >= whole}
        if self.complete > whole:  # units that are complete, too, but are not shown yet
            self.tail = 0

    @classmethod
    def from_json(cls, known: Any) -> Entries:
        """Parse the file of a journal.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            If it says what no writer writes.
        """
        if known.pop("format") != _FORMAT:
            raise ValueError("another format")
        made = cls(**{**known, "open": {int(unit): writer for unit, writer in known["open"].items()}})
        numbers = (made.unit_rows, made.end, made.tail, *made.open)
        if not isinstance(made.store, str) or any(type(number) is not int for number in numbers):
            raise TypeError("a value of another type")
        if not (made.unit_rows >= 1 and 0 <= made.tail < made.unit_rows and all(0 <= n < made.end for n in made.open)):
            raise ValueError("numbers of samples that cannot be")
        if made.end < 0 or made.end * made.unit_rows > _MOST_SAMPLES:
            raise ValueError("numbers of samples that cannot be")
        for name in (*made.open.values(), *(taker for taker in made.rests.values() if taker is not None)):
            if not is_holder(name):
                raise ValueError(f"{name!r} is the name of no writer")
        for name in made.rests:
            if not _REST.fullmatch(name):
                raise ValueError(f"{name!r} is the name of no file of samples")
        return made


def read_journal(directory: Path, owner: int | None, *, may_write: bool = True) -> Entries | None:
    """Read the journal in a side directory; None if there is none.

    Parameters
    ----------
    directory
        The side directory of the store.
    owner
        User who owns the store.
    may_write
        True if a file may be made there for a moment, to find the owner of this process's files.

    Raises
    ------
    ConfigError
        If it was written by another version, is damaged, or is another user's.
    """
    path = directory / _JOURNAL
    try:
        text = read_side_file(path, owner, may_write=may_write)
    except FileNotFoundError:
        return None
    try:
        return Entries.from_json(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: is no journal of this version ({error!r}); delete it to go on from what the store has"
        ) from error


def check_written(
    entries: Entries, store: Path, arrays: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a journal that counts samples beyond the shape of the store which no writer wrote.

    A writer that was killed leaves a journal that is ahead of the shape, but it wrote the units first.

    Parameters
    ----------
    entries
        The content of the journal.
    store
        Path of the store.
    arrays, stored
        The arrays by their names, and the shapes of their stored objects.

    Raises
    ------
    ConfigError
        If a stored object of an array is not there.
    """
    shown = min(array.shape[0] for array in arrays.values())
    for unit in range(shown // entries.unit_rows, -(-entries.num_samples // entries.unit_rows)):
        for name, array in arrays.items():
            rows, cells = stored[name][0], array.shape[1:]
            begin, end = unit * entries.unit_rows, min((unit + 1) * entries.unit_rows, entries.num_samples)
            if end <= shown or 0 in cells:
                continue
            for number in range(begin // rows, -(-end // rows)):
                key = array.metadata.encode_chunk_key((number, *(0 for _ in cells)))
                if not (store / name / key).exists():
                    raise ConfigError(
                        f"{side_directory(store) / _JOURNAL}: counts {entries.num_samples} samples, the store has "
                        f"{shown}, and {store / name / key} is not there; delete the journal to go on from what the "
                        "store has"
                    )


def owner_of(store: Path) -> int | None:
    """Return the user who owns a store; None if there is none."""
    try:
        status = store.stat()
    except FileNotFoundError:
        return None
    return status.st_uid if stat.S_ISDIR(status.st_mode) else None


class Journal:
    """The journal of one store, as one writer uses it.

    Parameters
    ----------
    directory
        Beside the store; it is made if it is not there.
    owner
        User who owns the store; None: there is no store yet.

    Raises
    ------
    ConfigError
        If the directory is a link, or belongs neither to this user nor to that one.
    """

    def __init__(self, directory: Path, owner: int | None = None) -> None:
        self.directory = directory
        self._owner = owner
        self._writers = directory / "writers"
        make_folder(directory.parent)
        make_side_folder(directory, owner)
        sync_folder(directory.parent)
        make_side_folder(self._writers, owner)
        self.writer = new_holder()
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
        """Read the journal, under the lock; None if there is none.

        Raises
        ------
        ConfigError
            If it was written by another version, is damaged, or is another user's.
        """
        return read_journal(self.directory, self._owner)

    def write(self, entries: Entries) -> None:
        """Replace the content of the journal; `sync` has to follow. Under the lock."""
        replace_whole(self.directory / _JOURNAL, json.dumps({"format": _FORMAT, **asdict(entries)}).encode())

    def sync(self) -> None:
        """Wait until the disk has the journal that was written last, and the names of all rests."""
        sync_folder(self.directory)

    def claim(self, entries: Entries) -> int:
        """Take a unit: the lowest one that a writer which died left, else the next one. Under the lock."""
        left = [unit for unit, writer in entries.open.items() if self.is_free(writer)]
        unit = min(left, default=entries.end)
        entries.end = max(entries.end, unit + 1)
        entries.open[unit] = self.writer
        return unit

    def is_free(self, writer: str | None) -> bool:
        """Return whether a writer's files and units may be taken: it died, or it is this one, which failed."""
        return writer is None or writer == self.writer or not self.lives(writer)

    def lives(self, writer: str) -> bool:
        """Return whether a writer is alive; the file of a dead one is removed."""
        if writer == self.writer:
            return self._alive is not None
        path = self._writers / writer
        if is_held(path):
            return True
        path.unlink(missing_ok=True)
        return False

    def others_live(self) -> bool:
        """Return whether there is another writer. Under the lock."""
        names = {path.name for path in self._writers.iterdir() if is_holder(path.name)}
        return any(self.lives(name) for name in names - {self.writer})

    def forget_entries(self) -> None:
        """Remove the content of the journal. Under the lock."""
        (self.directory / _JOURNAL).unlink(missing_ok=True)

    def leave(self) -> None:
        """End being a writer. Under the lock, so that exactly one writer knows itself to be the last one."""
        alive, self._alive = self._alive, None
        if alive is not None:
            (self._writers / self.writer).unlink(missing_ok=True)
            alive.forget()

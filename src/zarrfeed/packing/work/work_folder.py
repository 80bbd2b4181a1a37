"""`WorkFolder`: the unfinished store beside its later path, and the records of the units that are done.

Invariants, whichever process is killed at whatever time, and whatever fills the disk:

  - A file appears under its name as a whole: it is written under `tmp/`, and renamed.
  - A unit's record appears after all files of the unit. So what has a record is there, and what has none is done again.
  - The store gets its path when all of it is there, by one rename. What is at the path is never half of a store.
  - A power failure changes none of this: the files of a unit are on the disk before its record is, and the whole store
    before its path is.
  - One call of `pack` works on an output, or several that do parts of it: they hold a lock on a file of the folder.
  - The folder, and the plan and the records in it, are this user's own (`base/own_files.py`): nothing that another user
    put beside the store is believed, followed, written to or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.durable_files import replace_whole, sync_all, sync_file, sync_folder, sync_tree
from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.base.file_lock import Held
from zarrfeed.base.own_files import check_side_folder, make_side_folder, read_side_file
from zarrfeed.packing.work.digest import as_text

_PLAN = "plan.json"
_FOLDERS = ("store", "tmp", "done", "rows", "spill")
_LOCK = "lock"
#: Errors of file systems that have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


@dataclass
class UnitRecord:
    """The digests and the files of a unit that is done.

    Attributes
    ----------
    digests
        Digests of the samples of each array.
    files
        Path below the folder -> bytes.
    """

    digests: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record for a file; JSON readers of other languages lack integers of 128 bits."""
        return {"digests": [as_text(digest) for digest in self.digests], "files": self.files}

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> UnitRecord:
        """Return the record of a file."""
        return cls([int(text, 16) for text in known["digests"]], known["files"])


class WorkFolder:
    """The folder `.NAME.packing` beside a store that is being packed.

    Parameters
    ----------
    out
        Path of the store.
    """

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f".{out.name}.packing")
        self.store = self.path / "store"
        self._held: Held | None = None

    def hold(self, *, shared: bool) -> bool:
        """Keep other calls of `pack` from this output until `release`, or until the process ends.

        Parameters
        ----------
        shared
            True if calls that do other parts may hold it, too.

        Returns
        -------
        True if the folder is there. If it is not, nothing is held.

        Raises
        ------
        ConfigError
            If another call works on it. On a file system without locks, calls do not know of each other.
        """
        while self._held is None:
            if not check_side_folder(self.path):
                return False
            lock = self.path / _LOCK
            try:
                held = Held(lock, shared=shared, wait=False)
            except FileNotFoundError:
                return False
            except BlockingIOError:
                raise ConfigError(
                    f"{printable(self.path)}: another call of pack works on this output{_named(lock)}; wait until it "
                    "ends, or share the work: give each call its part=(i, n), or --part i/n"
                ) from None
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return True
                raise
            if held.is_at(lock):
                self._held = held
                with contextlib.suppress(OSError):
                    lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            else:  # the call that held it finished, and removed the folder
                held.forget()
        return True

    def release(self) -> None:
        """Let other calls work on the output."""
        held, self._held = self._held, None
        if held is not None:
            held.forget()

    def make(self, plan: dict[str, Any], *, shared: bool = False) -> dict[str, Any]:
        """Make the folder, hold it, and return its plan: this one, or that of a process which was faster.

        The plan is written last, so that a folder without one can be made again.

        Raises
        ------
        ConfigError
            If the folder or one in it is a link, or another user's; or if another call works on it.
        """
        make_side_folder(self.path)
        while not self.hold(shared=shared):
            make_side_folder(self.path)
        for name in _FOLDERS:
            make_side_folder(self.path / name)
        sync_folder(self.path)  # whoever finds a plan finds the folders
        name = f"tmp/{secrets.token_hex(12)}.plan"
        self.write(name, [json.dumps(plan, indent=1).encode()])
        sync_file(self.path / name)
        with contextlib.suppress(FileExistsError):
            (self.path / _PLAN).hardlink_to(self.path / name)
        (self.path / name).unlink()
        return self.plan() or plan

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of the run that began; None if there is none.

        Raises
        ------
        ConfigError
            If the file is something else, or the folder is a link or another user's.
        """
        for folder in (self.path, *(self.path / name for name in _FOLDERS)):
            check_side_folder(folder)
        try:
            content = read_side_file(self.path / _PLAN)
        except FileNotFoundError:
            return None
        try:
            known = parse_json(content)
        except ValueError as error:
            raise ConfigError(f"{self.path / _PLAN}: is no plan: {error}") from error
        if not isinstance(known, dict):
            raise ConfigError(f"{self.path / _PLAN}: is no plan")
        return known

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Write a file as a whole; return its bytes.

        Raises
        ------
        OSError
            If it cannot be written, such as on a full disk; nothing is left of it.
        """
        path, temporary = self.path / name, self.path / "tmp" / secrets.token_hex(12)
        try:
            with temporary.open("xb") as file:
                file.writelines(parts)
                size = file.tell()
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            why = error.strerror or repr(error)
            raise OSError(error.errno or errno.EIO, f"{path}: cannot be written: {why}") from error
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return size

    def keep(self, record: UnitRecord, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file of a unit, and note it in the unit's record."""
        record.files[name] = self.write(name, parts)

    def finish_unit(self, stage: str, number: int, record: UnitRecord) -> None:
        """Write the record of a unit, whose files are all there; they are on the disk before the record is."""
        files = [self.path / name for name in record.files]
        depth = len(self.path.parents)
        folders = {folder for path in files for folder in path.parents if len(folder.parents) >= depth}
        sync_all(files, folders)
        replace_whole(self.path / _record_name(stage, number), json.dumps(record.to_json()).encode())

    def record(self, stage: str, number: int) -> UnitRecord | None:
        """Return the record of a unit; None if it is not done, or not all of its files are there."""
        try:
            known = parse_json(read_side_file(self.path / _record_name(stage, number)))
            record = UnitRecord.from_json(known)
            is_whole = all((self.path / name).lstat().st_size == size for name, size in record.files.items())
        except ConfigError:
            raise
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return record if is_whole else None

    def done(self, stage: str, count: int) -> set[int]:
        """Return the numbers of those units [0, count) that are done, with all of their files."""
        return {number for number in range(count) if self.record(stage, number) is not None}

    def publish(self, out: Path) -> None:
        """Give the store its path, and forget the folder.

        Raises
        ------
        FileExistsError
            If something else is at the path.
        """
        try:
            sync_tree(self.store)
            self.store.rename(out)
        except FileNotFoundError:
            if not out.exists():  # another process, which finishes the same run, was not faster
                raise
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, "exists: packing makes a new store", str(out)) from error
            raise
        sync_folder(out.parent)
        self.forget()

    def forget(self) -> None:
        """Remove the folder, if it is this user's; another process may do the same."""
        with contextlib.suppress(ConfigError):
            if check_side_folder(self.path):
                shutil.rmtree(self.path, ignore_errors=True)


def _record_name(stage: str, number: int) -> str:
    return f"done/{stage}-{number}.json"


def _named(lock: Path) -> str:
    """Return the text that the holder of a lock wrote about itself, as the end of a sentence."""
    try:
        text = read_side_file(lock).decode("utf-8", "replace")[:100]
    except (OSError, ConfigError):
        return ""
    return f" ({printable(text)})" if text else ""

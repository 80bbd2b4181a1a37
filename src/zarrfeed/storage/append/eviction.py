"""Deleting the oldest samples of a store that is declared disposable, and leases of those who still read them.

Invariants:

  - Nothing is deleted of a store whose arrays do not say, all of them, that it is disposable, or beside which no
    `Appender` of this machine keeps the journal of that store. Where nothing can be deleted, nobody needs a lease: an
    attribute alone makes no reader write anything.
  - A reader writes a lease only beside a store of its own user or of root, or if it evicts itself. Other readers are
    warned that nothing keeps what they read from being deleted.
  - What is deleted lies in the directory of the array itself: no link on the way to it is followed.
  - Before anything is deleted, each array says from which sample on it is whole. A reader takes a lease under the same
    lock, and is refused if it would begin before that sample.
  - A lease is a file beside the store with the oldest sample that its holder reads, and a lock on it that the system
    releases when the process ends. Nothing from that sample on is deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

from zarrfeed.base.durable_files import replace_whole
from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.base.file_lock import Held, is_held
from zarrfeed.base.own_files import check_side_folder, make_side_folder
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.storage.append.append_journal import (
    is_holder,
    new_holder,
    owner_of,
    read_journal,
    side_directory,
)
from zarrfeed.storage.append.appended import change_metadata, marks_in, marks_of

#: Deleting runs in one thread, so that an epoch does not wait for it.
_DELETING = threading.Lock()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Lease:
    """The right to read a store from a sample on, until it is given back, is gone, or the process ends.

    Parameters
    ----------
    directory
        Directory of the store's leases.
    first
        The oldest sample that is read.
    """

    def __init__(self, directory: Path, first: int) -> None:
        self._path = directory / new_holder()
        self._owner = OwnerProcess()
        self._held = Held(self._path)
        self._path.write_text(str(first))

    def give_back(self) -> None:
        """End the lease. May be called twice."""
        if self._owner.is_here:
            self._path.unlink(missing_ok=True)
        self._held.forget()

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self.give_back()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a lease is of one process; the one that sends it keeps it


@dataclass(frozen=True)
class _Array:
    """An array of a disposable store, as far as its oldest chunks can be named."""

    directory: Path
    array: zarr.Array[Any]
    stored_shape: tuple[int, ...]

    def keys(self, begin: int, below: int) -> Iterator[str]:
        """Yield the keys of the stored objects whose samples are all in [begin, below)."""
        rows = self.stored_shape[0]
        counts = [-(-n // c) for n, c in zip(self.array.shape[1:], self.stored_shape[1:], strict=True)]
        for number in range(begin // rows, below // rows):
            for cell in itertools.product(*map(range, counts)):
                yield self.array.metadata.encode_chunk_key((number, *cell))

    def delete(self, begin: int, below: int) -> None:
        """Delete the stored objects whose samples are all in [begin, below), and directories that are empty then."""
        root = os.open(self.directory, _FOLDER)
        try:
            for key in self.keys(begin, below):
                _delete_below(root, key.split("/"))
        finally:
            os.close(root)


@dataclass(frozen=True)
class DisposableStore:
    """A store that is declared disposable, as one of its readers knows it."""

    path: Path
    arrays: tuple[_Array, ...]
    store: str

    def hold(self, first: int, *, evicts: bool = False) -> Lease | None:
        """Return a lease for the samples from `first` on; None where nothing can be deleted, or none may be written.

        Parameters
        ----------
        first
            The oldest sample that is read.
        evicts
            True if the user asked for eviction, and so for leases beside another user's store, too.

        Raises
        ------
        StoreReadError
            If older ones than `first` are not all that is deleted; or if nothing can be written beside the store.
        """
        owner = owner_of(self.path)
        if not self._has_journal(owner, evicts=evicts):
            self._check_oldest(first)
            return None
        if not evicts and owner not in (os.geteuid(), 0):
            self._check_oldest(first)
            warnings.warn(
                f"{self.path}: belongs to another user ({owner}) and is disposable: no lease is written beside it, so "
                "samples may be deleted while they are read; open it with evict=True to take leases, or read a copy",
                stacklevel=2,
            )
            return None
        with self._lock(owner):
            self._check_oldest(first)
            return Lease(self._leases, first)

    def _check_oldest(self, first: int) -> None:
        oldest = self._oldest()
        if oldest > first:
            raise StoreReadError(
                errno.ESTALE, f"{self.path}: samples before {oldest} were evicted, and {first} is to be read"
            )

    def _has_journal(self, owner: int | None, *, evicts: bool) -> bool:
        """Return whether an `Appender` keeps a journal of this very store beside it, where it can be believed.

        Raises
        ------
        StoreReadError
            If the user asked for eviction, and what is there cannot be believed.
        """
        try:
            is_there = check_side_folder(self._side, owner, may_write=evicts)
            entries = read_journal(self._side, owner, may_write=evicts) if is_there else None
        except (ConfigError, OSError) as error:  # another user's, or one that was made up: no `Appender` writes there
            if evicts:
                what = f"{self._side}: readers of a disposable store must be able to write there: {error}"
                raise StoreReadError(errno.EACCES, what) from error
            return False
        return entries is not None and entries.store == self.store

    def evict(self, below: int) -> threading.Thread | None:
        """Delete chunks whose samples are all before `below`, and before what any lease protects, in a thread.

        Returns
        -------
        The thread; None if there is nothing to delete.

        Raises
        ------
        ConfigError
            If an array does not say that the store is disposable, or no `Appender` keeps a journal of it.
        """
        owner = owner_of(self.path)
        if not self._has_journal(owner, evicts=True):
            raise ConfigError(
                f"evict = True: no Appender keeps a journal of {self.path} in {self._side}, so nothing of it is "
                "deleted; open an Appender for it once, or leave evict out"
            )
        with self._lock(owner):
            for one in self.arrays:
                marks = marks_in(one.directory)
                if marks is None or not marks.disposable:
                    raise ConfigError(f"{one.directory}: is not declared disposable, nothing of it is deleted")
            below = min([below, *self._leased()])
            if below > self._oldest():
                for one in self.arrays:
                    change_metadata(one.directory, first=below)
        below = self._oldest()
        begin = self._deleted()
        if begin >= below:
            return None
        thread = threading.Thread(target=self._delete, args=(below,), name="zarrfeed: evict", daemon=True)
        thread.start()
        return thread

    def _delete(self, below: int) -> None:
        with _DELETING, contextlib.suppress(OSError):  # whoever evicts next begins where this one ended
            begin = self._deleted()
            for one in self.arrays:
                one.delete(begin, below)
            replace_whole(self._side / "deleted", str(below).encode())

    def _deleted(self) -> int:
        """Return the sample before which there is nothing left to delete."""
        try:
            return int((self._side / "deleted").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _oldest(self) -> int:
        """Return the oldest sample that is not evicted."""
        return max((marks.first for one in self.arrays if (marks := marks_in(one.directory))), default=0)

    def _leased(self) -> list[int]:
        """Return the oldest sample of each lease; those of processes that ended are removed."""
        firsts = []
        for path in self._leases.iterdir():
            if not is_holder(path.name):
                continue
            if is_held(path):
                firsts.append(int(path.read_text() or 0))
            else:
                path.unlink(missing_ok=True)
        return firsts

    @property
    def _side(self) -> Path:
        return side_directory(self.path)

    @property
    def _leases(self) -> Path:
        return self._side / "leases"

    @contextlib.contextmanager
    def _lock(self, owner: int | None) -> Iterator[None]:
        try:
            make_side_folder(self._leases, owner)
            held = Held(self._side / "lock")
        except OSError as error:
            what = f"{self._side}: readers of a disposable store must be able to write there: {error.strerror}"
            raise StoreReadError(error.errno or errno.EIO, what) from error
        try:
            yield
        finally:
            held.forget()


def disposable_stores(arrays: Sequence[tuple[zarr.Array[Any], tuple[int, ...]]]) -> tuple[DisposableStore, ...]:
    """Return the stores, among those of some arrays, that are declared disposable.

    Parameters
    ----------
    arrays
        Arrays, each with the shape of its stored objects.
    """
    found: dict[tuple[Path, str], list[_Array]] = {}
    for array, stored_shape in arrays:
        marks = marks_of(array)
        store = array.store_path.store
        if marks is not None and marks.disposable and type(store) is LocalStore:
            directory = (Path(store.root) / array.store_path.path).resolve()
            path = directory.parents[marks.depth - 1] if marks.depth else directory
            found.setdefault((path, marks.store), []).append(_Array(directory, array, stored_shape))
    return tuple(DisposableStore(path, tuple(members), store) for (path, store), members in found.items())


def _delete_below(folder: int, parts: list[str]) -> None:
    """Delete a file by the parts of its path, and its directory if that is empty then; links are not followed."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if len(parts) == 1:
            os.unlink(parts[0], dir_fd=folder)
            return
        inner = os.open(parts[0], _FOLDER, dir_fd=folder)
        try:
            _delete_below(inner, parts[1:])
        finally:
            os.close(inner)
        with contextlib.suppress(OSError):
            if len(parts) == 2:  # of keys such as c/12/0
                os.rmdir(parts[0], dir_fd=folder)


def forget_deleted(path: Path) -> None:
    """Forget the record of deleted samples of a store that is there no more."""
    (side_directory(path) / "deleted").unlink(missing_ok=True)

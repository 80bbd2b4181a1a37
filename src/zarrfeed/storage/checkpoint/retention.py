"""Retention: the newest checkpoints of a folder stay, older ones that zarrfeed wrote are removed.

Invariants:

- Only checkpoints that zarrfeed wrote are removed: a file with our footer, or a folder whose `.metadata` is ours. Of
  such a folder, only objects that its manifest names are removed, and what an unfinished save left there before:
  objects with our footer, and hidden files whose writer is dead, since nobody holds their lock.
- A checkpoint's age is its step: the numbers in its name, which the manifest of a folder has from when it was saved.
  The time of a file is no age: clocks go back, differ between machines, and a copy is younger than its original.
- The newest whole checkpoint stays, and so do `keep_last` checkpoints that are not known to be damaged, and others of
  the same step as the oldest of these. Checkpoints without a number in their name stay and do not count.
- A save under way is not touched: its file does not exist yet, or its folder has no manifest that names its objects. A
  checkpoint that was replaced since it was looked at stays.
- A folder loses its manifest last. So a removal that is interrupted is finished by the next call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from zarrfeed.base.errors import ConfigError, CorruptCheckpointError, StoreReadError, printable
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from zarrfeed.storage.checkpoint.checkpoint_folder import CheckpointFolder, Entry
from zarrfeed.storage.checkpoint.checkpoint_manifest import METADATA_NAME, Manifest, is_object_name, step_of
from zarrfeed.storage.checkpoint.shard_folder import LOOKS_AT_ONCE, ShardFolder, Transfer, is_missing, read_all


@dataclass(frozen=True)
class Retained:
    """The result of `retain`; each checkpoint by its path or URL, the newest first.

    Attributes
    ----------
    kept
        Checkpoints that stay; those without a number in their name come last, and do not count.
    removed
        Checkpoints that were removed.
    damaged
        Checkpoints that stay but do not count, since they are not whole.
    """

    kept: tuple[str, ...]
    removed: tuple[str, ...]
    damaged: tuple[str, ...]


def retain(
    location: str | os.PathLike[str],
    *,
    keep_last: int,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Retained:
    """Keep the newest checkpoints of a folder, and remove older ones.

    The step tells which ones are newer: the numbers in the names, compared one after the other, as in `step-300` and
    `epoch=3-step=1200.ckpt`. Clocks play no part. So give the checkpoints of a folder names of one pattern.

    A checkpoint is a file that `zarrfeed.checkpoint.writer` wrote, or a folder that `ZarrfeedWriter` wrote, right in
    `location`. Anything else is left alone. Call it on one rank, when a save is complete.

    Parameters
    ----------
    location
        The folder that holds the checkpoints: a path, or a URL such as `s3://bucket/run`.
    keep_last
        Number of checkpoints that stay, at least 1. A checkpoint that is not whole does not count, and neither does one
        without a number in its name. More stay where several have the same step.
    verify
        True: before anything is removed, read every byte of the newest checkpoint; if it is damaged, of the next one,
        until one is whole. False: read no more than the checksums at the end of each object.
    storage_options
        Options of the object store, as in `zarrfeed.open`.
    retries
        Number of retries of a request after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Returns
    -------
    Retained
        The checkpoints that stay, and those that were removed.

    Raises
    ------
    ConfigError
        If `location` is itself a checkpoint, or an argument is wrong.
    StoreReadError, StoreWriteError
        If the store cannot be read, or refuses to remove an object.

    Examples
    --------
    >>> import tempfile
    >>> from zarrfeed import checkpoint
    >>> run = tempfile.mkdtemp()
    >>> for step in (100, 200, 300):
    ...     with checkpoint.writer(f"{run}/step-{step}") as file:
    ...         _ = file.write(b"weights")
    >>> [path.removeprefix(run) for path in checkpoint.retain(run, keep_last=2).removed]
    ['/step-100']
    """
    check_int("keep_last", keep_last, 1)
    check_flags(verify=verify)
    transfer = Transfer(storage_options, retries=retries, timeout=timeout)
    folder = transfer.folder(location)
    every = _find(folder, transfer)
    found = sorted((one for one in every if one.step), key=_age, reverse=True)
    if len(found) <= keep_last:
        verify = False  # nothing can be removed
    retained: list[str] = []
    damaged: list[str] = []
    removed: list[str] = []
    oldest: tuple[int, ...] = ()  # of those that are kept
    for one in found:
        if len(retained) >= keep_last and not verify and one.step < oldest:
            if one.remove():
                removed.append(one.location)
            continue
        try:
            one.check(every_byte=verify)
        except CorruptCheckpointError:
            damaged.append(one.location)
        else:
            verify = False  # one is whole
            oldest = one.step
            retained.append(one.location)
    return Retained((*retained, *sorted(one.location for one in every if not one.step)), tuple(removed), tuple(damaged))


def newest(
    location: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> str | None:
    """Return the path or URL of the newest checkpoint of a folder that is whole; None if there is none.

    Checkpoints and their ages are those of `retain`: the step tells the age. A checkpoint without a number in its name
    is returned if no other one is whole. Lengths and digests of its objects are compared with its manifest; its bytes
    are verified when it is loaded.

    Parameters
    ----------
    location
        The folder that holds the checkpoints: a path, or a URL such as `s3://bucket/run`. It need not exist.
    storage_options
        Options of the object store, as in `zarrfeed.open`.
    retries
        Number of retries of a request after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Raises
    ------
    ConfigError
        If `location` is itself a checkpoint, an argument is wrong, or several checkpoints are whole and none has a
        number in its name.
    StoreReadError
        If the store cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from zarrfeed import checkpoint
    >>> run = tempfile.mkdtemp()
    >>> for step in (100, 200):
    ...     with checkpoint.writer(f"{run}/step-{step}") as file:
    ...         _ = file.write(b"weights")
    >>> checkpoint.newest(run).removeprefix(run)
    '/step-200'
    """
    transfer = Transfer(storage_options, retries=retries, timeout=timeout)
    unnumbered = []
    for one in sorted(_find(transfer.folder(location), transfer), key=_age, reverse=True):
        try:
            one.check(every_byte=False)
        except CorruptCheckpointError:
            continue
        if one.step:
            return one.location
        unnumbered.append(one.location)
    if len(unnumbered) > 1:
        raise ConfigError(
            f"{printable(location)}: has {len(unnumbered)} checkpoints, and none has a number in its name to "
            "tell which one is newest: name the step, as in step-300"
        )
    return unnumbered[0] if unnumbered else None


class _Checkpoint(Protocol):
    location: str
    step: tuple[int, ...]

    def check(self, *, every_byte: bool) -> None:
        """Raise CorruptCheckpointError unless it is whole."""

    def remove(self) -> bool:
        """Remove it; return False if it is another one meanwhile."""


class _FileCheckpoint:
    def __init__(self, folder: CheckpointFolder, entry: Entry, transfer: Transfer) -> None:
        self._folder, self._entry, self._transfer = folder, entry, transfer
        self.location, self.step = folder.object_location(entry.name), step_of(entry.name)

    def check(self, *, every_byte: bool) -> None:
        try:
            with self._transfer.read(self.location) as file:
                if every_byte:
                    read_all(file)
        except StoreReadError as error:
            if is_missing(error):
                raise CorruptCheckpointError(f"{self.location}: is missing") from error
            raise

    def remove(self) -> bool:
        if self._entry not in self._folder.listing().entries:
            return False
        self._folder.remove([self._entry.name])
        return True


class _FolderCheckpoint:
    def __init__(self, folder: CheckpointFolder, modified: float, manifest: Manifest, transfer: Transfer) -> None:
        self._folder, self._shards, self._manifest = folder, ShardFolder(folder, transfer), manifest
        self._transfer = transfer
        self.location, self._modified = folder.location, modified
        self.step = manifest.step or step_of(self._shards.name)

    def check(self, *, every_byte: bool) -> None:
        self._shards.check_objects(self._manifest.objects, every_byte=every_byte)

    def remove(self) -> bool:
        if not self._is_same():
            return False
        named = [one.name for one in self._manifest.objects]
        self._folder.remove([*named, *self._left_behind(set(named))])
        if not self._is_same():
            return False
        self._folder.remove([METADATA_NAME])
        self._folder.remove_partial(is_object_name)
        self._folder.remove_if_empty()
        return True

    def _is_same(self) -> bool:
        found = self._shards.read_manifest()
        return found is not None and found[1].save_id == self._manifest.save_id

    def _left_behind(self, named: set[str]) -> list[str]:
        """Return objects of ours that are older than the manifest, which does not name them."""
        return [
            entry.name
            for entry in self._folder.listing().entries
            if is_object_name(entry.name)
            and entry.name not in named
            and entry.modified < self._modified
            and _is_ours(self._folder.object_location(entry.name), self._transfer)
        ]


def _find(folder: CheckpointFolder, transfer: Transfer) -> list[_Checkpoint]:
    """Return the checkpoints in a folder that zarrfeed wrote."""
    listing = folder.listing()
    if any(entry.name == METADATA_NAME for entry in listing.entries):
        raise ConfigError(f"{folder.location}: is itself a checkpoint; give the folder that holds the checkpoints")

    def look_at_file(entry: Entry) -> _Checkpoint | None:
        # A file that begins with a dot may be one that a writer has not renamed yet.
        if entry.name.startswith(".") or is_object_name(entry.name):
            return None
        is_ours = _is_ours(folder.object_location(entry.name), transfer)
        return _FileCheckpoint(folder, entry, transfer) if is_ours else None

    def look_at_folder(name: str) -> _Checkpoint | None:
        inner = folder.folder(name)
        modified = [entry.modified for entry in inner.listing().entries if entry.name == METADATA_NAME]
        try:
            found = ShardFolder(inner, transfer).read_manifest() if modified else None
        except (ConfigError, CorruptCheckpointError):  # not ours, or it cannot be told
            return None
        return None if found is None else _FolderCheckpoint(inner, modified[0], found[1], transfer)

    with ThreadPoolExecutor(LOOKS_AT_ONCE, "zarrfeed: retain") as threads:
        found = [*threads.map(look_at_file, listing.entries), *threads.map(look_at_folder, listing.folders)]
    return [one for one in found if one is not None]


def _is_ours(location: str, transfer: Transfer) -> bool:
    """Return whether zarrfeed wrote a file; a file that this process may not read is not taken for one."""
    try:
        with transfer.read(location):
            return True
    except CorruptCheckpointError:
        return False
    except StoreReadError as error:
        if is_missing(error) or error.errno == errno.EACCES:
            return False
        raise


def _age(one: _Checkpoint) -> tuple[tuple[int, ...], str]:
    return one.step, one.location

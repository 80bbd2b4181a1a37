"""The folder of one distributed checkpoint: its manifest, and the objects that the manifest names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from zarrfeed.base.errors import ConfigError, CorruptCheckpointError, StoreReadError, StoreWriteError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_int
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.checkpoint.checkpoint_file import DEFAULT_BUDGET, reader, writer
from zarrfeed.storage.checkpoint.checkpoint_folder import CheckpointFolder, folder_and_name, open_folder
from zarrfeed.storage.checkpoint.checkpoint_manifest import METADATA_NAME, Manifest, ShardObject, decode, encode
from zarrfeed.storage.checkpoint.checkpoint_reader import CheckpointReader
from zarrfeed.storage.checkpoint.checkpoint_writer import CheckpointWriter

#: Number of objects or checkpoints that are checked at once, by one or two requests each.
LOOKS_AT_ONCE = 16
#: Number of reads of a manifest that a save replaces while it is read.
_READS_OF_REPLACED = 3
#: Bytes that are read at once where every byte of an object is read.
_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Transfer:
    """The arguments of `zarrfeed.checkpoint.writer`, for the objects of a distributed checkpoint."""

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    memory_budget: int | str = DEFAULT_BUDGET
    concurrency: int | None = None
    retries: int = DEFAULT_RETRIES
    timeout: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            kind = type(self.storage_options).__name__
            raise ConfigError(f"storage_options: got a {kind}, must be a dict of names to values")
        Faults(retries=self.retries, timeout=self.timeout)
        parse_bytes(self.memory_budget)
        if self.concurrency is not None:
            check_int("concurrency", self.concurrency, 1)

    def write(self, location: str) -> CheckpointWriter:
        """Return `zarrfeed.checkpoint.writer` of a path or URL."""
        return writer(location, **vars(self))

    def read(self, location: str, *, allow_plain: bool = False) -> CheckpointReader:
        """Return `zarrfeed.checkpoint.reader` of a path or URL."""
        return reader(location, allow_plain=allow_plain, **vars(self))

    def folder(self, location: str | os.PathLike[str]) -> CheckpointFolder:
        """Return the folder at a path or URL."""
        return open_folder(location, storage_options=self.storage_options, retries=self.retries, timeout=self.timeout)


class CheckpointStorage:
    """The part that the reader and the writer of distributed checkpoints have in common: which folder they are of.

    Parameters
    ----------
    location
        The path or URL of the folder.
    transfer
        The options for writing and reading its objects.

    Raises
    ------
    ConfigError, UnsupportedError
        If the location cannot hold a checkpoint, or for an option that the store does not have.
    """

    def __init__(self, location: str | os.PathLike[str], transfer: Transfer) -> None:
        super().__init__()
        self._location, self._transfer = location, transfer
        self._folder()  # refuses what cannot work

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder that is read or written."""
        return self._location

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a checkpoint can be there, as far as the name tells."""
        try:
            Transfer().folder(checkpoint_id)
        except (ValueError, NotImplementedError):
            return False
        return True

    def _folder(self) -> ShardFolder:
        return ShardFolder(self._transfer.folder(self._location), self._transfer)


class ShardFolder:
    """The folder of one distributed checkpoint.

    Parameters
    ----------
    folder
        The folder in its store.
    transfer
        The options for writing and reading its objects.

    Attributes
    ----------
    location
        Path or URL of the folder.
    name
        The last part of that, without escapes of a URL.
    """

    def __init__(self, folder: CheckpointFolder, transfer: Transfer) -> None:
        self._folder, self._transfer = folder, transfer
        self.location = folder.location
        self.name = folder_and_name(folder.location)[1]

    def read_manifest(self) -> tuple[bytes, Manifest] | None:
        """Return torch's pickled metadata and the manifest; None if the folder has no `.metadata`.

        Raises
        ------
        ConfigError
            If zarrfeed did not write `.metadata`.
        CorruptCheckpointError, StoreReadError
            If it is damaged, or cannot be read.
        """
        name = self._folder.object_location(METADATA_NAME)
        for attempt in range(_READS_OF_REPLACED):
            try:
                with self._transfer.read(name) as file:
                    content = file.read()
            except StoreReadError as error:
                if is_missing(error):
                    return None
                if error.errno != errno.ESTALE or attempt == _READS_OF_REPLACED - 1:
                    raise
            else:
                pickled, manifest = decode(content, name)
                return bytes(pickled), manifest
        raise AssertionError

    def replace_manifest(self, pickled: bytes, manifest: Manifest, previous: tuple[bytes, Manifest] | None) -> None:
        """Make a checkpoint of objects that are stored; it replaces the previous one atomically.

        Parameters
        ----------
        pickled
            Torch's metadata of the checkpoint, pickled.
        manifest
            Manifest of the new checkpoint.
        previous
            The result of `read_manifest`. It is put back where a store keeps other bytes than it was given.

        Raises
        ------
        StoreWriteError, StoreReadError, CorruptCheckpointError
            If the store fails, or keeps other bytes.
        """
        try:
            self._write_manifest(pickled, manifest)
        except StoreWriteError:
            if self._is_damaged() and previous is not None:
                self._write_manifest(*previous)
            raise
        if self._is_damaged():
            if previous is not None:
                self._write_manifest(*previous)
            name = self._folder.object_location(METADATA_NAME)
            raise CorruptCheckpointError(f"{name}: the store keeps other bytes than were written")

    def _write_manifest(self, pickled: bytes, manifest: Manifest) -> None:
        with self._transfer.write(self._folder.object_location(METADATA_NAME)) as file:
            file.write(encode(pickled, manifest))

    def _is_damaged(self) -> bool:
        try:
            self.read_manifest()
        except (ConfigError, CorruptCheckpointError):
            return True
        return False

    def write_object(self, name: str) -> CheckpointWriter:
        """Return the writer of an object."""
        return self._transfer.write(self._folder.object_location(name))

    def read_object(self, name: str) -> CheckpointReader:
        """Return the reader of an object."""
        return self._transfer.read(self._folder.object_location(name))

    def check_objects(self, objects: Iterable[ShardObject], *, every_byte: bool = False) -> None:
        """Check that objects are stored as the manifest describes them.

        Parameters
        ----------
        objects
            Objects of the manifest.
        every_byte
            Read all of them. Otherwise what describes an object at its end is read, and says the length and the digest.

        Raises
        ------
        CorruptCheckpointError
            If an object is missing or differs.
        StoreReadError
            If it cannot be read.
        """
        with ThreadPoolExecutor(1 if every_byte else LOOKS_AT_ONCE, "zarrfeed: check") as threads:
            list(threads.map(lambda one: self._check(one, every_byte=every_byte), objects))

    def _check(self, one: ShardObject, *, every_byte: bool) -> None:
        name = self._folder.object_location(one.name)
        try:
            with self.read_object(one.name) as file:
                check_same(file, one, name)
                if every_byte:
                    read_all(file)
        except StoreReadError as error:
            if is_missing(error):
                raise CorruptCheckpointError(f"{name}: is missing, the manifest names it") from error
            raise

    def remove_objects(self, names: Iterable[str]) -> None:
        """Remove objects by their names."""
        self._folder.remove(names)


def read_all(file: CheckpointReader) -> None:
    """Read every byte of an object from its beginning, which checks it. Raises as `CheckpointReader.read` does."""
    while file.read(_READ_BYTES):
        pass


def is_missing(error: StoreReadError) -> bool:
    """Return whether an error says that there is no such object, perhaps after a retry."""
    return error.errno == errno.ENOENT or isinstance(error.__cause__, FileNotFoundError)


def check_same(file: CheckpointReader, one: ShardObject, name: str) -> None:
    """Raise CorruptCheckpointError unless an open object is the one that a manifest describes."""
    if (file.size, file.digest) != (one.length, one.digest):
        raise CorruptCheckpointError(
            f"{name}: has {file.size} bytes with the digest {file.digest}, "
            f"the manifest says {one.length} bytes with {one.digest}"
        )

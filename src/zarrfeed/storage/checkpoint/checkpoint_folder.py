"""A folder of checkpoints, local or in an object store: its listing, and the removal of single objects.

Invariant: a listing names what lies in the folder itself, never below a folder inside it; an object is removed by its
own name alone, never by a prefix.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from zarrfeed.base.errors import ConfigError, StoreReadError, StoreWriteError
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import KeyUrl, is_url, url_of
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.urls import make_store
from zarrfeed.storage.checkpoint.checkpoint_sink import remove_leftovers


@dataclass(frozen=True)
class Entry:
    """One object of a folder.

    Attributes
    ----------
    name
        Name of the object in the folder, without a slash.
    size_bytes
        Bytes of the stored object.
    modified
        Time when it was written, in seconds since 1970, by the clock of the store.
    """

    name: str
    size_bytes: int
    modified: float


@dataclass(frozen=True)
class Listing:
    """The content of a folder: its objects, and the names of the folders in it."""

    entries: tuple[Entry, ...] = ()
    folders: tuple[str, ...] = ()


class CheckpointFolder(Protocol):
    """A folder that holds checkpoints, or the objects of one checkpoint.

    Attributes
    ----------
    location
        Path or URL of the folder, without a slash at the end.
    """

    location: str

    def listing(self) -> Listing:
        """List the folder; nothing if it does not exist. Raises `StoreReadError`."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects of the folder; those that are gone already are no error. Raises `StoreWriteError`."""

    def remove_if_empty(self) -> None:
        """Remove the folder itself if nothing is in it; object stores have no folders."""

    def remove_partial(self, is_ours: Callable[[str], bool]) -> None:
        """Remove partial files of objects of these names that killed writers left; object stores hide such files."""

    def folder(self, name: str) -> CheckpointFolder:
        """Return a folder inside this one."""

    def object_location(self, name: str) -> str:
        """Return the path or URL of an object of the folder."""


def open_folder(
    location: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> CheckpointFolder:
    """Return the folder at a path or URL, without asking it for anything.

    Parameters
    ----------
    location
        A path, `file:///path`, or the URL of a prefix in an object store: `s3://bucket/run`.
    storage_options
        Options of the object store, such as credentials. Paths take none.
    retries
        Number of retries of a request after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Raises
    ------
    ConfigError, UnsupportedError
        If there can be no folder: another scheme, or options that the store does not have.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise ConfigError(f"location = {location!r}, must be a path or a URL")
    if not is_url(text):
        if storage_options:
            raise ConfigError(f"{text}: storage_options are for object stores, and this is a local path")
        return _LocalFolder(local_path(text))
    if text.lower().startswith(("http://", "https://")):
        raise ConfigError(
            f"{KeyUrl.of(text)}: a web server cannot list a folder; must be a path or the URL of an object store"
        )
    return _StoredFolder(text, StoreAccess(Faults(retries=retries, timeout=timeout), storage_options))


def folder_and_name(location: str) -> tuple[str, str]:
    """Return the folder that an object lies in, as a path or a URL, and the name of the object there.

    Raises
    ------
    ConfigError
        If a URL names no single key.

    >>> folder_and_name("s3://bucket/run%201/step%201.ckpt"), folder_and_name("run%201/step%201.ckpt")
    (('s3://bucket/run%201', 'step 1.ckpt'), ('run%201', 'step%201.ckpt'))
    """
    if not is_url(location):
        path = local_path(location)
        return str(path.parent), path.name
    url = KeyUrl.of(location)
    folder, _, name = url.path.rpartition("/")
    return f"{url.origin}/{folder}".rstrip("/"), unquote(name)


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = str(path)

    def listing(self) -> Listing:
        entries, folders = [], []
        try:
            with os.scandir(self._path) as found:
                for one in found:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        if one.is_dir(follow_symlinks=False):
                            folders.append(one.name)
                        elif one.is_file(follow_symlinks=False):
                            status = one.stat(follow_symlinks=False)
                            entries.append(Entry(one.name, status.st_size, status.st_mtime))
        except FileNotFoundError:
            return Listing()
        except OSError as error:
            raise StoreReadError(errno_of(error), f"{self.location}: cannot be listed: {error.strerror}") from error
        return Listing(tuple(sorted(entries, key=lambda e: e.name)), tuple(sorted(folders)))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                (self._path / _plain(name)).unlink(missing_ok=True)
            except OSError as error:
                text = f"{self._path / name}: cannot be removed: {error.strerror}"
                raise StoreWriteError(errno_of(error), text) from error

    def remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):  # something else is in it, or it is gone
            self._path.rmdir()

    def remove_partial(self, is_ours: Callable[[str], bool]) -> None:
        for partial_file in self._path.glob(".*.partial"):
            name = partial_file.name[1:].removesuffix(".partial").rpartition(".")[0]
            if is_ours(name):
                remove_leftovers(self._path / name)

    def folder(self, name: str) -> CheckpointFolder:
        return _LocalFolder(self._path / _plain(name))

    def object_location(self, name: str) -> str:
        return str(self._path / _plain(name))


class _StoredFolder:
    def __init__(self, url: str, access: StoreAccess) -> None:
        self._access = access
        self._store = make_store(url, access)
        self.location = self._store.url

    def listing(self) -> Listing:
        import obstore

        try:
            found = self._access.ask(lambda: obstore.list_with_delimiter_async(self._store.store), self.location)
        except StoreReadError:
            raise
        except FileNotFoundError:
            return Listing()
        except Exception as error:  # of any class: obstore's own, and those of its client
            text = f"{self.location}: cannot be listed: {reason_of(error)}"
            raise StoreReadError(errno_of(error), text) from error
        entries = [
            Entry(posixpath.basename(one["path"]), one["size"], one["last_modified"].timestamp())
            for one in found["objects"]
            if not one["path"].endswith("/")  # some tools write such objects for folders
        ]
        folders = [posixpath.basename(prefix.rstrip("/")) for prefix in found["common_prefixes"]]
        return Listing(tuple(sorted(entries, key=lambda e: e.name)), tuple(sorted(folders)))

    def remove(self, names: Iterable[str]) -> None:
        import obstore

        for name in names:  # one by one: of several names, an error does not say which one is not there
            url = self.object_location(name)
            try:
                self._access.ask(partial(obstore.delete_async, self._store.store, name), url)
            except FileNotFoundError:
                continue
            except Exception as error:  # of any class: obstore's own, and that of the retries
                text = f"{url}: cannot be removed: {reason_of(error)}"
                raise StoreWriteError(errno_of(error), text) from error

    def remove_if_empty(self) -> None:
        pass

    def remove_partial(self, is_ours: Callable[[str], bool]) -> None:
        pass

    def folder(self, name: str) -> CheckpointFolder:
        return _StoredFolder(url_of(self.location, _plain(name)), self._access)

    def object_location(self, name: str) -> str:
        return url_of(self.location, _plain(name))


def _plain(name: str) -> str:
    """Return a name, if it is one inside the folder: names of manifests are anybody's."""
    if not name or "/" in name or "\\" in name or name in (".", "..") or "\0" in name:
        raise ConfigError(f"{name!r} is not the name of an object in a folder")
    return name

"""The location of a checkpoint, a local file or an object of a store; and reading bytes of it.

Invariant: all bytes that a `StoredBytes` returns are of one version of the file or object. If it is replaced meanwhile,
the former version is read to its end (a file), or reading fails (an object).
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from zarrfeed.base.errors import ConfigError, CorruptCheckpointError, StoreReadError, printable
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import KeyUrl, check_key, is_url
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.access.retry import FailedAttempt
from zarrfeed.storage.access.store_errors import errno_of, is_transient, reason_of
from zarrfeed.storage.access.urls import make_store
from zarrfeed.storage.checkpoint.checkpoint_format import Bytes, Checksum

#: A piece of a file is summed while the processor has it in its cache.
_PIECE_BYTES = 256 << 10

_T = TypeVar("_T")


@dataclass(frozen=True)
class FileLocation:
    """A local file.

    Attributes
    ----------
    path
        Path of the file, without links.
    name
        Name of the file in messages.
    given
        The path as it was given, whose last component may be a link.
    """

    path: Path
    name: str
    given: Path
    access: StoreAccess = field(default_factory=StoreAccess)


@dataclass(frozen=True)
class ObjectLocation:
    """An object of a store of obstore's.

    Attributes
    ----------
    store
        The store.
    key
        Key of the object in the store.
    name
        Name of the object in messages.
    access
        Options, retries and timeout for requests to the store.
    """

    store: Any = field(repr=False)
    key: str
    name: str
    access: StoreAccess = field(default_factory=StoreAccess)


CheckpointLocation: TypeAlias = FileLocation | ObjectLocation


def locate_checkpoint(
    where: str | os.PathLike[str],
    store: Any,
    storage_options: Mapping[str, Any] | None,
    policy: Faults,
    *,
    client_retries: int = 0,
) -> CheckpointLocation:
    """Return the location of a checkpoint, without asking any store for it.

    Parameters
    ----------
    where
        A path, a URL, or a key of `store`.
    store
        A store of obstore's; None: `where` is no key.
    storage_options
        Options for the store of a URL, such as credentials.
    policy
        Retries and timeout of requests to the store.
    client_retries
        Number of retries by the client of a URL's store itself. The client has to retry where it alone has the bytes,
        such as the parts of an upload.

    Raises
    ------
    ConfigError
        If `where` names no object, or the options are not those of such a store.
    UnsupportedError
        If the scheme of the URL is not known.
    """
    if not isinstance(where, str | os.PathLike):
        raise ConfigError(f"location of a checkpoint: got a {type(where).__name__}, must be a path or a URL")
    text = os.fspath(where)
    if not isinstance(text, str):
        raise ConfigError(f"location of a checkpoint: got {text!r}, must be text")
    if store is not None:
        return _in_store(text, store, storage_options, policy)
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigError(f"storage_options: got a {type(storage_options).__name__}, must be a dict of names to values")
    if is_url(text):
        retries = {"retry_config": {"max_retries": client_retries}}
        options = retries | dict(storage_options or {})
        made = make_store(text, StoreAccess(policy, options), root=True)
        return ObjectLocation(made.store, _object_key(text), printable(text), StoreAccess(policy, storage_options))
    if storage_options:
        raise ConfigError(f"{text}: is a local file, storage_options are for the stores of URLs")
    path = local_path(text)
    if not path.name or text.endswith("/"):
        raise ConfigError(f"{text!r}: names no file")
    return FileLocation(path.resolve(), printable(path), path, StoreAccess(policy))


def _object_key(url: str) -> str:
    """Return the key that a URL of an object names in the store of its origin."""
    key_url = KeyUrl.of(url)
    if not key_url.path or url.endswith("/"):
        raise ConfigError(f"{printable(url)}: names no object, must end in the name of one")
    if key_url.is_web:
        if "%2f" in key_url.path.lower():
            raise ConfigError(f"{printable(url)}: has an escaped slash (%2F), which cannot be in the name of an object")
        check_key(printable(url), key_url.key)
    return key_url.key


def _in_store(key: str, store: Any, storage_options: Mapping[str, Any] | None, policy: Faults) -> ObjectLocation:
    from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, S3Store

    # A MemoryStore would keep the buffers of the writer, which go round.
    if not isinstance(store, S3Store | GCSStore | AzureStore | HTTPStore | LocalStore):
        raise ConfigError(f"store = {printable(store)}, must be a store of obstore's, and no MemoryStore")
    if storage_options:
        raise ConfigError("storage_options are for URLs; a store has its own options already")
    if not key.strip("/") or "://" in key:
        raise ConfigError(f"{printable(key)}: is no key of a store")
    check_key(printable(key), key.removeprefix("/"))
    return ObjectLocation(store, key, printable(f"{store}/{key}"), StoreAccess(policy))


class StoredBytes(Protocol):
    """The stored bytes of a checkpoint, for reading. Safe for threads."""

    size: int
    name: str

    def read(self, begin: int, end: int, checksum: Checksum) -> tuple[Bytes, bytes]:
        """Return the stored bytes [begin, end), and their checksum.

        Raises
        ------
        StoreReadError
            If they cannot be read, or the object was replaced.
        CorruptCheckpointError
            If they are not there.
        """
        ...

    def close(self) -> None:
        """Let go of open files; reads that began go on."""
        ...


def open_stored(location: CheckpointLocation) -> StoredBytes:
    """Return the stored bytes of a checkpoint.

    Raises
    ------
    StoreReadError
        If there is none, or the store does not answer.
    """
    return _LocalBytes(location) if isinstance(location, FileLocation) else _ObjectBytes(location)


class _Descriptor:
    """An open file, which closes when its last user has let go of it."""

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may have no writer

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _LocalBytes:
    def __init__(self, location: FileLocation) -> None:
        self.name = location.name
        self._access = location.access
        try:
            self._file: _Descriptor | None = _Descriptor(location.path)
        except OSError as error:
            raise _cannot_be_read(self.name, error) from error
        status = os.fstat(self._file.number)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise StoreReadError(errno.EINVAL, f"{self.name}: is no regular file")

    def read(self, begin: int, end: int, checksum: Checksum) -> tuple[Bytes, bytes]:
        file = self._file
        assert file is not None

        def attempt() -> tuple[Bytes, bytes]:
            content, running, done = np.empty(end - begin, np.uint8), checksum.new(), 0
            while done < len(content):
                read = os.preadv(file.number, [content[done : done + _PIECE_BYTES].data], begin + done)
                if read == 0:
                    raise CorruptCheckpointError(f"{self.name}: was cut at byte {begin + done} while it was read")
                running.update(content[done : done + read])
                done += read
            return content, running.digest()

        started = time.monotonic()
        try:
            return attempt()
        except OSError as error:
            return _read_again(self._access, lambda: asyncio.to_thread(attempt), self.name, error, started)

    def close(self) -> None:
        self._file = None


class _ObjectBytes:
    def __init__(self, location: ObjectLocation) -> None:
        import obstore

        self.name = location.name
        self._location = location
        try:
            found = location.access.ask(lambda: obstore.head_async(location.store, location.key), self.name)
        except (StoreReadError, ConfigError):
            raise
        except Exception as error:  # of any class: obstore's errors have no base that says more
            raise _cannot_be_read(self.name, error) from error
        self.size = int(found["size"])
        tag = found["e_tag"]
        # A weak tag is equal to no other one, as If-Match compares them.
        self._wanted: dict[str, Any] = {} if not tag or tag.startswith("W/") else {"if_match": tag}

    def read(self, begin: int, end: int, checksum: Checksum) -> tuple[Bytes, bytes]:
        import obstore

        store, key = self._location.store, self._location.key
        options: Any = {"range": (begin, end), **self._wanted}

        async def attempt() -> Any:
            return await (await obstore.get_async(store, key, options=options)).bytes_async()

        started = time.monotonic()
        try:
            found: Any = obstore.get(store, key, options=options).bytes()
        except Exception as error:  # noqa: BLE001 (of any class: obstore's errors have no base that says more)
            found = _read_again(self._location.access, attempt, self.name, error, started)
        content = np.frombuffer(found, np.uint8)
        if len(content) != end - begin:
            raise CorruptCheckpointError(f"{self.name}: the store gave {len(content)} bytes of {end - begin}")
        running = checksum.new()
        running.update(content)
        return content, running.digest()

    def close(self) -> None:
        pass


def _read_again(
    access: StoreAccess, attempt: Callable[[], Awaitable[_T]], name: str, error: Exception, started: float
) -> _T:
    """Try again as often as the policy allows, and return the result."""
    if type(error).__name__ == "PreconditionError":
        raise StoreReadError(errno.ESTALE, f"{name}: another checkpoint replaced it while it was read") from error
    if not is_transient(error):
        raise _cannot_be_read(name, error) from error
    try:
        return access.ask(attempt, name, FailedAttempt(error, started))
    except (StoreReadError, CorruptCheckpointError):
        raise
    except Exception as last:  # of any class: obstore's errors have no base that says more
        raise _cannot_be_read(name, last) from last


def _cannot_be_read(name: str, error: BaseException) -> StoreReadError:
    if isinstance(error, FileNotFoundError):
        return StoreReadError(errno.ENOENT, f"{name}: no checkpoint is there")
    return StoreReadError(errno_of(error), f"{name}: cannot be read: {_why(error)}")


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or reason_of(error)

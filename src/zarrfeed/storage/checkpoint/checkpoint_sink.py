"""The target of the bytes of a new checkpoint: a hidden file that is renamed at the end, or a multipart upload.

Invariant: before `commit` begins, and after `abort`, nothing that has the name of the checkpoint was changed, whatever
ends the process. `commit` returns after the whole is there. If `commit` raises, either the former object or the new one
is there, whole. No more bytes of an upload are in memory than its buffers have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import secrets
import stat
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zarrfeed.base.durable_files import make_folder, sync_folder
from zarrfeed.base.errors import ConfigError, MemoryBudgetError, StoreWriteError
from zarrfeed.base.own_files import followed, is_made_by
from zarrfeed.base.redaction import redact
from zarrfeed.base.units import format_bytes
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.checkpoint.checkpoint_format import PART_BYTES, Bytes, as_bytes
from zarrfeed.storage.checkpoint.checkpoint_location import CheckpointLocation, FileLocation, ObjectLocation

#: Largest number of parts of an upload to S3 and Google, each of 5 MiB at least.
MOST_PARTS = 10_000
#: Requests of an upload at once, where the budget has room.
DEFAULT_CONCURRENCY = 16
#: Seconds for which an upload that is given up waits for the server to take note of it.
_ABORT_S = 10.0
#: Seconds between two checks of a waiting thread whether it still has to wait.
_LOOK_S = 0.5


class Sink(Protocol):
    """Takes the bytes of one checkpoint, from one thread."""

    def write(self, data: Bytes) -> None:
        """Take the next bytes; they may be changed after it returns. StoreWriteError if they cannot be stored."""
        ...

    def commit(self, last: bytes) -> None:
        """Take the last bytes and let the whole appear. StoreWriteError if it cannot."""
        ...

    def abort(self) -> None:
        """Let nothing of it appear, and wait some seconds until what there is of it was removed."""
        ...

    def abandon(self) -> None:
        """Let nothing of it appear, and do not wait; from any thread."""
        ...


def open_sink(location: CheckpointLocation, memory_budget: int, concurrency: int | None) -> Sink:
    """Open the target for the bytes of a checkpoint.

    Raises
    ------
    ConfigError
        If what is there is no regular file.
    MemoryBudgetError
        If the budget has no room for two parts.
    StoreWriteError
        If the file cannot be made.
    """
    if memory_budget < 2 * PART_BYTES:
        least = format_bytes(2 * PART_BYTES)
        raise MemoryBudgetError(f"memory_budget = {format_bytes(memory_budget)}, must be at least {least}: two parts")
    if isinstance(location, FileLocation):
        return _LocalSink(location)
    return _ObjectSink(location, memory_budget, concurrency or DEFAULT_CONCURRENCY)


def _cannot_be_written(name: str, error: BaseException) -> StoreWriteError:
    redact(error)  # it may be of another thread, and is not handled here
    why = getattr(error, "strerror", None) or reason_of(error)
    return StoreWriteError(errno_of(error), f"{name}: cannot be written: {why}")


class _LocalSink:
    """A file beside the checkpoint, locked as long as its writer lives."""

    def __init__(self, location: FileLocation) -> None:
        self._path, self._name = location.path, location.name
        try:
            followed(location.given)
        except OSError as error:
            raise _cannot_be_written(self._name, error) from error
        try:
            status = self._path.stat()
        except OSError:
            mode = None
        else:
            # Another user's choice of who may write is not kept.
            mode = stat.S_IMODE(status.st_mode) if status.st_uid == os.geteuid() else None
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{self._name}: is no regular file")
        try:
            make_folder(self._path.parent)
            remove_leftovers(self._path)
            self._descriptor, self._partial = _make_partial(self._path)
            if mode is not None:
                os.fchmod(self._descriptor, mode)
        except OSError as error:
            raise _cannot_be_written(self._name, error) from error

    def write(self, data: Bytes) -> None:
        try:
            while len(data):
                data = data[os.write(self._descriptor, data.data) :]
        except OSError as error:
            raise _cannot_be_written(self._name, error) from error

    def commit(self, last: bytes) -> None:
        try:
            self.write(as_bytes(last))
            os.fsync(self._descriptor)
            self._partial.replace(self._path)
            sync_folder(self._path.parent)
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError) and not isinstance(error, StoreWriteError):
                raise _cannot_be_written(self._name, error) from error
            raise
        os.close(self._descriptor)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._partial.unlink()
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    abandon = abort


def _make_partial(path: Path) -> tuple[int, Path]:
    """Return a new file beside the checkpoint, open and locked, and its path."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, partial
        os.close(descriptor)  # between the two calls another writer took it for a leftover


def remove_leftovers(path: Path) -> None:
    """Remove the files that killed writers of this user left of the same checkpoint: their locks are free."""
    for found in path.parent.glob(f".{_escaped(path.name)}.{'[0-9a-f]' * 16}.partial"):
        with contextlib.suppress(OSError):
            descriptor = os.open(found, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and is_made_by(status, path.parent):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.unlink()
            finally:
                os.close(descriptor)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


class _GivenUpError(Exception):
    """The writer does not want the upload any more."""


class _ObjectSink:
    """One request, or a multipart upload on a thread of its own, which obstore completes or gives up.

    Buffers go round: one comes back when obstore lets go of it, and a new one is made if none is back and there are
    fewer than `_most`.
    """

    def __init__(self, location: ObjectLocation, memory_budget: int, concurrency: int) -> None:
        self._location = location
        self._part_bytes = max(1, memory_budget // (DEFAULT_CONCURRENCY * PART_BYTES)) * PART_BYTES
        self._most = max(2, min(concurrency + 1, memory_budget // self._part_bytes))
        self._made = self._parts = self._filled = self._size = 0
        self._buffer: Bytes | None = None
        self._free: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given_up = False
        self._error: BaseException | None = None

    def write(self, data: Bytes) -> None:
        while len(data):
            if self._buffer is None:
                self._buffer = self._take_buffer()
                self._filled = 0
            n = min(len(data), self._part_bytes - self._filled)
            self._buffer[self._filled : self._filled + n] = data[:n]
            self._filled += n
            self._size += n
            data = data[n:]
            if self._filled == self._part_bytes:
                self._upload_buffer()

    def commit(self, last: bytes) -> None:
        try:
            self.write(as_bytes(last))
            if self._thread is None:
                self._put_at_once(last)
            else:
                self._complete(last)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self.abandon()
        if self._thread is not None:
            self._thread.join(_ABORT_S)  # no part follows; a server that does not answer is left behind

    def abandon(self) -> None:
        self._given_up = True
        self._full.put(None)
        self._buffer = None

    def _take_buffer(self) -> Bytes:
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        if self._made < self._most:
            self._made += 1
            return np.empty(self._part_bytes, np.uint8)
        while True:
            self._check_upload()
            with contextlib.suppress(queue.Empty):
                return self._free.get(timeout=_LOOK_S)

    def _upload_buffer(self) -> None:
        assert self._buffer is not None
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise MemoryBudgetError(
                f"{self._location.name}: a checkpoint has at most {MOST_PARTS} parts, with this memory_budget of "
                f"{format_bytes(self._part_bytes)} each: raise memory_budget"
            )
        part = self._buffer[: self._filled]
        weakref.finalize(part, self._free.put, self._buffer).atexit = False
        self._buffer = None
        self._full.put(part)
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="zarrfeed-checkpoint")
            self._thread.start()

    def _upload(self) -> None:
        import obstore

        try:
            obstore.put(
                self._location.store,
                self._location.key,
                self._take_parts(),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=self._most,
            )
        except BaseException as error:  # noqa: BLE001 (of any class: another thread raises it)
            self._error = error

    def _take_parts(self) -> Iterator[Any]:
        """Yield full buffers until the last one; raise where the upload is not wanted any more."""
        while True:
            try:
                part = self._full.get(timeout=_LOOK_S)
            except queue.Empty:
                part = None
                if threading.main_thread().is_alive():
                    continue
                self._given_up = True  # the interpreter ends, and nobody closed the writer
            if self._given_up:
                raise _GivenUpError
            if part is None:
                return
            yield part
            del part

    def _check_upload(self) -> None:
        if self._error is not None:
            raise _cannot_be_written(self._location.name, self._error) from self._error

    def _complete(self, last: bytes) -> None:
        assert self._thread is not None
        if self._buffer is not None:
            self._upload_buffer()
        self._full.put(None)
        self._thread.join()
        self._check_stored(last, self._error)

    def _put_at_once(self, last: bytes) -> None:
        import obstore

        content: Any = b"" if self._buffer is None else self._buffer[: self._filled]
        failed = None
        try:
            obstore.put(self._location.store, self._location.key, content, use_multipart=False)
        except Exception as error:  # noqa: BLE001 (of any class: obstore's errors have no base that says more)
            failed = error
        self._check_stored(last, failed)

    def _check_stored(self, last: bytes, error: BaseException | None) -> None:
        """Ask the store whether it has the whole, since answers get lost, and some stores say yes to less."""
        import obstore

        name, begin = self._location.name, self._size - len(last)
        try:
            found = obstore.get(self._location.store, self._location.key, options={"range": (begin, self._size)})
            is_whole = found.meta["size"] == self._size and bytes(found.bytes()) == last
        except Exception as unread:  # of any class: obstore's errors have no base that says more
            if error is None:
                what = f"{name}: was written, but cannot be read back: {reason_of(unread)}"
                raise StoreWriteError(errno_of(unread), what) from unread
            is_whole = False
        if is_whole:
            return
        if error is not None:
            raise _cannot_be_written(name, error) from error
        raise StoreWriteError(errno.EIO, f"{name}: the store confirmed the upload, and holds other bytes")

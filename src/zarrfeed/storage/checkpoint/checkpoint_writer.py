"""Checkpoints as files that are written: whole or not there, with a checksum of each part.

Invariant: a checkpoint appears whole, when its `with` block ends without an error, or not at all. Until then, and if
the block raises or the process is killed, an older one of the same name stays as it was. A writer takes no more memory
for bytes of the checkpoint than its budget.
"""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from zarrfeed.base.errors import ClosedError, ConfigError, StoreWriteError
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.storage.access.store_errors import errno_of
from zarrfeed.storage.checkpoint.checkpoint_format import Checksum, Footer, FooterBuilder, as_bytes
from zarrfeed.storage.checkpoint.checkpoint_sink import Sink

#: The sums of a piece are made, and the piece is stored, while the processor has it in its cache.
_PIECE_BYTES = 256 << 10


if TYPE_CHECKING:

    class _BinaryFile(io.BufferedIOBase, BinaryIO):
        """The type of a writer for type checkers, so that `torch.save` takes it, too."""

else:
    _BinaryFile = object  # a file of `io` would be closed when it is collected, and so completed


class CheckpointWriter(_BinaryFile):
    """A binary file for writing, in order. `writer` makes it; see there."""

    def __init__(self, sink: Sink, checksum: Checksum, name: str) -> None:
        self._name = name
        self._sink = sink
        self._builder = FooterBuilder(checksum)
        self._footer: Footer | None = None
        self._closed = False
        self._error: BaseException | None = None  # what the first write that failed raised
        self._owner = OwnerProcess()

    @property
    def mode(self) -> str:
        """Always "wb"."""
        return "wb"

    @property
    def name(self) -> str:
        """The path or the URL."""
        return self._name

    @property
    def closed(self) -> bool:
        """True if `close` or `abort` was called."""
        return self._closed

    @property
    def digest(self) -> str:
        """The digest of the written content, once it is complete: 64 hexadecimal digits, equal for equal content."""
        if self._footer is None:
            raise ConfigError(f"{self.name}: has no digest yet; close the writer first")
        return self._footer.digest

    def write(self, data: Any) -> int:
        """Write the bytes of any contiguous buffer, which may be changed afterwards; return how many these are.

        Raises
        ------
        ClosedError
            After `close` or `abort`, and in a process that was forked from the one that made the writer.
        StoreWriteError
            If they cannot be stored; then the checkpoint cannot be completed any more.
        """
        self._check_open()
        view = as_bytes(data)
        try:
            for begin in range(0, len(view), _PIECE_BYTES):
                piece = view[begin : begin + _PIECE_BYTES]
                self._builder.add(piece)
                self._sink.write(piece)
        except BaseException as error:
            self.abort()
            self._error = error
            raise
        return len(view)

    def flush(self) -> None:
        """Do nothing: a checkpoint appears when the writer is closed."""
        self._check_open()

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self._builder.length

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Complete the checkpoint: when this returns, it is there, whole. Without effect after `close` or `abort`.

        Raises
        ------
        StoreWriteError
                If it cannot be completed, or a write failed; then the former one is there, or the new one, whole.
        """
        if self._error is not None:
            raise StoreWriteError(errno_of(self._error), f"{self.name}: a write failed before") from self._error
        if self._closed:
            return
        self._check_open()
        footer = self._builder.finish()
        self._closed = True
        try:
            self._sink.commit(footer.pack())
        except BaseException as error:
            self._error = error
            raise
        self._footer = footer

    def abort(self) -> None:
        """Let nothing of the checkpoint appear. Without effect after `close` or `abort`."""
        if not self._closed:
            self._closed = True
            if self._owner.is_here:
                self._sink.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self.abort()
        if self._error is not None and self._error is not error and issubclass(kind, Exception):
            raise self._error from error  # torch.save raises another error when a write failed, which says less

    def __del__(self) -> None:
        if not self._closed and self._owner.is_here:
            self._sink.abandon()

    def __repr__(self) -> str:
        return f"CheckpointWriter({self.name!r})"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name}: this writer was closed, or failed before")
        if not self._owner.is_here:
            raise ClosedError(f"{self.name}: this writer was made by the process that forked this one")

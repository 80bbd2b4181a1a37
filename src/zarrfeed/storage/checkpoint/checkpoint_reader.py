"""Checkpoints as files that are read: parts come in parallel, ahead of the reader, and each is checked.

Invariant: a part is checked before any of its bytes is handed out. A reader holds no more parts than its budget has
room for, those that are on their way included. All bytes are of one version of the checkpoint.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from zarrfeed.base.errors import ClosedError, CorruptCheckpointError, MemoryBudgetError
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.base.units import format_bytes
from zarrfeed.base.waits import result_of, wait_for
from zarrfeed.storage.checkpoint.checkpoint_format import (
    NO_CHECKSUM,
    PART_BYTES,
    TRAILER_BYTES,
    Bytes,
    Footer,
    as_bytes,
    footer_bytes,
    parse_footer,
)
from zarrfeed.storage.checkpoint.checkpoint_location import StoredBytes

#: Number of reads of a part that is wrong: bytes are changed on their way, too.
_READS_OF_WRONG_PART = 3
#: Bytes of the footer that are read in one request: a footer of 64 KiB belongs to 128 GiB.
_LIKELY_FOOTER_BYTES = 64 << 10
_PEEK_BYTES = 8192


if TYPE_CHECKING:

    class _BinaryFile(io.BufferedIOBase, BinaryIO):
        """The type of a reader for type checkers, so that `torch.load` takes it, too."""

else:
    _BinaryFile = io.BufferedIOBase


class CheckpointReader(_BinaryFile):
    """A binary file for reading, seekable. `reader` makes it; see there."""

    def __init__(self, stored: StoredBytes, memory_budget: int, concurrency: int, *, allow_plain: bool) -> None:
        self._stored = stored
        self._footer = read_footer(stored, allow_plain=allow_plain)
        self._part_bytes = PART_BYTES if self._footer is None else self._footer.part_bytes
        self._length = stored.size if self._footer is None else self._footer.length
        self._most = min(memory_budget // self._part_bytes, concurrency + 1)
        if self._most < 2:
            raise MemoryBudgetError(
                f"memory_budget = {format_bytes(memory_budget)}, must be at least "
                f"{format_bytes(2 * self._part_bytes)}: two parts of the checkpoint"
            )
        self._ahead = 1  # parts to read ahead, more while they are read in order
        self._last = -1
        self._position = 0
        self._parts: OrderedDict[int, Future[Bytes]] = OrderedDict()  # the one that was used last at the end
        self._failures = 0  # errors that the caller knows
        self._begun: dict[int, int] = {}  # how many there were when a part was begun
        self._threads = ThreadPoolExecutor(self._most - 1, "zarrfeed-checkpoint")
        self._owner = OwnerProcess()

    @property
    def mode(self) -> str:
        """Always "rb"."""
        return "rb"

    @property
    def name(self) -> str:
        """The path or the URL."""
        return self._stored.name

    @property
    def digest(self) -> str | None:
        """The digest of the whole, as the writer's; None of a file without checksums."""
        return None if self._footer is None else self._footer.digest

    @property
    def size(self) -> int:
        """Bytes of the checkpoint."""
        return self._length

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position: from the beginning, from here (`whence=1`) or from the end (`whence=2`); return it."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}.get(whence)
        if base is None or base + offset < 0:
            raise ValueError(f"seek({offset}, {whence}): no such position")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Read into a writable buffer as much as it takes, or as there is; return how many bytes.

        Raises
        ------
        CorruptCheckpointError
            If they are not what was written.
        StoreReadError
            If they cannot be read, or another checkpoint replaced this one.
        ClosedError
            After `close`, and in a process that was forked from the one that made the reader.
        """
        self._check_open()
        target = as_bytes(buffer)
        begin = self._position
        end = min(self._length, begin + len(target))
        while self._position < end:
            piece = self._next(end)
            target[self._position - begin :][: len(piece)] = piece
            self._position += len(piece)
        return max(0, end - begin)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes, fewer at the end; all that are left without a number. Raises as `readinto` does."""
        self._check_open()
        left = max(0, self._length - self._position)
        end = self._position + (left if size is None or size < 0 else min(size, left))
        content = io.BytesIO()
        while self._position < end:
            piece = self._next(end)
            content.write(piece.data)
            self._position += len(piece)
        return content.getvalue()

    def read1(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes, of one part. Raises as `readinto` does."""
        left = self._part_bytes - self._position % self._part_bytes
        return self.read(left if size < 0 else min(size, left))

    def readinto1(self, buffer: Any, /) -> int:
        """Read into a writable buffer, as `readinto`."""
        return self.readinto(buffer)

    def peek(self, size: int = 0, /) -> bytes:
        """Return some of the next bytes, and stay where they begin."""
        position = self._position
        try:
            return self.read1(max(1, min(size or _PEEK_BYTES, _PEEK_BYTES)))
        finally:
            self._position = position

    def close(self) -> None:
        """Let go of memory and threads."""
        if not self.closed and hasattr(self, "_threads"):
            self._threads.shutdown(wait=False, cancel_futures=True)  # a server that does not answer is left behind
            self._parts.clear()
            self._stored.close()
        super().close()

    def __repr__(self) -> str:
        return f"CheckpointReader({self.name!r})"

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.name}: this reader was closed")
        if not self._owner.is_here:
            raise ClosedError(f"{self.name}: this reader was made by the process that forked this one")

    def _next(self, end: int) -> Bytes:
        """Return bytes from the position to `end`, or to the end of the part, which were checked."""
        number, offset = divmod(self._position, self._part_bytes)
        part = self._ask(number)
        if number != self._last:
            self._ahead = min(2 * self._ahead, self._most - 1) if number == self._last + 1 else 1
            self._last = number
        wanted = -(-end // self._part_bytes) - number  # a long read is one in order
        for ahead in range(number + 1, min(self._num_parts, number + 1 + max(self._ahead, wanted))):
            if ahead not in self._parts:
                if not self._make_room(number):
                    break
                self._begin(ahead)
        self._parts.move_to_end(number)
        content = self._result(number, part)
        return content[offset : offset + end - self._position]

    def _result(self, number: int, part: Future[Bytes]) -> Bytes:
        """Return a part; one that was begun before an error that the caller knows, and failed too, is read anew."""
        try:
            return result_of(part)
        except BaseException as error:
            del self._parts[number]  # so that it is read anew when it is asked for again
            if self._begun.pop(number) == self._failures or not isinstance(error, Exception):
                self._failures += 1
                raise
        return self._result(number, self._ask(number))

    @property
    def _num_parts(self) -> int:
        return -(-self._length // self._part_bytes)

    def _extent(self, number: int) -> tuple[int, int]:
        return number * self._part_bytes, min(self._length, (number + 1) * self._part_bytes)

    def _ask(self, number: int) -> Future[Bytes]:
        """Return a part that is here, or comes."""
        if number not in self._parts:
            while not self._make_room(number):
                wait_for(self._parts.values(), return_when=FIRST_COMPLETED)
            self._begin(number)
        return self._parts[number]

    def _make_room(self, current: int) -> bool:
        """Return whether one more part has room, perhaps in place of one that is not about to be read."""
        if len(self._parts) < self._most:
            return True
        for number, part in self._parts.items():
            if not current <= number < current + self._most and part.done():
                del self._parts[number]
                return True
        return False

    def _begin(self, number: int) -> None:
        self._parts[number] = self._threads.submit(self._read_part, number)
        self._begun[number] = self._failures

    def _read_part(self, number: int) -> Bytes:
        begin, end = self._extent(number)
        if self._footer is None:
            return self._stored.read(begin, end, NO_CHECKSUM)[0]
        reason: Exception | None = None
        for _ in range(_READS_OF_WRONG_PART):
            try:
                content, checksum = self._stored.read(begin, end, self._footer.checksum)
                if checksum == self._footer.sum_of(number):
                    return content
            except CorruptCheckpointError as error:  # fewer bytes came
                reason = error
        text = f"{self.name}: bytes {begin} to {end} are not those that were written"
        raise CorruptCheckpointError(text) from reason


def read_footer(stored: StoredBytes, *, allow_plain: bool) -> Footer | None:
    """Return the footer of a checkpoint; None if it has none and may lack it.

    Raises
    ------
    CorruptCheckpointError
        If it has none, or a wrong one.
    """
    for attempt in range(_READS_OF_WRONG_PART):
        try:
            return _read_footer(stored, allow_plain=allow_plain)
        except CorruptCheckpointError:
            if attempt == _READS_OF_WRONG_PART - 1:
                raise
    raise AssertionError


def _read_footer(stored: StoredBytes, *, allow_plain: bool) -> Footer | None:
    tail = _read_last(stored, min(stored.size, _LIKELY_FOOTER_BYTES))
    size = footer_bytes(stored.size, tail[-TRAILER_BYTES:], stored.name)
    if size is None:
        if allow_plain:
            return None
        raise CorruptCheckpointError(
            f"{stored.name}: ends without checksums, so zarrfeed.checkpoint.writer did not write it, or it was cut; "
            "allow_plain=True reads it, unchecked"
        )
    if size > len(tail):
        tail = _read_last(stored, size)
    return parse_footer(tail[-size:], stored.name)


def _read_last(stored: StoredBytes, size: int) -> bytes:
    return stored.read(stored.size - size, stored.size, NO_CHECKSUM)[0].tobytes() if size else b""

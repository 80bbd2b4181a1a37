"""The errors of zarrfeed: one common base, and the builtin that a caller would catch."""

import sys
from typing import Any

from zarrfeed.base.redaction import public_name, redact, without_secrets


class ZarrfeedError(Exception):
    """Base of all errors that zarrfeed raises on purpose.

    Its message has no secrets, and neither have the exceptions that are handled when it is made, which a traceback
    shows as its causes.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(without_secrets(one) if isinstance(one, str) else one for one in args))
        redact(sys.exception())


class ConfigError(ZarrfeedError, ValueError):
    """An argument, or a combination of arguments and arrays, that cannot work."""


class UnknownOptionError(ConfigError, TypeError):
    """A keyword argument that a function or class does not have; a TypeError, as Python's own error is."""


class MemoryBudgetError(ConfigError):
    """The memory budget is too small for the chunks, the lanes or the batch size."""


class UnsupportedError(ZarrfeedError, NotImplementedError):
    """A valid Zarr array that this version does not read."""


class CorruptChunkError(ZarrfeedError, ValueError):
    """Stored bytes that do not decode to what the array's metadata promises."""


class DecodeError(ZarrfeedError, ValueError):
    """A chunk that was read and does not decode; whoever knows array and key makes a `CorruptChunkError` of it."""


class StoreReadError(ZarrfeedError, OSError):
    """The store could not be read; `errno` tells why."""


class StoreWriteError(ZarrfeedError, OSError):
    """The store could not be written; `errno` tells why."""


class CorruptCheckpointError(ZarrfeedError, ValueError):
    """A checkpoint whose bytes are not those that were written, or that has no checksums to tell."""


class ChunkSkippedWarning(UserWarning):
    """A chunk could not be read or decoded, and other samples are delivered in place of its own."""


class StaleMetadataWarning(UserWarning):
    """An array was changed after its consolidated metadata were written, or a file after its index was."""


class ClosedError(ZarrfeedError, RuntimeError):
    """A dataset was used after `close()`."""


class BatchTransferError(ZarrfeedError, RuntimeError):
    """A DataLoader worker could not send a batch to the training process, such as one that cannot be pickled."""


class ProgressFileError(ZarrfeedError, OSError):
    """The progress file of `verify` could not be read or written; `errno` tells why."""


class LostWorkerError(ZarrfeedError, RuntimeError):
    """A process or a node of an executor died while it worked, and the work could not be given to another one."""


def one_line(text: str) -> str:
    """Return text without characters that would move a terminal's cursor: anybody may choose names in a store."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def printable(name: object) -> str:
    """Return the name of a store or a path as text that can be shown.

    Bytes of a path that are no UTF-8 are shown as escapes. Users, passwords and queries are taken out of URLs, which a
    client's own name of a store may have.
    """
    return public_name(str(name).encode("utf-8", "backslashreplace").decode())

"""What becomes of chunks that cannot be read, decoded or found: the arguments of a dataset that say so."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from zarrfeed._import_core import core
from zarrfeed.checks import check_choice, check_int
from zarrfeed.errors import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError, ZarrfeedError

OnError: TypeAlias = Literal["raise", "skip"]
Missing: TypeAlias = Literal["fill", "raise"]

DEFAULT_MAX_ERRORS = 100
DEFAULT_RETRIES = 5
DEFAULT_TIMEOUT_S = 300.0

#: What clients of object stores call errors that another try does not mend, by name: none of them is a dependency.
_LASTING = frozenset(
    {
        "NotFoundError",
        "InvalidPathError",
        "NotSupportedError",
        "PermissionDeniedError",
        "UnauthenticatedError",
        "UnknownConfigurationKeyError",
    }
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class FaultPolicy:
    """What to do where a chunk cannot be had.

    Attributes
    ----------
    on_error
        "raise", or "skip": other samples take the places of those in the chunk.
    max_errors
        Chunks that a pass may skip.
    missing
        "fill": a chunk that the store lacks is the fill value; "raise": it is an error.
    retries
        Further tries after an error that may pass.
    timeout
        Seconds that a read may take, all tries included.
    """

    on_error: OnError = "raise"
    max_errors: int = DEFAULT_MAX_ERRORS
    missing: Missing = "fill"
    retries: int = DEFAULT_RETRIES
    timeout: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, get_args(OnError))
        check_choice("missing", self.missing, get_args(Missing))
        check_int("max_errors", self.max_errors, 1)
        check_int("retries", self.retries, 0, 1000)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, Real):
            raise ConfigError(f"timeout = {self.timeout!r}, must be a number of seconds")
        if not 0.01 <= self.timeout <= 1e6 or math.isnan(self.timeout):
            raise ConfigError(f"timeout = {self.timeout!r}, must be in [0.01, 1e6] seconds")

    @property
    def skips(self) -> bool:
        """Whether chunks that cannot be had are skipped."""
        return self.on_error == "skip"

    def to_core(self) -> dict[str, Any]:
        """Return the policy in the form that the engine takes."""
        return {
            "max_retries": self.retries,
            "timeout_s": float(self.timeout),
            "missing_is_error": self.missing == "raise",
            "skip_bad": self.skips,
        }

    async def retrying(self, read: Callable[[], Awaitable[_T]], on_retry: Callable[[], None]) -> _T:
        """Return what `read` does, tried again after errors that may pass, with pauses; else raise its last error."""
        begin = time.monotonic()
        for tries in itertools.count():
            try:
                return await read()
            except Exception as error:
                pause = core.pause_after(tries)
                late = time.monotonic() - begin + pause >= self.timeout
                if tries == self.retries or late or not is_transient(error):
                    raise
            on_retry()
            await asyncio.sleep(pause)
        raise AssertionError  # the loop has no end


def is_of_chunk(error: BaseException) -> bool:
    """Return whether an error says something of a chunk: not of silent storage, or of what this process lacks."""
    if isinstance(error, StoreReadError):
        return core.is_of_chunk(error.errno or 0)
    return isinstance(error, CorruptChunkError | UnsupportedError)


def is_transient(error: Exception) -> bool:
    """Return whether another try may succeed: after an error of a network, a device or a busy machine.

    Of errors that only the store's client knows, those are lasting whose name says so.
    """
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
            return False
        if isinstance(error, TimeoutError | ConnectionError) or not isinstance(error.errno, int):
            return True
        return core.is_transient(error.errno)
    if isinstance(error, ZarrfeedError) or type(error).__module__ == "builtins":
        return False
    if isinstance(error, ValueError | TypeError | LookupError | NotImplementedError | MemoryError):
        return False
    return type(error).__name__ not in _LASTING

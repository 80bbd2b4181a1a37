"""What becomes of chunks that cannot be read, decoded or found: the arguments of a dataset that say so."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.storage.errors import errno_of, is_transient, reason_of

OnError: TypeAlias = Literal["raise", "skip"]
Missing: TypeAlias = Literal["fill", "raise"]

DEFAULT_MAX_ERRORS = 100
DEFAULT_RETRIES = 5
DEFAULT_TIMEOUT_S = 300.0

#: What each further pause is multiplied by: 2, as a power of two; twice that where a server has to be left in peace.
_NEAR_STEPS, _FAR_STEPS = 1, 2
#: A further attempt ends after this part of the timeout, before others notice that it takes too long: it can say why.
_LAST_WORD = 0.95

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

    async def retrying(
        self, read: Callable[[], Awaitable[_T]], on_retry: Callable[[], None], *, is_far: bool = False
    ) -> _T:
        """Return what `read` does, tried again after errors that may pass.

        Parameters
        ----------
        read
            Makes one attempt.
        on_retry
            Called before each further attempt.
        is_far
            Whether a server is asked. Pauses then grow faster: five retries take about 12 s.

        Raises
        ------
        StoreReadError
            If further attempts failed, too; it says how many, in how many seconds, and why the last one did. Its cause
            is the last error. After a single attempt the error itself is raised.
        """
        begin = time.monotonic()
        try:
            return await read()  # whoever waits for it watches the clock
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            last = error
        steps = _FAR_STEPS if is_far else _NEAR_STEPS
        for retries in itertools.count():
            pause = core.pause_after(steps * retries)
            late = time.monotonic() - begin + pause >= self.timeout
            if retries == self.retries or late or not is_transient(last):
                if retries == 0:
                    raise last
                raise StoreReadError(errno_of(last), _retried(retries, begin, last)) from last
            on_retry()
            await asyncio.sleep(pause)
            left_s = max(0.01, _LAST_WORD * self.timeout - (time.monotonic() - begin))
            try:
                async with asyncio.timeout(left_s) as limit:
                    return await read()
            except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
                if isinstance(error, TimeoutError) and limit.expired():
                    what = f"the store did not answer within {self.timeout:g} s (timeout), after {retries + 1} retries"
                    raise StoreReadError(errno.ETIMEDOUT, f"{what}; the last error: {reason_of(last)}") from last
                last = error
        raise AssertionError  # the loop has no end

    async def reading(
        self, read: Callable[[], Awaitable[_T]], on_retry: Callable[[], None] = lambda: None, *, is_far: bool = False
    ) -> _T:
        """Return the same as `retrying`, within the timeout: for reads that nobody else watches.

        Raises
        ------
        StoreReadError
            If the store did not answer in time. And as of `retrying`.
        """
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                return await self.retrying(read, on_retry, is_far=is_far)
        except TimeoutError as error:
            if not limit.expired():  # the store's own
                raise
            text = f"the store did not answer within {self.timeout:g} s (timeout)"
            raise StoreReadError(errno.ETIMEDOUT, text) from error


def _retried(retries: int, begin: float, last: Exception) -> str:
    """Return how often a read was tried again, for how long, and why it failed."""
    seconds = time.monotonic() - begin
    times = f"{retries} retr{'y' if retries == 1 else 'ies'}"
    return f"the store cannot read it, after {times} in {seconds:.{seconds < 10:d}f} s: {reason_of(last)}"


def is_of_chunk(error: BaseException) -> bool:
    """Return whether an error says something of a chunk: not of silent storage, or of what this process lacks."""
    if isinstance(error, StoreReadError):
        return core.is_of_chunk(error.errno or 0)
    return isinstance(error, CorruptChunkError | UnsupportedError)

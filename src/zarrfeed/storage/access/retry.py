"""Retries of failed reads, as the error policy of a dataset says."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from zarrfeed.base.errors import CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.base.native import core
from zarrfeed.base.redaction import redact
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.store_errors import errno_of, is_transient, reason_of

#: Factor of each further pause: 2, as a power of two; twice that where a server has to be left in peace.
_NEAR_STEPS, _FAR_STEPS = 1, 2
#: A further attempt ends after this part of the timeout, before others notice that it takes too long: it can say why.
_LAST_WORD = 0.95

_T = TypeVar("_T")


@dataclass(frozen=True)
class FailedAttempt:
    """The first attempt to read something, which was made elsewhere and failed.

    Attributes
    ----------
    error
        The exception of the attempt.
    begin
        Time at which the attempt began, by `time.monotonic`.
    """

    error: Exception
    begin: float


async def retrying(
    policy: Faults,
    read: Callable[[], Awaitable[_T]],
    on_retry: Callable[[], None],
    *,
    is_far: bool = False,
    failed: FailedAttempt | None = None,
) -> _T:
    """Call `read`, again after errors that may pass, and return its result.

    Parameters
    ----------
    policy
        The number of further attempts, and the timeout.
    read
        Function that makes one attempt to read.
    on_retry
        Called before each further attempt.
    is_far
        True if a server is asked. Pauses then grow faster: five retries take about 12 s.
    failed
        The first attempt, if it was made.

    Raises
    ------
    StoreReadError
        If further attempts failed, too; it says how many, in how many seconds, and why the last one did. Its cause
        is the last error. After a single attempt the error itself is raised.
    """
    if failed is not None:
        begin, last = failed.begin, failed.error
    else:
        begin = time.monotonic()
        try:
            return await read()  # whoever waits for it watches the clock
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            last = error
    steps = _FAR_STEPS if is_far else _NEAR_STEPS
    for retries in itertools.count():
        pause = core.pause_after(steps * retries)
        late = time.monotonic() - begin + pause >= policy.timeout
        if retries == policy.retries or late or not is_transient(last):
            if retries == 0:
                raise last
            redact(last)
            raise StoreReadError(errno_of(last), _retried(retries, begin, last)) from last
        on_retry()
        await asyncio.sleep(pause)
        left_s = max(0.01, _LAST_WORD * policy.timeout - (time.monotonic() - begin))
        try:
            async with asyncio.timeout(left_s) as limit:
                return await read()
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            if isinstance(error, TimeoutError) and limit.expired():
                redact(last)
                what = f"the store did not answer within {policy.timeout:g} s (timeout), after {retries + 1} retries"
                raise StoreReadError(errno.ETIMEDOUT, f"{what}; the last error: {reason_of(last)}") from last
            last = error
    raise AssertionError  # the loop has no end


async def reading(
    policy: Faults,
    read: Callable[[], Awaitable[_T]],
    on_retry: Callable[[], None] = lambda: None,
    *,
    is_far: bool = False,
    failed: FailedAttempt | None = None,
) -> _T:
    """Like `retrying`, within the timeout: for reads that nobody else watches.

    Raises
    ------
    StoreReadError
        If the store did not answer in time. And as in `retrying`.
    """
    limit = asyncio.timeout(policy.timeout)
    try:
        async with limit:
            return await retrying(policy, read, on_retry, is_far=is_far, failed=failed)
    except TimeoutError as error:
        if not limit.expired():  # the store's own
            raise
        text = f"the store did not answer within {policy.timeout:g} s (timeout)"
        raise StoreReadError(errno.ETIMEDOUT, text) from error


def _retried(retries: int, begin: float, last: Exception) -> str:
    """Describe the retries of a read, their time, and the last error."""
    seconds = time.monotonic() - begin
    times = f"{retries} retr{'y' if retries == 1 else 'ies'}"
    return f"the store cannot read it, after {times} in {seconds:.{seconds < 10:d}f} s: {reason_of(last)}"


def is_of_chunk(error: BaseException) -> bool:
    """Return whether an error says something of a chunk: not of silent storage, or of what this process lacks."""
    if isinstance(error, StoreReadError):
        return core.is_of_chunk(error.errno or 0)
    return isinstance(error, CorruptChunkError | UnsupportedError)

"""Access to stores: metadata reads with the timeout and the retries of a dataset, and the options for URLs."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.base.redaction import remember
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.access.retry import FailedAttempt, reading
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.access.zarr_internals import sync

_T = TypeVar("_T")
#: The format of a store, by its number.
ZarrFormat: TypeAlias = Literal[2, 3]

#: A store that blocks the event loop is left behind so many seconds after the timeout.
_GRACE_S = 1.0


@dataclass(frozen=True)
class StoreAccess:
    """The way to reach a store: timeouts, retries, options and the node cache.

    Attributes
    ----------
    policy
        Its timeout and its retries hold for each read of metadata, too.
    storage_options
        For the stores of URLs, as the user gave them.
    cache
        The node cache; None: there is none.
    zarr_format
        2 or 3, of stores whose format need not be looked for. None: either.
    shared
        The connections that this store shares with others that are opened beside it. None: it shares nothing.

    Raises
    ------
    ConfigError
        If `zarr_format` is another one.
    """

    policy: Faults = field(default_factory=Faults)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    cache: CacheOptions | None = None
    zarr_format: ZarrFormat | None = None
    shared: SharedAccess | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.zarr_format not in (None, 2, 3):
            raise ConfigError(f"zarr_format = {self.zarr_format!r}, must be 2, 3 or None")
        if isinstance(self.storage_options, Mapping):
            remember(self.storage_options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def ask(self, read: Callable[[], Awaitable[_T]], name: str, failed: FailedAttempt | None = None) -> _T:
        """Run `read` on zarr-python's event loop, within the timeout and with retries, and return its result.

        Parameters
        ----------
        read
            Function that makes one attempt to read.
        name
            The name of the array, the group or the store in messages.
        failed
            The first attempt, if the caller made it.

        Raises
        ------
        StoreReadError
            If there was no answer in time, or further attempts failed, too. And whatever a single attempt raises.
        """
        timeout, name = self.policy.timeout, printable(name)
        try:
            answer = reading(self.policy, read, is_far=True, failed=failed)
            return sync(answer if self.shared is None else self.shared.run(answer), timeout=timeout + _GRACE_S)
        except StoreReadError as error:
            raise StoreReadError(error.errno, f"{name}: {error.strerror}") from error.__cause__
        except TimeoutError as error:
            if not str(error).startswith("Coroutine "):  # the store's own
                raise
            what = f"{name}: the store did not answer within {timeout:g} s (timeout), and blocks the event loop"
            raise StoreReadError(errno.ETIMEDOUT, what) from error

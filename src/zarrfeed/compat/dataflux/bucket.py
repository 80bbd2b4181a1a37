"""The common parts of the original's classes: a bucket, its settings, and the objects in it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, SupportsIndex, overload

import zarrfeed.objects
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.objects import Listing, Objects
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults

DEFAULT_COMPOSITE_BYTES = 100_000_000
#: The environment variable from which Google's tools take the address of a server that stands in for Cloud Storage.
_EMULATOR = "STORAGE_EMULATOR_HOST"
_REQUESTS, _MOST_REQUESTS = 16, 1024
#: The longest timeout; the retries of the original go on for 100000 s.
_LONGEST_S = 1e6


class BucketConfig:
    """The settings that both datasets have.

    Attributes are named as the arguments; see `Config` of the datasets.
    """

    def __init__(
        self,
        sort_listing_results: bool,
        max_composite_object_size: int,
        num_processes: int | None,
        prefix: str | None,
        max_listing_retries: int,
        disable_compose: bool,
        list_retry_config: Any,
        download_retry_config: Any,
    ) -> None:
        check_flags(sort_listing_results=sort_listing_results, disable_compose=disable_compose)
        check_int("max_composite_object_size", max_composite_object_size, 0)
        check_int("max_listing_retries", max_listing_retries, 0, 1000)
        if num_processes is not None:
            check_int("num_processes", num_processes, 1)
        if max_composite_object_size not in (0, DEFAULT_COMPOSITE_BYTES) and not disable_compose:
            warnings.warn(
                f"max_composite_object_size = {max_composite_object_size} has no effect: no composite objects are "
                "written to the bucket; objects are read side by side instead",
                stacklevel=3,
            )
        self.sort_listing_results = sort_listing_results
        self.max_composite_object_size = 0 if disable_compose else max_composite_object_size
        self.num_processes = num_processes
        self.prefix = prefix
        self.max_listing_retries = max_listing_retries
        self.list_retry_config = list_retry_config
        self.download_retry_config = download_retry_config


class ObjectList(Sequence[tuple[str, int]]):
    """Name and size in bytes of each object of a dataset, in the order of the names; takes little memory."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._listing)

    @overload
    def __getitem__(self, index: SupportsIndex) -> tuple[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> tuple[str, int] | list[tuple[str, int]]:
        """Return name and size of an object, or a list of them for a slice."""
        if isinstance(index, slice):
            return [(one.key, one.size) for one in self._listing[index]]
        one = self._listing[index]
        return one.key, one.size

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of all objects."""
        return ((one.key, one.size) for one in self._listing)

    def __eq__(self, other: object) -> bool:
        """Return whether a list has the same names and sizes."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"[{shown}{', ...' * (len(self) > 3)}]"


class BucketDataset:
    """The base of both datasets: their arguments as attributes, and the objects of the bucket."""

    def _open(
        self,
        project_name: str | None,
        bucket_name: str,
        config: BucketConfig,
        data_format_fn: Callable[[bytes], Any],
        storage_client: Any,
    ) -> tuple[Objects, Faults]:
        """Remember the arguments; return the objects, and how they are to be read."""
        self.project_name = project_name
        self.bucket_name = bucket_name
        self.config = config
        self.data_format_fn = data_format_fn
        self.storage_client = storage_client
        found = open_bucket(bucket_name, config, storage_client)
        self.objects = ObjectList(found.listing)
        return found, Faults(timeout=timeout_of(config.download_retry_config))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"storage_client": None}  # workers only need the objects made with it


def open_bucket(bucket_name: object, config: BucketConfig, storage_client: Any) -> Objects:
    """List the objects of a bucket that a configuration speaks of.

    Raises
    ------
    ConfigError
        If an argument cannot work, or no object is there.
    StoreReadError
        If the bucket cannot be listed.
    """
    if not isinstance(config, BucketConfig):
        raise ConfigError(f"config: got a {type(config).__name__}, must be a Config of zarrfeed.compat.dataflux")
    processes = config.num_processes
    requests = 1 if processes == 1 else max(_REQUESTS, min(processes or 1, _MOST_REQUESTS))
    return zarrfeed.objects.open(
        url_of(bucket_name),
        prefix=config.prefix or None,
        requests=requests,
        storage_options=storage_options_of(storage_client),
        retries=max(DEFAULT_RETRIES, config.max_listing_retries),
        timeout=timeout_of(config.list_retry_config),
    )


def url_of(bucket_name: object) -> str:
    """Return the URL of a bucket.

    Raises
    ------
    ConfigError
        If `bucket_name` is no name of a bucket.
    """
    if not isinstance(bucket_name, str) or not bucket_name or "/" in bucket_name:
        raise ConfigError(f"bucket_name = {bucket_name!r}, must be the name of a bucket, without gs:// and folders")
    return f"gs://{bucket_name}"


def timeout_of(retry: Any) -> float:
    """Return for how many seconds a `google.api_core.retry.Retry` retries; 300 for None, and where it does not tell."""
    seconds = getattr(retry, "timeout", None) or getattr(retry, "deadline", None)
    return float(min(seconds, _LONGEST_S)) if isinstance(seconds, int | float) else DEFAULT_TIMEOUT_S


def storage_options_of(client: Any) -> dict[str, Any] | None:
    """Return the `storage_options` with which a bucket is read as a client of google-cloud-storage would do it.

    Parameters
    ----------
    client
        A `google.cloud.storage.Client`, whose address and credentials are taken; `storage_options`; or None, for the
        credentials of the environment, or the server that `STORAGE_EMULATOR_HOST` names.

    Raises
    ------
    ConfigError
        If `client` is none of these.
    """
    if isinstance(client, Mapping):
        return dict(client)
    if client is None:
        emulator = os.environ.get(_EMULATOR)
        return None if not emulator else _of_address(emulator) | {"bearer_token": "emulator"}
    credentials = getattr(client, "_credentials", None)
    if credentials is None:
        raise ConfigError(
            f"storage_client: got a {type(client).__name__}, must be a google.cloud.storage.Client, storage_options, "
            "or None"
        )
    address = str(getattr(getattr(client, "_connection", None), "API_BASE_URL", None) or "")
    is_own = not address or address.endswith(".googleapis.com")
    options = {} if is_own else _of_address(address)
    if type(credentials).__name__ == "AnonymousCredentials":
        return options | {"skip_signature": True}
    return options | {"credential_provider": _credential_provider(credentials)}


def _of_address(address: str) -> dict[str, Any]:
    url = address if "://" in address else f"http://{address}"
    return {"base_url": url.rstrip("/"), "allow_http": url.startswith("http://")}


def _credential_provider(credentials: Any) -> Callable[[], Any]:
    """Return a function that gives obstore the tokens of credentials of google-auth."""

    def token() -> dict[str, Any]:
        if not credentials.valid:
            transport = import_module("google.auth.transport.requests")  # whoever has a client has it
            credentials.refresh(transport.Request())
        expiry: datetime | None = credentials.expiry
        return {"token": credentials.token, "expires_at": None if expiry is None else expiry.replace(tzinfo=UTC)}

    return token

"""URLs of object stores and of web servers -> stores, through obstore."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import zarr
from zarr.storage import ObjectStore

from zarrfeed.errors import ConfigError, StoreReadError, UnsupportedError

#: What obstore opens by URL, but for file:// and memory://.
URL_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")

#: How long a request is tried again: enough for a server that is busy, and an end for a host that is not there.
_RETRY_FOR = timedelta(seconds=60)


class UrlStore(ObjectStore[Any]):
    """An object store that is called by its URL in messages. Reads only."""

    url = ""

    def __str__(self) -> str:
        return self.url


def open_url(url: str) -> zarr.Array[Any] | zarr.Group:
    """Open the array or the group at a URL, for reading.

    Credentials, regions and endpoints are taken from the environment, as obstore does (`AWS_ACCESS_KEY_ID`,
    `AWS_REGION`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, ...).

    Raises
    ------
    ConfigError
        If obstore is not installed, does not take the URL, or there is nothing that zarr-python can read.
    StoreReadError
        If there is nothing, or the store cannot be read.
    UnsupportedError
        If the scheme is none of `URL_SCHEMES`.
    """
    store = _make_store(url)
    from obstore.exceptions import BaseError

    try:
        return zarr.open(store=store, mode="r")
    except FileNotFoundError as error:
        raise StoreReadError(error.errno or 2, f"{store}: no Zarr array is there") from error
    except (BaseError, OSError) as error:
        raise StoreReadError(getattr(error, "errno", None) or 5, f"{store}: cannot be read: {error!r}") from error
    except Exception as error:  # what zarr-python's parsers raise on damaged metadata is of any class
        raise ConfigError(f"{store}: zarr-python cannot open it: {error!r}") from error


def _make_store(url: str) -> UrlStore:
    parts = urlsplit(url)
    if parts.scheme not in URL_SCHEMES:
        raise UnsupportedError(
            f"{url}: {parts.scheme}:// is not supported, only local paths, file:// and "
            f"{', '.join(f'{scheme}://' for scheme in URL_SCHEMES)}; open it with zarr-python and pass the zarr.Array"
        )
    has_user = "@" in parts.netloc and not parts.scheme.startswith("abfs")  # there it is container@account
    if parts.query or parts.fragment or has_user:
        shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        raise ConfigError(
            f"{shown}: has a user, a query or a fragment, which are not read from URLs; set credentials in the "
            "environment, or pass a zarr.Array on a store that you made"
        )
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"{url}: URLs need obstore: pip install 'zarrfeed[remote]'") from error
    options: dict[str, Any] = {"client_options": {"allow_http": True}} if parts.scheme == "http" else {}
    try:
        made = from_url(url, retry_config={"retry_timeout": _RETRY_FOR}, **options)
    except Exception as error:  # of any class: configuration is parsed by each store in its own way
        raise ConfigError(f"{url}: obstore does not take it: {error!r}") from error
    store = UrlStore(made, read_only=True)
    store.url = url.rstrip("/")
    return store

"""URLs of object stores and of web servers -> stores, through obstore."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.api.asynchronous import open as open_async

from zarrfeed.base.errors import (
    ConfigError,
    DecodeError,
    StoreReadError,
    UnsupportedError,
    ZarrfeedError,
    printable,
)
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import checked
from zarrfeed.storage.access.file_kinds import not_zarr_url
from zarrfeed.storage.access.key_urls import KeyUrl, url_of
from zarrfeed.storage.access.obstore_options import (
    STORE_OF_SCHEME,
    client_options_of,
    default_credentials,
    forbidden_is_missing,
    obstore_options,
)
from zarrfeed.storage.access.open_errors import open_error
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.store_errors import errno_of, reason_of, says_no_bucket, says_no_permission

#: The schemes that obstore opens by URL, but for file:// and memory://.
URL_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")

#: Environment variables that obstore reads.
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_")

#: A connection that brings nothing for so many seconds is given up, and the request tried again.
_READ_TIMEOUT_S, _CONNECT_TIMEOUT_S = 30.0, 5.0
#: The client gives up so much later than we do, so that the timeout is told as what it is.
_CLIENT_GRACE_S = 1.0


class UrlStore(ReadStore):
    """An object store that is called by its URL in messages. Reads only.

    Attributes
    ----------
    url
        Without a slash at the end.
    origin
        The server or the bucket: stores that share it share its connections.
    is_unsigned
        True if requests go without credentials.
    environment
        A hash of the environment variables that obstore read when the store was made: they may name the server.
    """

    url = ""
    origin = ""
    is_unsigned = False
    environment = 0

    def __str__(self) -> str:
        return self.url


def open_url(url: str, access: StoreAccess | None = None) -> zarr.Array[Any] | zarr.Group:
    """Open the array or the group at a URL, for reading.

    Credentials, regions and endpoints are taken from `access.storage_options`, else from the environment, as obstore
    does (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`,
    `AZURE_STORAGE_ACCOUNT_NAME`, ...), else from the profile in the files of AWS's tools.

    Raises
    ------
    ConfigError
        If obstore is not installed, does not take the URL or the options, or there is nothing that zarr-python can
        read.
    StoreReadError
        If the bucket does not exist, no array, no permission, or the store cannot be read.
    UnsupportedError
        If the scheme is none of `URL_SCHEMES`.
    """
    access = access or StoreAccess()
    store, path = _shared_store(url, access) or (make_store(url, access), "")
    name = url_of(store.url, path) if path else store.url
    from obstore.exceptions import BaseError

    try:
        return wrap_node(access.ask(lambda: _open_node(store, path, access), name))
    except DecodeError as error:
        raise StoreReadError(errno.EIO, f"{name}: {error}") from error
    except ZarrfeedError:
        raise
    except FileNotFoundError as error:
        refused = store.forget_refusals(path)
        if refused:
            raise StoreReadError(errno.EACCES, f"{name}: {_refusal(store, refused)}") from error
        missing = _what_is_missing(make_store(url, access), access) + not_zarr_url(name)
        raise StoreReadError(errno.ENOENT, f"{name}: {missing}") from error
    except (BaseError, OSError) as error:
        raise StoreReadError(errno_of(error), f"{name}: {what_is_wrong(store, error)}") from error
    except Exception as error:  # what zarr-python's parsers raise on damaged metadata is of any class
        raise open_error(name, error) from error


async def _open_node(store: UrlStore, path: str, access: StoreAccess) -> Any:
    """Open an array or a group. Next to stores of format 3 it is looked for in that format first, by fewer requests."""
    shared = access.shared
    if shared is not None and shared.is_v3 and access.zarr_format is None:
        with suppress(FileNotFoundError):
            return await open_async(store=store, path=path or None, mode="r", zarr_format=3)
    node = await open_async(store=store, path=path or None, mode="r", zarr_format=access.zarr_format)
    store.forget_refusals(path)
    if shared is not None:
        shared.is_v3 = node.metadata.zarr_format == 3  # what is of both formats is read in format 3
    return node


def _shared_store(url: str, access: StoreAccess) -> tuple[UrlStore, str] | None:
    """Return the store of the bucket or web server of a URL, which others share, and the path in it; None: not shared.

    A client of its own would cost each store 10 ms, more than 100 KiB, and connections that stay open for a while.
    """
    if access.shared is None:
        return None
    key_url = _supported(url)
    # zarr-python takes a backslash in a path for a slash; and to a web server, an escape is no other spelling of a key.
    if not key_url.path or "\\" in key_url.key or (key_url.is_web and ("%" in key_url.path or "//" in key_url.path)):
        return None
    servers = access.shared.servers
    if key_url.origin not in servers:
        made = make_store(url, access)
        # In URLs of Azure's and Amazon's hosts, the bucket is part of the path.
        is_whole = not key_url.is_web or type(made.store).__name__ == "HTTPStore"
        servers[key_url.origin] = make_store(url, access, root=True) if is_whole else None
    store = servers[key_url.origin]
    return None if store is None else (store, key_url.key)


def wrap_node(node: Any) -> zarr.Array[Any] | zarr.Group:
    """Return an asynchronous array or group of zarr-python as the object that users have.

    Raises
    ------
    ConfigError
        As in `checked`.
    """
    return checked(zarr.Group(node) if isinstance(node, zarr.AsyncGroup) else zarr.Array(node))


def what_is_wrong(store: Store, error: BaseException) -> str:
    """Return why a store cannot be read, and what mends it where that is known."""
    if not says_no_permission(error):
        return f"cannot be read: {reason_of(error)}"
    return f"permission denied, as {reason_of(error)}; {_credentials_remedy(store)}"


def _credentials_remedy(store: Store) -> str:
    if getattr(store, "is_unsigned", False):
        return "requests have no credentials: set them in storage_options or in the environment"
    return "the credentials do not allow to read it, or are wrong"


def _refusal(store: UrlStore, refused: Mapping[str, str]) -> str:
    """Say which documents a server refused that answers so for what does not exist, too."""
    keys = ", ".join(sorted({key.rpartition("/")[2] for key in refused}))
    return (
        f"permission denied, as {next(iter(refused.values()))}, for {keys}; {_credentials_remedy(store)}; or no Zarr "
        "array is there, since the server answers so for objects that do not exist, too"
    )


def _what_is_missing(store: UrlStore, access: StoreAccess) -> str:
    """Say whether the bucket or the array does not exist: zarr-python takes both for an array that is not there."""
    import obstore

    key_url = KeyUrl.of(store.url)
    kind = STORE_OF_SCHEME[key_url.scheme]
    nothing = "no Zarr array is there"
    if kind == "http":
        return f"{nothing}: the server has no zarr.json, .zarray or .zgroup below that URL"
    try:
        access.ask(lambda: obstore.get_async(store.store, "zarr.json"), store.url)
    except FileNotFoundError as error:
        name = key_url.authority.partition("@")[0]
        container = "container" if kind == "azure" else "bucket"
        if says_no_bucket(error):
            return f"there is no {container} {name!r}"
        where = f"below the key {key_url.key!r}" if key_url.key else "at its root"
        where += "; in a URL, %25 stands for a percent sign" * (key_url.key != key_url.path)
        return f"{nothing}: the {container} {name!r} has no zarr.json, .zarray or .zgroup {where}"
    except Exception:  # noqa: BLE001 (of any class: only the better message is lost)
        return nothing
    return nothing


def make_store(url: str, access: StoreAccess, *, root: bool = False) -> UrlStore:
    """Return the store at a URL, without asking it for anything; with `root`, that of the whole bucket or server.

    Raises
    ------
    ConfigError, UnsupportedError
        As in `open_url`.
    """
    key_url = _supported(url)
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"{url}: URLs need obstore: pip install 'zarrfeed[remote]'") from error
    options = _connection_options(url, key_url.scheme, access)
    if root:
        key_url = replace(key_url, path="")
    try:
        made = from_url(key_url.quoted, **options)
    except Exception as error:  # of any class: configuration is parsed by each store in its own way
        raise ConfigError(f"{printable(url)}: obstore does not take it: {reason_of(error)}") from error
    store = UrlStore(made, read_only=True)
    store.url = str(key_url)
    store.origin = key_url.origin
    store.forbidden_is_missing = forbidden_is_missing(url, access.storage_options or {})
    store.is_unsigned = bool(options.get("config", {}).get("skip_signature"))
    store.environment = hash(frozenset(one for one in os.environ.items() if one[0].startswith(_VARIABLES)))
    return store


def _supported(url: str) -> KeyUrl:
    """Return a URL, read. Raises UnsupportedError for a scheme that is not read, ConfigError as `KeyUrl.of`."""
    scheme = url.partition("://")[0].lower()
    if scheme not in URL_SCHEMES:
        raise UnsupportedError(
            f"{printable(url)}: {scheme}:// is not supported, only local paths, file:// and "
            f"{', '.join(f'{one}://' for one in URL_SCHEMES)}; open it with zarr-python and pass the zarr.Array"
        )
    return KeyUrl.of(url)


def _connection_options(url: str, scheme: str, access: StoreAccess) -> dict[str, Any]:
    """Return the arguments of `from_url`: the user's; no retries but our own, and no wait longer than the timeout."""
    options = obstore_options(url, scheme, access.storage_options or {})
    config = options.pop("config")
    config |= default_credentials(scheme, config, os.environ, has_provider="credential_provider" in options)
    longest = access.policy.timeout + _CLIENT_GRACE_S
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=longest),
        "read_timeout": timedelta(seconds=min(longest, _READ_TIMEOUT_S)),
        "connect_timeout": timedelta(seconds=min(longest, _CONNECT_TIMEOUT_S)),
        **({"allow_http": True} if scheme == "http" else {}),
    }
    options["client_options"] = client | client_options_of(scheme, os.environ) | options["client_options"]
    # Its retries would be invisible: neither counted nor named, and the concurrency would not follow from them.
    options["retry_config"] = {"max_retries": 0, "retry_timeout": timedelta(seconds=longest)} | options["retry_config"]
    return options | ({"config": config} if config else {})

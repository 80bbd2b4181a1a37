"""`FarChunks`: chunks that lie in objects of object stores and web servers, as references name them by URL."""

from __future__ import annotations

import errno
from typing import Any

from zarrfeed.base.errors import StoreReadError, printable
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import KeyUrl
from zarrfeed.storage.access.urls import UrlStore, make_store
from zarrfeed.storage.files.chunk_table import WHOLE, Extent


class FarChunks:
    """Reads byte ranges of objects by their URLs; a copy in another process makes clients of its own.

    Parameters
    ----------
    access
        The access to stores; its storage options are those of the objects.
    """

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._stores: dict[str, UrlStore] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_access": self._access, "_stores": {}}

    def check(self, url: str) -> None:
        """Raise ConfigError or UnsupportedError if objects at such a URL cannot be read."""
        self._store_of(url)

    async def read(self, key: str, url: str, extent: Extent) -> bytes:  # noqa: ARG002 - the names of the protocol
        """Return a byte range of an object.

        Raises
        ------
        StoreReadError
            If there is no such object, or it is shorter.
        Exception
            Any class of error, if the server does not answer.
        """
        import obstore

        store = self._store_of(url)
        path = KeyUrl.of(url).key
        try:
            if extent.length == WHOLE:
                return bytes(await (await obstore.get_async(store.store, path)).bytes_async())
            end = extent.offset + extent.length
            if not extent.length:
                return b""
            found = bytes(await obstore.get_range_async(store.store, path, start=extent.offset, end=end))
        except FileNotFoundError as error:
            raise StoreReadError(errno.ENOENT, f"{printable(url)}: there is no such object") from error
        if len(found) != extent.length:
            what = f"{printable(url)}: ends before byte {end}, up to which references say that a chunk lies"
            raise StoreReadError(errno.EINVAL, what)
        return found

    def _store_of(self, url: str) -> UrlStore:
        origin = KeyUrl.of(url).origin
        if origin not in self._stores:
            self._stores[origin] = make_store(url, self._access, root=True)
        return self._stores[origin]

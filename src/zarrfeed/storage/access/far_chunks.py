"""`FarChunks`: chunks that lie in objects of object stores and web servers, as references name them by URL."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from zarrfeed.base.errors import StoreReadError, printable
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import KeyUrl
from zarrfeed.storage.access.urls import UrlStore, make_store
from zarrfeed.storage.files.chunk_table import WHOLE, Extent
from zarrfeed.storage.files.data_file import UNKNOWN_BYTES, FarFile


class FarChunks:
    """Reads byte ranges of objects by their URLs; a copy in another process makes clients of its own.

    Parameters
    ----------
    access
        The access to stores; its storage options are those of the objects.

    Attributes
    ----------
    access
        As above.
    """

    def __init__(self, access: StoreAccess) -> None:
        self.access = access
        self._stores: dict[str, UrlStore] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"access": self.access, "_stores": {}}

    def check(self, url: str) -> None:
        """Raise ConfigError or UnsupportedError if objects at such a URL cannot be read."""
        self.store_of(url)

    async def read(self, key: str, file: FarFile, extent: Extent) -> bytes:  # noqa: ARG002 - the names of the protocol
        """Return a byte range of an object.

        Raises
        ------
        StoreReadError
            If there is no such object, it is shorter, or another version than before.
        Exception
            Any class of error, if the server does not answer.
        """
        url = file.url
        try:
            if extent.length == WHOLE:
                return (await self.get(url))[1]
            end = extent.offset + extent.length
            if not extent.length:
                return b""
            meta, found = await self.get(url, {"range": (extent.offset, end)})
            checked_version(file, meta)
        except FileNotFoundError as error:
            raise StoreReadError(errno.ENOENT, f"{printable(url)}: there is no such object") from error
        if len(found) != extent.length:
            what = f"{printable(url)}: ends before byte {end}, up to which references say that a chunk lies"
            raise StoreReadError(errno.EINVAL, what)
        return found

    async def get(self, url: str, options: Any = None) -> tuple[Any, bytes]:
        """Return what a store says of an object, and its bytes, or those of a range."""
        import obstore

        answer = await obstore.get_async(self.store_of(url).store, KeyUrl.of(url).key, options=options)
        return answer.meta, bytes(await answer.bytes_async())

    def store_of(self, url: str) -> UrlStore:
        """Return the store of the bucket or the server of a URL, of which there is one."""
        origin = KeyUrl.of(url).origin
        if origin not in self._stores:
            self._stores[origin] = make_store(url, self.access, root=True)
        return self._stores[origin]


class BlockingFarChunks(FarChunks):
    """Like `FarChunks`, by requests that block the thread: the results that `read` awaits are there at once."""

    @staticmethod
    def serves(reader: FarChunks, files: Iterable[FarFile]) -> bool:
        """Return whether objects can be read so; a provider of credentials may need an event loop."""
        stores = {id(store): store for store in (reader.store_of(file.url).store for file in files)}
        return all(getattr(store, "credential_provider", None) is None for store in stores.values())

    async def get(self, url: str, options: Any = None) -> tuple[Any, bytes]:
        """Return what a store says of an object, and its bytes, or those of a range, without waiting."""
        import obstore

        answer = obstore.get(self.store_of(url).store, KeyUrl.of(url).key, options=options)
        return answer.meta, bytes(answer.bytes())


def version_of(meta: Any) -> tuple[int, str]:
    """Return the size of an object, and the ETag or else the time that tells its version, as a store says them."""
    return int(meta["size"]), str(meta.get("e_tag") or meta.get("last_modified") or "")


def checked_version(file: FarFile, meta: Any) -> None:
    """Compare an object with its version, if that is known.

    Raises
    ------
    StoreReadError
        If it is another one. The errno is none of those after which a read is tried again.
    """
    if file.size != UNKNOWN_BYTES and version_of(meta) != (file.size, file.tag):
        raise StoreReadError(errno.EINVAL, f"{file}: has changed since the source was opened")

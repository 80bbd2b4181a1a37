"""Objects of object stores, read by calls that block the thread and not Python.

A request of obstore's that blocks costs half of what one costs that an event loop awaits, and it releases the GIL. So
threads read through this where it can be used. What cannot be told here, such as errors, is left to the event loop.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.storage import ObjectStore

from zarrfeed.storage.errors import array_is_gone
from zarrfeed.storage.location import StoreSource
from zarrfeed.storage.request_limiter import RequestLimiter
from zarrfeed.storage.urls import UrlStore

Bytes: TypeAlias = npt.NDArray[np.uint8]


class BlockingReads:
    """Reads the objects of one array.

    Parameters
    ----------
    source
        Where they are; `serves(source)` holds.
    """

    def __init__(self, source: StoreSource) -> None:
        assert source.limiter is not None
        self.limiter: RequestLimiter = source.limiter
        self._store: Any = source.store.store  # type: ignore[attr-defined]
        self._prefix = source.prefix
        self._metadata_key = source.metadata_key
        self._has_suffix_requests = True

    @staticmethod
    def serves(source: StoreSource) -> bool:
        """Return whether chunks come from an object store as it is, and the engine decodes them.

        A class that wraps or extends the store may do anything. A provider of credentials may be a coroutine, which
        only an event loop can run.
        """
        store = source.store
        return (
            type(store) in (ObjectStore, UrlStore)
            and source.decoder is None
            and getattr(store.store, "credential_provider", None) is None  # type: ignore[attr-defined]
        )

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        """Return bytes of an object below the array, or None if the array lacks the object.

        Parameters
        ----------
        key
            Below the array.
        begin, end
            As of a slice: (0, None) is the whole object, (-n, None) are its last n bytes.

        Raises
        ------
        FileNotFoundError
            If the array is gone. And whatever obstore raises.
        """
        import obstore

        path = self._prefix + key
        found: Any  # obstore's own class of bytes
        try:
            if end is not None:
                # Stores disagree about what a request for zero bytes returns, so none is made.
                found = obstore.get_range(self._store, path, start=begin, end=end) if end > begin else b""
            elif begin == 0:
                found = obstore.get(self._store, path).bytes()
            else:
                found = self._get_last(path, -begin)
        except FileNotFoundError:
            self._check_array_exists()
            return None
        return np.frombuffer(found, np.uint8)

    def _get_last(self, path: str, size: int) -> Any:
        import obstore
        from obstore.exceptions import NotSupportedError

        if self._has_suffix_requests:
            try:
                return obstore.get(self._store, path, options={"range": {"suffix": size}}).bytes()
            except NotSupportedError:  # Azure
                self._has_suffix_requests = False
        object_bytes = obstore.head(self._store, path)["size"]
        return obstore.get_range(self._store, path, start=max(0, object_bytes - size), end=object_bytes)

    def _check_array_exists(self) -> None:
        """Tell a chunk that was never written from all chunks of an array that was deleted."""
        import obstore

        if not self._metadata_key:
            return
        path = self._prefix + self._metadata_key
        try:
            obstore.head(self._store, path)
        except FileNotFoundError as error:
            raise array_is_gone(path) from error

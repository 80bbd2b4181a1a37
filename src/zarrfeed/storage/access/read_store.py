"""`ReadStore`: an object store of obstore, read as its server means its answers.

Invariants:

- A document of metadata that the server refuses counts as absent only if the server refuses objects that surely do not
  exist in the same way, as S3 does for those who may not list the bucket. It is asked for such an object once.
- Chunks that the server refuses are errors, unless the user says that they are missing.
- An object with a Content-Encoding is decoded before anybody sees it. A byte range counts decoded bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import ObjectStore

from zarrfeed.base.at_once import result_at_once
from zarrfeed.storage.access.content_encoding import decoded, encoding_of
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.access.page_stream import PageStream
from zarrfeed.storage.access.store_errors import reason_of, says_no_permission, says_out_of_range

#: Exceptions that zarr-python's stores take for an object that is not there.
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
#: First byte and end of bytes of an object, as in a slice; (0, None) is the whole object, (-n, None) its last n bytes.
ByteRange: TypeAlias = tuple[int, int | None]
_WHOLE: ByteRange = (0, None)


class ReadStore(ObjectStore[Any]):
    """A store of obstore that understands refusals and content encodings. Reads only.

    Attributes
    ----------
    forbidden_is_missing
        True if chunks that the server refuses are missing, as the user says.
    keeps_encoding
        True if objects are read as they are stored, with their Content-Encoding.
    """

    forbidden_is_missing = False
    keeps_encoding = False

    def __init__(self, store: Any, *, read_only: bool = True) -> None:
        super().__init__(store, read_only=read_only)
        #: The server's answers for documents that it refused, and that count as absent, by their keys.
        self._refused: dict[str, str] = {}
        #: True for each folder whose missing objects the server refuses, too.
        self._hides_absence: dict[str, bool] = {}

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object, or a byte range of it; None if there is none, as in `zarr.abc.store.Store`."""
        try:
            reads = ObjectReads(self.store, keeps_encoding=self.keeps_encoding)
            return prototype.buffer.from_bytes(await reads.read(key, _range_of(byte_range)))
        except _ABSENT:
            return None
        except Exception as error:  # of any class
            if not await self.is_absent(key, error):
                raise
            return None

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the keys below a prefix, as in `zarr.abc.store.Store`."""
        async for page in PageStream(self.store, prefix):
            for meta in page:
                yield meta["path"]

    async def is_absent(self, key: str, error: Exception) -> bool:
        """Return whether an error says that there is no such object, as far as the server tells."""
        if isinstance(error, _ABSENT):
            return True
        if not says_no_permission(error):
            return False
        folder, _, name = key.rpartition("/")
        if name not in METADATA_NAMES:
            return self.forbidden_is_missing
        if not await self._hides(folder):
            return False
        self._refused[key] = reason_of(error)
        return True

    def forget_refusals(self, path: str) -> dict[str, str]:
        """Return the documents of a node that the server refused, with what it said, and forget them."""
        start = f"{path}/" if path else ""
        return {key: self._refused.pop(key) for key in list(self._refused) if key.startswith(start)}

    async def _hides(self, folder: str) -> bool:
        """Return whether the server refuses an object of a folder that surely does not exist."""
        import obstore

        if any(self._hides_absence.values()):
            return True
        if folder not in self._hides_absence:
            name = f"no-such-object-{uuid.uuid4().hex}"
            try:
                await obstore.get_async(self.store, f"{folder}/{name}" if folder else name)
                self._hides_absence[folder] = False  # a server that answers anything
            except Exception as error:  # noqa: BLE001 (of any class)
                self._hides_absence[folder] = says_no_permission(error)
        return self._hides_absence[folder]


def is_plain(store: object) -> bool:
    """Return whether a store is one of obstore's as it is: a class that wraps or extends it may do anything."""
    return type(store) is ObjectStore or isinstance(store, ReadStore)


class ObjectReads:
    """Reads the objects of one of obstore's stores, with or without their content encoding.

    Parameters
    ----------
    store
        The store.
    keeps_encoding
        True if objects are read as they are stored.
    """

    def __init__(self, store: Any, *, keeps_encoding: bool = False) -> None:
        self._store = store
        self._keeps_encoding = keeps_encoding
        self._has_suffix_requests = True

    async def read(self, key: str, byte_range: ByteRange = _WHOLE) -> Any:
        """Return the bytes of a byte range of an object.

        Raises
        ------
        DecodeError
            If its content encoding cannot be decoded. And whatever obstore raises.
        """
        try:
            answer = await self._get_range(key, byte_range)
        except Exception as error:
            # A part of the content may lie behind the end of what is stored.
            if self._keeps_encoding or byte_range == _WHOLE or not says_out_of_range(error):
                raise
            answer = await self._get(key, _WHOLE)
            if not encoding_of(answer):
                raise
        else:
            if self._keeps_encoding or not encoding_of(answer):
                return await self._content(answer)
            if byte_range != _WHOLE:
                answer = await self._get(key, _WHOLE)
        begin, end = byte_range
        return decoded(await self._content(answer), encoding_of(answer))[begin:end]

    async def _get_range(self, key: str, byte_range: ByteRange) -> Any:
        from obstore.exceptions import NotSupportedError

        begin, end = byte_range
        is_suffix = begin < 0 and end is None
        if not is_suffix or self._has_suffix_requests:
            try:
                return await self._get(key, byte_range)
            except NotSupportedError:  # Azure does not answer for the last bytes of an object
                if not is_suffix:
                    raise
                self._has_suffix_requests = False
        size = await self._size(key)
        return await self._get(key, (max(0, size + begin), size))

    async def _get(self, key: str, byte_range: ByteRange) -> Any:
        import obstore

        return await obstore.get_async(self._store, key, options=_options_of(byte_range))

    async def _size(self, key: str) -> int:
        import obstore

        return int((await obstore.head_async(self._store, key))["size"])

    async def _content(self, answer: Any) -> Any:
        return await answer.bytes_async()


class BlockingObjectReads(ObjectReads):
    """Like `ObjectReads`, by requests that block the thread: the results that it awaits are there at once."""

    def read_now(self, key: str, byte_range: ByteRange = _WHOLE) -> Any:
        """Return the bytes of a byte range of an object. As in `read`."""
        return result_at_once(self.read(key, byte_range))

    async def _get(self, key: str, byte_range: ByteRange) -> Any:
        import obstore

        return obstore.get(self._store, key, options=_options_of(byte_range))

    async def _size(self, key: str) -> int:
        import obstore

        return int(obstore.head(self._store, key)["size"])

    async def _content(self, answer: Any) -> Any:
        return answer.bytes()


def _range_of(byte_range: ByteRequest | None) -> ByteRange:
    if byte_range is None:
        return _WHOLE
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, byte_range.end
    if isinstance(byte_range, SuffixByteRequest):
        return -byte_range.suffix, None
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, None
    raise ValueError(f"got {byte_range!r}, must be a ByteRequest of zarr-python")


def _options_of(byte_range: ByteRange) -> Any:
    """Return the options of obstore's `get` for a byte range of an object."""
    begin, end = byte_range
    if end is not None:
        return {"range": (begin, end)}
    if begin == 0:
        return None
    return {"range": {"suffix": -begin}} if begin < 0 else {"range": {"offset": begin}}

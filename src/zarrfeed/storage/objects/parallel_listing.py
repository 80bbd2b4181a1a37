"""The keys of a bucket, listed by many requests at once.

Invariant: every page is asked for again from the last key that was seen, after an error that may pass; any other error
ends the listing. So there is a whole listing or an error that names the source, and never a short listing. `KeyRanges`
decides which worker lists which keys.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from zarr.storage import ObjectStore

from zarrfeed.base.errors import StoreReadError, UnsupportedError
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.page_stream import PageStream
from zarrfeed.storage.access.request_limiter import RequestLimiter
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.access.store_errors import errno_of, is_transient, says_no_bucket, says_no_permission
from zarrfeed.storage.access.urls import what_is_wrong
from zarrfeed.storage.objects.key_ranges import KeyRange, KeyRanges, keys_that_begin
from zarrfeed.storage.objects.listing import Listing, PackedKeys
from zarrfeed.storage.objects.object_source import ObjectSource

_T = TypeVar("_T")

#: Largest number of keys in an answer of S3 and Google.
PAGE = 1000
#: Seconds between two checks of an idle worker whether the listing was given up.
_POLL_S = 0.05

#: Gets keys and sizes, keeps those that are wanted, in this order.
Keep = Callable[[list[str], list[int]], PackedKeys]


class UnorderedError(Exception):
    """A server does not list its keys in their order, so ranges of keys mean nothing to it."""


@dataclass(frozen=True)
class Bucket:
    """The objects to list: those of a store of obstore, below some folders.

    Attributes
    ----------
    source, access
        The source of the objects, and the retries and timeout for requests to it.
    prefix
        Folders that all keys lie in, without a slash at the end; "" for none.
    beginning
        Beginning of all wanted keys, with these folders; "" for any. Other keys may be listed, too.
    limiter
        The limiter at which requests wait for their turn.
    """

    source: ObjectSource
    access: StoreAccess
    prefix: str
    beginning: str
    limiter: RequestLimiter

    @classmethod
    def of(cls, source: ObjectSource, access: StoreAccess, prefix: str, beginning: str, requests: int) -> Bucket:
        """Return the bucket of a source, for at most `requests` requests at once."""
        return cls(source, access, prefix, beginning, RequestLimiter(requests, is_transient, requests))

    def whole_range(self) -> KeyRange:
        """Return the range of keys that has all wanted ones."""
        return keys_that_begin(self.beginning if self.heeds_offsets else "")

    @property
    def store(self) -> Any:
        """The store of obstore."""
        assert isinstance(self.source.store, ObjectStore)
        return self.source.store.store

    @property
    def heeds_offsets(self) -> bool:
        """True if the server lists from any key on: obstore filters the answers of the others."""
        kind = type(self.store).__name__
        is_express = str(self.store.config.get("bucket", "")).endswith("--x-s3") if kind == "S3Store" else False
        return kind in ("S3Store", "GCSStore") and not is_express

    @property
    def has_markers(self) -> bool:
        """True if a key may be the marker of an empty folder: obstore takes the slash at its end away."""
        return type(self.store).__name__ in ("S3Store", "GCSStore", "AzureStore")

    def ask(self, what: Callable[[], Awaitable[_T]]) -> _T:
        """Make a request when it is its turn, with retries, and return its result.

        Raises
        ------
        StoreReadError
            If the store cannot be asked; names the source.
        """
        try:
            return self.access.ask(lambda: self.limiter.run(what), self.source.name)
        except StoreReadError:
            raise
        except Exception as error:  # of any class
            is_gone = isinstance(error, FileNotFoundError) or says_no_bucket(error)
            code = errno.ENOENT if is_gone else errno_of(error)
            raise StoreReadError(code, f"{self.source.name}: {what_is_wrong(self.source.store, error)}") from error

    def stream(self, after: str) -> PageStream:
        """Return a stream that lists all keys above one, page by page."""
        return PageStream(self.store, self.prefix, after=after, size=PAGE)


class Pages:
    """The pages of keys above some key, in order.

    Parameters
    ----------
    bucket
        The bucket that is listed.
    after
        Only keys above this one are wanted. It may be no key.
    """

    def __init__(self, bucket: Bucket, after: str = "") -> None:
        self._bucket = bucket
        self._seen = after
        self._stream: PageStream | None = None
        self._last = ""  # key of the stream

    def next(self) -> tuple[list[str], list[int], bool]:
        """Return the keys of the next page, their sizes, and whether there are no further ones.

        Raises
        ------
        UnorderedError
            If the keys are not in order.
        """
        page, is_last = self._bucket.ask(self._read)
        keys, sizes = without_markers(*page, self._last)
        if page[0] and not keys and not is_last:  # whether that ever ends, only the other way finds out
            raise UnorderedError
        if keys:
            self._last = keys[-1]
            self._seen = max(self._seen, self._last)
        return keys, sizes, is_last

    async def _read(self) -> tuple[tuple[list[str], list[int]], bool]:
        """Make one attempt to read a page."""
        stream, self._stream = self._stream, None  # after an error, the next attempt begins with another one
        if stream is None:
            stream, self._last = self._bucket.stream(self._seen), ""
        page, is_last = await read_page(stream)
        self._stream = stream
        return page, is_last


class UnorderedPages:
    """The pages of keys in any order, which have to be listed from the beginning after an error."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._stream: PageStream | None = None
        self._begins = False

    def next(self) -> tuple[list[str], list[int], bool, bool]:
        """Return keys and sizes of a page, whether it is the first one (again), and whether it is the last one."""
        self._begins = False
        (keys, sizes), is_last = self._bucket.ask(self._read)
        return keys, sizes, self._begins, is_last

    async def _read(self) -> tuple[tuple[list[str], list[int]], bool]:
        stream, self._stream = self._stream, None
        if stream is None:
            stream, self._begins = self._bucket.stream(""), True
        page, is_last = await read_page(stream)
        self._stream = stream
        return page, is_last


async def read_page(stream: PageStream) -> tuple[tuple[list[str], list[int]], bool]:
    """Return keys and sizes of a page, and whether it is the last one.

    A short one is the last; to be told so costs no request. The key of the listed folder itself, which is empty, is
    left out.
    """
    page: list[Any] = []
    is_last = False
    while len(page) < PAGE and not is_last:
        try:
            page += await anext(stream)
        except StopAsyncIteration:
            is_last = True
    named = [meta for meta in page if meta["path"]]
    return ([meta["path"] for meta in named], [int(meta["size"]) for meta in named]), is_last


def without_markers(keys: list[str], sizes: list[int], last: str = "") -> tuple[list[str], list[int]]:
    """Return a page without the markers of folders that are out of order.

    obstore names the object "a/" by "a". The key "a/" comes behind "a-b", and "a" before it.

    Parameters
    ----------
    keys, sizes
        Keys and sizes of the page.
    last
        The key before the page.

    Raises
    ------
    UnorderedError
        If an object with content is out of order.
    """
    if all(a < b for a, b in pairwise([last, *keys])):
        return keys, sizes
    ascending: list[int] = []
    for i, key in enumerate(keys):
        if key > last:
            ascending.append(i)
            last = key
        elif sizes[i]:
            raise UnorderedError
    return [keys[i] for i in ascending], [sizes[i] for i in ascending]


def list_unordered(bucket: Bucket, keep: Keep) -> Listing:
    """List by one request after the other, and sort the keys.

    Raises
    ------
    StoreReadError
        If a page is listed again, which would go on for ever.
    """
    parts: list[PackedKeys] = []
    pages, is_last = UnorderedPages(bucket), False
    seen = _Repetition()
    while not is_last:
        keys, sizes, begins, is_last = pages.next()
        if begins:
            parts.clear()
            seen = _Repetition()
        if seen.has_any(keys):
            raise StoreReadError(
                errno.EIO,
                f"{bucket.source.name}: the server lists the same keys again and again, such as {keys[0]!r}: it does "
                "not heed where a listing is to go on (the continuation token); list with another client, and give "
                "the keys",
            )
        parts.append(keep(keys, sizes))
    return Listing.joined(parts).sorted()


class _Repetition:
    """Finds out that pages come again, with the keys of one earlier page in memory (Brent's way to find a cycle)."""

    def __init__(self) -> None:
        self._page: frozenset[str] = frozenset()
        self._count, self._next = 0, 1

    def has_any(self, keys: list[str]) -> bool:
        """Return whether a page has a key of the earlier one; it becomes the earlier one when so many more came."""
        is_again = not self._page.isdisjoint(keys)
        self._count += 1
        if self._count == self._next:
            self._page, self._next = frozenset(keys), 2 * self._next
        return is_again


def has_object(bucket: Bucket, key: str) -> bool:
    """Return whether there is an object of that very key; True also where the server does not say.

    Raises
    ------
    StoreReadError
        If the store cannot be asked.
    """
    import obstore

    async def head() -> bool:
        try:
            await obstore.head_async(bucket.store, key)
        except FileNotFoundError:
            return False
        except Exception as error:
            if says_no_permission(error):
                return True
            raise
        return True

    return bucket.ask(head)


def list_bucket(bucket: Bucket, keep: Keep, requests: int) -> Listing:
    """Return the keys of a bucket that are wanted, in order.

    Parameters
    ----------
    bucket
        The bucket that is listed.
    keep
        Called with one page at a time; an error that it raises ends the listing.
    requests
        Number of requests that are made at once. If the listing ends by an error or an interrupt, they are given up: an
        answer that comes while the interpreter exits would abort the process.

    Raises
    ------
    StoreReadError
        If a request failed, and further attempts, too.
    UnsupportedError
        If it is a web server, which has no listing.
    """
    if type(bucket.store).__name__ == "HTTPStore":
        raise UnsupportedError(
            f"{bucket.source.name}: a web server does not tell which objects it has; give their keys"
        )
    shared = SharedAccess()
    bucket = replace(bucket, access=replace(bucket.access, shared=shared))
    try:
        if type(bucket.store).__name__ == "LocalStore":
            return list_unordered(bucket, keep)
        try:
            return _Listing(bucket, keep, requests if bucket.heeds_offsets else 1).all()
        except UnorderedError:
            return list_unordered(bucket, keep)
    except BaseException:
        shared.give_up()
        raise


class _Listing:
    """One listing by several threads."""

    def __init__(self, bucket: Bucket, keep: Keep, requests: int) -> None:
        self._bucket, self._keep = bucket, keep
        self._requests = requests
        self._ranges = KeyRanges(requests, [bucket.whole_range()])
        self._parts: dict[KeyRange, list[PackedKeys]] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._keeping = threading.Lock()
        self._error: BaseException | None = None
        self._is_given_up = False

    def all(self) -> Listing:
        first = self._ranges.ranges[0]
        pages = Pages(self._bucket, first.after)
        self._take_page(first, pages)  # most listings have no second page, and need no thread
        if not first.is_done:
            self._share(first, pages)
        return Listing.joined(part for one in self._ranges.ranges for part in self._parts.get(one, []))

    def _share(self, first: KeyRange, pages: Pages) -> None:
        """List the rest by several threads."""
        begins: list[tuple[KeyRange | None, Pages | None]] = [(first, pages)] + [(None, None)] * (self._requests - 1)
        threads = [threading.Thread(target=self._work, args=begin, daemon=True) for begin in begins]
        for thread in threads:
            thread.start()
        try:
            with self._lock:
                while self._error is None and not self._ranges.is_done:
                    self._changed.wait(_POLL_S)  # so often Ctrl-C is heeded
        finally:
            self._is_given_up = True
        if self._error is None:  # else a thread may wait for a server that does not answer
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _work(self, one: KeyRange | None, pages: Pages | None) -> None:
        """List one range after the other, until all is listed."""
        try:
            while not self._is_given_up:
                if one is None or one.is_done:
                    one = self._steal()
                    pages = Pages(self._bucket, one.after) if one is not None else None
                if one is None or pages is None:
                    return
                self._take_page(one, pages)
        except BaseException as error:  # noqa: BLE001 (it is raised where the listing was asked for)
            with self._lock:
                self._error = self._error or error
                self._changed.notify_all()

    def _steal(self) -> KeyRange | None:
        """Return a range to list; wait for one that is long enough; None: everything is listed."""
        with self._lock:
            while not self._is_given_up and not self._ranges.is_done:
                one = self._ranges.steal()
                if one is not None:
                    return one
                self._changed.wait(_POLL_S)
        return None

    def _take_page(self, one: KeyRange, pages: Pages) -> None:
        keys, sizes, is_last = pages.next()
        with self._lock:
            wanted = self._ranges.take_page(one, keys, is_last=is_last)
            self._changed.notify_all()
        with self._keeping:  # the user's filter is called by one thread at a time
            part = self._keep(keys[wanted], sizes[wanted])
        self._parts.setdefault(one, []).append(part)

"""`list_objects`: a listing of the objects below a URL, in a bucket or in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.objects.key_glob import KeyGlob
from zarrfeed.storage.objects.listing import Listing, PackedKeys, StoredObject
from zarrfeed.storage.objects.listing_file import ListingFile
from zarrfeed.storage.objects.listing_progress import counting_progress
from zarrfeed.storage.objects.object_source import ObjectSource
from zarrfeed.storage.objects.parallel_listing import PAGE, Bucket, Pages, has_object, list_bucket

DEFAULT_REQUESTS = 16
_MAX_REQUESTS = 1024


def list_objects(
    source: Any,
    *,
    prefix: str | None = None,
    glob: str | None = None,
    filter: Callable[[StoredObject], bool] | None = None,
    requests: int = DEFAULT_REQUESTS,
    listing_file: str | Path | None = None,
    refresh: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Listing:
    """List the objects of a source, in the order of their keys.

    A bucket of S3 or Google is listed by many requests at once: a request that is done takes over half of the keys that
    another one has not listed yet. Other sources are listed by one request after the other.

    Parameters
    ----------
    source
        A URL (s3://, gs://, az://, file://), the path of a folder, a store of obstore, or a mapper of fsspec. Keys are
        below it.
    prefix
        Text that wanted keys begin with, such as "train/cat-"; it need not end at a folder. Only such keys are listed
        where the server lists from any key on, else those of its folders. None: all keys.
    glob
        Pattern of the keys that are wanted, such as "train/**/*.jpg"; `*` stays inside of a name, `**` is any number of
        folders. Only the folders before the first name with a wildcard are listed. None: all keys.
    filter
        Function of a `StoredObject` (with `key` and `size`) that returns whether it is wanted, such as
        `lambda one: one.size > 0`. It is called by one thread at a time.
    requests
        Number of requests that are made at once, 16 by default; fewer are made while the server says that there are too
        many. For stores of obstore or fsspec that you made, their own settings apply as well.
    listing_file
        Path of a file that keeps the listing, before `filter` is applied. If the file exists, the source is not listed
        again, unless its first page of keys changed or keys were added behind the last one, which two requests find
        out. Objects that were added or removed elsewhere are not noticed, and in folders no changes are: use `refresh`
        then.
    refresh
        True: list the source even if there is a listing file, which is then replaced.
    progress
        True: show the number of objects that were listed. None: only on a terminal, with rich.
    storage_options
        Options of a URL's store, as `zarrfeed.open` takes them.
    retries, timeout
        Number of retries of a request after an error that may pass, and seconds that it may take, retries included.

    Returns
    -------
    Keys and sizes. Markers of folders are left out: objects without content whose key ends in a slash, or that other
    keys lie below. Other objects without content are listed; each costs a request more, since clients do not tell the
    marker of an empty folder from them.

    Raises
    ------
    ConfigError
        If an argument cannot work, or the listing file is of another source or pattern.
    StoreReadError
        If the source does not exist, or cannot be listed to the end. There is never a listing of a part of it.
    UnsupportedError
        If the source is a web server, which has no listing.

    Examples
    --------
    >>> import obstore
    >>> from zarrfeed.objects import list_objects
    >>> store = obstore.store.MemoryStore()
    >>> for key in ("train/1.npy", "train/2.npy", "test/1.npy"):
    ...     _ = obstore.put(store, key, b"1234")
    >>> listing = list_objects(store, glob="train/*.npy")
    >>> len(listing), listing[0].key, listing.total_bytes
    (2, 'train/1.npy', 8)
    """
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options)
    return list_source(
        ObjectSource.of(source, access),
        access,
        prefix=prefix,
        glob=glob,
        filter=filter,
        requests=requests,
        listing_file=listing_file,
        refresh=refresh,
        progress=progress,
    )


def list_source(
    source: ObjectSource,
    access: StoreAccess,
    *,
    prefix: str | None = None,
    glob: str | None = None,
    filter: Callable[[StoredObject], bool] | None = None,
    requests: int = DEFAULT_REQUESTS,
    listing_file: str | Path | None = None,
    refresh: bool = False,
    progress: bool | None = None,
) -> Listing:
    """List the objects of a source; arguments and errors are those of `list_objects`."""
    check_int("requests", requests, 1, _MAX_REQUESTS)
    check_flags(refresh=refresh)
    if filter is not None and not callable(filter):
        raise ConfigError(f"filter = {filter!r}, must be a function of a StoredObject")
    if listing_file is not None and not isinstance(listing_file, str | os.PathLike):
        raise ConfigError(f"listing_file = {listing_file!r}, must be the path of a file")
    pattern = None if glob is None else KeyGlob.of(glob)
    if prefix is not None and (not isinstance(prefix, str) or prefix.startswith("/")):
        raise ConfigError(f'prefix = {prefix!r}, must be text such as "train/cat-", without a slash at its beginning')
    work = _Work(source, access, prefix or "", pattern, int(requests), progress)
    if listing_file is None:
        return work.listing(filter)
    file = ListingFile(Path(listing_file).expanduser(), source.name, prefix or "", glob)
    known = file.load()  # also to refresh: what is no listing is not replaced
    if known is None or refresh or not work.is_like(known):
        known = work.listing(None)
        file.save(known)
    return known if filter is None else known.where(filter)


class _Work:
    """The listing of one source."""

    def __init__(
        self,
        source: ObjectSource,
        access: StoreAccess,
        beginning: str,
        glob: KeyGlob | None,
        requests: int,
        progress: bool | None,
    ) -> None:
        self._source, self._access, self._beginning, self._glob = source, access, beginning, glob
        self._requests, self._progress = requests, progress
        folders = beginning.rpartition("/")[0]
        self._prefix = max(folders, "" if glob is None else glob.prefix, key=len)

    def listing(self, filter: Callable[[StoredObject], bool] | None) -> Listing:
        """List the source."""
        store = self._source.store
        with counting_progress("objects listed", self._source.name, self._progress) as told:

            def keep(keys: list[str], sizes: list[int]) -> PackedKeys:
                told(len(keys))
                return self._matching(keys, sizes, filter)

            if isinstance(store, ObjectStore):
                bucket = self._bucket()
                return self._without_markers(list_bucket(bucket, keep, self._requests), bucket)
            if isinstance(store, LocalStore):
                return Listing.joined(_in_pages(self._files(Path(store.root)), keep))
            assert isinstance(store, FsspecStore)
            found = Listing.joined(_in_pages(self._of_fsspec(store), keep)).sorted()
            return self._without_markers(found, None)

    def is_like(self, known: Listing) -> bool:
        """Return whether the first page is the same, and there is nothing behind the last key.

        That costs two requests. Objects without content are not compared, since some are markers of folders. Sources
        whose servers do not list from any key on are not asked.
        """
        if not isinstance(self._source.store, ObjectStore) or not self._bucket().heeds_offsets:
            return True
        bucket = self._bucket()
        keys, sizes, is_last = Pages(bucket, bucket.whole_range().after).next()
        page = Listing.joined([self._matching(keys, sizes, None)])
        end = len(known) if is_last or not keys else known.find(keys[-1] + "\0")
        if [one for one in page if one.size] != [one for one in islice(known, end) if one.size]:
            return False
        if is_last or not len(known):
            return is_last
        keys, sizes, _ = Pages(bucket, known.key(len(known) - 1)).next()
        return not self._matching(keys, sizes, None).sizes.any()

    def _bucket(self) -> Bucket:
        return Bucket.of(self._source, self._access, self._prefix, self._beginning, self._requests)

    def _matching(self, keys: list[str], sizes: list[int], filter: Callable[[StoredObject], bool] | None) -> PackedKeys:
        """Return the objects that are wanted."""
        if self._beginning or self._glob is not None or filter is not None:
            matches = self._glob.matches if self._glob is not None else lambda _: True
            begins = self._beginning
            pairs = [(k, n) for k, n in zip(keys, sizes, strict=True) if k.startswith(begins) and matches(k)]
            if filter is not None:
                pairs = [(key, size) for key, size in pairs if filter(StoredObject(key, size))]
            keys, sizes = [key for key, _ in pairs], [size for _, size in pairs]
        return PackedKeys.of(keys, sizes)

    def _files(self, root: Path) -> Iterator[tuple[str, int]]:
        try:
            yield from list_folder(root, self._prefix)
        except OSError as error:
            raise self._cannot_be_listed(error) from error

    def _of_fsspec(self, store: FsspecStore) -> Iterator[tuple[str, int]]:
        find = store.fs._find  # noqa: SLF001 (fsspec documents it as the coroutine of `find`)
        root = store.path.rstrip("/")
        below = f"{root}/{self._prefix}".rstrip("/")
        try:
            files = self._access.ask(lambda: find(below, detail=True), self._source.name)
        except StoreReadError:
            raise
        except Exception as error:  # of any class
            raise self._cannot_be_listed(error) from error
        for name, about in files.items():
            key = name[len(root) :].lstrip("/")
            if key and not key.endswith("/"):
                yield key, -1 if about.get("size") is None else int(about["size"])

    def _cannot_be_listed(self, error: Exception) -> StoreReadError:
        return StoreReadError(errno_of(error), f"{self._source.name}: cannot be listed: {reason_of(error)}")

    def _without_markers(self, listing: Listing, bucket: Bucket | None) -> Listing:
        """Return the objects that are no markers of folders. Only an object without content can be one."""
        empty = np.flatnonzero(listing.sizes == 0).tolist()
        markers = [i for i in empty if _has_keys_below(listing, i)]
        if bucket is not None and bucket.has_markers:
            asked = sorted(set(empty) - set(markers))
            with ThreadPoolExecutor(self._requests) as threads:
                there = threads.map(lambda i: has_object(bucket, listing.key(i)), asked)
                markers += [i for i, is_there in zip(asked, there, strict=True) if not is_there]
        if not markers:
            return listing
        return listing.take(np.setdiff1d(np.arange(len(listing)), np.array(markers)))


def _has_keys_below(listing: Listing, index: int) -> bool:
    folder = f"{listing.key(index)}/"
    first = listing.find(folder)
    return first < len(listing) and listing.key(first).startswith(folder)


def _in_pages(
    objects: Iterable[tuple[str, int]], keep: Callable[[list[str], list[int]], PackedKeys]
) -> Iterator[PackedKeys]:
    objects = iter(objects)
    while page := list(islice(objects, PAGE)):
        yield keep([key for key, _ in page], [size for _, size in page])


def list_folder(root: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield keys and sizes of all files, in the order of the keys.

    Links are followed, but for one to a folder that it lies in. Entries that are neither files nor folders are left
    out, and so are files that vanish meanwhile. Each folder is sorted by itself, with a slash behind the names of
    folders: that is the order of the keys.

    Parameters
    ----------
    root
        The folder.
    prefix
        A folder below it that is listed alone, without a slash at the end; "" for all. It need not be there.

    Raises
    ------
    OSError
        If a folder cannot be read.
    """
    start = root / prefix
    if start.is_dir():
        yield from _below(start, f"{prefix}/" if prefix else "", ())


def _below(folder: Path, prefix: str, outer: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, int]]:
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in outer:
        return
    with os.scandir(folder) as entries:
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    names.sort(key=os.fsencode)
    for name in names:
        if name.endswith("/"):
            yield from _below(folder / name, prefix + name, (*outer, identity))
            continue
        try:
            found = (folder / name).stat()
        except FileNotFoundError:  # a link to nothing
            continue
        if S_ISREG(found.st_mode):
            yield prefix + name, found.st_size

"""`Objects`: which objects a dataset reads, as `zarrfeed.objects.open` describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_flags, check_int, check_number
from zarrfeed.metadata.array.open import open_store
from zarrfeed.plan.samples.expected_counts import ExpectedCounts, balancing_weights
from zarrfeed.plan.samples.selection import Select, select_samples
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.access.memory_cache import MemoryCache
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.node_cache import with_cached_objects
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder, make_decoder
from zarrfeed.storage.objects.list_objects import list_source
from zarrfeed.storage.objects.listing import UNKNOWN_SIZE, Listing, StoredObject
from zarrfeed.storage.objects.object_source import ObjectSource

#: Objects of an epoch, at most.
_MOST_OBJECTS = 2**40


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one source, in the order of their keys unless a list was given. Immutable; can be pickled.

    Attributes
    ----------
    source
        The location of the objects.
    stored
        The location of the objects, in the form by which requests are made.
    listing
        Their keys and sizes.
    access
        The access to the store.
    expected
        The average number of times that each object comes in an epoch. None: each comes once.

    Examples
    --------
    >>> import zarrfeed.objects
    >>> objects = zarrfeed.objects.open("photos", keys=["a.jpg", "b.jpg", "c.jpg"])  # doctest: +SKIP
    >>> len(objects), objects.select(slice(0, 2)).listing[1].key  # doctest: +SKIP
    (3, 'b.jpg')
    """

    source: ObjectSource
    stored: StoreSource
    listing: Listing
    access: StoreAccess
    expected: ExpectedCounts | None = None

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.listing)

    def select(self, objects: Select) -> Objects:
        """Choose objects by their positions.

        Parameters
        ----------
        objects
            A slice, distinct indices in any order (negative ones count from the end), or a mask (bool) with a flag for
            each object. Objects stay in the order of the listing, and are numbered anew.

        Raises
        ------
        ConfigError
            If nothing is chosen, an index comes twice or is out of range, or a mask has another length. If the objects
            are weighted already.
        """
        self.check_unweighted("select")
        chosen = np.asarray(select_samples(objects, len(self)), dtype=np.int64)
        return replace(self, listing=self.listing.take(chosen))

    def weight(self, weights: npt.ArrayLike | Callable[[StoredObject], float], *, n: int | None = None) -> Objects:
        """Let each object come as often in an epoch as its weight says, on average, as `Data.weight` does.

        Parameters
        ----------
        weights
            A weight for each object, in the order of the listing, or a function that gives the weight of an object by
            its key and size. An object of weight 0 never comes.
        n
            Objects of an epoch. None: as many as there are.

        Raises
        ------
        ConfigError
            If a weight is negative or not finite, all are 0, or there are more or fewer than objects; if the objects
            are weighted already.

        Examples
        --------
        >>> import zarrfeed.objects
        >>> objects = zarrfeed.objects.open("photos", keys=["a.jpg", "b.jpg"])  # doctest: +SKIP
        >>> objects.weight(lambda one: 3 if one.key == "a.jpg" else 1, n=8)  # doctest: +SKIP
        <2 objects of photos, 0 bytes; 8 an epoch by weights>
        """
        return self._weighted(self._values("weights", weights), n)

    def balance(
        self, labels: npt.ArrayLike | Callable[[StoredObject], object], *, power: float = 1.0, n: int | None = None
    ) -> Objects:
        """Let the objects of every class come equally often, as `Data.balance` does.

        Parameters
        ----------
        labels
            The class of each object, in the order of the listing, or a function that gives the class of an object by
            its key and size: `lambda one: one.key.split("/")[0]` takes its folder.
        power
            1.0: classes come equally often. 0.0: as often as they are. Between them, the ratio is softened.
        n
            Objects of an epoch. None: as many as there are.

        Raises
        ------
        ConfigError
            As in `weight`.

        Examples
        --------
        >>> import zarrfeed.objects
        >>> objects = zarrfeed.objects.open("photos", keys=["cat/a.jpg", "cat/b.jpg", "dog/a.jpg"])  # doctest: +SKIP
        >>> objects.balance(lambda one: one.key.split("/")[0])  # doctest: +SKIP
        <3 objects of photos, 0 bytes; 3 an epoch by weights>
        """
        check_number("power", power, 0)
        codes = np.unique(self._values("labels", labels), return_inverse=True)[1]
        return self._weighted(balancing_weights(codes, float(power)), n)

    def check_unweighted(self, method: str) -> None:
        """Raise ConfigError if the objects are weighted, for a method or a reader that knows no weights."""
        if self.expected is not None:
            raise ConfigError(
                f"{method}: objects are weighted; call weight() or balance() last of what chooses objects"
            )

    def _values(self, argument: str, given: Any) -> npt.NDArray[Any]:
        """Return a value for each object: those that are given, or what a function gives for it."""
        self.check_unweighted("balance" if argument == "labels" else "weight")
        if callable(given) and not hasattr(given, "__array__"):
            given = [given(self.listing[i]) for i in range(len(self))]
        values = np.asarray(given)
        if values.shape != (len(self),):
            raise ConfigError(
                f"{argument}: has the shape {values.shape}, must have a value for each of {len(self)} objects, in the "
                "order of the listing, or be a function of an object: lambda one: one.key.split('/')[0]"
            )
        return values

    def _weighted(self, weights: npt.NDArray[Any], n: int | None) -> Objects:
        if n is not None:
            check_int("n", n, 1, _MOST_OBJECTS)
        return replace(self, expected=ExpectedCounts.of(weights, len(self) if n is None else n))

    @cached_property
    def known_sizes(self) -> npt.NDArray[np.int64]:
        """Sizes of the objects whose size is known, in bytes."""
        sizes: npt.NDArray[np.int64] = self.listing.sizes[self.listing.sizes != UNKNOWN_SIZE]
        return sizes

    @property
    def mean_bytes(self) -> int:
        """Mean size of an object; 1 MiB where no size is known."""
        known = self.known_sizes
        return max(1, int(known.mean())) if len(known) else 1 << 20

    def without_metadata(self) -> Objects:
        """Return the chunks of a Zarr array: all objects but those of its metadata.

        Raises
        ------
        ConfigError
            If there are none.
        """
        keys = (self.listing.key(i) for i in range(len(self)))
        are_chunks = np.fromiter((key.rpartition("/")[2] not in METADATA_NAMES for key in keys), bool, len(self))
        return self if are_chunks.all() else self.select(are_chunks)

    def chunk_decoder(self) -> ChunkDecoder:
        """Make the decoder of the chunks of the Zarr array at the root of the source.

        Raises
        ------
        ConfigError, StoreReadError, UnsupportedError
            If no Zarr array is there, or it has shards, or codecs that cannot be used.
        """
        array = open_store(self.source.store, self.access)
        if isinstance(array, zarr.Group):
            raise ConfigError(f"{self.source.name}: decode = 'zarr-chunk' needs an array there, and it is a group")
        if array.shards is not None:
            raise ConfigError(
                f"{self.source.name}: the array has shards, of which an object holds many chunks; use "
                "zarrfeed.ZarrIterableDataset"
            )
        return make_decoder(array, self.source.name)

    def __repr__(self) -> str:
        weighted = "" if self.expected is None else f"; {self.expected.total} an epoch by weights"
        return f"<{len(self)} objects of {self.source.name}, {self.listing.total_bytes} bytes{weighted}>"


def open(
    source: Any,
    *,
    keys: Iterable[str | tuple[str, int]] | None = None,
    prefix: str | None = None,
    glob: str | None = None,
    filter: Callable[[StoredObject], bool] | None = None,
    listing_file: str | Path | None = None,
    refresh: bool = False,
    requests: int = 16,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
    cache: str | Path | MemoryCache | None = None,
    cache_limit: int | str | None = None,
    cache_version: str | None = None,
    cache_group: str | int | None = None,
) -> Objects:
    """List the objects of a bucket, a prefix, a web server or a folder, for datasets to read.

    Parameters
    ----------
    source
        A URL (s3://, gs://, az://, file://; http:// and https:// with `keys`), the path of a folder, a store of
        obstore, or a mapper of fsspec.
    keys
        The objects that are read, below the source, in this order: keys, or pairs of key and size in bytes. None: the
        source is listed, and objects are read in the order of their keys.
    prefix, glob, filter, listing_file, refresh, requests, progress
        The arguments of `list_objects`.
    storage_options, retries, timeout, cache, cache_limit, cache_version, cache_group
        The arguments of `zarrfeed.open`.

    Raises
    ------
    ConfigError
        If an argument cannot work, or there is no object.
    StoreReadError
        If the store cannot be listed.

    Examples
    --------
    >>> import pathlib, tempfile, zarrfeed.objects
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(3):
    ...         _ = pathlib.Path(folder, f"{i}.bin").write_bytes(bytes(i))
    ...     objects = zarrfeed.objects.open(folder)
    >>> len(objects), [one.size for one in objects.listing]
    (3, [0, 1, 2])
    """
    options = CacheOptions.parse(cache, cache_limit, cache_version, cache_group)
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options, options)
    check_flags(refresh=refresh)
    found = ObjectSource.of(source, access)
    if keys is not None:
        for name, value in (("prefix", prefix), ("glob", glob), ("filter", filter), ("listing_file", listing_file)):
            if value is not None:
                raise ConfigError(f"{name} = {value!r} is for sources that are listed, and keys are given")
        listing = Listing.of_keys(keys)
        found.check_keys(listing)
    else:
        listing = list_source(
            found,
            access,
            prefix=prefix,
            glob=glob,
            filter=filter,
            requests=requests,
            listing_file=listing_file,
            refresh=refresh,
            progress=progress,
        )
    if not len(listing):
        raise ConfigError(
            f"{found.name}: no object is there" + " that prefix, glob and filter keep" * bool(prefix or glob or filter)
        )
    stored = with_cached_objects(StoreSource(found.store, "", ""), found.name, access)
    return Objects(found, stored, listing, access)

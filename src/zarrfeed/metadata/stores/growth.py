"""A `Data` whose store grows: how many samples it has now, and the same description of any version of it.

Invariant: `at` makes the same description of a version in each process. It reads nothing that may change (of Icechunk,
the metadata of a snapshot), but for the versions of stored objects, where there is a node cache: an object that was
written again since an earlier version of the store must not be served from the cache. `look` only ever finds more
samples than a version had before; a store that shrank, or whose arrays look different, is an error.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import zarr
from zarr.api.asynchronous import open_array as open_async

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_flags, check_int
from zarrfeed.metadata.array.array import chunk_keys, read_layout
from zarrfeed.metadata.array.array_changes import layout_changes
from zarrfeed.metadata.description.method_call import MethodCall
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Array, Opened
from zarrfeed.metadata.group.opening import Opening
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.description.version import Version
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.append.appended import marks_of
from zarrfeed.storage.append.eviction import DisposableStore, Lease, disposable_stores
from zarrfeed.storage.chunks.complete_rows import complete_rows
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.node_cache import with_cache, with_staging

#: The times at which a dataset looks whether its store has grown.
Refresh: TypeAlias = Literal["epoch"]
#: The marks of complete samples.
Complete: TypeAlias = Literal["chunks", "shape"]

_REFRESHES: tuple[Refresh, ...] = ("epoch",)
_COMPLETES: tuple[Complete, ...] = ("chunks", "shape")


@dataclass(frozen=True)
class GrowthOptions:
    """The arguments of `zarrfeed.open` for a store that grows.

    Attributes
    ----------
    refresh
        The time at which a dataset looks whether the store has grown.
    complete
        "chunks": samples count up to the first chunk that does not exist. "shape": all samples of the shape count.
        None: "shape" where an `Appender` writes the array, which sets the shape last, else "chunks".
    window
        Size of the window of the newest samples that are read: a number of samples, or text with a size such as "1TiB",
        of decoded samples. None: all.
    evict
        True if older ones are deleted, of stores that are declared disposable.
    """

    refresh: Refresh
    complete: Complete | None = None
    window: int | str | None = None
    evict: bool = False

    def __post_init__(self) -> None:
        check_choice("refresh", self.refresh, _REFRESHES)
        if self.complete is not None:
            check_choice("complete", self.complete, _COMPLETES)
        if isinstance(self.window, str):
            parse_bytes(self.window, "window")
        elif self.window is not None:
            check_int("window", self.window, 1, 2**63 - 1)
        check_flags(evict=self.evict)
        if self.evict and self.window is None:
            raise ConfigError("evict = True deletes what is older than the window: give window=, too")

    def window_samples(self, sample_bytes: int) -> int | None:
        """Return the number of samples of the window; None for all.

        Raises
        ------
        ConfigError
            If it is smaller than a sample.
        """
        if not isinstance(self.window, str):
            return None if self.window is None else int(self.window)
        return parse_bytes(self.window, "window", least=sample_bytes) // sample_bytes


@dataclass(frozen=True, eq=False)
class Growth:
    """A store that grows, and what was described of it.

    Attributes
    ----------
    opened
        The arrays, as they were when they were opened: only the number of their samples may change.
    access
        The access to the store.
    options
        The user's options.
    calls
        The calls of methods of the description.
    opening
        If there are Icechunk repositories: how their snapshots are opened. Else None.
    """

    opened: Opened
    access: StoreAccess
    options: GrowthOptions
    calls: tuple[MethodCall, ...] = ()
    opening: Opening | None = None

    def __post_init__(self) -> None:
        for one in self.opened.arrays:
            if not one.field.is_stored:
                raise ConfigError(f"{one.field.name}: is in memory and cannot grow; refresh is for arrays in a store")
        assert self._window is None or self._window > 0  # one that is too small is refused here
        lasting = [spec.name for spec, array in stored_in(self.opened.arrays) if not _is_disposable(array)]
        if self.options.evict and lasting:
            raise ConfigError(
                f"evict = True: {lasting[0]} is not declared disposable; only a store that was made by "
                "Appender(..., disposable=True) loses samples"
            )

    def then(self, call: MethodCall) -> Growth:
        """Return this store with one more method called.

        Raises
        ------
        ConfigError
            If the method's result would not be the same samples, or more of them, in a later version.
        """
        call.check_may_grow()
        return replace(self, calls=(*self.calls, call))

    @property
    def refuses_missing(self) -> bool:
        """True if a chunk that the store lacks is an error: by the rule of `complete`, each chunk was there."""
        return self.options.complete != "shape" and self.opening is None

    def look(self, known: Version | None = None) -> Version:
        """Return the version that the store has now.

        Parameters
        ----------
        known
            A version that the store had before; its samples are complete.

        Raises
        ------
        StoreReadError
            If the store cannot be read, or no longer holds what it held.
        ConfigError
            If no sample is complete.
        """
        snapshots = () if self.opening is None else self.opening.snapshots()
        specs = [spec for spec, _ in stored_in(self.opened.arrays)]
        arrays = [array for _, array in stored_in(self._opened_at(snapshots).arrays)]
        now = [(spec, self._fresh(spec, array, known)) for spec, array in zip(specs, arrays, strict=True)]
        counts = {spec.name: self._count(spec, array, known) for spec, array in now}
        shortest = min(counts, key=counts.__getitem__)
        if known is not None and counts[shortest] < known.num_samples:
            raise _changed(shortest, f"has {counts[shortest]} samples, had {known.num_samples}")
        if not counts[shortest]:
            raise ConfigError(f"{shortest}: no sample is complete; wait until its first chunk is written")
        first = max(0 if (marks := marks_of(array)) is None else marks.first for _, array in now)
        if self._window is not None:
            first = max(first, counts[shortest] - self._window)
        return Version(counts[shortest], first, snapshots)

    def at(self, version: Version) -> ResolvedData:
        """Return the description of a version.

        Reads the metadata of Icechunk's snapshots; where there is a node cache, the versions of objects; and if windows
        heed gaps, the coordinate of the version's samples, which nobody changes any more.

        Raises
        ------
        ConfigError
            If a method that was called leaves no sample of so few.
        """
        if len(version.snapshots) != (0 if self.opening is None else len(self.opening.repositories)):
            raise ConfigError(f"the version names snapshots {version.snapshots} of other Icechunk repositories")
        opened = self._opened_at(version.snapshots)
        arrays = (self._renamed(_with_length(one, version.num_samples)) for one in opened.arrays)
        known = opened.origin.coordinates
        if known is not None and self.opening is None:
            known = known.at(version.num_samples)
        origin = replace(opened.origin, coordinates=known)
        resolved = ResolvedData.of(replace(opened, arrays=tuple(arrays), origin=origin))
        if version.first:
            resolved = resolved.select(slice(version.first, None))
        for call in self.calls:
            resolved = call.apply(resolved)
        return resolved

    def _opened_at(self, snapshots: tuple[str, ...]) -> Opened:
        """Return the arrays at some snapshots of Icechunk repositories, if there are any."""
        return self.opened if self.opening is None else self.opening.open(snapshots)

    def hold(self, version: Version) -> tuple[Lease, ...]:
        """Return leases that keep the samples of a version from being deleted.

        Raises
        ------
        StoreReadError
            If some of them are deleted already.
        """
        held = (store.hold(version.first, evicts=self.options.evict) for store in self.disposable)
        return tuple(lease for lease in held if lease is not None)

    def evict(self, version: Version) -> None:
        """Delete what is older than a version, and what no lease protects, if that was asked for."""
        if self.options.evict:
            for store in self.disposable:
                store.evict(version.first)

    @cached_property
    def disposable(self) -> tuple[DisposableStore, ...]:
        """The stores that are declared disposable."""
        return disposable_in(self.opened.arrays)

    @cached_property
    def _window(self) -> int | None:
        """Number of the newest samples that are read; None for all."""
        return self.options.window_samples(max(1, sum(spec.sample_bytes for spec, _ in stored_in(self.opened.arrays))))

    def _renamed(self, one: Array) -> Array:
        """Return an array with the versions that its objects have now, for the node cache."""
        if self.opening is not None:  # a snapshot has one version
            return one
        return replace(one, field=one.field.with_specs(self._renamed_spec))

    def _renamed_spec(self, spec: ArraySpec) -> ArraySpec:
        source = spec.source
        if source is None:
            return with_staging(spec, chunk_keys(spec), self.access)
        if isinstance(source, StoreSource) and source.cached is not None:
            return replace(spec, source=with_cache(source, spec, self.access))
        return spec

    def _fresh(self, spec: ArraySpec, array: zarr.Array[Any], known: Version | None) -> zarr.Array[Any]:
        """Return an array as it is now, which may be longer and is the same in all else."""
        now = _fresh(array, spec, self.access)
        axis = spec.sample_axis
        had = 0 if known is None else known.num_samples
        if len(now.shape) != spec.num_key_axes or now.shape[axis] < max(had, 1):
            raise _changed(spec.name, f"has shape {now.shape}, had {had} samples along axis {axis}")
        uncached = replace(self.access, cache=None)  # versions of objects are not asked for here
        _check_same(spec, read_layout(now, sample_axis=axis, access=uncached))
        return now

    def _count(self, spec: ArraySpec, now: zarr.Array[Any], known: Version | None) -> int:
        """Count the complete samples of an array, as it is now."""
        axis = spec.sample_axis
        marks = marks_of(now)
        had = max(0 if known is None else known.num_samples, 0 if marks is None else marks.first)
        if self.opening is not None:  # a snapshot is a whole
            return int(now.shape[axis])
        if (self.options.complete or ("chunks" if marks is None else "shape")) == "shape":
            return int(now.shape[axis])
        stored_shape = spec.shard_shape[: spec.num_key_axes]
        return complete_rows(now, stored_shape, axis, known=had, access=self.access)


def stored_in(arrays: Iterable[Array]) -> list[tuple[ArraySpec, zarr.Array[Any]]]:
    """Return the opened arrays in stores that may grow or are disposable, each with its description."""
    return [
        (layout.spec, stored)
        for one in arrays
        for layout in one.field.layouts[:1]  # of several stores, the first stands for all
        for stored in one.stored
    ]


def disposable_in(arrays: Iterable[Array]) -> tuple[DisposableStore, ...]:
    """Return the stores of some arrays that are declared disposable."""
    return disposable_stores([(stored, spec.shard_shape[: spec.num_key_axes]) for spec, stored in stored_in(arrays)])


def hold_opened(
    resolved: ResolvedData, stores: Sequence[DisposableStore], version: Version | None = None
) -> tuple[Lease, ...]:
    """Lease all samples that disposable stores had when they were opened, so that they are not deleted."""
    if not stores:
        return ()
    arrays = [one.array for one in resolved.columns]
    first = evicted_before(arrays) if version is None else version.first
    oldest: dict[Path, int] = {}
    if resolved.origin.stores is not None:  # each of several stores has lost samples of its own
        for one in (replace(array, stored=(stored,)) for array in arrays for stored in array.stored):
            for store in disposable_in([one]):
                oldest[store.path] = max(oldest.get(store.path, 0), evicted_before([one]))
    held = (store.hold(oldest.get(store.path, first)) for store in stores)
    return tuple(lease for lease in held if lease is not None)


def evicted_before(arrays: Iterable[Array]) -> int:
    """Return the oldest sample that is in all of some arrays."""
    return max((marks.first for _, stored in stored_in(arrays) if (marks := marks_of(stored))), default=0)


def _is_disposable(array: zarr.Array[Any]) -> bool:
    marks = marks_of(array)
    return marks is not None and marks.disposable


def _fresh(array: zarr.Array[Any], spec: ArraySpec, access: StoreAccess) -> zarr.Array[Any]:
    """Return an array with the metadata that its store has now; never those that were consolidated."""
    store, path = array.store_path.store, array.store_path.path
    try:
        now = access.ask(
            lambda: open_async(store=store, path=path, mode="r", zarr_format=spec.zarr_format),  # type: ignore[arg-type]
            spec.name,
        )
    except ZarrfeedError:
        raise
    except FileNotFoundError as error:
        raise StoreReadError(errno.ENOENT, f"{spec.name}: no longer exists") from error
    except Exception as error:  # what stores and zarr-python's parsers raise is of any class
        what = f"{spec.name}: metadata cannot be read again: {reason_of(error)}"
        raise StoreReadError(errno_of(error), what) from error
    return zarr.Array(now)


def _check_same(ours: ArraySpec, now: ArraySpec) -> None:
    """Raise StoreReadError if an array has changed in anything but its number of samples."""
    changes = layout_changes(ours, now)
    if changes:
        raise _changed(ours.name, "; ".join(changes))


def _changed(name: str, what: str) -> StoreReadError:
    return StoreReadError(
        errno.ESTALE, f"{name}: {what}: a store that is read with refresh='epoch' may grow, and change in nothing else"
    )


def _with_length(one: Array, num_samples: int) -> Array:
    """Return an array of which only the first samples are known."""

    def shortened(spec: ArraySpec) -> ArraySpec:
        axis = spec.sample_axis
        return replace(spec, shape=(*spec.shape[:axis], num_samples, *spec.shape[axis + 1 :]))

    return replace(one, field=one.field.with_specs(shortened))

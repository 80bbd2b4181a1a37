"""A `Data` whose store grows: how many samples it has now, and the same description of any version of it.

What holds: `at` makes the same description of a version in each process. It reads nothing that may change (of Icechunk,
the metadata of a snapshot), but for the versions of stored objects, where there is a node cache: an object that was
written again since an earlier version of the store must not be served from the cache. `look` only ever finds more
samples than a version had before; a store that shrank, or whose arrays look different, is an error.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import zarr
from zarr.api.asynchronous import open_array as open_async

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_flags, check_int
from zarrfeed.metadata.array.array import chunk_keys, read_layout
from zarrfeed.metadata.array.array_changes import layout_changes
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.fields import OpenedField, OpenedFields
from zarrfeed.metadata.group.opening import Opening
from zarrfeed.spec.array import ArraySpec
from zarrfeed.spec.field import ResidentField, StoredField, VlenField
from zarrfeed.spec.sparse import CsrField
from zarrfeed.spec.version import Version
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.append.appended import marks_of
from zarrfeed.storage.append.eviction import DisposableStore, Lease, disposable_stores
from zarrfeed.storage.chunks.complete_rows import complete_rows
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.node_cache import with_cache, with_staging

#: When a dataset looks whether its store has grown.
Refresh: TypeAlias = Literal["epoch"]
#: What tells that samples are complete.
Complete: TypeAlias = Literal["chunks", "shape"]

_REFRESHES: tuple[Refresh, ...] = ("epoch",)
_COMPLETES: tuple[Complete, ...] = ("chunks", "shape")


@dataclass(frozen=True)
class Step:
    """A method of `ResolvedData` that was called, for being called on other versions."""

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, resolved: ResolvedData) -> Any:
        """Call the method."""
        return getattr(resolved, self.method)(*self.arguments, **self.options)


@dataclass(frozen=True)
class GrowthOptions:
    """What `zarrfeed.open` is asked about a store that grows.

    Attributes
    ----------
    refresh
        When a dataset looks whether the store has grown.
    complete
        "chunks": samples count up to the first chunk that does not exist. "shape": all samples of the shape count.
        None: "shape" where an `Appender` writes the array, which sets the shape last, else "chunks".
    window
        How many of the newest samples are read: a number of samples, or text with a size such as "1TiB", of decoded
        samples. None: all.
    evict
        Whether older ones are deleted, of stores that are declared disposable.
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
        """Return how many samples the window has; None for all.

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
        How the store is asked.
    options
        As the user gave them.
    steps
        The methods that were called on the description.
    opening
        If there are Icechunk repositories: how their snapshots are opened. Else None.
    """

    opened: OpenedFields
    access: StoreAccess
    options: GrowthOptions
    steps: tuple[Step, ...] = ()
    opening: Opening | None = None

    def __post_init__(self) -> None:
        for one in self.opened.fields:
            if isinstance(one, ResidentField):
                raise ConfigError(f"{one.name}: is in memory and cannot grow; refresh is for arrays in a store")
        assert self._window is None or self._window > 0  # one that is too small is refused here
        lasting = [one.spec.name for one, array in self._stored(self.opened.arrays) if not _is_disposable(array)]
        if self.options.evict and lasting:
            raise ConfigError(
                f"evict = True: {lasting[0]} is not declared disposable; only a store that was made by "
                "Appender(..., disposable=True) loses samples"
            )

    def then(self, step: Step) -> Growth:
        """Return the same store after one more method.

        Raises
        ------
        ConfigError
            If the method's result would not be the same samples, or more of them, in a later version.
        """
        if step.method in ("blocks", "split"):
            raise ConfigError(
                f"{step.method}() cannot follow open(..., refresh='epoch'): it would deal the samples anew in every "
                "version; choose samples by select(slice(...))"
            )
        if step.method == "select" and not isinstance(step.arguments[0], slice):
            raise ConfigError("select of a store that is opened with refresh='epoch' must be a slice")
        if step.method == "time_features":
            raise ConfigError("time_features() cannot follow open(..., refresh='epoch'): new samples have other times")
        if step.method == "window" and step.arguments[1] is not None:
            raise ConfigError("segment_ends cannot be given after open(..., refresh='epoch'): the last one moves")
        return replace(self, steps=(*self.steps, step))

    @property
    def refuses_missing(self) -> bool:
        """Whether a chunk that the store lacks is an error: by the rule of `complete`, each chunk was there."""
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
        arrays = self.opened.arrays if self.opening is None else self.opening.open(snapshots).arrays
        now = [(one, self._fresh(one, array, known)) for one, array in self._stored(arrays)]
        counts = {one.spec.name: self._count(one, array, known) for one, array in now}
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

        Reads the metadata of Icechunk's snapshots, and where there is a node cache, the versions of objects.

        Raises
        ------
        ConfigError
            If a method that was called leaves no sample of so few.
        """
        if len(version.snapshots) != (0 if self.opening is None else len(self.opening.repositories)):
            raise ConfigError(f"the version names snapshots {version.snapshots} of other Icechunk repositories")
        opened = self.opened if self.opening is None else self.opening.open(version.snapshots)
        fields = tuple(self._renamed(_with_length(one, version.num_samples)) for one in opened.fields)
        resolved = ResolvedData.of(replace(opened, fields=fields))
        if version.first:
            resolved = resolved.select(slice(version.first, None))
        for step in self.steps:
            resolved = step(resolved)
        return resolved

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
        return disposable_in(self.opened)

    @cached_property
    def _window(self) -> int | None:
        """How many of the newest samples are read; None for all."""
        sizes = [one.spec.sample_bytes for one in self.opened.fields if isinstance(one, StoredField | VlenField)]
        return self.options.window_samples(max(1, sum(sizes)))

    def _stored(self, arrays: tuple[zarr.Array[Any], ...]) -> list[tuple[StoredField | VlenField, zarr.Array[Any]]]:
        fields = [one for one in self.opened.fields if isinstance(one, StoredField | VlenField)]
        return list(zip(fields, arrays, strict=True))

    def _renamed(self, one: OpenedField) -> OpenedField:
        """Return a field with the versions that its objects have now, for the node cache."""
        if isinstance(one, ResidentField | CsrField) or self.opening is not None:  # a snapshot has one version
            return one
        source = one.spec.source
        if source is None:
            return replace(one, spec=with_staging(one.spec, chunk_keys(one.spec), self.access))
        if not isinstance(source, StoreSource) or source.cached is None:
            return one
        return replace(one, spec=replace(one.spec, source=with_cache(source, one.spec, self.access)))

    def _fresh(self, one: StoredField | VlenField, array: zarr.Array[Any], known: Version | None) -> zarr.Array[Any]:
        """Return an array as it is now, which may be longer and is the same in all else."""
        spec, now = one.spec, _fresh(array, one.spec, self.access)
        axis = spec.sample_axis
        had = 0 if known is None else known.num_samples
        if len(now.shape) != spec.num_key_axes or now.shape[axis] < max(had, 1):
            raise _changed(spec.name, f"has shape {now.shape}, had {had} samples along axis {axis}")
        uncached = replace(self.access, cache=None)  # versions of objects are not asked for here
        _check_same(spec, read_layout(now, sample_axis=axis, access=uncached))
        return now

    def _count(self, one: StoredField | VlenField, now: zarr.Array[Any], known: Version | None) -> int:
        """Return how many samples of an array, as it is now, are complete."""
        spec = one.spec
        axis = spec.sample_axis
        marks = marks_of(now)
        had = max(0 if known is None else known.num_samples, 0 if marks is None else marks.first)
        if self.opening is not None:  # a snapshot is a whole
            return int(now.shape[axis])
        if (self.options.complete or ("chunks" if marks is None else "shape")) == "shape":
            return int(now.shape[axis])
        stored_shape = spec.shard_shape[: spec.num_key_axes]
        return complete_rows(now, stored_shape, axis, known=had, access=self.access)


def disposable_in(opened: OpenedFields) -> tuple[DisposableStore, ...]:
    """Return the stores of some arrays that are declared disposable."""
    fields = [one for one in opened.fields if isinstance(one, StoredField | VlenField)]
    pairs = zip(opened.arrays, fields[: len(opened.arrays)], strict=True)
    return disposable_stores([(array, one.spec.shard_shape[: one.spec.num_key_axes]) for array, one in pairs])


def hold_opened(opened: OpenedFields, version: Version | None) -> tuple[Lease, ...]:
    """Return what keeps samples from being deleted that are read as they were when some arrays were opened."""
    first = evicted_before(opened) if version is None else version.first
    held = (store.hold(first) for store in disposable_in(opened))
    return tuple(lease for lease in held if lease is not None)


def evicted_before(opened: OpenedFields) -> int:
    """Return the oldest sample that is in all of some arrays."""
    return max((marks.first for array in opened.arrays if (marks := marks_of(array))), default=0)


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
        raise StoreReadError(errno.ENOENT, f"{spec.name}: is no longer there") from error
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


def _with_length(one: OpenedField, num_samples: int) -> OpenedField:
    """Return a field of which only the first samples are known."""
    if isinstance(one, ResidentField | CsrField):
        return one
    axis = one.spec.sample_axis
    shape = (*one.spec.shape[:axis], num_samples, *one.spec.shape[axis + 1 :])
    return replace(one, spec=replace(one.spec, shape=shape))

"""Many stores, given as a list or by a pattern, opened as one along the sample axis."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.metadata.array.array import check_any_is_stored
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.metadata.array.side_by_side import side_by_side
from zarrfeed.metadata.array.store_metadata import StoreMetadata, stored_bytes
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Opened, OpenedField
from zarrfeed.metadata.group.coordinates import Coordinates, UnopenedCoordinates
from zarrfeed.metadata.group.source_names import store_name
from zarrfeed.metadata.group.url_patterns import is_pattern, matching_urls
from zarrfeed.metadata.stores.concat import Run, concat_runs
from zarrfeed.metadata.stores.distinct_stores import check_are_distinct
from zarrfeed.metadata.stores.store_parts import ArrayLocation
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import is_url, path_pattern_of
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.files.inside_path import matching_in_files
from zarrfeed.storage.objects.listing_progress import counting_progress

#: So many local stores that lie elsewhere than the first one are opened by themselves, to see whether their coordinates
#: are those of the first one the other way round. Of tiles of a map, all lie elsewhere.
_MOST_APART = 64
#: Opens the arrays of one store: its samples, and its targets.
Open: TypeAlias = Callable[[Any, Any], Opened]


def as_stores(source: Any, access: StoreAccess) -> list[Any] | None:
    """Return the stores that a list or a pattern names, in order; None where one store is meant.

    Raises
    ------
    ConfigError
        If the list is empty, or nothing matches the pattern.
    """
    if isinstance(source, list | tuple):
        if not source:
            raise ConfigError("got an empty list of stores, must name at least one")
        return list(source)
    if not isinstance(source, str | Path) or not glob.has_magic(str(source)):
        return None
    if is_url(source):
        if not is_pattern(str(source)):
            return None
        found = matching_urls(str(source), access, SharedAccess())
    else:
        if local_path(source).exists():  # a name with brackets in it
            return None
        pattern = path_pattern_of(str(source)) or str(source)
        named = sorted(glob.glob(pattern))  # noqa: PTH207 - Path.glob takes no absolute pattern
        found = [path for path in named if Path(path).name != "zarr.json"]  # of a group that has the stores
        found = found or matching_in_files(pattern)
    if not found:
        raise StoreReadError(2, f"{source}: no store matches this pattern")
    return found


def open_stores(
    samples: Sequence[Any],
    targets: Sequence[Any] | None,
    open_one: Open,
    describe: Callable[[Opened], ResolvedData],
    progress: bool | None,
    shared: SharedAccess,
) -> ResolvedData:
    """Open stores and describe their samples, one store after another.

    Parameters
    ----------
    samples, targets
        The arrays of each store; as many of both.
    open_one
        Function that opens one store.
    describe
        Describes the samples of one store.
    progress
        The argument of `counting_progress`.
    shared
        Ends what `open_one` reads.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If a store cannot be read, is not like the first one, or has samples that a store of another name has, too; the
        message names the store.
    """
    if targets is not None and len(targets) != len(samples):
        raise ConfigError(f"targets: got {len(targets)} for {len(samples)} stores, must be one for each")
    pairs = list(zip(samples, targets or [None] * len(samples), strict=True))
    with counting_progress("stores opened", store_name(samples[0]), progress, total=len(pairs)) as told:
        opener = _Opener(open_one, describe)
        if any(is_url(one) for one in samples):
            with closing(side_by_side(lambda pair: opener.open(*pair), pairs, shared)) as runs:
                for run in runs:
                    told(1)
                    opener.runs.append(run)
        else:
            for pair in pairs:
                opener.add(*pair)
                told(1)
    joined = concat_runs(opener.runs)
    check_are_distinct(samples, opener.runs)
    return joined


@dataclass
class _Template:
    """A local store that was opened, and those that are like it."""

    resolved: ResolvedData
    keyed: dict[str, ArraySpec]  # the array of each column, by its key
    shapes: dict[str, tuple[int, ...]]
    have_own: bool
    coordinates: dict[str, bytes | None]  # what is stored of coordinates along the axes of a sample

    def has_other_coordinates(self, path: Path) -> bool:
        """Return whether something else is stored of such a coordinate of the store at a path."""
        return any(found is None or stored_bytes(path / name) != found for name, found in self.coordinates.items())


@dataclass
class _Opener:
    """Opens stores one after another; a local store like one that was opened costs no more than its documents."""

    open_one: Open
    describe: Callable[[Opened], ResolvedData]
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._templates: dict[str, _Template | None] = {}
        self._opened_apart = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"open_one": self.open_one, "describe": self.describe, "runs": [], "_templates": {}, "_opened_apart": 0}

    def open(self, samples: Any, targets: Any) -> Run:
        """Open one store."""
        resolved = self.describe(self.open_one(samples, targets))
        return Run(resolved, [resolved.choice.num_samples], [store_name(samples)])

    def coordinates_of(self, source: str | Path) -> Coordinates:
        """Return the coordinates of the samples of a store that was not opened before."""
        known = self.open_one(source, None).origin.coordinates
        assert known is not None
        return known

    def add(self, samples: Any, targets: Any) -> None:
        """Open one store and append it to `runs`; a store like an earlier one is described from its template."""
        metadata = None
        if targets is None and isinstance(samples, str | Path):
            metadata = StoreMetadata.read(local_path(samples))
        if metadata is None:
            self.runs.append(self.open(samples, targets))
            return
        if metadata.signature not in self._templates:
            run = self.open(samples, targets)
            if not any(_is_stale(one.field) for one in run.resolved.columns):
                self._templates[metadata.signature] = _template_of(run.resolved, metadata)
            self.runs.append(run)
            return
        template = self._templates[metadata.signature]
        like = None if template is None else _run_like(template, metadata, samples, self.coordinates_of)
        if (
            template is not None
            and self._opened_apart < _MOST_APART
            and template.has_other_coordinates(local_path(samples))
        ):
            like, self._opened_apart = None, self._opened_apart + 1
        if like is None:
            self.runs.append(self.open(samples, targets))
        elif not self.runs[-1].extend(like):
            self.runs.append(like)


def _is_stale(f: OpenedField) -> bool:
    """Return whether the own document of an array says something else than what is read."""
    return any(layout.spec.has_other_document for layout in f.layouts)


def _template_of(resolved: ResolvedData, metadata: StoreMetadata) -> _Template | None:
    """Return a store as a template; None if others cannot be described like it."""
    keyed: dict[str, ArraySpec] = {}
    coordinates: dict[str, zarr.Array[Any]] = {}
    for column in resolved.columns:
        f, items = column.field, column.items
        key = items.key or ""
        if not f.is_streamed or f.row_map is not None or f.layouts[0].spec.source is not None:
            return None
        if key not in metadata.shapes:
            return None
        if items.described is not None:
            if is_time_unit(items.described.meaning.get("units")):
                return None  # numbers that mean something else in each store
            coordinates.update(items.described.coordinates)
        keyed[key] = f.layouts[0].spec
    if resolved.choice.length != resolved.choice.num_samples:
        return None
    have_own = all(bool(spec.metadata_key) for spec in keyed.values())
    found = {name: stored_bytes(Path(str(one.store_path).removeprefix("file://"))) for name, one in coordinates.items()}
    return _Template(resolved, keyed, dict(metadata.shapes), have_own, found)


def _run_like(
    template: _Template,
    metadata: StoreMetadata,
    source: str | Path,
    coordinates_of: Callable[[str | Path], Coordinates],
) -> Run | None:
    """Return the description of a store by that of another one; None if more than the lengths differ."""
    lengths = set()
    for key, spec in template.keyed.items():
        axis, ours, theirs = spec.sample_axis, template.shapes[key], metadata.shapes[key]
        if ours[:axis] != theirs[:axis] or ours[axis + 1 :] != theirs[axis + 1 :]:
            return None
        lengths.add(theirs[axis])
    if len(lengths) != 1:
        return None
    given = local_path(source)
    if not metadata.agrees(given, tuple(template.keyed), have_own=template.have_own):
        return None
    root = given.absolute()
    located: list[list[tuple[str, ArrayLocation]]] = []
    for key, spec in template.keyed.items():
        where = f"{root}/{key}" if key else str(root)
        name = where if key else printable(str(source).removeprefix("file://"))
        shape = (*metadata.shapes[key], *spec.shape[spec.num_key_axes :])
        check_any_is_stored(replace(spec, name=name, root=str(root / key), shape=shape))
        located.append([(name, where)])
    (length,) = lengths
    unopened = [UnopenedCoordinates(length, source, coordinates_of)]
    return Run(template.resolved, [length], [store_name(source)], located, unopened)

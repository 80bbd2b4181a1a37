"""Many stores, given as a list or by a pattern, opened as one along the sample axis."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError, printable
from zarrfeed.metadata.concat import Place, Run, concat_runs
from zarrfeed.metadata.coordinates import Coordinates, UnopenedPlace
from zarrfeed.metadata.fields import OpenedFields
from zarrfeed.metadata.open import is_url
from zarrfeed.metadata.resolved import ResolvedData
from zarrfeed.metadata.source_names import store_name
from zarrfeed.metadata.store_metadata import StoreMetadata
from zarrfeed.spec.field import StoredField
from zarrfeed.storage.access import StoreAccess
from zarrfeed.storage.listing_progress import counting_progress
from zarrfeed.storage.local_files import local_path

#: Opens the arrays of one store: its samples, and its targets.
Open: TypeAlias = Callable[[Any, Any], OpenedFields]

#: Stores of a server that are opened at once.
_AT_ONCE = 32


def as_stores(source: Any, access: StoreAccess) -> list[Any] | None:
    """Return the stores that a list or a pattern names, in order; None where one store is meant.

    Raises
    ------
    ConfigError
        If the list is empty, or nothing matches the pattern.
    """
    if isinstance(source, list | tuple):
        if not source:
            raise ConfigError("an empty list of stores, must name at least one")
        return list(source)
    if not isinstance(source, str | Path) or not glob.has_magic(str(source)):
        return None
    if is_url(source):
        found = _matching_urls(str(source), access)
    else:
        path = local_path(source)
        if path.exists():  # a name with brackets in it
            return None
        found = sorted(glob.glob(str(path)))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise StoreReadError(2, f"{source}: no store matches this pattern")
    return found


def _matching_urls(pattern: str, access: StoreAccess) -> list[str]:
    """Return the URLs of stores that match a pattern, in order: `*` in one name of the path, as in a shell."""
    from fnmatch import fnmatchcase

    import obstore

    from zarrfeed.storage.urls import make_store

    scheme, _, rest = pattern.partition("://")
    if scheme in ("http", "https"):
        raise UnsupportedError(f"{pattern}: a web server does not list its files; give a list of URLs")
    names = rest.rstrip("/").split("/")
    fixed = next(number for number, name in enumerate(names) if glob.has_magic(name))
    if fixed == 0:
        raise ConfigError(f"{pattern}: the name of the bucket must be given")
    found = ["/".join(names[:fixed])]
    for name in names[fixed:]:
        below = []
        for folder in found:
            if not glob.has_magic(name):
                below.append(f"{folder}/{name}")
                continue
            store = make_store(f"{scheme}://{folder}", access)
            listed = obstore.list_with_delimiter(store.store)
            children = sorted(str(one).rstrip("/").rpartition("/")[2] for one in listed["common_prefixes"])
            below += [f"{folder}/{child}" for child in children if fnmatchcase(child, name)]
        found = below
    return [f"{scheme}://{path}" for path in found]


def open_stores(
    samples: Sequence[Any],
    targets: Sequence[Any] | None,
    open_one: Open,
    describe: Callable[[OpenedFields], ResolvedData],
    progress: bool | None,
) -> ResolvedData:
    """Open stores and describe their samples, one store after another.

    Parameters
    ----------
    samples, targets
        The arrays of each store; as many of both.
    open_one
        Opens one store.
    describe
        Describes the samples of one store.
    progress
        As of `counting_progress`.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If a store cannot be read, or is not like the first one; the message names the store.
    """
    if targets is not None and len(targets) != len(samples):
        raise ConfigError(f"{len(targets)} targets for {len(samples)} stores, must be as many")
    pairs = list(zip(samples, targets or [None] * len(samples), strict=True))
    with counting_progress("stores opened", store_name(samples[0]), progress, total=len(pairs)) as told:
        opener = _Opener(open_one, describe)
        if any(is_url(one) for one in samples):
            first = opener.open(*pairs[0])
            told(1)
            opener.runs.append(first)
            with closing(_in_threads(opener, pairs[1:])) as others:
                for run in others:
                    told(1)
                    opener.runs.append(run)
        else:
            for pair in pairs:
                opener.add(*pair)
                told(1)
    return concat_runs(opener.runs)


def _in_threads(opener: _Opener, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Yield the runs of stores, which are opened side by side, in order."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zarrfeed-open") as pool:
        futures = [pool.submit(opener.open, *pair) for pair in pairs]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


@dataclass
class _Template:
    """A local store that was opened, and those that are like it."""

    resolved: ResolvedData
    keys: tuple[str, ...]
    axes: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]


@dataclass
class _Opener:
    """Opens stores one after another; a local store like one that was opened costs no more than its documents."""

    open_one: Open
    describe: Callable[[OpenedFields], ResolvedData]
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._templates: dict[str, _Template | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"open_one": self.open_one, "describe": self.describe, "runs": [], "_templates": {}}

    def open(self, samples: Any, targets: Any) -> Run:
        """Open one store."""
        resolved = self.describe(self.open_one(samples, targets))
        return Run(resolved, [resolved.choice.num_samples], [store_name(samples)])

    def coordinates_of(self, source: str | Path) -> Coordinates:
        """Return what can be looked up of the samples of a store that was not opened before."""
        known = self.open_one(source, None).coordinates
        assert known is not None
        return known

    def add(self, samples: Any, targets: Any) -> None:
        """Open one store, and append it to the runs."""
        metadata = None
        if targets is None and isinstance(samples, str | Path):
            metadata = StoreMetadata.read(local_path(samples))
        if metadata is None:
            self.runs.append(self.open(samples, targets))
            return
        if metadata.signature not in self._templates:
            run = self.open(samples, targets)
            self._templates[metadata.signature] = _template_of(run.resolved, metadata)
            self.runs.append(run)
            return
        template = self._templates[metadata.signature]
        like = None if template is None else _run_like(template, metadata, samples, self.coordinates_of)
        if like is None:
            self.runs.append(self.open(samples, targets))
        elif not self.runs[-1].extend(like):
            self.runs.append(like)


def _template_of(resolved: ResolvedData, metadata: StoreMetadata) -> _Template | None:
    """Return a store as a template; None if others cannot be described like it."""
    keys, axes = [], []
    for f, items in zip(resolved.opened.fields, resolved.opened.items, strict=True):
        key = items.key or ""
        if not isinstance(f, StoredField) or f.spec.source is not None or key not in metadata.shapes:
            return None
        keys.append(key)
        axes.append(f.spec.sample_axis)
    if resolved.choice.length != resolved.choice.num_samples:
        return None
    return _Template(resolved, tuple(keys), tuple(axes), dict(metadata.shapes))


def _run_like(
    template: _Template,
    metadata: StoreMetadata,
    source: str | Path,
    coordinates_of: Callable[[str | Path], Coordinates],
) -> Run | None:
    """Return the description of a store by that of another one; None if more than the lengths differ."""
    lengths = set()
    for key, axis in zip(template.keys, template.axes, strict=True):
        ours, theirs = template.shapes[key], metadata.shapes[key]
        if ours[:axis] != theirs[:axis] or ours[axis + 1 :] != theirs[axis + 1 :]:
            return None
        lengths.add(theirs[axis])
    if len(lengths) != 1:
        return None
    given = local_path(source)
    root = given.absolute()
    names: list[list[str]] = []
    places: list[list[Place]] = []
    for key in template.keys:
        names.append([f"{root}/{key}" if key else printable(str(source).removeprefix("file://"))])
        places.append([f"{root}/{key}" if key else str(root)])
    (length,) = lengths
    unopened = [UnopenedPlace(length, source, coordinates_of)]
    return Run(template.resolved, [length], [store_name(source)], names, places, unopened)

"""The ends of segments such as episodes: numbers, or an array that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, ZarrfeedError, printable
from zarrfeed.metadata.array.array import open_array, open_node
from zarrfeed.metadata.array.values import read_stored
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.beside import MOST_GROUPS
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.plan.windows.windows import check_segment_ends
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.storage.access.checked_nodes import checked
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

#: Types of `segment_ends=` of `Data.window`: numbers, an array of Zarr, or the path of one.
SegmentEnds: TypeAlias = "npt.ArrayLike | zarr.Array[Any] | str | Path"


def read_segment_ends(
    named: SegmentEnds | None, columns: Sequence[Column], stores: StoreTable | None
) -> npt.ArrayLike | None:
    """Return the ends of segments, read from where they are named.

    Parameters
    ----------
    named
        The numbers; or an array of Zarr; or its path, of its own or in the store of the samples, such as
        "meta/episode_ends". In several stores, each has an array at that path, whose numbers count from its own first
        sample.
    columns, stores
        The columns and the stores of the samples.

    Raises
    ------
    ConfigError, StoreReadError
        If there is no such array.
    """
    if not isinstance(named, str | Path | zarr.Array):
        return named
    each = _read_each(named, columns, stores)
    if len(each) == 1 or stores is None:
        return each[0]
    return np.concatenate([first + ends for first, ends in zip(stores.first[:-1], each, strict=True)])


def find_segments(named: SegmentEnds | None, columns: Sequence[Column], stores: StoreTable | None) -> Segments:
    """Return the segments with some ends; arguments are those of `read_segment_ends`, but None: each store is one.

    Raises
    ------
    ConfigError, StoreReadError
        If there is no such array, or these are no ends of segments: each store has segments of its own.
    """
    if named is None:
        if stores is None:
            raise ConfigError("segments() without ends makes each of many stores a segment; this is one: give the ends")
        named = stores.first[1:]
    num_samples = columns[0].field.num_samples
    borders = None if stores is None else stores.first
    if not isinstance(named, str | Path | zarr.Array):
        return _checked(named, num_samples, stores)
    path = str(named.store_path if isinstance(named, zarr.Array) else named)
    folder = path.rpartition("/")[0].rpartition("/")[2]
    each = _read_each(named, columns, stores)
    if borders is None or len(each) < len(borders) - 1:
        return replace(_checked(each[0], num_samples, stores), folder=folder)
    lengths = np.diff(borders).tolist()
    parts = [Segments.of(check_segment_ends(one, n), folder=folder) for one, n in zip(each, lengths, strict=True)]
    return Segments.concat(parts, lengths)


def _checked(ends: npt.ArrayLike, num_samples: int, stores: StoreTable | None) -> Segments:
    """Return the segments of all stores; each has to end one where its samples end."""
    found = check_segment_ends(ends, num_samples)
    if stores is None:
        return Segments.of(found)
    lacks = ~np.isin(stores.first[1:], found)
    if lacks.any():
        raise ConfigError(f"segment_ends: no segment ends with {stores.names[int(np.argmax(lacks))]}")
    return Segments.of(found, stores.first)


def _read_each(
    named: str | Path | zarr.Array[Any], columns: Sequence[Column], stores: StoreTable | None
) -> list[npt.NDArray[Any]]:
    """Return the ends that a stored array has, or those of each store if a path names an array of several stores."""
    if isinstance(named, zarr.Array):
        return [read_stored(named)]
    if is_url(named) or Path(named).exists():
        return [read_stored(open_array(named))]
    specs = _specs(columns)
    return [read_stored(_find(str(named), one)) for one in (specs if stores is not None else specs[:1])]


def _specs(columns: Sequence[Column]) -> list[tuple[str, StoreSource | None]]:
    """Locate the first stored array in each store: its directory, or its prefix in a store that Python reads."""
    for f in (one.field for one in columns):
        if not f.layouts:
            continue
        found: list[tuple[int, str, StoreSource | None]] = []
        for layout in f.layouts:
            source = layout.spec.source if isinstance(layout.spec.source, StoreSource) else None
            if layout.parts is None:
                return [(layout.spec.root, source)]
            for number, begin in enumerate(layout.parts.begin.tolist()):
                if isinstance(source, PartedSource):
                    found.append((begin, "", source.sources[number]))
                else:
                    found.append((begin, layout.parts.prefixes[number].decode("utf-8", "surrogateescape"), None))
        return [(root, source) for _, root, source in sorted(found, key=lambda one: one[0])]
    raise ConfigError("segment_ends is a path, and the samples are in memory: give the numbers")


def _find(path: str, location: tuple[str, StoreSource | None]) -> zarr.Array[Any]:
    """Return the array at a path in the group of an array, or in a group above it."""
    root, source = location
    if source is None:
        for folder in list(Path(root).parents)[:MOST_GROUPS]:
            if (folder / path).is_dir():
                node = open_node(folder / path)
                if isinstance(node, zarr.Array):
                    return node
        raise ConfigError(f"segment_ends = {path!r}: no array is there, nor in {printable(Path(root).parent)}")
    names = source.prefix.rstrip("/").split("/")[:-1]
    for above in range(min(len(names), MOST_GROUPS) + 1):
        prefix = "/".join(names[: len(names) - above])
        try:
            return checked(zarr.open_array(source.store, path=f"{prefix}/{path}".lstrip("/"), mode="r"))
        except ZarrfeedError:
            raise
        except Exception:  # noqa: BLE001 (not there: of any class)
            continue
    raise ConfigError(f"segment_ends = {path!r}: no array is there in {printable(source.store)}")

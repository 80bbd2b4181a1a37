"""The ends of segments such as episodes: numbers, or an array that has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, ZarrfeedError, printable
from zarrfeed.metadata.array.array import open_array, open_node
from zarrfeed.metadata.array.values import read_stored
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.storage.access.checked_nodes import checked
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

#: Types of `segment_ends=` of `Data.window`: numbers, an array of Zarr, or the path of one.
SegmentEnds: TypeAlias = "npt.ArrayLike | zarr.Array[Any] | str | Path"

#: Groups above an array in which a path is looked for.
_MOST_GROUPS = 4


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
    if isinstance(named, zarr.Array):
        return read_stored(named)
    if not isinstance(named, str | Path):
        return named
    if is_url(named) or Path(named).exists():
        return read_stored(open_array(named))
    specs = _specs(columns)
    if stores is None:
        return read_stored(_find(str(named), specs[0]))
    first = stores.first
    return np.concatenate([first[i] + read_stored(_find(str(named), spec)) for i, spec in enumerate(specs)])


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
        for folder in list(Path(root).parents)[:_MOST_GROUPS]:
            if (folder / path).is_dir():
                node = open_node(folder / path)
                if isinstance(node, zarr.Array):
                    return node
        raise ConfigError(f"segment_ends = {path!r}: no array is there, nor in {printable(Path(root).parent)}")
    names = source.prefix.rstrip("/").split("/")[:-1]
    for above in range(min(len(names), _MOST_GROUPS) + 1):
        prefix = "/".join(names[: len(names) - above])
        try:
            return checked(zarr.open_array(source.store, path=f"{prefix}/{path}".lstrip("/"), mode="r"))
        except ZarrfeedError:
            raise
        except Exception:  # noqa: BLE001 (not there: of any class)
            continue
    raise ConfigError(f"segment_ends = {path!r}: no array is there in {printable(source.store)}")

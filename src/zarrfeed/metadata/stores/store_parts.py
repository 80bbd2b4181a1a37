"""The parts of a concatenated array: stores that hold it alike are one layout."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from zarrfeed.metadata.array.array import chunk_keys
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.storage.access.cache_options import ArrayCache
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource
from zarrfeed.storage.chunks.staging import stage_joined

#: Location of the chunks of one store: the directory of the array, or its prefix in a store that Python reads.
ArrayLocation: TypeAlias = "str | StoreSource"


@dataclass(eq=False)
class LayoutParts:
    """The stores of one layout: the description of the first one, and what each of them has of its own."""

    layout: Layout
    items: Items
    request: RequestedConversion
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    locations: list[ArrayLocation] = field(default_factory=list)

    def add(self, begin: int, end: int, name: str, location: ArrayLocation) -> None:
        """Append a store."""
        self.begin.append(begin)
        self.end.append(end)
        self.names.append(name)
        self.locations.append(location)

    def joined(self, num_samples: int) -> Layout:
        """Return the layout with all of its stores."""
        spec, locations = self.layout.spec, self.locations
        prefixes, source = [], None
        for number, location in enumerate(locations):
            is_path = isinstance(location, str)
            prefixes.append(os.fsencode(location) + b"/" if is_path else b"%d/" % number)  # type: ignore[arg-type]
        sources = [location for location in locations if isinstance(location, StoreSource)]
        if sources:
            source = PartedSource.of(sources)
        shape = list(spec.shape)
        shape[spec.sample_axis] = num_samples
        more = f" and {len(self.names) - 1} more" * (len(self.names) > 1)
        parts = ArrayParts(
            np.array(self.begin, dtype=np.int64),
            np.array(self.end, dtype=np.int64),
            prefixes,
            self.names,
            spec.rows_per_chunk,
        )
        staged = spec.staged
        if isinstance(staged, ArrayCache):
            staged = stage_joined(
                staged.options, [(str(location), chunk_keys(spec)) for location in locations], staged.form
            )
        joined = replace(spec, name=f"{self.names[0]}{more}", shape=tuple(shape), root="", source=source, staged=staged)
        return Layout(joined, parts)


def normalised(spec: ArraySpec) -> Hashable:
    """Return a key that is equal for arrays that differ in nothing but length, location and name."""
    source = spec.source if isinstance(spec.source, StoreSource) else None
    decoder = None if source is None or source.decoder is None else source.decoder.signature
    return _without_location(spec), source is None, decoder, _without_location(spec.as_documented)


def _without_location(spec: ArraySpec) -> ArraySpec:
    """Return the description of an array without its length, its location and its name."""
    shape = tuple(0 if axis == spec.sample_axis else n for axis, n in enumerate(spec.shape))
    merged = spec.merged
    if merged is not None:  # stores with other lengths along several axes of samples are another layout
        merged = replace(merged, stored=replace(merged.stored, name="", root="", source=None, staged=None))
    return replace(spec, name="", root="", shape=shape, merged=merged, source=None, staged=None)


def location_of(spec: ArraySpec) -> ArrayLocation:
    """Return the location of the chunks of an array of one store."""
    return spec.source if isinstance(spec.source, StoreSource) else spec.root


def locations_in(layout: Layout) -> list[tuple[str, ArrayLocation]]:
    """Return the name of the array in messages, and its location, for each store of a layout."""
    spec = layout.spec
    if layout.parts is None:
        return [(spec.name, location_of(spec))]
    locations: Sequence[ArrayLocation]
    if isinstance(spec.source, PartedSource):
        locations = spec.source.sources
    else:
        locations = [os.fsdecode(prefix[:-1]) for prefix in layout.parts.prefixes]
    return list(zip(layout.parts.names, locations, strict=True))

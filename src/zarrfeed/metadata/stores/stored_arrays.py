"""The stored arrays that a description reads, opened one by one: of many stores, the array of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.group.beside import StoredPath, open_beside
from zarrfeed.metadata.stores.store_parts import ArrayLocation, locations_in
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.access.access import StoreAccess


@dataclass(frozen=True, eq=False)
class StoredPart:
    """An array of one store.

    Attributes
    ----------
    name
        The name of the array in messages: its path or URL.
    begin, end
        The rows of the field that it has.
    layout
        The layout of the array, perhaps with others that are stored alike.
    location
        Its store and path.
    """

    name: str
    begin: int
    end: int
    layout: Layout
    location: ArrayLocation

    def open(self, access: StoreAccess) -> zarr.Array[Any]:
        """Open the array.

        Raises
        ------
        ConfigError, StoreReadError
            If it is not there, or cannot be read.
        """
        where = self.location
        path = where if isinstance(where, str) else StoredPath(where.store, where.prefix.rstrip("/"))
        node = open_beside(path, access)
        if not isinstance(node, zarr.Array):
            raise ConfigError(f"{self.name}: is no longer an array")
        return node

    def rows_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows among `rows` of the field that this array has, counted from the first row of the array."""
        return rows[(rows >= self.begin) & (rows < self.end)] - self.begin


def stored_parts(field: Field) -> Iterator[StoredPart]:
    """Yield the arrays of a field, one for each store, ascending by their rows."""
    found = []
    for layout in field.layouts:
        begins, ends = [0], [layout.spec.num_samples]
        if layout.parts is not None:
            begins, ends = layout.parts.begin.tolist(), layout.parts.end.tolist()
        for (name, location), begin, end in zip(locations_in(layout), begins, ends, strict=True):
            found.append(StoredPart(name, begin, end, layout, location))
    yield from sorted(found, key=lambda part: part.begin)

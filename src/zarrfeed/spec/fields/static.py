"""`StaticField`: an array without a sample axis, such as a land-sea mask, that every batch has as one tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.spec.arrays.item_choice import ItemChoice, Positions, take_items
from zarrfeed.spec.fields.field import HostRows, ResidentField, StoredField


class UnreadRows(HostRows):
    """The one row of an array without a sample axis, which is read when a dataset is made.

    Parameters
    ----------
    source
        The array, as it is stored.
    choice
        The items of the array that the row has. None: all of them.
    """

    source: StoredField

    def __init__(self, source: StoredField, choice: ItemChoice | None = None) -> None:
        shape = source.spec.shape if choice is None else choice.shape(source.spec.shape)
        row_bytes = math.prod(shape) * source.spec.dtype.itemsize
        super().__init__(np.broadcast_to(np.uint8(0), (1, row_bytes)), source=source)
        self.choice = choice

    def __reduce__(self) -> tuple[type[UnreadRows], tuple[StoredField, ItemChoice | None]]:
        return UnreadRows, (self.source, self.choice)

    def row_of(self, rows: HostRows) -> HostRows:
        """Return the row, given all of the array as it was read."""
        if self.choice is None:
            return HostRows(rows.array.reshape(1, -1), source=self.source)
        spec = self.source.spec
        return HostRows(take_items(rows.array, spec.shape, spec.dtype.itemsize, self.choice).reshape(1, -1))

    @property
    def address(self) -> int:
        """There is none before the rows are read."""
        raise AssertionError(f"{self.source.spec.name} was not read")


@dataclass(frozen=True)
class StaticField:
    """An array that is the same for all samples.

    Attributes
    ----------
    name
        Key of the array in the dict of the samples.
    source
        The field that has the values: the rows along its first axis. It is read when a dataset is made.
    shape
        Shape of the tensor in batches.
    dimensions
        Names of the axes of that, if they have any.
    choice
        The items of the array that batches have. None: all of them.
    """

    name: str
    source: StoredField | ResidentField
    shape: tuple[int, ...]
    dimensions: tuple[str | None, ...] | None = None
    choice: ItemChoice | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        if isinstance(self.source, StoredField):
            return self.source.spec.shape
        return (self.source.num_rows, *self.source.row_shape)

    def choosing(self, axis: int, positions: Positions, *, dropped: bool) -> StaticField:
        """Return the field with fewer items along one of its axes; with `dropped`, without the axis."""
        stored = self.stored_shape
        choice = ItemChoice.of_all(len(stored)) if self.choice is None else self.choice
        number = choice.axis_of(axis)
        chosen = choice.then(number, positions, dropped=dropped, length=stored[number])
        dimensions = self.dimensions
        if dimensions is not None and dropped:
            dimensions = dimensions[:axis] + dimensions[axis + 1 :]
        shape = stored if chosen is None else chosen.shape(stored)
        return replace(self, shape=shape, dimensions=dimensions, choice=chosen)

    @property
    def dtype(self) -> str:
        """Name of the dtype that batches have."""
        return self.source.dtype_name

    def __str__(self) -> str:
        return f"{self.source.array_path or 'in memory'}: {self.shape} {self.dtype}, one tensor for all samples"

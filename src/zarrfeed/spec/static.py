"""`StaticField`: an array without a sample axis, such as a land-sea mask, that every batch has as one tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from zarrfeed.spec.field import Field, HostRows, ResidentField, StoredField, dtype_name
from zarrfeed.spec.row_map import OneRow


class UnreadRows(HostRows):
    """The one row of an array without a sample axis, which is read when a dataset is made.

    Parameters
    ----------
    source
        The array, as it is stored.
    """

    source: StoredField

    def __init__(self, source: StoredField) -> None:
        row_bytes = math.prod(source.spec.shape) * source.spec.dtype.itemsize
        super().__init__(np.broadcast_to(np.uint8(0), (1, row_bytes)), source=source)

    def __reduce__(self) -> tuple[type[UnreadRows], tuple[StoredField]]:
        return UnreadRows, (self.source,)

    @property
    def address(self) -> int:
        """There is none before the rows are read."""
        raise AssertionError(f"{self.source.spec.name} was not read")


def is_channel(field: Field) -> TypeGuard[ResidentField]:
    """Return whether a field is a static array that was stacked: all samples have its only row."""
    return isinstance(field, ResidentField) and isinstance(field.row_map, OneRow)


@dataclass(frozen=True)
class StaticField:
    """An array that is the same for all samples.

    Attributes
    ----------
    name
        Its key in the dict of the samples.
    source
        Where its values are: the rows along its first axis. It is read when a dataset is made.
    shape
        Of the array.
    dimensions
        Names of its axes, if they have any.
    """

    name: str
    source: StoredField | ResidentField
    shape: tuple[int, ...]
    dimensions: tuple[str | None, ...] | None = None

    @property
    def dtype(self) -> str:
        """Name of the dtype that batches have."""
        return dtype_name(self.source)

    def __str__(self) -> str:
        where = self.source.spec.name if isinstance(self.source, StoredField) else "in memory"
        return f"{where}: {self.shape} {self.dtype}, one tensor for all samples"

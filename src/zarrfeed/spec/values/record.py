"""Records: items with named members (structured dtypes), which batches have as a dict.

Invariant: the engine delivers the bytes of each record as they are stored, along a last axis. `Record.unpack` copies
each wanted member out of them, in native byte order, so that the array is contiguous and owns its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.spec.values.dtypes import read_items


@dataclass(frozen=True)
class _Member:
    """One member: where its bytes are in a record, and what becomes of them."""

    name: str
    bytes_in_record: slice
    stored: np.dtype[Any]
    native: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """The members of the records of one array.

    Attributes
    ----------
    dtype
        Structured, and in the byte order in which the engine delivers the bytes of a record.
    names
        The members that batches have, in this order.
    """

    dtype: np.dtype[Any]
    names: tuple[str, ...]

    @cached_property
    def _members(self) -> tuple[_Member, ...]:
        return tuple(_member(name, self.dtype) for name in self.names)

    def unpack(self, records: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Return the members of records.

        Parameters
        ----------
        records
            uint8 of shape (..., bytes of a record), contiguous.

        Returns
        -------
        An array for each member, of shape (..., *shape of the member), which owns its memory.
        """
        lead, unpacked = records.shape[:-1], {}
        for m in self._members:
            # by NumPy: torch would use OpenMP's threads, for which a forked child may wait for ever
            own = np.ascontiguousarray(records[..., m.bytes_in_record])
            unpacked[m.name] = own.view(m.stored).astype(m.native, copy=False).reshape(lead + m.shape)
        return unpacked

    def __str__(self) -> str:
        """Return one line for people, such as "{x: float32, pixels: uint8 (3,)}"."""
        shapes = [f" {m.shape}" if m.shape else "" for m in self._members]
        parts = [f"{m.name}: {m.native}{shape}" for m, shape in zip(self._members, shapes, strict=True)]
        return "{" + ", ".join(parts) + "}"


def select_members(side: str, dtype: np.dtype[Any], variables: Sequence[str] | None) -> Record:
    """Return the record of a structured dtype, with the members that `variables` names; None: all.

    Raises
    ------
    ConfigError
        If there is no such member.
    """
    known = dtype.names or ()
    for name in variables or ():
        if name not in known:
            raise ConfigError(
                f"variables: {name!r} is no member of the records of {side}, must be one of "
                f"{', '.join(map(repr, known))}{did_you_mean(name, known)}"
            )
    return Record(dtype, known if variables is None else tuple(variables))


def _member(name: str, record: np.dtype[Any]) -> _Member:
    assert record.fields is not None
    dtype, offset = record.fields[name][:2]
    base, shape = dtype.subdtype or (dtype, ())
    items = read_items(base, swapped=False, name=name)  # the order of bytes is in `stored`
    stored = items.dtype.newbyteorder(base.byteorder) if base.byteorder in "<>" else items.dtype
    size = math.prod(shape) * base.itemsize
    return _Member(name, slice(offset, offset + size), stored, items.dtype, tuple(shape) + items.shape)

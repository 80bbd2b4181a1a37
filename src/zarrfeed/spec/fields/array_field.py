"""`ArrayField` and `RowsField`: the answers that field kinds over arrays, and over plain rows, have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.array_parts import ArrayParts, Int64
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.values.dtypes import encode_item


@dataclass(frozen=True)
class ArrayField(FieldKind):
    """A Zarr array, or arrays in several stores that are one along the sample axis.

    Attributes
    ----------
    spec
        The description of the array; for several stores that of the first one, with the shape of all of them together.
    parts
        The rows that each store has. None: one store has all of them.
    others
        Layouts of further stores, which have the rows that `parts` lack: they store the array in another way.
    """

    name: str
    spec: ArraySpec
    parts: ArrayParts | None = field(default=None, kw_only=True)
    others: tuple[Layout, ...] = field(default=(), kw_only=True)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The arrays of all stores, those that store it alike together."""
        return (Layout(self.spec, self.parts, self.conversion), *self.others)

    @property
    def array_path(self) -> str:
        """Path or URL of the array; with several stores, of the first one."""
        return self.spec.name

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples if self.row_map is None else len(self.row_map)

    @property
    def num_rows(self) -> int:
        """Rows of the array."""
        return self.spec.num_samples

    @property
    def chosen_items(self) -> str:
        """A digest of the items that samples have along the other axes of the array; "" if they have all."""
        if self.spec.choice is None and not self.others:
            return ""
        choices = [None if one.spec.choice is None else one.spec.choice.to_json() for one in self.layouts]
        if all(one is None for one in choices):
            return ""
        return hashlib.sha256(json.dumps(choices).encode()).hexdigest()[:16]

    def describe_source(self) -> str:
        """Return the path, the shape and the chunks of the array."""
        choice = self.spec.choice
        chosen = "" if choice is None else f", {choice.describe(self.spec.shape)}"
        return f"{self.spec.name}, {self.spec.shape} in read chunks of {self.spec.chunk_shape}{chosen}"

    def with_specs(self, change: Callable[[ArraySpec], ArraySpec]) -> Self:
        """Return the field with its arrays described anew, by what `change` returns for each layout."""
        others = tuple(replace(layout, spec=change(layout.spec)) for layout in self.others)
        return replace(self, spec=change(self.spec), others=others)


class RowsField(FieldKind):
    """Rows of one size, which the engine copies into the tensor of a batch."""

    @property
    def has_rows(self) -> bool:
        """Always."""
        return True

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample; for a window, of its rows."""
        return (() if self.window is None else self.window.shape) + self.row_shape

    def offsets_to_core(self) -> tuple[int, ...]:
        """Return the offsets of its windows in the form that the engine takes: none for a sample of one row."""
        return () if self.window is None else self.window.offsets

    def slot_to_core(self, number: int) -> tuple[int, int, int] | None:
        """Return its place in a tensor of several, tensor `number` of the batch, in the form that the engine takes."""
        return None if self.stack is None else (number, self.stack.row_bytes, self.stack.offset)

    def pad_to_core(self) -> tuple[str, bytes, Int64 | None] | None:
        """Return the padding of rows in the form that the engine takes; rows that a row map lacks become NaN."""
        pad, rows = self.pad, self.row_map
        lacks_some = rows is not None and rows.lacks_some
        if pad is None and not lacks_some:
            return None
        # Integers have no NaN: samples without a row are left out, so that no batch has the 0.
        nothing = np.nan if "float" in self.dtype_name else 0
        value = nothing if pad is None or pad.value is None else pad.value
        is_filled = lacks_some or (pad is not None and pad.mode == "fill")
        item = encode_item(self.dtype_name, value) if is_filled else b""
        borders = None if pad is None or pad.borders is None else pad.borders.first
        return "fill" if pad is None else pad.mode, item, borders

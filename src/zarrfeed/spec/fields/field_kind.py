"""`FieldKind`: the questions that a field of any kind answers, so that no caller asks for its class.

Invariant: the answers here are those of a field whose values are computed, or looked up by something else than the
engine. A kind overrides what differs. Another kind of field is one more subclass, and a reader that `engine/lookups.py`
names if the engine does not make its values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.images import Images
from zarrfeed.spec.fields.stack import StackSlice
from zarrfeed.spec.fields.tensor_spec import TensorSpec
from zarrfeed.spec.patches.patch import FieldPatch
from zarrfeed.spec.samples.row_map import OneRow, RowMap, SegmentRows
from zarrfeed.spec.samples.window import Pad, Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.dtypes import item_bytes
from zarrfeed.spec.values.record import Record

#: The origin of the rows of an output: the array, and the number of its source; None if no output before it draws from
#: that. Rows in memory have no array.
Draw: TypeAlias = tuple[core.ArraySpec | None, int | None]


class FieldKind(ABC):
    """A field: aligned rows of one array, or values of each sample, which a batch has as one tensor or one list."""

    name: str

    if TYPE_CHECKING:  # kinds have these as attributes or properties, which a property here would hide

        @property
        def num_samples(self) -> int:
            """Length of the sample axis."""

        @property
        def sample_shape(self) -> tuple[int, ...]:
            """Shape of one sample; for a window, of its rows."""

        @property
        def row_shape(self) -> tuple[int, ...]:
            """Shape of one row of the array; only kinds that `has_rows` is true of have it."""

    # -- what a batch has ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dtype_name(self) -> str:
        """The items of a batch: the name of the dtype (of records that of their bytes), "str" or "bytes"."""

    @property
    def described_dtype(self) -> str:
        """The items of a batch in words; for records, the members with their dtypes."""
        return self.dtype_name if self.record is None else str(self.record)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample for people; for records, without the axis over their bytes."""
        return self.sample_shape if self.record is None else self.sample_shape[:-1]

    @property
    def batch_item_bytes(self) -> int:
        """Bytes of one item in a batch."""
        return item_bytes(self.dtype_name)

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of one sample in a batch of the engine, and of its values that are looked up."""
        return math.prod(self.sample_shape) * self.batch_item_bytes

    @property
    def item_type(self) -> str:
        """The Python type of the items of lists: "str" or "bytes"; "" if a batch has a tensor."""
        return ""

    @property
    def images(self) -> Images | None:
        """The conversion of encoded images to pixels; None if there are none."""
        return None

    @property
    def chosen_items(self) -> str:
        """A digest of the items that samples have along the other axes of the array; "" if they have all."""
        return ""

    @property
    def record(self) -> Record | None:
        """The members that batches have in place of the bytes of a record; None for all else."""
        return None

    @property
    def conversion(self) -> Conversion | None:
        """The conversion of the items; None: they are delivered as they are."""
        return None

    @property
    def stack(self) -> StackSlice | None:
        """The slice that its rows have of a tensor that it shares with other fields; None if it has one for itself."""
        return None

    @property
    def is_sparse(self) -> bool:
        """True if batches have a sparse tensor of the field."""
        return False

    @property
    def has_rows(self) -> bool:
        """True if samples are rows of one size that the engine copies: they can be joined, windowed and stacked."""
        return False

    @property
    def has_numbers(self) -> bool:
        """True if samples are rows of numbers, and not of records."""
        return self.has_rows and self.record is None

    @property
    def described_items(self) -> str:
        """A noun for its items in messages, such as "a sparse matrix"."""
        return self.item_type or self.dtype_name

    # -- where its values are ------------------------------------------------------------------------------------------

    @property
    def array_path(self) -> str:
        """Path or URL of the array, for messages; "" if it is not stored."""
        return ""

    @property
    def label(self) -> str:
        """The name of the field in messages: its own, and the path of its array."""
        return f"{self.name} ({self.array_path})" if self.array_path else self.name

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The arrays whose rows are samples, one of each way of storing it; empty if there is none."""
        return ()

    def arrays(self) -> tuple[Layout, ...]:
        """Return all stored arrays that are read for the field, one of each way of storing it."""
        return self.layouts

    def describe_source(self) -> str:
        """Describe the place where the values are, such as a path; "" if they are computed."""
        return ""

    @property
    def resident(self) -> bool:
        """True if a stored array is small and is read into memory once."""
        return False

    @property
    def resident_bytes(self) -> int:
        """Bytes that the rows of a stored array take in memory, as batches have them."""
        return 0

    @property
    def is_stored(self) -> bool:
        """True if arrays are read for the field."""
        return bool(self.arrays())

    def describe_values(self) -> dict[str, Any]:
        """Return plain JSON, for a fingerprint, that identifies the values without reading them from a store."""
        return {}

    def holds_same(self, other: FieldKind) -> bool:
        """Return whether another field is equal; in memory, with equal values, or read from the same array."""
        return self == other

    # -- how it is read ------------------------------------------------------------------------------------------------

    @property
    def is_streamed(self) -> bool:
        """True if the engine reads chunks of an array as samples are needed, and scatters their rows."""
        return False

    @property
    def is_lookup(self) -> bool:
        """True if a reader of its own looks samples up by their indices, which the engine delivers."""
        return False

    @property
    def lists_order(self) -> bool:
        """True if its reader lists the whole order of an epoch, 8 bytes a sample."""
        return False

    @property
    def is_sharded(self) -> bool:
        """True if its chunks lie in shards."""
        return bool(self.layouts) and self.layouts[0].spec.shard is not None

    def find_edges(self, *, of_shards: bool = False) -> npt.NDArray[np.int64] | None:  # noqa: ARG002 (of other kinds)
        """Return the first sample of each block that its chunks (or shards) make, and the number of samples.

        None: chunks have the same number of samples each, so that block edges follow from `layouts`.
        """
        return None

    def to_cores(
        self,
        tensor: TensorSpec | None = None,
        number: int = 0,  # noqa: ARG002 (of other kinds)
        draws: Sequence[Draw] = (),  # noqa: ARG002 (of other kinds)
    ) -> list[core.FieldSpec]:
        """Return the field in the form that the engine takes: one output for each layout, or a single one.

        Parameters
        ----------
        tensor
            The description of the tensor. None: its items are bytes.
        number
            Number of the tensor in the batch.
        draws
            The source of the rows of each output. Empty: no other field draws from there.
        """
        return [self.to_core(tensor)]

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the only output of the field; not of kinds that a reader of their own looks up."""
        raise NotImplementedError

    # -- which rows a sample has ---------------------------------------------------------------------------------------

    @property
    def window(self) -> Window | None:
        """The rows that a sample consists of; None for its own row."""
        return None

    @property
    def has_rows_axis(self) -> bool:
        """True if the first axis of a sample is over the rows of its window."""
        return self.window is not None and self.window.stacked

    @property
    def pad(self) -> Pad | None:
        """The values in place of rows that a sample lacks; None: no sample lacks any."""
        return None if self.window is None else self.window.pad

    @property
    def fill_value(self) -> float | None:
        """The value that takes the place of rows, or voxels, that a sample lacks; None: no value does."""
        if self.patch is not None:
            return self.patch.fill
        return None if self.pad is None or self.pad.mode != "fill" else self.pad.value

    @property
    def row_map(self) -> RowMap | None:
        """The row of its array that each sample has; None: the one with its index."""
        return None

    @property
    def has_one_row(self) -> bool:
        """True if all samples have the only row of an array: one without a sample axis, as a channel of a stack."""
        return isinstance(self.row_map, OneRow)

    @property
    def is_of_segments(self) -> bool:
        """True if all samples of a segment have the same row: windows have it once."""
        return isinstance(self.row_map, SegmentRows)

    @property
    def num_rows(self) -> int:
        """Rows of its array; those that samples have are some of them."""
        return self.num_samples

    @property
    def patch(self) -> FieldPatch | None:
        """The boxes of the array that samples are; None: a sample is a row, or several."""
        return None

    # -- the same field with a change ----------------------------------------------------------------------------------

    def with_specs(self, change: Callable[[ArraySpec], ArraySpec]) -> Self:  # noqa: ARG002 (of other kinds)
        """Return the field with its `layouts` described anew: with what `change` returns for each of them."""
        return self

    def without_window(self) -> Self:
        """Return the field with samples of one row each."""
        return self

    def with_row_map(self, rows: RowMap | None) -> Self:
        """Return the field with other rows for its samples; only of kinds that `has_rows` is true of."""
        raise NotImplementedError

    def with_stack(self, stack: StackSlice) -> Self:
        """Return the field with its place in a tensor of several; only of kinds that `has_rows` is true of."""
        raise NotImplementedError

    def with_patch(self, patch: FieldPatch) -> Self:
        """Return the field with samples that are cut out of its array; only of stored kinds that have rows."""
        raise NotImplementedError

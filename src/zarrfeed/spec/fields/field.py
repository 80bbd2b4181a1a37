"""Fields: aligned arrays with a common number of samples."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.spec.fields.array_field import ArrayField, RowsField
from zarrfeed.spec.fields.field_kind import Draw, FieldKind
from zarrfeed.spec.fields.images import Images
from zarrfeed.spec.fields.stack import StackSlice
from zarrfeed.spec.fields.tensor_spec import TensorSpec
from zarrfeed.spec.fields.window_fields import lead_to_core
from zarrfeed.spec.patches.patch import FieldPatch
from zarrfeed.spec.samples.block_edges import Edges
from zarrfeed.spec.samples.row_map import GridRows, RowMap
from zarrfeed.spec.samples.window import Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.dtypes import encode_item, item_bytes
from zarrfeed.spec.values.record import Record

#: The stored objects that make a block.
BlockKind: TypeAlias = Literal["chunk", "shard"]
BLOCK_KINDS: tuple[BlockKind, ...] = ("chunk", "shard")

#: Rows of a chunk that could not be had: (first, end, index of the chunk along the sample axis, its key, class of the
#: error, errno, message).
BadRows: TypeAlias = tuple[int, int, int, str, str, int, str]


@dataclass(frozen=True)
class StoredField(RowsField, ArrayField):
    """A Zarr array whose rows are copied, or arrays in several stores that are one along the sample axis.

    Attributes
    ----------
    resident
        True if the array is small and is read into memory once instead of block by block.
    record
        The members of its records, which batches have in place of their bytes; None for numbers.
    spared
        True if a `dtype` or `normalize` for all arrays leaves this one as it is, since it is a coordinate.
    rows
        The row of each sample. None: the row with its index.
    stack
        The slice of its rows in a tensor that it shares with other fields. None: it has a tensor for itself.
    patch
        The patches that the array is cut into; they are the rows of the field then. None: a sample is a row, or
        several.
    """

    resident: bool = False
    conversion: Conversion | None = None
    window: Window | None = None
    record: Record | None = None
    spared: bool = False
    rows: RowMap | None = None
    stack: StackSlice | None = None
    patch: FieldPatch | None = None

    @property
    def is_streamed(self) -> bool:
        """True if the engine reads chunks of the array as samples are needed."""
        return not self.resident

    @property
    def row_map(self) -> RowMap | None:
        """The row of the array that each sample has."""
        return self.rows

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches; for records, the dtype of their bytes."""
        return self.spec.dtype.name if self.conversion is None else self.conversion.result

    def describe_values(self) -> dict[str, Any]:
        """Return the shape and the codecs of the array's chunks."""
        return {"chunks": self.spec.chunk_shape, "codecs": [codec.label for codec in self.spec.codecs]}

    @property
    def resident_bytes(self) -> int:
        """Bytes that the rows take in memory, as batches have them."""
        return self.num_samples * math.prod(self.row_shape) * self.batch_item_bytes

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of the array, which has one index on the sample axis; for patches, of a sample."""
        return self.spec.sample_shape if self.patch is None else self.patch.shape

    def without_window(self) -> Self:
        """Return the field with samples of one row each."""
        return replace(self, window=None)

    def with_row_map(self, rows: RowMap | None) -> Self:
        """Return the field with other rows for its samples."""
        return replace(self, rows=rows)

    def with_stack(self, stack: StackSlice) -> Self:
        """Return the field with its place in a tensor of several."""
        return replace(self, stack=stack)

    def with_patch(self, patch: FieldPatch) -> Self:
        """Return the field with samples that are cut out of its array; their rows are those of the patch."""
        return replace(self, resident=False, rows=None, patch=patch)

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return a field of one layout in the form that the engine takes."""
        (only,) = self.to_cores(tensor)
        return only

    def to_cores(
        self, tensor: TensorSpec | None = None, number: int = 0, draws: Sequence[Draw] = ()
    ) -> list[core.FieldSpec]:
        """Return one output for each layout, all of one tensor."""
        slot = self.slot_to_core(number)
        if slot is None and self.others:
            slot = (number, math.prod(self.row_shape) * self.batch_item_bytes, 0)
        draws = draws or [(None, None)] * len(self.layouts)
        return [
            core.FieldSpec.stored(
                layout.spec.to_core(None, layout.parts) if array is None else array,
                conversion=None if layout.conversion is None else layout.conversion.to_core(),
                offsets=self.offsets_to_core(),
                tensor=tensor,
                slot=slot,
                row_map=None if self.rows is None else self.rows.to_core(),
                pad=self.pad_to_core(),
                is_variant=layout_number > 0,
                lead=lead_to_core(self.window),
                patch=None if self.patch is None else self.patch.to_core(self.dtype_name, layout.parts),
                source=source,
            )
            for layout_number, (layout, (array, source)) in enumerate(zip(self.layouts, draws, strict=True))
        ]


class HostRows:
    """Rows of an array in host memory. The engine reads them at their address, so nothing may move or resize them.

    Parameters
    ----------
    array
        The bytes: uint8 of shape (rows, bytes of a row), contiguous.
    owner
        The object that the memory belongs to, such as a tensor of the user's. None: `array`.
    source
        The array that the rows were read from. None: they were given.
    """

    def __init__(self, array: npt.NDArray[np.uint8], owner: object = None, source: StoredField | None = None) -> None:
        self.array = array
        self.owner = owner
        self.source = source

    def __getstate__(self) -> Any:
        return {**self.__dict__, "owner": None}  # of which the array is a view: it would be sent twice

    def __deepcopy__(self, memo: dict[int, Any]) -> HostRows:
        return self  # rows are never written

    def __str__(self) -> str:
        return "in memory" if self.source is None else self.source.spec.name

    @property
    def address(self) -> int:
        """The address of the first row."""
        return self.array.ctypes.data


@dataclass(frozen=True)
class ResidentField(RowsField):
    """An array in memory, borrowed from `rows`, whose memory must outlive every engine that reads the field.

    Attributes
    ----------
    dtype
        Name of the dtype of the items, as torch and NumPy (with ml_dtypes) have it.
    row_shape
        Shape of one row of the array, which has one index on the sample axis.
    item_bytes
        Bytes of one item.
    bad_rows
        Rows that could not be loaded; their memory holds anything.
    """

    name: str
    rows: HostRows
    dtype: str
    row_shape: tuple[int, ...]
    item_bytes: int
    conversion: Conversion | None = None
    window: Window | None = None
    bad_rows: tuple[BadRows, ...] = ()
    record: Record | None = None
    row_map: RowMap | None = None
    stack: StackSlice | None = None

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches; for records, the dtype of their bytes."""
        return self.dtype if self.conversion is None else self.conversion.result

    def describe_source(self) -> str:
        """Describe the memory that the rows are in."""
        only = ", the same for all samples" if self.has_one_row else ""
        return f"{self.rows}{only}"

    def describe_values(self) -> dict[str, Any]:
        """Return a hash of the rows."""
        return {"values": hashlib.sha256(np.ascontiguousarray(self.rows.array).data).hexdigest()}

    def holds_same(self, other: FieldKind) -> bool:
        """Return whether another field in memory is equal and has equal values, or those of the same array."""
        if not isinstance(other, ResidentField) or self != replace(other, rows=self.rows):
            return False
        ours, theirs = self.rows, other.rows
        if ours.source is not None or theirs.source is not None:
            return ours.source == theirs.source
        return np.array_equal(ours.array, theirs.array)

    @property
    def batch_item_bytes(self) -> int:
        """Bytes of one item in a batch."""
        if self.conversion is None:
            return self.item_bytes  # torch has dtypes that no stored item has
        return super().batch_item_bytes

    @property
    def num_rows(self) -> int:
        """Rows in memory."""
        return len(self.rows.array)

    @property
    def num_samples(self) -> int:
        """Length of axis 0."""
        return len(self.rows.array) if self.row_map is None else len(self.row_map)

    def without_window(self) -> Self:
        """Return the field with samples of one row each."""
        return replace(self, window=None)

    def with_row_map(self, rows: RowMap | None) -> Self:
        """Return the field with other rows for its samples."""
        return replace(self, row_map=rows)

    def with_stack(self, stack: StackSlice) -> Self:
        """Return the field with its place in a tensor of several."""
        return replace(self, stack=stack)

    def to_cores(
        self, tensor: TensorSpec | None = None, number: int = 0, draws: Sequence[Draw] = ()
    ) -> list[core.FieldSpec]:
        """Return the only output; `rows` must outlive the engine."""
        return [self._to_core(tensor, number, draws[0][1] if draws else None)]

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes; `rows` must outlive the engine."""
        return self._to_core(tensor, 0, None)

    def _to_core(self, tensor: TensorSpec | None, number: int, source: int | None) -> core.FieldSpec:
        return core.FieldSpec.resident(
            self.rows.address,
            row_bytes=math.prod(self.row_shape) * self.item_bytes,
            bad_rows=self.bad_rows,
            conversion=None if self.conversion is None else self.conversion.to_core(),
            offsets=self.offsets_to_core(),
            tensor=tensor,
            row_map=None if self.row_map is None else self.row_map.to_core(),
            pad=self.pad_to_core(),
            num_rows=len(self.rows.array),
            slot=self.slot_to_core(number),
            lead=lead_to_core(self.window),
            source=source,
        )


@dataclass(frozen=True)
class IndexField(FieldKind):
    """The global sample index, int64, shape ()."""

    num_samples: int
    name: str = "index"

    sample_shape: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches."""
        return "int64"

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes."""
        return core.FieldSpec.index(tensor=tensor)


@dataclass(frozen=True)
class VlenField(ArrayField):
    """A Zarr array of text, or of bytes of any length, in C order of the sample's axes: batches have nested lists.

    The engine gives it the global sample index, and `engine/vlen.py` looks the samples up.

    Attributes
    ----------
    images
        The decoding of bytes to images (`engine/image_reader.py`). None: the bytes are delivered as they are.
    conversion
        The conversion of the pixels of images that have one size.
    """

    images: Images | None = None
    conversion: Conversion | None = None
    window: Window | None = None

    @property
    def is_lookup(self) -> bool:
        """Always: the engine delivers indices."""
        return True

    @property
    def item_type(self) -> str:
        """The Python type of the items."""
        return self.spec.item_type

    @property
    def dtype_name(self) -> str:
        """The items of a batch: "str", "bytes", or of decoded images the name of their dtype."""
        if self.conversion is not None:
            return self.conversion.result
        return self.spec.item_type if self.images is None else self.images.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Lengths of the nested lists of one row, () for one item; for images of one size, the tensor's shape."""
        return self.spec.sample_shape + (() if self.images is None else self.images.shape)

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of the index of a sample, and of its images."""
        index = item_bytes("int64")
        if self.images is None:
            return index
        rows = 1 if self.window is None else len(self.window.offsets)
        item = 1 if self.conversion is None else item_bytes(self.conversion.result)
        return index + rows * math.prod(self.spec.sample_shape) * self.images.image_pixels * item

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample; for a window, of its rows."""
        return (() if self.window is None else self.window.shape) + self.row_shape

    def without_window(self) -> Self:
        """Return the field with samples of one row each."""
        return replace(self, window=None)


@dataclass(frozen=True)
class ObjectField(FieldKind):
    """Objects as they are, one a sample: batches have lists of them. `engine/object_reader.py` reads them.

    Attributes
    ----------
    num_samples
        Number of objects.
    digest
        Hash of the objects' keys.
    mean_bytes
        Mean size of an object in bytes, as stored.
    """

    num_samples: int
    digest: str
    mean_bytes: int
    name: str = "objects"

    sample_shape: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        """The digest of the keys."""
        return f"keys {self.digest}"

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of an object, on average."""
        return self.mean_bytes

    @property
    def lists_order(self) -> bool:
        """Always: its reader asks for objects in the order of the epoch."""
        return True


#: A field of any kind.
Field: TypeAlias = FieldKind


def streamed(fields: Iterable[Field]) -> list[StoredField]:
    """Return the fields whose chunks the engine reads as samples are needed."""
    return [f for f in fields if isinstance(f, StoredField) and f.is_streamed]


def check_pad(field: Field) -> None:
    """Raise ConfigError if the dtype of a field cannot hold the value that its windows, or patches, are padded with."""
    value = field.fill_value
    if value is not None:
        try:
            encode_item(field.dtype_name, value)
        except (ValueError, OverflowError, TypeError) as error:
            raise ConfigError(
                f"pad of {field.name} = {value}: batches have {field.dtype_name}, which cannot hold it; pad with "
                "'edge' or another value, or convert the array with Data.cast"
            ) from error


@dataclass(frozen=True)
class FieldSet:
    """All fields of a dataset.

    Attributes
    ----------
    fields
        The fields, in the order of the tensors of a batch; all with the same number of samples.
    sides
        The sides of a batch (samples, targets, index): for each the keys of its dict, or None for a bare tensor.
    primary
        Number of the field whose chunks make the blocks; None if nothing is streamed.
    block_rows
        Samples of a block, at most the number of samples.
    block
        The kind of block: a read chunk along the sample axis, or a shard.
    edges
        The first sample of each block, and the number of samples at the end: ascending, shape (blocks + 1,). None:
        every block but the last one has `block_rows` samples.
    next_targets
        True if batches have the rows behind those of the samples as their targets, as views of the same tensors.
    """

    fields: tuple[Field, ...]
    sides: tuple[tuple[str, ...] | None, ...]
    primary: int | None
    block_rows: int
    block: BlockKind = "chunk"
    edges: Edges | None = dataclasses.field(default=None, compare=False)
    next_targets: bool = False

    @property
    def num_samples(self) -> int:
        """Number of samples, which is the same in every field."""
        return self.fields[0].num_samples

    @cached_property
    def are_objects(self) -> bool:
        """True if samples are objects as they are, and no rows of arrays."""
        return isinstance(self.fields[0], ObjectField)

    @property
    def windows(self) -> list[Window | None]:
        """The window of each field; None where a sample is one row, its own."""
        return [f.window for f in self.fields]

    @cached_property
    def chunk_bytes(self) -> int:
        """Decoded bytes of all chunks of the fields that are streamed; an array that two fields have counts twice."""
        layouts = [one for f in self.fields if f.is_streamed for one in f.layouts]
        return sum(one.num_chunks * one.spec.num_cells * one.spec.decoded_bytes for one in layouts)

    @property
    def has_boxes(self) -> bool:
        """True if several dimensions number the samples, so that a block is the box of a chunk."""
        return self.primary is not None and isinstance(self.fields[self.primary].row_map, GridRows)

    @property
    def num_blocks(self) -> int:
        """Blocks of all samples."""
        return -(-self.num_samples // self.block_rows) if self.edges is None else len(self.edges) - 1

    @cached_property
    def cells(self) -> int:
        """Read chunks that a block of the primary field consists of; 1 if nothing is streamed."""
        primary = None if self.primary is None else self.fields[self.primary]
        if primary is None or primary.is_lookup:
            return 1
        spec = primary.layouts[0].spec
        return spec.num_cells * -(-self.block_rows // spec.rows_per_chunk)

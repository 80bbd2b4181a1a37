"""Fields: aligned arrays with a common number of samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.spec.array import ArraySpec
from zarrfeed.spec.array_parts import ArrayParts, Int64
from zarrfeed.spec.block_edges import Edges
from zarrfeed.spec.conversion import Conversion
from zarrfeed.spec.dtypes import encode_item, item_bytes
from zarrfeed.spec.images import Images
from zarrfeed.spec.layout import Layout
from zarrfeed.spec.patch import FieldPatch
from zarrfeed.spec.record import Record
from zarrfeed.spec.row_map import RowMap
from zarrfeed.spec.sparse import CsrField
from zarrfeed.spec.stack import StackSlice
from zarrfeed.spec.tensor_spec import TensorSpec
from zarrfeed.spec.window import Pad, Window
from zarrfeed.spec.window_fields import LeadField, PadMaskField, lead_to_core

#: The stored objects that make a block.
BlockKind: TypeAlias = Literal["chunk", "shard"]
BLOCK_KINDS: tuple[BlockKind, ...] = ("chunk", "shard")

#: Rows of a chunk that could not be had: (first, end, index of the chunk along the sample axis, its key, class of the
#: error, errno, message).
BadRows: TypeAlias = tuple[int, int, int, str, str, int, str]


@dataclass(frozen=True)
class StoredField:
    """A Zarr array, or arrays in several stores that are one along the sample axis.

    Attributes
    ----------
    spec
        Of the array; of several stores that of the first one, with the shape of all of them together.
    resident
        Whether it is small and is read into memory once instead of block by block.
    record
        The members of its records, which batches have in place of their bytes; None for numbers.
    spared
        Whether a `dtype` or `normalize` for all arrays leaves it as it is, since it is a coordinate.
    parts
        Which rows are in which store. None: one store has all of them.
    others
        Layouts of further stores, which have the rows that `parts` lack: they store the array in another way.
    rows
        Which row a sample has. None: the one with its index.
    stack
        Where its rows go in a tensor that it shares with other fields. None: it has a tensor for itself.
    patch
        How samples are cut out of the array; they are the rows of the field then. None: a sample is a row, or several.
    """

    name: str
    spec: ArraySpec
    resident: bool = False
    conversion: Conversion | None = None
    window: Window | None = None
    record: Record | None = None
    spared: bool = False
    parts: ArrayParts | None = None
    others: tuple[Layout, ...] = ()
    rows: RowMap | None = None
    stack: StackSlice | None = None
    patch: FieldPatch | None = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The arrays of all stores, those that store it alike together."""
        return (Layout(self.spec, self.parts, self.conversion), *self.others)

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples if self.rows is None else len(self.rows)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of the array: of what has one index on the sample axis; of patches, that of a sample."""
        return self.spec.sample_shape if self.patch is None else self.patch.shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of its rows, if it is a window."""
        return _window_shape(self.window) + self.row_shape

    def to_core(self, tensor: TensorSpec | None = None, index_cache_bytes: int | None = None) -> core.FieldSpec:
        """Return a field of one layout in the form that the engine takes."""
        (only,) = self.to_cores(tensor, index_cache_bytes)
        return only

    def to_cores(
        self, tensor: TensorSpec | None = None, index_cache_bytes: int | None = None, number: int = 0
    ) -> list[core.FieldSpec]:
        """Return the field in the form that the engine takes: one array for each layout, all of one tensor.

        Parameters
        ----------
        tensor
            How the tensor is described. None: as bytes.
        index_cache_bytes
            Memory for indices of shards. None: as much as the engine chooses.
        number
            Of the tensor in the batch.
        """
        slot = _slot(self, number)
        if slot is None and self.others:
            slot = (number, math.prod(self.row_shape) * item_bytes_of(self), 0)
        share = None if index_cache_bytes is None else index_cache_bytes // len(self.layouts)
        return [
            core.FieldSpec.stored(
                layout.spec.to_core(share, layout.parts),
                conversion=None if layout.conversion is None else layout.conversion.to_core(),
                offsets=_offsets(self.window),
                tensor=tensor,
                slot=slot,
                row_map=None if self.rows is None else self.rows.to_core(),
                pad=_pad_to_core(self),
                is_variant=layout_number > 0,
                lead=lead_to_core(self.window),
                patch=None if self.patch is None else self.patch.to_core(dtype_name(self), layout.parts),
            )
            for layout_number, layout in enumerate(self.layouts)
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
class ResidentField:
    """An array in memory, borrowed from `rows`, whose memory must outlive every engine that reads the field.

    Attributes
    ----------
    dtype
        Name of the dtype of the items, as torch and NumPy (with ml_dtypes) have it.
    row_shape
        Shape of one row of the array: of what has one index on the sample axis.
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
    def num_samples(self) -> int:
        """Length of axis 0."""
        return len(self.rows.array) if self.row_map is None else len(self.row_map)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of its rows, if it is a window."""
        return _window_shape(self.window) + self.row_shape

    def to_core(self, tensor: TensorSpec | None = None, number: int = 0) -> core.FieldSpec:
        """Return the field in the form that the engine takes; `rows` must outlive the engine."""
        return core.FieldSpec.resident(
            self.rows.address,
            row_bytes=math.prod(self.row_shape) * self.item_bytes,
            bad_rows=self.bad_rows,
            conversion=None if self.conversion is None else self.conversion.to_core(),
            offsets=_offsets(self.window),
            tensor=tensor,
            row_map=None if self.row_map is None else self.row_map.to_core(),
            pad=_pad_to_core(self),
            num_rows=len(self.rows.array),
            slot=_slot(self, number),
            lead=lead_to_core(self.window),
        )


@dataclass(frozen=True)
class IndexField:
    """The global sample index, int64, shape ()."""

    num_samples: int
    name: str = "index"

    sample_shape: tuple[int, ...] = ()

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes."""
        return core.FieldSpec.index(tensor=tensor)


@dataclass(frozen=True)
class VlenField:
    """A Zarr array of text, or of bytes of any length, in C order of the sample's axes: batches have nested lists.

    The engine gives it the global sample index, and `engine/vlen.py` looks the samples up.

    Attributes
    ----------
    images
        How bytes become images (`engine/image_reader.py`). None: they are delivered as they are.
    """

    name: str
    spec: ArraySpec
    images: Images | None = None
    parts: ArrayParts | None = None
    others: tuple[Layout, ...] = ()

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The arrays of all stores, those that store it alike together."""
        return (Layout(self.spec, self.parts), *self.others)

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Lengths of the nested lists of one sample, () if it is one item; of images of one size, of the tensor."""
        return self.spec.sample_shape + (() if self.images is None else self.images.shape)


@dataclass(frozen=True)
class ObjectField:
    """Objects as they are, one a sample: batches have lists of them. `engine/object_reader.py` reads them.

    Attributes
    ----------
    num_samples
        Objects.
    digest
        Of their keys.
    mean_bytes
        Of an object, as stored.
    """

    num_samples: int
    digest: str
    mean_bytes: int
    name: str = "objects"

    sample_shape: tuple[int, ...] = ()


#: Fields that the engine reads; it reads a vlen field as an index.
TensorField: TypeAlias = StoredField | ResidentField | IndexField | PadMaskField | LeadField
Field: TypeAlias = TensorField | VlenField | CsrField | ObjectField


def _window_shape(window: Window | None) -> tuple[int, ...]:
    return () if window is None else window.shape


def arrays_of(fields: Sequence[Field]) -> Iterator[tuple[int, Field, Layout | None]]:
    """Return the arrays that the engine reads, by their number: of each field one, or one for each of its layouts."""
    number = 0
    for f in fields:
        layouts = f.layouts if isinstance(f, StoredField) and not f.resident else (None,)
        for layout in layouts:
            yield number, f, layout
            number += 1


def _offsets(window: Window | None) -> tuple[int, ...]:
    return () if window is None else window.offsets


def stack_of(field: Field) -> StackSlice | None:
    """Return where rows of a field go in a tensor that it shares; None if it has one for itself."""
    return field.stack if isinstance(field, StoredField | ResidentField) else None


def _slot(field: Field, number: int) -> tuple[int, int, int] | None:
    stack = stack_of(field)
    return None if stack is None else (number, stack.row_bytes, stack.offset)


def pad_of(field: Field) -> Pad | None:
    """Return what takes the place of rows that samples of a field lack."""
    window = window_of(field)
    return None if window is None else window.pad


def check_pad(field: Field) -> None:
    """Raise ConfigError if the dtype of a field cannot hold the value that its windows, or patches, are padded with."""
    pad = pad_of(field)
    value = None if pad is None or pad.mode != "fill" else pad.value
    if isinstance(field, StoredField) and field.patch is not None:
        value = field.patch.fill
    if isinstance(field, StoredField | ResidentField) and value is not None:
        try:
            encode_item(dtype_name(field), value)
        except (ValueError, OverflowError, TypeError) as error:
            raise ConfigError(
                f"pad of {field.name} = {value}: batches have {dtype_name(field)}, which cannot hold it; pad with "
                "'edge' or another value, or convert the array with Data.cast"
            ) from error


def _pad_to_core(field: StoredField | ResidentField) -> tuple[str, bytes, Int64 | None] | None:
    """Return what takes the place of rows in the form that the engine takes; rows that a row map lacks become NaN."""
    pad, rows = pad_of(field), field.rows if isinstance(field, StoredField) else field.row_map
    lacks_some = rows is not None and rows.lacks_some
    if pad is None and not lacks_some:
        return None
    # Integers have no NaN: samples whose rows they lack are left out, so that nobody sees the 0.
    nothing = np.nan if "float" in dtype_name(field) else 0
    value = nothing if pad is None or pad.value is None else pad.value
    is_filled = lacks_some or (pad is not None and pad.mode == "fill")
    item = encode_item(dtype_name(field), value) if is_filled else b""
    borders = None if pad is None or pad.borders is None else pad.borders.first
    return "fill" if pad is None else pad.mode, item, borders


def dtype_name(field: Field) -> str:
    """Return what batches have of a field: the name of the dtype (of records that of their bytes), "str" or "bytes"."""
    if isinstance(field, VlenField):
        return field.spec.item_type if field.images is None else field.images.dtype
    if isinstance(field, CsrField):
        return field.data.dtype
    if isinstance(field, ObjectField):
        return f"keys {field.digest}"
    if isinstance(field, IndexField | LeadField):
        return "int64"
    if isinstance(field, PadMaskField):
        return "bool"
    if field.conversion is not None:
        return field.conversion.result
    return field.spec.dtype.name if isinstance(field, StoredField) else field.dtype


def sample_bytes(field: Field) -> int:
    """Return the bytes of one sample in a batch of the engine, where a vlen field has the index alone, or of images."""
    if isinstance(field, VlenField):
        index = item_bytes("int64")
        if field.images is None:
            return index
        return index + math.prod(field.spec.sample_shape) * field.images.image_bytes
    if isinstance(field, CsrField):
        return item_bytes("int64") + field.row_bytes
    if isinstance(field, ObjectField):
        return field.mean_bytes
    return math.prod(field.sample_shape) * item_bytes_of(field)


def item_bytes_of(field: TensorField) -> int:
    """Return the bytes of one item of a field in a batch."""
    if isinstance(field, ResidentField) and field.conversion is None:
        return field.item_bytes  # torch has dtypes that no stored item has
    return item_bytes(dtype_name(field))


def window_of(field: Field) -> Window | None:
    """Return the rows that samples of a field consist of; None for their own row."""
    return field.window if isinstance(field, StoredField | ResidentField | PadMaskField) else None


def record_of(field: Field) -> Record | None:
    """Return the members that batches have in place of the bytes of a record; None for all else."""
    return field.record if isinstance(field, StoredField | ResidentField) else None


def described_dtype(field: Field) -> str:
    """Return what batches have of a field: its `dtype_name`, or of records the members with theirs."""
    if isinstance(field, CsrField) and not field.dense:
        return f"sparse_csr of {dtype_name(field)}"
    record = record_of(field)
    return dtype_name(field) if record is None else str(record)


def shape_of(field: Field) -> tuple[int, ...]:
    """Return the shape of one sample for people: of records, without the axis over their bytes."""
    return field.sample_shape if record_of(field) is None else field.sample_shape[:-1]


def with_path(field: Field) -> str:
    """Return what messages call a field: its name, and the path of its array."""
    if isinstance(field, CsrField):
        return f"{field.name} ({field.path})"
    return f"{field.name} ({field.spec.name})" if isinstance(field, StoredField | VlenField) else field.name


def resident_bytes(field: StoredField) -> int:
    """Return what a field takes if it is kept in memory, in bytes."""
    return field.num_samples * math.prod(field.row_shape) * item_bytes_of(field)


def has_patches(field: Field) -> bool:
    """Return whether samples of a field are boxes of its array."""
    return isinstance(field, StoredField) and field.patch is not None


@dataclass(frozen=True)
class FieldSet:
    """All fields of a dataset.

    Attributes
    ----------
    fields
        In the order of the tensors of a batch; all with the same number of samples.
    sides
        The sides of a batch (samples, targets, index): for each the keys of its dict, or None for a bare tensor.
    primary
        Which field's chunks make the blocks; None if nothing is streamed.
    block_rows
        Samples of a block, at most the number of samples.
    block
        What a block is made of: a read chunk along the sample axis, or a shard.
    edges
        The first sample of each block, and the number of samples at the end: ascending, shape (blocks + 1,). None:
        every block but the last one has `block_rows` samples.
    """

    fields: tuple[Field, ...]
    sides: tuple[tuple[str, ...] | None, ...]
    primary: int | None
    block_rows: int
    block: BlockKind = "chunk"
    edges: Edges | None = dataclasses.field(default=None, compare=False)

    @property
    def num_samples(self) -> int:
        """Of every field."""
        return self.fields[0].num_samples

    @property
    def are_objects(self) -> bool:
        """Whether samples are objects as they are, and no rows of arrays."""
        return isinstance(self.fields[0], ObjectField)

    @property
    def windows(self) -> list[Window | None]:
        """Of every field; None where a sample is one row, its own."""
        return [window_of(f) for f in self.fields]

    @property
    def num_blocks(self) -> int:
        """Blocks of all samples."""
        return -(-self.num_samples // self.block_rows) if self.edges is None else len(self.edges) - 1

    @property
    def cells(self) -> int:
        """Read chunks that a block of the primary field consists of; 1 if nothing is streamed."""
        primary = None if self.primary is None else self.fields[self.primary]
        if not isinstance(primary, StoredField):
            return 1
        return primary.spec.num_cells * -(-self.block_rows // primary.spec.rows_per_chunk)

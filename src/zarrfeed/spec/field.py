"""Fields: aligned arrays with a common number of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.spec.array import ArraySpec
from zarrfeed.spec.conversion import Conversion
from zarrfeed.spec.dtypes import item_bytes
from zarrfeed.spec.record import Record
from zarrfeed.spec.window import Window

#: What the unit of shuffling is made of.
BlockUnit: TypeAlias = Literal["chunk", "shard"]
BLOCK_UNITS: tuple[BlockUnit, ...] = ("chunk", "shard")

#: A field of a batch as DLPack describes it: code of the dtype, bits of an item, shape of a sample.
TensorSpec: TypeAlias = tuple[int, int, tuple[int, ...]]
#: Rows of a chunk that could not be had: (first, end, index of the chunk along the sample axis, its key, class of the
#: error, errno, message).
BadRows: TypeAlias = tuple[int, int, int, str, str, int, str]


@dataclass(frozen=True)
class StoredField:
    """A Zarr array.

    Attributes
    ----------
    resident
        Whether it is small and is read into memory once instead of block by block.
    record
        The members of its records, which batches have in place of their bytes; None for numbers.
    spared
        Whether a `dtype` or `normalize` for all arrays leaves it as it is, since it is a coordinate.
    """

    name: str
    spec: ArraySpec
    resident: bool = False
    conversion: Conversion | None = None
    window: Window | None = None
    record: Record | None = None
    spared: bool = False

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of the array: of what has one index on the sample axis."""
        return self.spec.sample_shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of its rows, if it is a window."""
        return _window_shape(self.window) + self.row_shape

    def to_core(self, tensor: TensorSpec | None = None, index_cache_bytes: int | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes: described as a tensor, with memory for shard indices."""
        return core.FieldSpec.stored(
            self.spec.to_core(index_cache_bytes),
            conversion=None if self.conversion is None else self.conversion.to_core(),
            offsets=_offsets(self.window),
            tensor=tensor,
        )


class HostRows:
    """Rows of an array in host memory. The engine reads them at their address, so nothing may move or resize them.

    Parameters
    ----------
    array
        The bytes: uint8 of shape (rows, bytes of a row), contiguous.
    owner
        The object that the memory belongs to, such as a tensor of the user's. None: `array`.
    """

    def __init__(self, array: npt.NDArray[np.uint8], owner: object = None) -> None:
        self.array = array
        self.owner = owner

    def __getstate__(self) -> Any:
        return {"array": self.array, "owner": None}  # of which the array is a view: it would be sent twice

    def __deepcopy__(self, memo: dict[int, Any]) -> HostRows:
        return self  # rows are never written

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

    @property
    def num_samples(self) -> int:
        """Length of axis 0."""
        return len(self.rows.array)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of its rows, if it is a window."""
        return _window_shape(self.window) + self.row_shape

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes; `rows` must outlive the engine."""
        return core.FieldSpec.resident(
            self.rows.address,
            row_bytes=math.prod(self.row_shape) * self.item_bytes,
            bad_rows=self.bad_rows,
            conversion=None if self.conversion is None else self.conversion.to_core(),
            offsets=_offsets(self.window),
            tensor=tensor,
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
    """

    name: str
    spec: ArraySpec

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Lengths of the nested lists of one sample; () if a sample is a single str or bytes."""
        return self.spec.sample_shape


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


#: What the engine reads; a list is an index to it.
TensorField: TypeAlias = StoredField | ResidentField | IndexField
Field: TypeAlias = TensorField | VlenField | ObjectField


def _window_shape(window: Window | None) -> tuple[int, ...]:
    return () if window is None else window.shape


def _offsets(window: Window | None) -> tuple[int, ...]:
    return () if window is None else window.offsets


def dtype_name(field: Field) -> str:
    """Return what batches have of a field: the name of the dtype (of records that of their bytes), "str" or "bytes"."""
    if isinstance(field, VlenField):
        return field.spec.item_type
    if isinstance(field, ObjectField):
        return f"keys {field.digest}"
    if isinstance(field, IndexField):
        return "int64"
    if field.conversion is not None:
        return field.conversion.result
    return field.spec.dtype.name if isinstance(field, StoredField) else field.dtype


def sample_bytes(field: Field) -> int:
    """Return the bytes of one sample in a batch of the engine, which of a list has the index alone."""
    if isinstance(field, VlenField):
        return item_bytes("int64")
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
    return field.window if isinstance(field, StoredField | ResidentField) else None


def record_of(field: Field) -> Record | None:
    """Return the members that batches have in place of the bytes of a record; None for all else."""
    return field.record if isinstance(field, StoredField | ResidentField) else None


def described_dtype(field: Field) -> str:
    """Return what batches have of a field: its `dtype_name`, or of records the members with theirs."""
    record = record_of(field)
    return dtype_name(field) if record is None else str(record)


def shape_of(field: Field) -> tuple[int, ...]:
    """Return the shape of one sample for people: of records, without the axis over their bytes."""
    return field.sample_shape if record_of(field) is None else field.sample_shape[:-1]


def with_path(field: Field) -> str:
    """Return what messages call a field: its name, and the path of its array."""
    return f"{field.name} ({field.spec.name})" if isinstance(field, StoredField | VlenField) else field.name


def resident_bytes(field: StoredField) -> int:
    """Return what a field takes if it is kept in memory, in bytes."""
    return field.num_samples * math.prod(field.row_shape) * item_bytes_of(field)


@dataclass(frozen=True)
class FieldSet:
    """All fields of a dataset.

    Attributes
    ----------
    fields
        In the order of the tensors of a batch; all with the same number of samples.
    parts
        The parts of a batch (samples, targets, index): for each the keys of its dict, or None for a bare tensor.
    primary
        Which field's chunks make the blocks; None if nothing is streamed.
    block_rows
        Samples of a block, at most the number of samples.
    block
        What a block is made of: a read chunk along the sample axis, or a shard.
    """

    fields: tuple[Field, ...]
    parts: tuple[tuple[str, ...] | None, ...]
    primary: int | None
    block_rows: int
    block: BlockUnit = "chunk"

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
    def cells(self) -> int:
        """Read chunks that a block of the primary field consists of; 1 if nothing is streamed."""
        primary = None if self.primary is None else self.fields[self.primary]
        if not isinstance(primary, StoredField):
            return 1
        return primary.spec.num_cells * -(-self.block_rows // primary.spec.rows_per_chunk)

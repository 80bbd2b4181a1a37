"""Fields: aligned arrays with a common number of samples, and how a batch is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zarrfeed.base.optional_torch import is_tensor
from zarrfeed.metadata.array import ArraySpec
from zarrfeed.metadata.conversion import Conversion
from zarrfeed.metadata.dtypes import item_bytes
from zarrfeed.plan.selection import Selection
from zarrfeed.plan.windows import Window
from zarrfeed.spec.record import Record

if TYPE_CHECKING:
    import torch

#: What the unit of shuffling is made of.
BlockUnit: TypeAlias = Literal["chunk", "shard"]
BLOCK_UNITS: tuple[BlockUnit, ...] = ("chunk", "shard")

#: A tensor, a dict of tensors, or a tuple of these, with lists in place of tensors where a field is a `ListField`:
#: which one depends on the arguments, so that type checkers cannot know.
Batch: TypeAlias = Any
#: Rows of a chunk that could not be had: (first, end, index of the chunk along the sample axis, its key, class of the
#: error, errno, message).
BadRows: TypeAlias = tuple[int, int, int, str, str, int, str]
#: What a batch has of one field.
Values: TypeAlias = "torch.Tensor | list[Any]"


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

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return self.spec.torch_dtype if self.conversion is None else self.conversion.torch_dtype

    def to_core(self) -> dict[str, Any]:
        """Return the field in the form that the engine takes."""
        return self.spec.to_core() | _options_to_core(self)


@dataclass(frozen=True)
class ResidentField:
    """Rows that lie in memory: shape (num_samples, *row_shape), contiguous, borrowed from `rows`.

    Engines read at the address of `rows`, so nothing may move them. Sending a tensor to another process moves its
    memory to where processes share it; hence a copy is pickled, one for all the processes that it is sent to.

    `bad_rows` could not be loaded; they hold anything.
    """

    name: str
    rows: torch.Tensor
    conversion: Conversion | None = None
    window: Window | None = None
    bad_rows: tuple[BadRows, ...] = ()
    record: Record | None = None
    _sent: list[torch.Tensor] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        if not self._sent:
            shared = self.rows.is_shared()  # type: ignore[no-untyped-call]
            self._sent.append(self.rows if shared else self.rows.clone())
        return self.__dict__ | {"rows": self._sent[0], "_sent": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> ResidentField:
        return self  # rows are never written

    @property
    def num_samples(self) -> int:
        """Length of axis 0."""
        return self.rows.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.rows.shape[1:])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of its rows, if it is a window."""
        return _window_shape(self.window) + self.row_shape

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return self.rows.dtype if self.conversion is None else self.conversion.torch_dtype

    def to_core(self) -> dict[str, Any]:
        """Return the field in the form that the engine takes; `rows` must outlive the engine."""
        row_bytes = math.prod(self.row_shape) * self.rows.dtype.itemsize
        core: dict[str, Any] = {"kind": "resident", "address": self.rows.data_ptr(), "sample_bytes": row_bytes}
        if self.bad_rows:
            core["bad_rows"] = list(self.bad_rows)
        return core | _options_to_core(self)


@dataclass(frozen=True)
class IndexField:
    """The global sample index, int64, shape ()."""

    num_samples: int
    name: str = "index"

    sample_shape: tuple[int, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        from zarrfeed.torch.dtypes import TORCH_DTYPES

        return TORCH_DTYPES["int64"]


@dataclass(frozen=True)
class ListField:
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


#: What the engine reads; a list is an index to it.
TensorField: TypeAlias = StoredField | ResidentField | IndexField
Field: TypeAlias = TensorField | ListField


def _window_shape(window: Window | None) -> tuple[int, ...]:
    return () if window is None else window.shape


def _options_to_core(field: StoredField | ResidentField) -> dict[str, Any]:
    core: dict[str, Any] = {}
    if field.conversion is not None:
        core["conversion"] = field.conversion.to_core()
    if field.window is not None:
        core["offsets"] = list(field.window.offsets)
    return core


def dtype_name(field: Field) -> str:
    """Return what is read of a field: the name of torch's dtype (of records that of their bytes), "str" or "bytes"."""
    if isinstance(field, ListField):
        return field.spec.item_type
    if isinstance(field, IndexField):
        return "int64"
    if field.conversion is not None:
        return field.conversion.result
    return field.spec.dtype.name if isinstance(field, StoredField) else str(field.rows.dtype).removeprefix("torch.")


def sample_bytes(field: Field) -> int:
    """Return the bytes of one sample in a batch of the engine, which of a list has the index alone."""
    if isinstance(field, ListField):
        return item_bytes("int64")
    return math.prod(field.sample_shape) * _item_bytes(field)


def _item_bytes(field: TensorField) -> int:
    if isinstance(field, ResidentField) and field.conversion is None:
        return field.rows.dtype.itemsize  # torch has dtypes that no stored item has
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
    return f"{field.name} ({field.spec.name})" if isinstance(field, StoredField | ListField) else field.name


def resident_bytes(field: StoredField) -> int:
    """Return what a field takes if it is kept in memory, in bytes."""
    return field.num_samples * math.prod(field.row_shape) * _item_bytes(field)


def _rows(values: Values | dict[str, torch.Tensor]) -> Iterable[Any]:
    """Return what samples have of a field: views of its tensors, items of its lists."""
    if isinstance(values, list):
        return values
    if not isinstance(values, dict):
        return values.unbind(0)
    return (dict(zip(values, rows, strict=True)) for rows in zip(*map(_rows, values.values()), strict=True))


@dataclass(frozen=True)
class FieldSet:
    """All fields of a dataset.

    Attributes
    ----------
    fields
        In the order of the tensors of a batch; all with the same number of samples.
    parts
        The parts of a batch (samples, targets, index): for each the keys of its dict, or None for a bare tensor.
    driving
        Which field's chunks make the blocks; None if nothing is streamed.
    block_rows
        Samples of a block, at most the number of samples.
    block
        What a block is made of: a read chunk along the sample axis, or a shard.
    """

    fields: tuple[Field, ...]
    parts: tuple[tuple[str, ...] | None, ...]
    driving: int | None
    block_rows: int
    block: BlockUnit = "chunk"

    @property
    def num_samples(self) -> int:
        """Of every field."""
        return self.fields[0].num_samples

    @property
    def windows(self) -> list[Window | None]:
        """Of every field; None where a sample is one row, its own."""
        return [window_of(f) for f in self.fields]

    @property
    def cells(self) -> int:
        """Read chunks that a block of the driving field consists of; 1 if nothing is streamed."""
        driving = None if self.driving is None else self.fields[self.driving]
        if not isinstance(driving, StoredField):
            return 1
        return driving.spec.num_cells * -(-self.block_rows // driving.spec.rows_per_chunk)

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the same with the members of records in place of their bytes, where this was not done before."""
        values: list[Any] = list(tensors)
        for number, f in enumerate(self.fields):
            record, raw = record_of(f), values[number]
            if record is not None and is_tensor(raw):
                values[number] = record.unpack(raw)
        return values

    @property
    def _has_dicts(self) -> bool:
        return any(keys is not None for keys in self.parts) or any(record_of(f) is not None for f in self.fields)

    def assemble(self, tensors: Sequence[Any]) -> Batch:
        """Return a batch, or a sample, as the user gets it, from one tensor (or list) a field."""
        values = iter(self.unpack(tensors))
        parts = tuple(next(values) if keys is None else {key: next(values) for key in keys} for keys in self.parts)
        return parts if len(parts) > 1 else parts[0]

    def assembler(self) -> Callable[[Sequence[Values]], Batch]:
        """Return a function that does the same, and not more than these fields need."""
        if self._has_dicts:
            return self.assemble
        return tuple if len(self.parts) > 1 else itemgetter(0)

    def samples_of(self, tensors: Sequence[Values]) -> Iterator[Batch]:
        """Yield the samples of a batch one by one: views of its tensors, items of its lists."""
        rows = map(_rows, self.unpack(tensors))
        if not self._has_dicts:
            return iter(zip(*rows, strict=True)) if len(tensors) > 1 else iter(next(rows))
        return map(self.assemble, zip(*rows, strict=True))

    def describe(self, selection: Selection | None = None) -> str:
        """Return one line that says which samples these are, how many are selected, and which were left out."""
        names = self.parts[0]
        first = self.fields[0]
        where = f"{first.spec.name}: " if isinstance(first, StoredField | ListField) and names is None else ""
        kinds = [f"{shape_of(f)} {described_dtype(f)}" for f in self.fields]
        if names is not None:
            kinds[0] = "{" + ", ".join(f"{name!r}: {kind}" for name, kind in zip(names, kinds, strict=False)) + "}"
        selected = "" if selection is None else f"{selection.length} of "
        left_out = "" if selection is None else "".join(f" ({reason})" for reason in selection.left_out)
        return f"{where}{selected}{self.num_samples} samples of {kinds[0]}{left_out}"

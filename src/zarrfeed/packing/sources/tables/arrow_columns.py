"""Columns of Arrow's tables as fields: the types that become numbers, bytes or text, and their rows as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.items import Item, names_attributes, time_attributes
from zarrfeed.packing.sources.source import Rows, library

_INT64, _OBJECT = np.dtype(np.int64), np.dtype(object)


@dataclass(frozen=True)
class Column:
    """A column that is a field, or a member of a column of structs that is one.

    Attributes
    ----------
    name
        Name of the field.
    path
        The name of the column, and those of members down to this one.
    type
        Type of the items, as pyarrow has it, without the dictionary.
    item
        The form that items take in the packed store.
    lengths
        Lengths of the lists of a row, the outer first; None: the first row tells it.
    tensor
        The shape of a tensor sample as it is stored; its items are one list.
    order
        The axes of a tensor in their order, if it is stored in another one.
    dims
        Names of the axes of a sample, in their order.
    names
        The texts of a column with a dictionary, and their codes: name -> code. None: the column has no dictionary.
    """

    name: str
    path: tuple[str, ...]
    type: Any
    item: Item
    lengths: tuple[int | None, ...] = ()
    tensor: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    dims: tuple[str | None, ...] | None = None
    names: Mapping[str, int] | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a sample as it is stored; lengths are known."""
        return self.tensor if self.tensor is not None else tuple(length or 0 for length in self.lengths)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of a sample; lengths are known."""
        stored = self.stored_shape
        return stored if self.order is None else tuple(stored[axis] for axis in self.order)

    def with_names(self, names: list[str]) -> Column:
        """Return the column as one of codes, which stand for names."""
        item = Item(
            np.min_scalar_type(-max(1, len(names))), "number", {**self.item.attributes, **names_attributes(names)}
        )
        return replace(self, names={name: code for code, name in enumerate(names)}, item=item)

    def with_lengths(self, table: Any, where: str) -> Column:
        """Return the column with the lengths of its lists, as the first row of a table has them."""
        array, lengths = member_of(table.column(self.path[0]).slice(0, 1).chunk(0), self.path[1:], where), []
        for length in self.lengths:
            array = _storage(array)
            _check_nulls(array, where)
            lengths.append((_list_lengths(array)[0] if len(array) else 0) if length is None else length)
            array = array.flatten()
        return replace(self, lengths=tuple(int(length) for length in lengths))

    def rows(self, table: Any, where: str, first: int = 0) -> Rows:
        """Return the rows of a table: those of a file from the row `first` on.

        Raises
        ------
        ConfigError
            If there is none for some row, or a list is longer than the others; begins with `where` and the row.
        """
        made = []
        for chunk in table.column(self.path[0]).chunks:
            made.append(self._rows(member_of(chunk, self.path[1:], where, first), where, first))
            first += len(chunk)
        if not made:
            return np.empty((0, *self.sample_shape), self.item.dtype)
        return made[0] if len(made) == 1 else np.concatenate(made)

    def _rows(self, array: Any, where: str, first: int) -> Rows:
        arrow, count, each = library("pyarrow", "arrow"), len(array), 1
        for length in self.lengths:
            array = _storage(array)
            _check_nulls(array, where, first, each)
            if not arrow.types.is_fixed_size_list(array.type):
                lengths = _list_lengths(array)
                wrong = np.flatnonzero(lengths != length)
                if len(wrong):
                    raise ConfigError(
                        f"{where}, row {first + int(wrong[0]) // each}: {self.name!r} has a list of "
                        f"{lengths[wrong[0]]} items, the first row one of {length}, and samples have one shape: pad "
                        "the lists to one length, or leave the column out with `variables`"
                    )
            array, each = array.flatten(), each * (length or 0)
        rows = self._items(_storage(array), where, first, max(1, each)).reshape(count, *self.stored_shape)
        return rows if self.order is None else rows.transpose(0, *(axis + 1 for axis in self.order))

    def _items(self, array: Any, where: str, first: int, each: int) -> Rows:
        """Return the items of an array without lists."""
        arrow = library("pyarrow", "arrow")
        if not arrow.types.is_floating(self.type):
            _check_nulls(array, where, first, each)
        if self.names is not None:
            codes, inverse = np.unique(array.indices.to_numpy(zero_copy_only=False), return_inverse=True)
            found = [self.names[name] for name in array.dictionary.take(arrow.array(codes)).to_pylist()]
            return np.array(found, self.item.dtype)[inverse.reshape(-1)]
        if arrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if self.item.kind != "number":
            return np.asarray(array.to_numpy(zero_copy_only=False), object)
        if arrow.types.is_temporal(self.type):
            array = array.view(arrow.int32() if self.type.bit_width == 32 else arrow.int64())
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(self.item.dtype, copy=False)


def columns_of(path: tuple[str, ...], dtype: Any, attributes: Mapping[str, Any], where: str) -> Iterator[Column]:
    """Yield the fields that a column of a type makes: one, or one for each member of structs.

    A struct of `bytes` and `path`, as Hugging Face's datasets keep images and sounds, is its bytes.

    Raises
    ------
    ConfigError
        If the type has no place in Zarr; the message begins with `where`.
    """
    arrow = library("pyarrow", "arrow")
    dtype = _storage_type(arrow, dtype)
    if not arrow.types.is_struct(dtype):
        yield _leaf(arrow, path, dtype, attributes, where)
        return
    members = {dtype.field(number).name: dtype.field(number).type for number in range(dtype.num_fields)}
    if set(members) == {"bytes", "path"}:
        yield replace(_leaf(arrow, (*path, "bytes"), members["bytes"], attributes, where), name=_name(path))
        return
    for name, member in members.items():
        yield from columns_of((*path, name), member, {}, where)


def _leaf(arrow: Any, path: tuple[str, ...], dtype: Any, attributes: Mapping[str, Any], where: str) -> Column:
    lengths: list[int | None] = []
    tensor = order = dims = None
    if isinstance(dtype, arrow.FixedShapeTensorType):
        tensor = tuple(dtype.shape)
        lengths = [math.prod(tensor)]
        order = None if dtype.permutation is None else tuple(dtype.permutation)
        if order and any(order[axis] != number for number, axis in enumerate(order)):
            # pyarrow writes it as the inverse of what Arrow's specification says, so that its meaning is not known
            raise ConfigError(f"{where}: tensors of {'.'.join(path)!r} have the order {order}: store them in C order")
        dims = None if dtype.dim_names is None else tuple(dtype.dim_names[axis] for axis in order or range(len(tensor)))
        dtype = dtype.value_type
    while arrow.types.is_fixed_size_list(dtype) or arrow.types.is_list(dtype) or arrow.types.is_large_list(dtype):
        lengths.append(dtype.list_size if arrow.types.is_fixed_size_list(dtype) else None)
        dtype = _storage_type(arrow, dtype.value_type)
    dtype = dtype.value_type if arrow.types.is_dictionary(dtype) else dtype
    what = f"{where}: {'.'.join(path)!r}"
    item = _item(arrow, dtype, what)
    if item.kind != "number" and lengths:
        raise ConfigError(f"{what} has lists of {dtype}, must be one a row: leave it out with `variables`")
    return Column(
        _name(path),
        path,
        dtype,
        Item(item.dtype, item.kind, {**item.attributes, **attributes}),
        tuple(lengths),
        tensor,
        order,
        dims,
    )


def _item(arrow: Any, dtype: Any, what: str) -> Item:
    types = arrow.types
    if types.is_boolean(dtype) or types.is_integer(dtype) or types.is_floating(dtype):
        return Item(np.dtype(dtype.to_pandas_dtype()))
    if types.is_date(dtype):
        return Item(_INT64, "number", time_attributes("D" if types.is_date32(dtype) else "ms", since=True))
    if types.is_timestamp(dtype):
        zone = {} if dtype.tz is None else {"timezone": dtype.tz}  # the numbers are those of UTC
        return Item(_INT64, "number", {**time_attributes(dtype.unit, since=True), **zone})
    if types.is_duration(dtype) or types.is_time(dtype):
        return Item(_INT64, "number", time_attributes(dtype.unit, since=False))
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return Item(_OBJECT, "text")
    if types.is_binary(dtype) or types.is_large_binary(dtype) or types.is_binary_view(dtype):
        return Item(_OBJECT, "bytes")
    if types.is_fixed_size_binary(dtype):
        return Item(_OBJECT, "bytes")
    raise ConfigError(
        f"{what} has the type {dtype}, which has no place in Zarr: cast it to numbers, text or lists of one length, or "
        "leave it out with `variables`"
    )


def member_of(array: Any, names: Sequence[str], where: str, first: int = 0) -> Any:
    """Return the member of nested arrays of structs that `names` name."""
    for name in names:
        array = _storage(array)
        _check_nulls(array, where, first)
        array = array.field(name)
    return array


def _name(path: Sequence[str]) -> str:
    """Return the name of a field; two underscores at its begin would be Zarr's own."""
    name = ".".join(path)
    return name.strip("_") if name.startswith("__") else name


def _storage_type(arrow: Any, dtype: Any) -> Any:
    return dtype if isinstance(dtype, arrow.FixedShapeTensorType) else getattr(dtype, "storage_type", dtype)


def _storage(array: Any) -> Any:
    """Return the array below that of an extension type."""
    return getattr(array, "storage", array)


def _list_lengths(array: Any) -> Rows:
    lengths: Rows = library("pyarrow.compute", "arrow", "pyarrow").list_value_length(array).to_numpy()
    return lengths


def _check_nulls(array: Any, where: str, first: int = 0, each: int = 1) -> None:
    """Raise ConfigError if an array has a null; a row has `each` items of it."""
    if array.null_count:
        row = first + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]) // each
        raise ConfigError(
            f"{where}, row {row}: has no value (null), for which only floats have one (NaN): fill it in, or leave "
            "the column or the row out"
        )

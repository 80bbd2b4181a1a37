"""One logical column of AnnData, in whatever encoding: the one place that knows the encodings, for `open` and `pack`.

A column of a table, its index, and the categories of another column may each be a plain array, a categorical (codes and
categories), or nullable numbers, booleans or text (values and mask). Nodes are those of zarr-python or of h5py.

Source: AnnData's on-disk format (`encoding-type`), https://anndata.readthedocs.io/en/latest/fileformat-prose.html.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError

#: Encodings of a group with values, and a mask that is true where there is none.
NULLABLE = ("nullable-integer", "nullable-boolean", "nullable-string-array")
CATEGORICAL = "categorical"
#: Encoding -> the arrays with an item for each row, by their names in the group.
_PARTS = {CATEGORICAL: ("codes",), **dict.fromkeys(NULLABLE, ("values", "mask"))}
#: The text of an item without a value.
_NO_TEXT = "nan"

#: Reads all items of an array, text as `str` in an array of objects.
Reader = Callable[[Any, str], npt.NDArray[Any]]


@dataclass(frozen=True)
class ObsColumn:
    """A column by its arrays.

    Attributes
    ----------
    path
        The column's path, in messages.
    encoding
        Its `encoding-type`; "array" for any array.
    parts
        The arrays with an item for each row, by their names below the column; "" is the column itself.
    categories
        The column of the categories, of a categorical one.
    """

    path: str
    encoding: str
    parts: dict[str, Any] = field(default_factory=dict)
    categories: ObsColumn | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The arrays by the ends of their names in a batch: the mask has a name of its own, the others the column's."""
        return {"/mask" if name == "mask" else "": array for name, array in self.parts.items()}

    def read(self, read: Reader) -> npt.NDArray[Any]:
        """Return the items, shape (rows,): text for text, and `nan` where an item of text has no value.

        Raises
        ------
        ConfigError
            If a code is of no category, or a number has no value.
        """
        if self.categories is not None:
            names = self.categories.read_distinct(read, read)
            codes = read(self.parts["codes"], f"{self.path}/codes").astype(np.int64)
            if len(codes) and not -1 <= codes.min() <= codes.max() < len(names):
                raise ConfigError(f"{self.path}/codes: has a code that is not in [-1, {len(names)})")
            return np.array([*names.tolist(), _NO_TEXT], object)[codes]
        if self.encoding not in NULLABLE:
            return read(self.parts[""], self.path)
        values, mask = (read(self.parts[name], f"{self.path}/{name}") for name in ("values", "mask"))
        if not mask.any():
            return values
        if values.dtype != object:
            raise ConfigError(f"{self.path}: item {int(np.argmax(mask))} has no value (mask), and must have one")
        return np.where(mask.astype(bool), _NO_TEXT, values)

    def read_distinct(self, read: Reader, read_names: Reader) -> npt.NDArray[Any]:
        """Return the items of a column that has a value everywhere, and none twice, such as categories.

        Parameters
        ----------
        read, read_names
            Read the mask, and the items.

        Raises
        ------
        ConfigError
            If an item has no value.
        """
        if self.encoding not in NULLABLE:
            return read_names(self.parts[""], self.path)
        mask = read(self.parts["mask"], f"{self.path}/mask")
        if mask.any():
            raise ConfigError(f"{self.path}: category {int(np.argmax(mask))} has no value (mask)")
        return read_names(self.parts["values"], f"{self.path}/values")


def encoding_in(node: Any) -> str:
    """Return the `encoding-type` of a node of zarr-python or h5py; "array" for an array, "" for a group without one."""
    kind = node.attrs.get("encoding-type")
    kind = kind.decode("utf-8", "replace") if isinstance(kind, bytes) else kind
    if not is_group(node):
        return "array"
    return kind if isinstance(kind, str) else ""


def is_group(node: Any) -> bool:
    """Return whether a node of zarr-python or h5py has members."""
    return hasattr(node, "keys")


def column_at(node: Any, path: str, member: Callable[[Any, str], Any] | None = None) -> ObsColumn | None:
    """Return a column; None if a node is none, such as a matrix or a table.

    Parameters
    ----------
    node
        An array or a group of zarr-python or h5py.
    path
        The column's path, in messages.
    member
        Returns the member of a group by its name, or None. None: by subscription.

    Raises
    ------
    ConfigError
        If it lacks an array that its encoding has, or an array does not have one axis and as many items as the others.
    """
    encoding = encoding_in(node)
    if encoding == "array":
        return ObsColumn(path, encoding, {"": node})
    if encoding not in _PARTS:
        return None
    member = member or _member
    parts = {}
    for name in _PARTS[encoding]:
        parts[name] = member(node, name)
        if parts[name] is None or is_group(parts[name]):
            raise _lacking(path, encoding, name)
        if parts[name].shape is None or len(parts[name].shape) != 1:
            raise ConfigError(f"{path}/{name}: has the shape {parts[name].shape}, must have one axis, as columns have")
    lengths = {name: int(part.shape[0]) for name, part in parts.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"{path}: has as many items as {lengths}, must have as many in each")
    if encoding != CATEGORICAL:
        return ObsColumn(path, encoding, parts)
    if np.dtype(parts["codes"].dtype).kind not in "iu":
        raise ConfigError(f"{path}/codes: has the dtype {parts['codes'].dtype}, must have integers")
    names = member(node, "categories")
    categories = None if names is None else column_at(names, f"{path}/categories", member)
    if categories is None or categories.encoding == CATEGORICAL or _axes_of(categories) != 1:
        raise _lacking(path, encoding, "categories")
    return ObsColumn(path, encoding, parts, categories)


def _axes_of(column: ObsColumn) -> int:
    shape = next(iter(column.parts.values())).shape
    return -1 if shape is None else len(shape)


def _member(group: Any, name: str) -> Any:
    return group.get(name)


def _lacking(path: str, encoding: str, name: str) -> ConfigError:
    return ConfigError(f"{path}: is a {encoding} of AnnData (encoding-type) without the array {name!r}")

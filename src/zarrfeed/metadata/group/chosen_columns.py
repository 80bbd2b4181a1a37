"""The columns that `Data.decode` and `Data.dense` are for: arrays of bytes of any length, and sparse matrices."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import by_field
from zarrfeed.metadata.group.batch_columns import Column

#: The forms to which bytes can be decoded.
DECODED: tuple[str, ...] = ("image",)


def encoded_columns(field: str | Sequence[str] | None, columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a name, or several, stand for; None stands for all arrays of bytes.

    Raises
    ------
    ConfigError
        If a name is of no array, an array has no bytes, or there is no array of bytes.
    """
    encoded = [one for one in columns if one.field.item_type == "bytes"]
    if field is None and not encoded:
        described = ", ".join(f"{one.field.name} of {one.field.dtype_name}" for one in columns)
        raise ConfigError(f"decode: no array has bytes of any length (variable_length_bytes); there are {described}")
    chosen = encoded if field is None else _named(field, columns)
    for one in chosen:
        if one not in encoded:
            name, items = one.field.name, one.field.dtype_name
            raise ConfigError(f"decode of {name}: it has items of {items}, must be bytes of any length")
    return chosen


def sparse_columns(field: str | Sequence[str] | None, columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a name, or several, stand for; None stands for all sparse matrices.

    Raises
    ------
    ConfigError
        If a name is of no sparse matrix, or there is none.
    """
    sparse = [one for one in columns if one.field.is_sparse]
    if field is None and not sparse:
        raise ConfigError("dense: no array is a sparse matrix (csr_matrix)")
    chosen = sparse if field is None else _named(field, columns)
    for one in chosen:
        if one not in sparse:
            raise ConfigError(f"dense of {one.items.name}: it is no sparse matrix (csr_matrix)")
    return chosen


def _named(field: str | Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Return the columns that `field=` names."""
    names = [field] if isinstance(field, str) else list(field) if isinstance(field, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"field = {field!r}, must be a name, or a list of names, each once")
    asked = by_field("field", dict.fromkeys(names, True), [one.items for one in columns], of_rows=True)
    return [one for one, is_asked in zip(columns, asked, strict=True) if is_asked]

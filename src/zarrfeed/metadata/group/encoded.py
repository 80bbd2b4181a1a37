"""Which fields `Data.decode` is for: arrays of bytes of any length."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import by_field
from zarrfeed.metadata.group.fields import OpenedFields
from zarrfeed.spec.field import VlenField, dtype_name

#: What bytes can be decoded to.
DECODED: tuple[str, ...] = ("image",)


def fields_to_decode(field: str | Sequence[str] | None, opened: OpenedFields) -> list[int]:
    """Return the numbers of the fields that a name, or several, stand for; None stands for all fields of bytes.

    Raises
    ------
    ConfigError
        If a name is of no field, a field has no bytes, or there is no field of bytes.
    """
    encoded = [isinstance(f, VlenField) and f.spec.item_type == "bytes" for f in opened.fields]
    if field is None:
        chosen = [number for number, is_encoded in enumerate(encoded) if is_encoded]
        if not chosen:
            described = ", ".join(f"{f.name} of {dtype_name(f)}" for f in opened.fields)
            raise ConfigError(
                f"decode: no array has bytes of any length (variable_length_bytes); there are {described}"
            )
        return chosen
    names = [field] if isinstance(field, str) else list(field) if isinstance(field, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"field = {field!r}, must be a name, or a list of names, each once")
    asked = by_field("field", dict.fromkeys(names, True), opened.items, of_rows=True)
    for number, is_asked in enumerate(asked):
        if is_asked and not encoded[number]:
            one = opened.fields[number]
            raise ConfigError(f"decode of {one.name}: it has items of {dtype_name(one)}, must be bytes of any length")
    return [number for number, is_asked in enumerate(asked) if is_asked]

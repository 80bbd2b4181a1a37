"""The conversion of items on the way into a batch: `decode_cf=`, `Data.cast`, `Data.normalize`, combined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_torch import is_torch_dtype
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.described import Described
from zarrfeed.spec.fields.images import IMAGE_DIMS, RAGGED
from zarrfeed.spec.values.conversion import Conversion, Decoding
from zarrfeed.spec.values.value_step import ValueStep

#: A dtype of torch, or what NumPy takes for one; this layer does not import torch to name its type.
TorchDtypeLike: TypeAlias = Any
#: (mean, std): numbers, arrays with one a channel, or arrays that broadcast against a sample.
Normalization: TypeAlias = "tuple[npt.ArrayLike, npt.ArrayLike]"

#: The dtypes of items that can be converted, and so be named.
_NAMES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_FLOATS = ("float16", "bfloat16", "float32", "float64")
#: NumPy's codes, such as "f4", "<i2" and "d": they name one dtype each.
_CODE = re.compile(r"[<>=|]?[?a-zA-Z]\d*")
#: Names of other libraries -> what a message suggests. None is accepted: "float" has 64 bits in NumPy, 32 in torch.
_OTHER_NAMES = {
    **dict.fromkeys(("bf16", "bfloat", "brain"), "'bfloat16'"),
    **dict.fromkeys(("half", "fp16", "f16"), "'float16'"),
    **dict.fromkeys(("single", "fp32", "f32", "float_"), "'float32'"),
    **dict.fromkeys(("double", "fp64", "f64"), "'float64'"),
    "float": "'float32' or 'float64'",
    "byte": "'int8' or 'uint8'",
    "short": "'int16'",
    **dict.fromkeys(("int", "long", "integer"), "'int64' or 'int32'"),
    "i64": "'int64'",
    "i32": "'int32'",
    "i16": "'int16'",
    "u16": "'uint16'",
    "boolean": "'bool'",
}


@dataclass(frozen=True)
class Items:
    """The items of a field, before conversion.

    Attributes
    ----------
    side, key
        "samples" or "targets", and the name in the mapping or group; None for a single array.
    dtype
        Name of the dtype as stored, in memory, or of decoded images; None for text and bytes, which are not converted.
    shape
        Shape of the array, the sample axis included.
    dimensions
        Names of the axes, if they have any.
    decoding
        The decoding that the attributes of the array ask for.
    is_coordinate
        True if the array says where samples are, such as "time", and not what is there.
    is_record
        True if items are records: batches have their members.
    is_mask
        True if items say which values of another array are missing.
    channel_axis
        The axis that arrays of numbers with one axis are along unless the user names another one: of decoded images.
    described
        The meaning of the values in a batch, by attributes, and the coordinates along the axes. None: an array in
        memory.
    """

    side: str
    key: str | None
    dtype: str | None
    shape: tuple[int, ...]
    sample_axis: int
    dimensions: tuple[str | None, ...] | None = None
    decoding: Decoding | None = None
    is_coordinate: bool = False
    is_record: bool = False
    is_mask: bool = False
    channel_axis: int | None = None
    described: Described | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the field in messages."""
        return self.side if self.key is None else f"{self.side}[{self.key!r}]"

    def with_image_axes(self, image_shape: tuple[int, ...]) -> Items:
        """Return the items of decoded images, each of shape (channels, height, width), in place of encoded ones."""
        ndim = len(self.shape)
        names = (*(self.dimensions or (None,) * ndim), *IMAGE_DIMS)
        return replace(self, shape=(*self.shape, *image_shape), dimensions=names, channel_axis=ndim)

    def axis_of(self, dim: str | int) -> int | None:
        """Return the axis that has a name or a number, counted from 0; None if the array has no such axis."""
        if isinstance(dim, str):
            return self.dimensions.index(dim) if self.dimensions is not None and dim in self.dimensions else None
        return int(dim) % len(self.shape) if -len(self.shape) <= dim < len(self.shape) else None


def is_float(dtype: str | None) -> bool:
    """Return whether the dtype of a name is one of floats."""
    return dtype in _FLOATS


def check_converts(field: Items) -> None:
    """Raise ConfigError if items are no numbers, so that nothing can become of them."""
    if field.is_record:
        raise ConfigError(f"{field.name}: cannot convert the members of records; convert them in a `transform`")
    if field.dtype is None:
        raise ConfigError(f"{field.name}: cannot convert text or bytes; name arrays of numbers")


def conversion_of(
    field: Items, dtype: TorchDtypeLike | None = None, steps: tuple[ValueStep, ...] = ()
) -> Conversion | None:
    """Make the conversion of the items of a field; None: they stay as they are.

    Parameters
    ----------
    field
        The field whose items are converted.
    dtype
        Dtype of the tensors. None: as decoded; float32 for integers that become other values.
    steps
        The steps that change decoded values.

    Raises
    ------
    ConfigError
        If the conversion is impossible; the message names the field.
    """
    if field.dtype is None:
        return None
    stored = field.dtype
    decoding = field.decoding
    plain = Conversion(stored, stored)
    if decoding is not None:
        plain = Conversion(decoding.items, decoding.result, decoding)
    wanted = plain.result
    if dtype is not None:
        wanted = parse_dtype(f"dtype of {field.name}", dtype)
    elif steps and wanted not in _FLOATS:
        wanted = "float32"
    conversion = replace(plain, result=wanted, steps=steps)
    # what is viewed as its unsigned twin need not be converted
    if decoding is None and not steps and wanted == stored:
        return None
    _check_possible(field, conversion)
    return conversion


def left_unconverted(argument: str, value: Any, fields: Sequence[Items]) -> list[bool]:
    """Return True for each field that is a coordinate which the argument would convert if it were none."""
    applied, every = by_field(argument, value, fields), by_field(argument, value, fields, of_rows=True)
    return [f.is_coordinate and applied[i] is None and every[i] is not None for i, f in enumerate(fields)]


def is_number(field: Items) -> bool:
    """Return whether items are real numbers, of which there are means: no text, records or complex numbers."""
    return field.dtype in _NAMES and not field.is_record


def by_field(argument: str, value: Any, fields: Sequence[Items], *, of_rows: bool = False) -> list[Any]:
    """Return the value of an argument for each field: None where it gives none.

    A single value is for the side `samples`. In a mapping, the key "samples" or "targets" stands for every array of
    that side, unless an array has this name; what is said of an array by its name goes before what is said of its side.
    What is said of a side leaves text alone, and unless it is `of_rows` and not of items, coordinates, records, masks
    and images of their own sizes, too; where the side has nothing else, it is for all of it.

    Raises
    ------
    ConfigError
        If a name is of no field, or of one in samples and of one in targets.
    """
    result: list[Any] = [None] * len(fields)
    by_name: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
    of_side = {name: one for name, one in by_name.items() if _is_side(name, fields)}
    for side, one in of_side.items() if isinstance(value, Mapping) else [("samples", value)]:
        members = [i for i, f in enumerate(fields) if f.side == side]
        numbers = [i for i in members if fields[i].dtype is not None] or members
        left = [f.is_coordinate or f.is_record or f.is_mask or f.dtype == RAGGED for f in fields]
        data = [i for i in numbers if of_rows or not left[i]]
        for i in data or numbers:
            result[i] = one
    for name, one in by_name.items():
        if name not in of_side:
            result[_find(argument, name, fields)] = one
    return result


def _is_side(name: object, fields: Sequence[Items]) -> bool:
    return any(f.side == name for f in fields) and not any(name in (f.key, f.name) for f in fields)


def _find(argument: str, name: object, fields: Sequence[Items]) -> int:
    """Return the number of the field with a name."""
    full = [i for i, f in enumerate(fields) if f.name == name]
    by_key = [i for i, f in enumerate(fields) if f.key == name]
    found = full or by_key
    if not found:
        known = [f.name if f.key is None else f.key for f in fields]
        names = ", ".join(map(repr, known))
        raise ConfigError(f"{argument} names {name!r}, must be one of {names}{did_you_mean(name, known)}")
    if len(found) > 1:
        raise ConfigError(
            f"{argument} names {name!r}, which is in samples and in targets: write "
            f"{fields[found[0]].name!r} or {fields[found[1]].name!r}"
        )
    return found[0]


def parse_dtype(argument: str, value: Any) -> str:
    """Return the name of a dtype, given as torch's, NumPy's, its full name, or a code of NumPy's such as "f4"."""
    if is_torch_dtype(value):
        return str(value).removeprefix("torch.")
    if isinstance(value, str) and value in _NAMES:
        return value
    meant = _OTHER_NAMES.get(value.lower()) if isinstance(value, str) else None
    try:
        name = str(np.dtype(value).name)
    except TypeError:
        name = ""
    if name and meant is None and (not isinstance(value, str) or value == name or _CODE.fullmatch(value)):
        return name
    advice = did_you_mean(value, _NAMES) if meant is None else f"; did you mean {meant}?"
    raise ConfigError(f"{argument} = {value!r}, must be a dtype: one of {', '.join(_NAMES)}{advice}")


def _check_possible(field: Items, conversion: Conversion) -> None:
    items, result = conversion.items, conversion.result
    decoding = conversion.decoding
    if items not in _NAMES or result not in _NAMES:
        raise ConfigError(f"{field.name}: cannot convert {items} to {result}; supported: {', '.join(_NAMES)}")
    if result in _FLOATS:
        return
    if conversion.tells_missing and result == "bool":
        return
    if conversion.steps:
        raise ConfigError(f"{field.name}: {result} cannot hold {conversion.steps[-1].called} values, which are floats")
    if decoding is not None and (decoding.fills or decoding.scale is not None or decoding.offset is not None):
        raise ConfigError(f"{field.name}: {result} cannot hold decoded values, which are floats; see decode_cf")
    if decoding is not None and decoding.result == result == "bool":
        return
    if items in _FLOATS or not np.can_cast(items, result, "safe"):
        raise ConfigError(
            f"{field.name}: cannot convert {items} to {result} without losing values; supported: any float dtype"
        )

"""What becomes of items on the way into a batch: `decode_cf=`, `Data.cast`, `Data.normalize`, combined."""

from __future__ import annotations

import math
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
from zarrfeed.spec.conversion import Conversion, Decoding, Numbers

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
        Name of the dtype as stored, or in memory; None for text and bytes, which are not converted.
    shape
        Of the array, the sample axis included.
    dimensions
        Names of the axes, if they have any.
    decoding
        What the attributes of the array ask for.
    is_coordinate
        Whether the array says where samples are, such as "time", and not what is there.
    is_record
        Whether items are records, of which batches have the members.
    described
        What attributes say of the values in a batch, and what lies along the axes. None: of an array in memory.
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
    described: Described | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the field in messages."""
        return self.side if self.key is None else f"{self.side}[{self.key!r}]"

    def axis_of(self, dim: str | int) -> int | None:
        """Return the axis that has a name or a number, counted from 0; None if the array has no such axis."""
        if isinstance(dim, str):
            return self.dimensions.index(dim) if self.dimensions is not None and dim in self.dimensions else None
        return int(dim) % len(self.shape) if -len(self.shape) <= dim < len(self.shape) else None


def conversion_of(
    field: Items, dtype: TorchDtypeLike | None = None, pair: Any = None, axis: int | str | None = None
) -> Conversion | None:
    """Return what becomes of the items of a field; None: they stay as they are.

    Parameters
    ----------
    field
        The items.
    dtype
        Of the tensors. None: as decoded; float32 for integers that are normalised.
    pair
        (mean, std). None: items are not normalised.
    axis
        The axis of the array, or the dimension, that means and standard deviations are given for.

    Raises
    ------
    ConfigError
        If the conversion is impossible; the message names the field.
    """
    if field.is_record and (dtype is not None or pair is not None):
        raise ConfigError(f"{field.name}: members of records are not converted; `transform` can convert them")
    if field.dtype is None:
        if dtype is not None or pair is not None:
            raise ConfigError(f"{field.name}: is text or bytes, which is not converted; name arrays of numbers")
        return None
    stored = field.dtype
    decoding = field.decoding
    plain = Conversion(stored, stored)
    if decoding is not None:
        plain = Conversion(decoding.items, decoding.result, decoding)
    wanted = plain.result
    if dtype is not None:
        wanted = parse_dtype(f"dtype of {field.name}", dtype)
    elif pair is not None and wanted not in _FLOATS:
        wanted = "float32"
    conversion = replace(plain, result=wanted)
    if pair is not None:
        conversion = _normalized(field, conversion, pair, axis)
    # what is viewed as its unsigned twin need not be converted
    if decoding is None and pair is None and wanted == stored:
        return None
    _check_possible(field, conversion)
    return conversion


def _normalized(field: Items, conversion: Conversion, pair: Any, axis: int | str | None) -> Conversion:
    mean, std = _parse_pair(field.name, pair)
    if mean.ndim == 0:
        return replace(conversion, mean=Numbers.of(mean), std=Numbers.of(std))
    if axis is None and mean.ndim > 1:
        return _normalized_by_item(field, conversion, mean, std)
    if mean.ndim > 1:
        raise ConfigError(
            f"normalize of {field.name}: arrays of shape {mean.shape} with axis = {axis!r}: must have one "
            "axis, or broadcast against a sample without axis="
        )
    number = _channel_axis(field, len(mean), axis)
    if len(mean) != field.shape[number]:
        raise ConfigError(
            f"normalize of {field.name}: {len(mean)} values, axis {number} has length {field.shape[number]} "
            f"(shape {field.shape})"
        )
    after = [n for a, n in enumerate(field.shape) if a > number and a != field.sample_axis]
    return replace(conversion, mean=Numbers.of(mean), std=Numbers.of(std), channel_items=max(1, math.prod(after)))


def _channel_axis(field: Items, count: int, named: int | str | None) -> int:
    axis, ndim = named, len(field.shape)
    if axis is None:
        raise ConfigError(
            f"normalize of {field.name}: {count} values: axis must say along which axis; or give arrays with the "
            f"axes of a sample, such as of shape {(count, *(1,) * max(1, ndim - 2))}"
        )
    if isinstance(axis, str):
        if field.dimensions is None:
            raise ConfigError(f"axis = {axis!r}: {field.name} has no dimension names, give a number")
        if axis not in field.dimensions:
            raise ConfigError(
                f"axis = {axis!r}: {field.name} has the dimensions {field.dimensions}"
                f"{did_you_mean(axis, field.dimensions)}"
            )
        axis = field.dimensions.index(axis)
    if not -ndim <= axis < ndim:
        raise ConfigError(f"axis = {axis}: {field.name} has {ndim} axes, shape {field.shape}")
    axis = int(axis) % ndim
    if axis == field.sample_axis:
        raise ConfigError(f"axis = {named!r}: is the sample axis of {field.name}")
    return axis


def left_unconverted(argument: str, value: Any, fields: Sequence[Items]) -> list[bool]:
    """Return of each field whether it is a coordinate that the argument would convert if it were none."""
    applied, every = by_field(argument, value, fields), by_field(argument, value, fields, of_rows=True)
    return [f.is_coordinate and applied[i] is None and every[i] is not None for i, f in enumerate(fields)]


def is_number(field: Items) -> bool:
    """Return whether items are real numbers, of which there are means: no text, records or complex numbers."""
    return field.dtype in _NAMES and not field.is_record


def _normalized_by_item(
    field: Items, conversion: Conversion, mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]
) -> Conversion:
    """Return the conversion with arrays that broadcast against a sample, of shape () or with more axes of length 1."""
    given = mean.shape
    sample = tuple(n for a, n in enumerate(field.shape) if a != field.sample_axis)
    own = given[max(0, len(given) - len(sample)) :]
    own = (1,) * (len(sample) - len(own)) + own
    fits = math.prod(given) == math.prod(own) and all(n in (1, m) for n, m in zip(own, sample, strict=True))
    if not fits:
        raise ConfigError(
            f"normalize of {field.name}: shape {given} does not broadcast against a sample, shape {sample}"
        )
    spread = [a for a, n in enumerate(own) if n > 1]
    if not spread:
        return replace(conversion, mean=Numbers.of(mean), std=Numbers.of(std), by_shape=given)
    # Between the first and the last axis with numbers of its own, each index has numbers; before, they repeat.
    first, last = spread[0], spread[-1] + 1
    mean, std = (np.broadcast_to(one.reshape(own[first:last]), sample[first:last]) for one in (mean, std))
    items = max(1, math.prod(sample[last:]))
    return replace(conversion, mean=Numbers.of(mean), std=Numbers.of(std), channel_items=items, by_shape=given)


def by_field(argument: str, value: Any, fields: Sequence[Items], *, of_rows: bool = False) -> list[Any]:
    """Return what an argument says for each field: None where it says nothing.

    A single value is for the side `samples`. In a mapping, the key "samples" or "targets" stands for every array of
    that side, unless an array has this name; what is said of an array by its name goes before what is said of its side.
    What is said of a side leaves text alone, and unless it is `of_rows` and not of items, coordinates and records, too;
    where the side has nothing else, it is for all of it.

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
        data = [i for i in numbers if of_rows or not (fields[i].is_coordinate or fields[i].is_record)]
        for i in data or numbers:
            result[i] = one
    for name, one in by_name.items():
        if name not in of_side:
            result[_find(argument, name, fields)] = one
    return result


def _is_side(name: object, fields: Sequence[Items]) -> bool:
    return any(f.side == name for f in fields) and not any(name in (f.key, f.name) for f in fields)


def _find(argument: str, name: object, fields: Sequence[Items]) -> int:
    """Return which field a name is of."""
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
    raise ConfigError(f"{argument}: {value!r} is no dtype, must be one of {', '.join(_NAMES)}{advice}")


def _parse_pair(field: str, value: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and std, both of one shape."""
    try:
        mean, std = (np.asarray(one, dtype=np.float64) for one in value)
        mean, std = np.broadcast_arrays(mean, std)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"normalize of {field}: must be (mean, std), two numbers or arrays of one shape: {error}"
        ) from error
    if not np.isfinite(mean).all():
        raise ConfigError(f"normalize of {field}: mean = {mean}, must be finite")
    if not (np.isfinite(std) & (std > 0)).all():
        raise ConfigError(f"normalize of {field}: std = {std}, must be finite and above 0")
    return mean, std


def _check_possible(field: Items, conversion: Conversion) -> None:
    items, result = conversion.items, conversion.result
    decoding = conversion.decoding
    if items not in _NAMES or result not in _NAMES:
        raise ConfigError(f"{field.name}: {items} to {result} cannot be converted; possible are {', '.join(_NAMES)}")
    if result in _FLOATS:
        return
    if len(conversion.mean):
        raise ConfigError(f"{field.name}: normalised values are floats, {result} cannot hold them")
    if decoding is not None and (decoding.fills or decoding.scale is not None or decoding.offset is not None):
        raise ConfigError(f"{field.name}: decoded values are floats, {result} cannot hold them; see decode_cf")
    if decoding is not None and decoding.result == result == "bool":
        return
    if items in _FLOATS or not np.can_cast(items, result, "safe"):
        raise ConfigError(f"{field.name}: {items} to {result} would lose values; any float dtype is possible")

"""The meaning of an array's attributes, by the conventions of xarray and CF: dimensions, packing, fill values.

The rules are xarray's (`xarray.coding.variables`, `xarray.backends.zarr`), so that what it decodes comes out the same.
"""

from __future__ import annotations

import base64
import math
import reprlib
import struct
import sys
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.json_attributes import Float32
from zarrfeed.spec.values.conversion import Decoding
from zarrfeed.storage.access.zarr_internals import ArrayV3Metadata
from zarrfeed.storage.files.table_store import TableStore

#: The attribute in which xarray keeps the names of dimensions where Zarr has no place for them, that is, in v2.
_DIMENSIONS = "_ARRAY_DIMENSIONS"


def dimension_names(array: zarr.Array[Any]) -> tuple[str | None, ...] | None:
    """Return the names of an array's dimensions; None if it has none, or not as many as axes."""
    metadata = array.metadata
    names: Any = metadata.attributes.get(_DIMENSIONS)
    if isinstance(metadata, ArrayV3Metadata):
        names = metadata.dimension_names
    if not isinstance(names, list | tuple) or len(names) != len(metadata.shape):
        return None
    return tuple(name if isinstance(name, str) else None for name in names)


def data_variables(arrays: Mapping[str, zarr.Array[Any]], group_attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of the arrays of a group that are neither coordinates nor scalars.

    Coordinates are arrays of one dimension that is named like them, and those that an attribute `coordinates` names.
    Where no array has named dimensions, all arrays are data.
    """
    dimensions = {name: dimension_names(array) for name, array in arrays.items()}
    if not any(dimensions.values()):
        return list(arrays)
    coordinates = named_coordinates(arrays.values(), group_attributes)
    return [
        name
        for name, array in arrays.items()
        if array.metadata.shape and name not in coordinates and dimensions[name] != (name,)
    ]


def named_coordinates(arrays: Iterable[zarr.Array[Any]], group_attributes: Mapping[str, Any]) -> set[str]:
    """Return the names in the attributes `coordinates` of a group and of arrays in it."""
    attributes = (group_attributes, *(array.metadata.attributes for array in arrays))
    return {name for own in attributes for name in str(own.get("coordinates", "")).split()}


def is_coordinate(array: zarr.Array[Any], named: Container[str]) -> bool:
    """Return whether an array says where samples are, and not what is there.

    Such are an array of one dimension that has the array's name; an array that an attribute `coordinates` names (these
    names are `named`); times and time differences; and times that are stored as numbers, with units such as "hours
    since 1900-01-01" (CF conventions, section 4.4).
    """
    name = str(array.store_path).rpartition("/")[2]  # also of an array that was opened as the root of a store
    if name in named or dimension_names(array) == (name,):
        return True
    return array.dtype.kind in "mM" or " since " in str(array.metadata.attributes.get("units", ""))


def find_decoding(array: zarr.Array[Any]) -> Decoding | None:
    """Find the decoding that the attributes of an array ask for; None if they ask for nothing.

    Heeded are `scale_factor`, `add_offset`, `_FillValue`, `missing_value`, `_Unsigned`, and `dtype` = "bool". In v2,
    xarray keeps `_FillValue` as the array's fill value: it is one where `_ARRAY_DIMENSIONS` tells that xarray wrote
    the array.

    Raises
    ------
    ConfigError
        If one of them is no number.
    UnsupportedError
        If the array is of complex numbers.
    """
    if array.dtype.kind in "SV":
        return None
    return decoding_of(attributes_of(array), array.dtype)


def attributes_of(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the attributes of an array; in v2, its fill value is `_FillValue` where xarray wrote the array.

    In files of other formats, the fill value of missing chunks is another thing, and the attribute is there itself.
    """
    attributes = dict(array.metadata.attributes)
    store = array.store
    if isinstance(store, TableStore) and not store.is_zarr:
        return attributes | store.attributes_in_float32(array.path)
    is_of_xarray = not isinstance(array.metadata, ArrayV3Metadata)
    if is_of_xarray and _DIMENSIONS in attributes and array.metadata.fill_value is not None:
        attributes["_FillValue"] = array.metadata.fill_value
    return attributes


def coordinate_attributes(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the attributes of a coordinate: in v2, a fill value of 0 is one only where an attribute says so.

    0 is the default of zarr-python in v2, and the first time is often 0, too.
    """
    attributes = attributes_of(array)
    if not attributes.get("_FillValue", True):
        del attributes["_FillValue"]
        attributes.update((key, value) for key, value in array.metadata.attributes.items() if key == "_FillValue")
    return attributes


def inherited_by_bounds(attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the attributes that bounds take over from their coordinate, by the names of the bounds.

    These are `units` and `calendar`, where the bounds have no units themselves (CF conventions, sections 7.1 and 7.4).

    Examples
    --------
    >>> inherited_by_bounds({"time": {"units": "days since 2000-01-01", "bounds": "time_bnds"}, "time_bnds": {}})
    {'time_bnds': {'units': 'days since 2000-01-01'}}
    """
    found = {}
    for name, own in attributes.items():
        folder = name[: name.rfind("/") + 1]  # names of members are those of arrays beside it
        for bounds in (f"{folder}{own[key]}" for key in ("bounds", "climatology") if isinstance(own.get(key), str)):
            if bounds in attributes and "units" not in attributes[bounds] and "units" in own:
                found[bounds] = {key: own[key] for key in ("units", "calendar") if key in own}
    return found


def decoding_of(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Decoding | None:
    """Make the decoding that attributes ask for, of an array of a dtype; None if they ask for nothing.

    Raises
    ------
    ConfigError, UnsupportedError
        As in `find_decoding`.
    """
    dtype = dtype.newbyteorder("=")
    if attributes.get("dtype") == "bool" and dtype.name in ("int8", "uint8"):
        return Decoding(dtype.name, "bool")

    scale = _number(attributes, "scale_factor")
    offset = _number(attributes, "add_offset")
    packed = scale is not None or offset is not None
    raw = {name: _fill_values(attributes, name) for name in ("missing_value", "_FillValue") if name in attributes}
    fills = {value for values in raw.values() for value in values}
    items = dtype
    unsigned = attributes.get("_Unsigned")
    if (dtype.kind, unsigned) in (("i", "true"), ("u", "false")):
        items = np.dtype(f"{'u' if dtype.kind == 'i' else 'i'}{dtype.itemsize}")
        for value in raw.get("_FillValue", ()):  # given as stored: another number for the twin
            fills.discard(value)
            fills.add(int(np.array(int(value) % 2 ** (8 * items.itemsize), f"u{items.itemsize}").view(items)))
    if items == dtype and not fills and not packed:
        return None
    if dtype.kind == "c" and (fills or packed):
        raise UnsupportedError(
            "cannot decode packing and fill values of complex numbers; decode_cf=False leaves them as they are"
        )
    if dtype.kind not in "iuf":
        return None
    if not fills and not packed:
        return Decoding(items.name, items.name)

    is_float = dtype.kind == "f"
    if packed:
        given = [attributes.get(name) for name in ("scale_factor", "add_offset")]
        in_float32 = all(isinstance(one, Float32) for one in given if one is not None) and scale is not None
        is_exact = dtype.itemsize <= (4 if is_float else 2)  # as float32
        # a fill value of NaN masks nothing, but makes xarray calculate in the dtype of the array
        nan_only = is_float and bool(raw) and not fills
        in_double = not (nan_only or (in_float32 and is_exact)) or dtype == np.float64
        result = np.dtype("f8" if dtype == np.float64 else "f4")
    else:
        in_double = dtype.itemsize > (4 if is_float else 2)
        result = dtype if is_float else np.dtype("f4")
    return Decoding(items.name, result.name, tuple(sorted(fills)), scale, offset, in_double)


def _number(attributes: Mapping[str, Any], name: str) -> float | None:
    value = attributes.get(name)
    if value is None:
        return None
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise _no_number(name, value)
    try:
        return float(value)
    except OverflowError:
        raise _no_number(name, value) from None


def _no_number(name: str, value: object) -> ConfigError:
    return ConfigError(f"attribute {name} = {reprlib.repr(value)}, must be a number; decode_cf=False ignores it")


def _fill_values(attributes: Mapping[str, Any], name: str) -> list[float]:
    """Return the fill values that an attribute names, but for NaNs."""
    value = attributes[name]
    found: list[float] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        number = _text_to_float(one) if isinstance(one, str) else one
        if isinstance(number, np.generic):
            number = number.item()
        if isinstance(number, complex):
            number = abs(number)  # such arrays are not decoded: what matters is whether there is a value
        if number is None:
            continue
        if not isinstance(number, int | float) or (isinstance(number, int) and abs(number) > sys.float_info.max):
            raise _no_number(name, value)
        if not math.isnan(number):
            found.append(number)
    return found


def _text_to_float(text: str) -> float | str:
    """Return the number that a text in JSON stands for: xarray's base64 of a little-endian float64, or "NaN"."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])
    except (ValueError, struct.error):
        return text

"""Attributes of other formats as Zarr has them, in JSON."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np


class Float32(float):
    """A number that a file has as float32: xarray calculates with packed values as precisely as such attributes are."""


def json_attributes(attributes: Mapping[str, Any], dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
    """Return attributes as JSON has them; that of `_FillValue` as xarray writes it for arrays of a dtype in Zarr v3.

    Numbers of NumPy become Python's, those of float32 `Float32`, arrays become lists, and bytes become text. Attributes
    with anything else, such as references of HDF5, are left out.
    """
    made = {}
    for name, value in attributes.items():
        try:
            plain = _plain(value)
        except TypeError:
            continue
        if name == "_FillValue" and dtype is not None and dtype.kind in "fc":
            plain = float_fill(np.asarray(value).reshape(-1)[0])
        made[str(name)] = plain
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, np.float32):
        return Float32(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(type(value))


def float_fill(value: Any) -> Any:
    """Return base64 of a little-endian float64, which keeps NaN in JSON; of complex numbers two."""
    if isinstance(value, complex | np.complexfloating):
        return [float_fill(value.real), float_fill(value.imag)]
    return base64.standard_b64encode(struct.pack("<d", float(value))).decode()

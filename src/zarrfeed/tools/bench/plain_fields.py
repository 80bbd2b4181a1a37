"""The arrays that the baseline loader reads with zarr-python alone: the stored, viewed and delivered items."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr

from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.values.conversion import Decoding
from zarrfeed.torch.batches.tensors import torch_dtype


@dataclass(frozen=True)
class PlainField:
    """One array of a batch: its stored and its delivered form.

    Attributes
    ----------
    stored
        dtype of an item in a buffer, in native byte order; of Python objects for text and bytes of any length.
    sample_shape
        Shape of a sample as it is stored.
    sample_axis
        The axis of the array whose indices are samples.
    items
        dtype that stored items are viewed as; of fixed-length bytes and raw bytes: uint8, along a new last axis.
    delivered
        dtype of the tensor in a batch; None: a batch has a list.
    convert
        Writes items, of which it may overwrite the memory, to a tensor of `delivered`; None: the items are delivered.
    resident
        If True, the whole array is read once, before the first pass.
    """

    stored: np.dtype[Any]
    sample_shape: tuple[int, ...]
    items: np.dtype[Any]
    delivered: torch.dtype | None
    sample_axis: int = 0
    convert: Callable[[npt.NDArray[Any], torch.Tensor], object] | None = None
    resident: bool = False

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample in a buffer."""
        return math.prod(self.sample_shape) * self.stored.itemsize

    def allocate(self, rows: int) -> npt.NDArray[Any]:
        """Return zeroed memory of shape (rows, *sample_shape), as items."""
        return self.as_items(np.zeros((rows, *self.sample_shape), self.stored))

    def as_items(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return contiguous stored values as items, without a copy."""
        if self.stored == self.items:
            return values
        return (values[..., np.newaxis] if self.stored.kind in "SV" else values).view(self.items)


def plain_field(field: Field, array: zarr.Array[Any]) -> PlainField:
    """Return the form in which zarr-python delivers a field of a dataset that converts nothing but CF attributes."""
    spec = field.layouts[0].spec
    axis = spec.sample_axis
    shape = array.shape[:axis] + array.shape[axis + 1 :]
    if field.item_type:
        objects = np.dtype(object)
        return PlainField(objects, shape, objects, None, axis)
    stored = array.dtype.newbyteorder("=")
    decoding = None if field.conversion is None else field.conversion.decoding
    convert = None if decoding is None else partial(_unpack, decoding)
    return PlainField(stored, shape, spec.dtype, torch_dtype(field.dtype_name), axis, convert, field.resident)


def _unpack(decoding: Decoding, values: npt.NDArray[Any], out: torch.Tensor) -> None:
    """Convert items by their CF attributes, in NumPy: fill values, then scale, then offset."""
    items = values.view(decoding.items)
    if not (decoding.fills or decoding.scale is not None or decoding.offset is not None):
        out.numpy()[...] = items
        return
    result: npt.NDArray[Any] = items.astype(np.float64 if decoding.in_double else np.float32)
    missing = np.isin(items.astype(np.float64), decoding.fills) if decoding.fills else None
    if decoding.scale is not None:
        np.multiply(result, result.dtype.type(decoding.scale), out=result)
    if decoding.offset is not None:
        np.add(result, result.dtype.type(decoding.offset), out=result)
    if missing is not None:
        result[missing] = np.nan
    out.numpy()[...] = result

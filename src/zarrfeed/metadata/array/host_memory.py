"""Arrays and tensors in host memory -> `ResidentField`: the rows where they lie, or contiguous copies of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.optional_torch import imported, is_tensor
from zarrfeed.spec.fields.field import HostRows, ResidentField
from zarrfeed.spec.values.dtypes import TENSOR_DTYPES, read_items
from zarrfeed.spec.values.record import Record


def field_in_memory(name: str, source: Any, sample_axis: int, record: Record | None = None) -> ResidentField:
    """Describe an array in memory; its rows are read where they lie if they are contiguous in native byte order.

    Parameters
    ----------
    name
        The name of the array in messages.
    source
        A NumPy array, or a tensor in host memory.
    sample_axis
        The axis whose indices are samples.
    record
        The members that batches have of records; None for numbers.

    Raises
    ------
    ConfigError, UnsupportedError
        If the array has no such axis, or no plain rows in host memory.
    """
    ndim = source.ndim
    if ndim == 0:
        raise ConfigError(f"{name}: has no axes (0-d), must have a sample axis")
    if not -ndim <= sample_axis < ndim:
        raise ConfigError(f"{name}: sample_axis = {sample_axis}, must be in [{-ndim}, {ndim - 1}]")
    rows = (
        _rows_of_tensor(name, source, sample_axis) if is_tensor(source) else _rows_of_array(name, source, sample_axis)
    )
    dtype = str(rows.dtype).removeprefix("torch.")
    return ResidentField(
        name, HostRows(_as_bytes(rows), rows), dtype, tuple(rows.shape[1:]), int(rows.dtype.itemsize), record=record
    )


def _rows_of_tensor(name: str, source: Any, sample_axis: int) -> Any:
    torch = imported("torch")
    if source.device.type != "cpu":
        raise ConfigError(f"{name}: is on {source.device}, must be in host memory")
    if source.layout != torch.strided or source.is_quantized:
        raise UnsupportedError(f"{name}: a {source.layout} tensor of {source.dtype} has no plain rows")
    # conjugation and negation are bits on the tensor: the bytes have to be what they say
    return source.detach().resolve_conj().resolve_neg().movedim(sample_axis, 0).contiguous()


def _rows_of_array(name: str, source: npt.NDArray[Any], sample_axis: int) -> npt.NDArray[Any]:
    if isinstance(source, np.ma.MaskedArray):
        raise ConfigError(f"{name}: is a masked array, and tensors have no mask; fill it first (`.filled(value)`)")
    rows = np.moveaxis(source, sample_axis, 0)
    if source.dtype.names:
        items = read_items(source.dtype, swapped=False, name=name)
        return np.array(rows, order="C").view(items.dtype).reshape(rows.shape + items.shape)
    if source.dtype.name not in TENSOR_DTYPES:
        raise UnsupportedError(f"{name}: dtype {source.dtype} has no torch equivalent")
    return np.ascontiguousarray(rows, dtype=source.dtype.newbyteorder("="))


def _as_bytes(rows: Any) -> npt.NDArray[np.uint8]:
    """Return the memory of contiguous rows: uint8 of shape (rows, bytes of a row)."""
    num_rows = int(rows.shape[0])
    if 0 in rows.shape:
        return np.empty((num_rows, 0), np.uint8)
    flat = rows.reshape(num_rows, -1)
    viewed = flat.view(imported("torch").uint8).numpy() if is_tensor(rows) else flat.view(np.uint8)
    array: npt.NDArray[np.uint8] = viewed
    return array

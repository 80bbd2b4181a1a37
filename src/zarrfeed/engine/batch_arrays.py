"""The interface by which a library of arrays takes the engine's batches, and plain bytes in NumPy.

The engine writes each field of a batch either into its own pool, and hands it out as a DLPack capsule, or into memory
that the library provides. A provided buffer is used once: the engine writes it, and never again after its batch was
handed out, also while only another process holds the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.tensor_spec import TensorSpec
from zarrfeed.spec.values.dtypes import dlpack_dtype

#: An array of the library; this layer knows it by `BatchArrays` alone.
Array: TypeAlias = Any


class BatchArrays(Protocol):
    """Makes arrays of a library of the memory of batches."""

    #: True if batches lie in memory that `allocate` returned; False if they lie in the engine's pool.
    provides_memory: bool

    def tensor_spec(self, field: Field) -> TensorSpec:
        """Return the description of a batch's field in a capsule."""

    def from_capsule(self, capsule: Any) -> Array:
        """Return the array of a DLPack capsule of the engine: shape (rows, *sample shape of `tensor_spec`)."""

    def allocate(self, size: int) -> tuple[Array, int]:
        """Return a buffer of so many bytes, and its address; only with `provides_memory`."""

    def viewer(self, field: Field) -> Callable[[Array, int], Array]:
        """Return a function (buffer, rows) -> array of shape (rows, *sample shape) over the start of the buffer."""

    def bytes_of(self, array: Array) -> npt.NDArray[np.uint8]:
        """Return the memory of an array of a batch: uint8 of shape (rows, bytes of a sample)."""

    def empty(self, shape: tuple[int, ...]) -> tuple[Array, npt.NDArray[np.uint8]]:
        """Return an array of uint8 where batches lie, and the same memory as NumPy has it; on any thread."""

    def empty_items(self, shape: tuple[int, ...], dtype: str) -> tuple[Array, npt.NDArray[Any]]:
        """Return an array where batches lie, and the same memory as NumPy has it (`raw_dtype`); on any thread."""

    def csr(self, begins: Array, columns: Array, values: Array, shape: tuple[int, int]) -> Array:
        """Return a sparse matrix over such arrays: the begin of each row, and the columns and values of elements."""

    def of_numpy(self, array: npt.NDArray[np.uint8]) -> Array:
        """Return an array over the memory of one in NumPy."""


class ByteArrays:
    """Batches as bytes in NumPy: uint8 of shape (rows, bytes of a sample), in the engine's memory."""

    provides_memory = False

    def tensor_spec(self, field: Field) -> TensorSpec:
        """Return bytes."""
        return 1, 8, (field.sample_bytes,)

    def from_capsule(self, capsule: object) -> npt.NDArray[np.uint8]:
        """Return the bytes of a capsule."""
        array: npt.NDArray[Any] = np.from_dlpack(_Exporter(capsule))
        return array

    def allocate(self, size: int) -> tuple[Array, int]:
        """Refuse: the engine has the memory."""
        raise NotImplementedError(f"{size} bytes: the engine has the memory of these batches")

    def viewer(self, field: Field) -> Callable[[Array, int], Array]:
        """Refuse: the engine has the memory."""
        raise NotImplementedError(f"{field.name}: the engine has the memory of these batches")

    def bytes_of(self, array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the array."""
        return array

    def empty(self, shape: tuple[int, ...]) -> tuple[Array, npt.NDArray[np.uint8]]:
        """Return an array, twice."""
        array = np.empty(shape, np.uint8)
        return array, array

    def empty_items(self, shape: tuple[int, ...], dtype: str) -> tuple[Array, npt.NDArray[Any]]:
        """Return an array, twice."""
        array = np.empty(shape, raw_dtype(dtype))
        return array, array

    def csr(self, begins: Array, columns: Array, values: Array, shape: tuple[int, int]) -> Array:
        """Return the parts of a matrix."""
        return begins, columns, values, shape

    def of_numpy(self, array: npt.NDArray[np.uint8]) -> Array:
        """Return the array."""
        return array


def tensor_spec(field: Field) -> TensorSpec:
    """Return the dtype and the sample shape of a field as DLPack has them."""
    return *dlpack_dtype(field.dtype_name, field.batch_item_bytes), field.sample_shape


def raw_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype of NumPy for items of the dtype of that name: their bits, where NumPy lacks it."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


class _Exporter:
    """A capsule as an object of the array API, which NumPy takes."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return 1, 0  # host memory

"""The engine's batches as tensors: in the engine's own memory, in page-locked memory, or in shared memory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from zarrfeed.engine.batch_arrays import raw_dtype, tensor_spec
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.tensor_spec import TensorSpec
from zarrfeed.spec.values.dtypes import TENSOR_DTYPES
from zarrfeed.torch.batches.accelerators import check_not_lost_by_fork

#: NumPy dtype name -> torch dtype, for every dtype that both have. All other modules name dtypes as NumPy does.
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TENSOR_DTYPES}
#: The folder of Linux in which memory that processes share lies.
_SHARED_FOLDER = "/dev/shm"


class Tensors:
    """Batches as tensors (`engine.batch_arrays.BatchArrays`).

    Parameters
    ----------
    allocator
        Makes the memory of batches, anew for each: `pinned_memory`, `shared_memory`, or a function of one's own that
        returns a tensor of so many bytes. None: batches lie in the engine's own pool.
    """

    def __init__(self, allocator: Callable[[int], torch.Tensor] | None = None) -> None:
        self._allocator = allocator
        self.provides_memory = allocator is not None

    def tensor_spec(self, field: Field) -> TensorSpec:
        """Return the dtype and the sample shape of a field."""
        return tensor_spec(field)

    def from_capsule(self, capsule: object) -> torch.Tensor:
        """Return the tensor of a capsule."""
        tensor: torch.Tensor = from_dlpack(capsule)
        return tensor

    def allocate(self, size: int) -> tuple[torch.Tensor, int]:
        """Return a buffer of the allocator, and its address."""
        assert self._allocator is not None
        buffer = self._allocator(size)
        return buffer, buffer.data_ptr()

    def viewer(self, field: Field) -> Callable[[torch.Tensor, int], torch.Tensor]:
        """Return a function (buffer, rows) -> tensor of shape (rows, *sample shape) over the start of the buffer."""
        size, dtype, shape = field.sample_bytes, torch_dtype(field.dtype_name), field.sample_shape
        return lambda buffer, rows: buffer[: rows * size].view(dtype).view(rows, *shape)

    def bytes_of(self, array: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Return the memory of a contiguous tensor, as NumPy has it, which starts no threads."""
        rows = len(array)
        if not array.numel():
            return np.empty((rows, 0), dtype=np.uint8)
        viewed: npt.NDArray[np.uint8] = array.reshape(rows, -1).view(torch.uint8).numpy()
        return viewed

    def empty(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, npt.NDArray[np.uint8]]:
        """Return a tensor of uint8 in memory of the allocator, and the same memory as NumPy has it."""
        size = math.prod(shape)
        buffer = torch.empty(size, dtype=torch.uint8) if self._allocator is None else self._allocator(max(1, size))
        tensor = buffer[:size].view(shape)
        return tensor, tensor.numpy()

    def empty_items(self, shape: tuple[int, ...], dtype: str) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        """Return a tensor in memory of the allocator, and the same memory as NumPy has it."""
        kind = raw_dtype(dtype)
        buffer, memory = self.empty((math.prod(shape) * kind.itemsize,))
        return buffer.view(torch_dtype(dtype)).view(shape), memory.view(kind).reshape(shape)

    def csr(
        self, begins: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]
    ) -> torch.Tensor:
        """Return a tensor with the layout `torch.sparse_csr` over the memory of three others."""
        expect_sparse_tensors()
        return torch.sparse_csr_tensor(begins, columns, values, shape, check_invariants=False)

    def of_numpy(self, array: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Return a tensor over the memory of an array."""
        return torch.from_numpy(array)


@cache
def expect_sparse_tensors() -> None:
    """Trigger torch's one warning about sparse tensors (beta, unchecked) and drop it, before a user sees it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        none = torch.zeros(0, dtype=torch.int64)
        torch.sparse_compressed_tensor(torch.zeros(1, dtype=torch.int64), none, none, (0, 1), layout=torch.sparse_csr)


def pinned_memory(size: int) -> torch.Tensor:
    """Allocate page-locked bytes from torch's caching allocator.

    Raises
    ------
    ConfigError
        If this process lost the device in a fork, and its dataset was made with `pin_memory=True` before.
    """
    check_not_lost_by_fork("pin_memory = True")
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def shared_memory(size: int) -> torch.Tensor:
    """Allocate bytes that another process can map: sending a tensor over them through a queue copies nothing.

    A view of them is sent as the whole of them with an offset, so a short batch costs no copy either. They are given
    back to the system when no process has a tensor over them any more.
    """
    storage: Any = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public allocator of it
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def fits_shared_memory(size: int) -> bool:
    """Return whether shared memory has room for this and as much again; writing beyond its end kills the process."""
    try:
        info = os.statvfs(_SHARED_FOLDER)
    except OSError:  # not Linux: there is no such limit
        return True
    return 2 * size <= info.f_bavail * info.f_frsize


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of torch that has a name; tensors in memory may have dtypes that NumPy lacks."""
    dtype: torch.dtype = TORCH_DTYPES.get(name) or getattr(torch, name)
    return dtype

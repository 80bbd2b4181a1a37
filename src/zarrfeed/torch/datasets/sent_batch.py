"""`SentBatch`: a batch on its way from a worker to the training loop, with the types that it has without workers.

torch makes tensors of NumPy arrays and lists of tuples where it hands on batches. It does neither inside an object that
it does not know, and calls the object's `pin_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from zarrfeed.spec.values.dtypes import TENSOR_DTYPES
from zarrfeed.torch.batches.batch import Batch
from zarrfeed.torch.device.transfers import map_tensors

#: A smaller array is sent through the pipe; opening shared memory for it would cost more.
_SHARED_BYTES = 1 << 16


class SentBatch:
    """A batch that a worker sends.

    Large NumPy arrays in it travel in shared memory, as tensors do.

    Parameters
    ----------
    batch
        The batch of the dataset, after `transform`.

    Examples
    --------
    >>> import numpy as np
    >>> batch = (np.arange(3), {"name": ["a", "b", "c"]})
    >>> SentBatch(batch).received()
    (array([0, 1, 2]), {'name': ['a', 'b', 'c']})
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = _map(batch, _shared)

    def received(self) -> Batch:
        """Return the batch in the process that received it."""
        return _map(self._batch, lambda leaf: leaf.tensor.numpy() if isinstance(leaf, _Array) else leaf)

    def pin_memory(self) -> SentBatch:
        """Copy the tensors to page-locked memory; torch's pinning thread calls this."""
        self._batch = _map(self._batch, _pinned)
        return self


class _Array:
    """A NumPy array as the tensor that shares its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def as_made(batch: Batch) -> Batch:
    """Return a batch as it is: the `collate_fn` of loaders whose dataset makes the batches."""
    return batch


def _shared(leaf: Any) -> Any:
    if type(leaf) is not np.ndarray or leaf.nbytes < _SHARED_BYTES:
        return leaf
    # A tensor of any other array would be a copy, or would come back in another order of memory.
    is_plain = (
        leaf.dtype.name in TENSOR_DTYPES and leaf.dtype.isnative and leaf.flags.c_contiguous and leaf.flags.writeable
    )
    return _Array(torch.from_numpy(leaf)) if is_plain else leaf


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else map_tensors(leaf, torch.Tensor.pin_memory)


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a batch with a function applied to the leaves of its dicts, lists and tuples, but not of subclasses."""
    if type(value) is dict:
        return {key: _map(one, function) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_map(one, function) for one in value])
    return function(value)

"""Static fields as tensors, read once, and as views of them that batches have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zarrfeed.engine.reader import load_resident
from zarrfeed.spec.arrays.item_choice import take_items
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import ResidentField, StoredField
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.spec.values.dtypes import item_bytes
from zarrfeed.torch.batches.accelerators import is_pinned
from zarrfeed.torch.batches.tensors import torch_dtype


class StaticTensors:
    """The static fields of a dataset: one tensor each, that all batches are views of.

    Sent to a DataLoader worker, a tensor is moved to memory that processes share, once.

    Parameters
    ----------
    fields
        The descriptions of the static fields.
    tensors
        The values of the fields, in the same order.
    """

    def __init__(self, fields: Sequence[StaticField] = (), tensors: Sequence[torch.Tensor] = ()) -> None:
        self.fields = tuple(fields)
        self._tensors = {field.name: tensor for field, tensor in zip(fields, tensors, strict=True)}
        self._pinned: dict[str, torch.Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pinned": {}}  # page-locked memory is of one process

    def __bool__(self) -> bool:
        return bool(self._tensors)

    @classmethod
    def read(cls, fields: Sequence[StaticField], faults: Faults) -> StaticTensors:
        """Read the values of static fields.

        Raises
        ------
        CorruptChunkError, StoreReadError
            For a chunk that cannot be decoded or read: there is nothing to put in its place.
        """
        return cls(fields, [_read(field, faults.without_skipping()) for field in fields])

    def of_sample(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a single sample: the tensors themselves."""
        return self._tensors

    def of_batch(self, rows: int, values: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch: views of shape (rows, *shape), without a copy.

        They are views of page-locked memory if one of the `values` of the batch lies there.
        """
        return {name: one.expand(rows, *one.shape) for name, one in self._beside(values).items()}

    def _beside(self, values: Sequence[Any]) -> Mapping[str, torch.Tensor]:
        if not any(isinstance(one, torch.Tensor) and is_pinned(one) for one in values):
            return self._tensors
        if not self._pinned:
            self._pinned = {name: one.pin_memory() for name, one in self._tensors.items()}
        return self._pinned


def _read(field: StaticField, faults: Faults) -> torch.Tensor:
    source: StoredField | ResidentField = field.source
    rows = load_resident(source, faults)[0].rows if isinstance(source, StoredField) else source.rows
    taken = rows.array
    if field.choice is not None:
        taken = take_items(taken, field.stored_shape, item_bytes(field.dtype), field.choice)
    flat = torch.from_numpy(taken.reshape(-1).copy())
    return flat.view(torch_dtype(field.dtype)).reshape(field.shape)

"""The tensors that a batch consists of: one for each field, or for several fields that are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from zarrfeed.spec.fields.field import Field, HostRows, ResidentField
from zarrfeed.spec.values.dtypes import item_bytes

_F = TypeVar("_F", bound=Field)


@dataclass(frozen=True)
class BatchTensor(Generic[_F]):
    """One tensor (or list) of a batch.

    Attributes
    ----------
    field
        The field that has the name, dtype and sample shape of the tensor. Several stacked fields have a field without
        rows here, which stands for all of them.
    members
        The numbers of its fields.
    """

    field: _F | ResidentField
    members: tuple[int, ...]


def tensors_of(fields: Sequence[_F]) -> list[BatchTensor[_F]]:
    """Return the tensors of a batch, in their order: fields that are stacked follow each other.

    >>> from zarrfeed.spec.fields.field import IndexField
    >>> [tensor.members for tensor in tensors_of([IndexField(3), IndexField(3)])]
    [(0,), (1,)]
    """
    made: list[BatchTensor[_F]] = []
    for number, field in enumerate(fields):
        stack = field.stack
        if stack is None:
            made.append(BatchTensor(field, (number,)))
        elif stack.offset:
            made[-1] = BatchTensor(made[-1].field, (*made[-1].members, number))
        else:
            rows = HostRows(np.empty((0, 0), np.uint8))
            name = field.dtype_name
            whole = ResidentField(stack.name, rows, name, stack.row_shape, item_bytes(name), window=field.window)
            made.append(BatchTensor(whole, (number,)))
    return made

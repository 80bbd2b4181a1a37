"""How a batch is made of the tensors (and lists) of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from zarrfeed.spec.field import FieldSet, record_of
from zarrfeed.spec.record import Record

#: A tensor, a dict of tensors, or a tuple of these, with lists in place of tensors where a field is a `VlenField`:
#: which one depends on the arguments, so that type checkers cannot know.
Batch: TypeAlias = Any
#: The values of one field in a batch.
Values: TypeAlias = "torch.Tensor | list[Any]"


class BatchAssembler:
    """Makes batches and samples, as the user gets them, from one tensor (or list) a field.

    Parameters
    ----------
    fields
        The fields of a batch, and the parts that they belong to.
    """

    def __init__(self, fields: FieldSet) -> None:
        self.fields = fields

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the same with the members of records in place of their bytes, where this was not done before."""
        values: list[Any] = list(tensors)
        for number, f in enumerate(self.fields.fields):
            record, raw = record_of(f), values[number]
            if record is not None and isinstance(raw, torch.Tensor):
                values[number] = unpack_record(record, raw)
        return values

    @property
    def _has_dicts(self) -> bool:
        return any(keys is not None for keys in self.fields.parts) or any(
            record_of(f) is not None for f in self.fields.fields
        )

    def assemble(self, tensors: Sequence[Any]) -> Batch:
        """Return a batch, or a sample, as the user gets it, from one tensor (or list) a field."""
        values = iter(self.unpack(tensors))
        parts = tuple(
            next(values) if keys is None else {key: next(values) for key in keys} for keys in self.fields.parts
        )
        return parts if len(parts) > 1 else parts[0]

    def assembler(self) -> Callable[[Sequence[Values]], Batch]:
        """Return a function that does the same, and not more than these fields need."""
        if self._has_dicts:
            return self.assemble
        return tuple if len(self.fields.parts) > 1 else itemgetter(0)

    def samples_of(self, tensors: Sequence[Values]) -> Iterator[Batch]:
        """Yield the samples of a batch one by one: views of its tensors, items of its lists."""
        rows = map(_rows, self.unpack(tensors))
        if not self._has_dicts:
            return iter(zip(*rows, strict=True)) if len(tensors) > 1 else iter(next(rows))
        return map(self.assemble, zip(*rows, strict=True))


def unpack_record(record: Record, raw: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the members of records.

    Parameters
    ----------
    record
        Which members, and where their bytes are.
    raw
        uint8 of shape (..., bytes of a record), contiguous.

    Returns
    -------
    Of each member a tensor of shape (..., *shape of the member), in page-locked memory if `raw` is.
    """
    members = {name: torch.from_numpy(values) for name, values in record.unpack(raw.numpy()).items()}
    return {name: tensor.pin_memory() for name, tensor in members.items()} if raw.is_pinned() else members


def _rows(values: Values | dict[str, torch.Tensor]) -> Iterable[Any]:
    """Return what samples have of a field: views of its tensors, items of its lists."""
    if isinstance(values, list):
        return values
    if not isinstance(values, dict):
        return values.unbind(0)
    return (dict(zip(values, rows, strict=True)) for rows in zip(*map(_rows, values.values()), strict=True))

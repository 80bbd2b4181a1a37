"""Make batches of the tensors (and lists) of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from zarrfeed.spec.fields.batch_tensors import tensors_of
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.values.record import Record
from zarrfeed.torch.batches.accelerators import is_pinned
from zarrfeed.torch.batches.sequences import NextTargets, Sequences
from zarrfeed.torch.batches.static_tensors import StaticTensors
from zarrfeed.torch.batches.tensors import expect_sparse_tensors

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
        The fields of a batch, and the sides that they belong to.
    statics
        The static arrays, which the first side of each batch, a dict, has beside the fields.
    """

    def __init__(self, fields: FieldSet, statics: StaticTensors | None = None) -> None:
        self.fields = fields
        self._shown = [tensor.field for tensor in tensors_of(fields.fields)]
        self.statics = StaticTensors() if statics is None else statics
        self._has_records = bool([f for f in fields.fields if f.record is not None])
        self._sequences = Sequences(self._shown)
        self._next_targets = NextTargets(fields, self._shown)
        if [f for f in fields.fields if f.is_sparse]:
            expect_sparse_tensors()  # a loader's workers send them

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors of a batch as users get them.

        Members of records take the place of their bytes, and lengths that of masks, where they did not yet.
        """
        return self._unpacked(tensors, is_sample=False)

    def _unpacked(self, tensors: Sequence[Any], *, is_sample: bool) -> list[Any]:
        values: list[Any] = list(tensors)
        if self._sequences:
            self._sequences.cut(values, is_sample=is_sample)
        for number, f in enumerate(self._shown):
            record, raw = f.record, values[number]
            if record is not None and isinstance(raw, torch.Tensor):
                values[number] = unpack_record(record, raw)
        return values

    @property
    def _has_dicts(self) -> bool:
        has_dicts = self.fields.sides.count(None) < len(self.fields.sides)
        return has_dicts or self._has_records or bool(self._next_targets)

    def assemble(self, tensors: Sequence[Any]) -> Batch:
        """Return a batch as the user gets it, from one tensor (or list) a field."""
        if not self.statics:
            return self._assembled(self.unpack(tensors))
        first: Any = tensors[0]
        first = next(iter(first.values())) if isinstance(first, dict) else first  # records that were unpacked before
        return self._assembled(self.unpack(tensors), self.statics.of_batch(len(first), tensors))

    def assemble_sample(self, tensors: Sequence[Any]) -> Batch:
        """Return a sample as the user gets it, from one tensor (or item of a list) a field."""
        return self._assembled(self._unpacked(tensors, is_sample=True), self.statics.of_sample(), is_sample=True)

    def _assembled(
        self, unpacked: Sequence[Any], statics: Mapping[str, torch.Tensor] | None = None, *, is_sample: bool = False
    ) -> Batch:
        values = iter(unpacked)
        sides = tuple(
            next(values) if keys is None else {key: next(values) for key in keys} for keys in self.fields.sides
        )
        if statics:
            sides[0].update(statics)
        if self._next_targets:
            sides = (*self._next_targets.of(sides[0], is_sample=is_sample), *sides[1:])
        return sides if len(sides) > 1 else sides[0]

    def assembler(self) -> Callable[[Sequence[Values]], Batch]:
        """Return a function that does the same, and not more than these fields need."""
        if self._has_dicts:
            return self.assemble
        return tuple if len(self.fields.sides) > 1 else itemgetter(0)

    def samples_of(self, tensors: Sequence[Values]) -> Iterator[Batch]:
        """Yield the samples of a batch one by one: views of its tensors, items of its lists."""
        rows = map(_rows, self.unpack(tensors))
        if not self._has_dicts:
            return iter(zip(*rows, strict=True)) if len(tensors) > 1 else iter(next(rows))
        return map(self.assemble_sample, zip(*rows, strict=True))


def unpack_record(record: Record, raw: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the members of records.

    Parameters
    ----------
    record
        The names, dtypes and byte offsets of the members.
    raw
        uint8 of shape (..., bytes of a record), contiguous.

    Returns
    -------
    A dict with one tensor a member, of shape (..., *shape of the member), in page-locked memory if `raw` is.
    """
    members = {name: torch.from_numpy(values) for name, values in record.unpack(raw.numpy()).items()}
    return {name: tensor.pin_memory() for name, tensor in members.items()} if is_pinned(raw) else members


def _rows(values: Values | dict[str, torch.Tensor]) -> Iterable[Any]:
    """Return the samples of a field: views of its tensors, items of its lists."""
    if isinstance(values, list):
        return values
    if not isinstance(values, dict):
        if values.layout == torch.sparse_csr:
            return (values[row] for row in range(len(values)))
        return values.unbind(0)
    return (dict(zip(values, rows, strict=True)) for rows in zip(*map(_rows, values.values()), strict=True))

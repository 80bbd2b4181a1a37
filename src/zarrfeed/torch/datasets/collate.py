"""A batch of a `ZarrDataset` for torch's `default_collate`, as it was decoded and without a copy.

A DataLoader hands what `__getitems__` returned to its `collate_fn`. If that is `default_collate`, and nobody else sees
the samples in between, `__getitems__` returns a list with one object of a type that is registered with torch: it holds
the batch, and `default_collate` takes it out. Everybody else gets a list of samples of plain types, which
`default_collate` stacks like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data._utils.collate import default_collate_fn_map

from zarrfeed.torch.batches.batch import Batch, BatchAssembler, Values
from zarrfeed.torch.ranks.callers import collates_by_default


class _WholeBatch:
    """A batch in the place of its samples."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def samples_or_batch(assembler: BatchAssembler, values: Sequence[Values]) -> list[Any]:
    """Return the samples of a batch, or for `default_collate` of a DataLoader what it makes the batch of.

    Parameters
    ----------
    assembler
        Makes samples of the values of their fields.
    values
        One tensor a field, of shape (samples, *sample_shape), or a list of the samples.
    """
    unpacked = assembler.unpack(values)
    if not len(unpacked[0]) or not collates_by_default():
        return list(assembler.samples_of(unpacked))
    batch = assembler.assemble(unpacked)
    return [_WholeBatch(list(batch) if isinstance(batch, tuple) else batch)]  # default_collate makes lists of tuples


def _take_out(samples: Sequence[_WholeBatch], *, collate_fn_map: Any = None) -> Batch:  # noqa: ARG001 - torch gives it
    (whole,) = samples
    return whole.batch


default_collate_fn_map[_WholeBatch] = _take_out

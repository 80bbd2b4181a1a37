"""Views of batches: `Sequences` takes off rows in which all samples are padded, `NextTargets` makes targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from zarrfeed.spec.fields.field import Field, FieldSet
from zarrfeed.spec.fields.window_fields import LengthField

#: A side of a batch: a tensor, or a dict of them.
Side: TypeAlias = Any


class Sequences:
    """Takes padded rows off the tensors of a batch, as views; no object if samples are no sequences.

    Parameters
    ----------
    fields
        The fields of the tensors of a batch.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._number = next((n for n, one in enumerate(fields) if isinstance(one, LengthField)), None)
        self._padded = [n for n, one in enumerate(fields) if one.pad is not None and n != self._number]

    def __bool__(self) -> bool:
        return self._number is not None

    def cut(self, values: list[Any], *, is_sample: bool = False) -> None:
        """Put lengths in the place of the mask of padded rows, and cut the tensors to the longest of them; in place.

        Cutting again changes nothing.

        Parameters
        ----------
        values
            The tensors of a batch, of shape (samples, rows, ...), or of a sample, without the first axis.
        is_sample
            True if they are of a sample.
        """
        assert self._number is not None
        found = values[self._number]
        if found.dtype == torch.bool:
            mask = found.numpy()
            values[self._number] = found = torch.from_numpy(
                np.asarray(mask.shape[-1] - np.count_nonzero(mask, axis=-1))
            )
        elif not is_sample:
            return
        longest = int(found.max()) if len(found.shape) else int(found)
        for number in self._padded:
            values[number] = values[number][:longest] if is_sample else values[number][:, :longest]


class NextTargets:
    """Makes (x, y) of the samples of a batch: their rows without the last one, and without the first one, as views.

    Parameters
    ----------
    fields
        The fields of a batch.
    shown
        The field of each tensor.
    """

    def __init__(self, fields: FieldSet, shown: Sequence[Field]) -> None:
        self._is_asked = fields.next_targets
        self._keys = fields.sides[0] or ("",)
        self._fields = dict(zip(self._keys, shown, strict=False))

    def __bool__(self) -> bool:
        return self._is_asked

    def of(self, side: Side, *, is_sample: bool) -> tuple[Side, Side]:
        """Return the samples and the targets of a batch, or of one sample, whose rows come first then."""
        samples = dict(side) if isinstance(side, dict) else {"": side}
        targets = {}
        before = (slice(None),) * (not is_sample)
        for key, field in self._fields.items():
            if field.has_rows_axis:
                whole = samples[key]
                samples[key], targets[key] = whole[(*before, slice(None, -1))], whole[(*before, slice(1, None))]
            elif isinstance(field, LengthField):
                samples[key] = torch.clamp(samples[key] - 1, min=0)
        return (samples, targets) if isinstance(side, dict) else (samples[""], targets[""])

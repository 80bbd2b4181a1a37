"""`Sequences`: batches of whole sequences, without the rows in which all samples are padded, and with their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from zarrfeed.spec.field import Field
from zarrfeed.spec.window_fields import LengthField


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

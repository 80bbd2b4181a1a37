"""`zarrfeed.check_disjoint`: no row is read for two parts, such as training and validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.face.data import Data
from zarrfeed.plan.samples.sample_set import pieces_of
from zarrfeed.plan.windows.windows import offsets_of
from zarrfeed.spec.samples.block_edges import Int64

_NOBODY = -1
_SHOWN = 3


def check_disjoint(*parts: Data) -> None:
    """Raise an error if a row of the arrays is read for two parts; for those of `Data.split`, and any other choice.

    Parameters
    ----------
    *parts
        Descriptions of one data set that were opened alike, such as training and validation. Every row counts that a
        sample or its window reads, also those beyond the samples of the part.

    Raises
    ------
    ConfigError
        If two have rows in common: the message says how many, and which are the first; if they are of different
        arrays, or of patches, whose voxels are not compared.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open(np.arange(100)).window((0, 1, 2))
    >>> zarrfeed.check_disjoint(*data.split((0.8, 0.2), by="contiguous"))
    >>> try:
    ...     zarrfeed.check_disjoint(*data.split((0.8, 0.2), by="contiguous", gap=None))
    ... except zarrfeed.ConfigError as error:
    ...     print(error)
    check_disjoint: parts 0 and 1 both read 2 rows of the arrays: 79, 80
    """
    for number, part in enumerate(parts):
        if not isinstance(part, Data):
            raise ConfigError(f"check_disjoint: part {number} is a {type(part).__name__}, must be a Data")
        part.resolved.check_rows("check_disjoint")
        if part.expression.opened != parts[0].expression.opened:
            raise ConfigError(
                f"check_disjoint: part {number} was opened as {part.expression.opened}, part 0 as "
                f"{parts[0].expression.opened}; parts of one data set can be compared"
            )
    if not parts:
        return
    owner = np.full(parts[0].resolved.choice.num_samples, _NOBODY, dtype=np.int32)
    for number, part in enumerate(parts):
        for rows in _rows_of(part):
            shared = (owner[rows] != _NOBODY) & (owner[rows] != number)
            if shared.any():
                raise ConfigError(_refusal(parts, int(owner[rows][shared][0]), number))
            owner[rows] = number


def _rows_of(part: Data) -> Iterator[Int64]:
    """Yield the rows that the samples of a part read, some at a time; padded windows read none beyond a segment."""
    windows = [column.window for column in part.resolved.columns if column.window is not None]
    offsets = offsets_of(windows) if windows else (0,)
    borders = next((one.pad.borders for one in windows if one.pad is not None and one.pad.borders is not None), None)
    for samples in pieces_of(part.resolved.choice.ascending()):
        first, end = (0, part.resolved.choice.num_samples) if borders is None else borders.around(samples)
        for offset in offsets:
            yield np.unique(np.clip(samples + offset, first, np.asarray(end) - 1))


def _refusal(parts: tuple[Data, ...], first: int, second: int) -> str:
    ours, theirs = (np.unique(np.concatenate([*_rows_of(parts[number])])) for number in (first, second))
    shared = np.intersect1d(ours, theirs)
    shown = ", ".join(map(str, shared[:_SHOWN].tolist())) + (", ..." if len(shared) > _SHOWN else "")
    return f"check_disjoint: parts {first} and {second} both read {len(shared)} rows of the arrays: {shown}"

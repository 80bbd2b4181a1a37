"""Packed samples of several descriptions, one after another.

A packed description is a row map over the rows of its arrays. The rows of several of them are joined as those of any
descriptions are, and the row maps are laid end to end. So a sample has sequences of one description, and is packed as
it was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Origin
from zarrfeed.metadata.stores.concat import Run, concat_runs
from zarrfeed.plan.choice.packed_sequences import PackedSequences
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.left_out import merged
from zarrfeed.plan.samples.sample_set import Samples, collected


def concat_packed(sources: Sequence[ResolvedData], names: Sequence[str]) -> ResolvedData:
    """Return the packed samples of several descriptions, one after another; messages call these `names`.

    Raises
    ------
    ConfigError
        If some are not packed, they are not packed alike, or their arrays do not fit together.
    """
    packings = [one.packed for one in sources if one.packed is not None]
    if len(packings) < len(sources):
        other = names[[one.packed is None for one in sources].index(True)]
        raise ConfigError(f"{other}: is not packed, and others are; call pack_sequences() of each")
    windows = [tuple(column.window for column in one.columns) for one in sources]
    for name, packed, window in zip(names, packings, windows, strict=True):
        if packed.length != packings[0].length:
            raise ConfigError(f"{name}: is packed to {packed.length} rows, {names[0]} to {packings[0].length}")
        if len(window) == len(windows[0]) and window != windows[0]:
            raise ConfigError(f"{name}: padding has another value than that of {names[0]}; pack both alike")
    rows = [_rows_of(one) for one in sources]
    joined = concat_runs([Run(one, [one.choice.num_samples], [name]) for one, name in zip(rows, names, strict=True)])
    first_rows = np.cumsum([0, *(one.choice.num_samples for one in rows)])[:-1]
    whole = PackedSequences.joined(packings, first_rows)
    choice = SampleChoice(
        whole.axis_length,
        _chosen(sources, packings, whole),
        left_out=merged(reason for one in sources for reason in one.choice.left_out),
    )
    made = joined.mapped(lambda column, window: column.with_rows(whole.rows, window), windows[0])
    return replace(made, choice=choice, origin=Origin(categories=joined.origin.categories), packed=whole)


def _rows_of(resolved: ResolvedData) -> ResolvedData:
    """Return all rows of the arrays of packed samples."""
    made = resolved.mapped(lambda column: column.with_rows(None, None))
    choice = SampleChoice.all_of(made.columns[0].field.num_samples)
    return replace(made, choice=choice, expected=None, packed=None)


def _chosen(sources: Sequence[ResolvedData], packings: Sequence[PackedSequences], whole: PackedSequences) -> Samples:
    """Return the chosen samples of all descriptions, on their common axis."""
    if all(one.choice.length == packed.num_samples for one, packed in zip(sources, packings, strict=True)):
        return range(0, whole.axis_length, whole.length)
    begins = np.cumsum([0, *(one.axis_length for one in packings)])
    pieces = (begin + np.asarray(one.choice.listed()) for begin, one in zip(begins, sources, strict=False))
    return collected(pieces, whole.axis_length)

"""`split`: datasets over parts of a dataset's samples, disjoint and together all of them but for what a gap takes."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.plan.split import By, split_selection
from zarrfeed.torch.iterable_dataset import ZarrIterableDataset


@checks_option_names
def split(
    dataset: ZarrIterableDataset, parts: Sequence[float], *, by: By = "chunk", seed: int = 0, gap: int | None = 0
) -> tuple[ZarrIterableDataset, ...]:
    """Split a dataset into several, as `torch.utils.data.random_split` does; `Data.split` describes the arguments.

    Returns
    -------
    One dataset a part: configured as `dataset` is, but for `lanes` and memory where these are derived from the number
    of samples; each begins with epoch 0 and counts its own epochs.

    Raises
    ------
    ConfigError
        As `Data.split` does.
    """
    schedule = dataset.session.schedule
    if by == "shard" and schedule.fields.block != "shard":
        raise ConfigError("by = 'shard', but the dataset has block='chunk'; use Data.split, or block='shard'")
    selection = schedule.order.selection
    left_out = () if selection is None else selection.left_out
    selections = split_selection(schedule.fields, selection, parts, by=by, seed=seed, gap=gap, left_out=left_out)
    return tuple(dataset.with_selection(selection) for selection in selections)

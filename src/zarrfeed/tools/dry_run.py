"""Plan the schedule of a `ZarrIterableDataset`, and explain it, without making the dataset.

Invariant: the page is the same that the dataset explains, and nothing here needs torch. Only whether batches would be
pinned has to be asked of torch, where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

from zarrfeed.metadata.description.alternatives import Alternatives
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.slab_choice import choose_schedule
from zarrfeed.metadata.face.data import Data
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.report.explain import Explanation, explain_schedule
from zarrfeed.report.rank_sharing import warn_of_sharing
from zarrfeed.report.value_meanings import with_meanings
from zarrfeed.spec.arrays.sharding import Requests
from zarrfeed.spec.description.feeding import Mixing, as_options
from zarrfeed.torch.batches.accelerators import has_accelerator
from zarrfeed.torch.datasets.options import StreamOptions
from zarrfeed.torch.ranks.distributed import find_rank


def schedule_of(
    data: Data,
    *,
    batch_size: int | None,
    shuffle: bool,
    seed: int,
    num_threads: int | None,
    memory_budget: int | str | None,
    mixing: Mapping[str, Any],
) -> tuple[Schedule, Alternatives]:
    """Return the schedule of a dataset with these arguments, of samples whose arrays lie in stores, and all others.

    Raises
    ------
    ConfigError
        If an argument has a value that is not allowed.
    """
    stream = StreamOptions(
        batch_size=batch_size, shuffle=shuffle, seed=seed, num_threads=num_threads, memory_budget=memory_budget
    )
    given = as_options(Mixing, "mixing", mixing)
    options = stream.schedule(given, Requests())
    planning = Planning(False, shuffle, seed, given, options)
    return choose_schedule(planning, data.resolved)[1], Alternatives(planning, data.resolved)


def explain(
    data: Data, schedule: Schedule, alternatives: Alternatives, *, ranks: int | None, epoch: int
) -> Explanation:
    """Return the explanation that the dataset of a schedule would give, on rank 0 of so many, or on the only one.

    Raises
    ------
    MemoryBudgetError
        If the memory budget of the schedule is too small.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    rank_info = find_rank() if ranks is None else find_rank(0, ranks)
    schedule.check_memory(rank_info, 0, EpochState(0))
    warn_of_sharing(schedule, rank_info)
    state = EpochState(schedule.order.typical_epoch(epoch))
    described, pinned = data.resolved, has_accelerator()
    explained = explain_schedule(
        schedule,
        rank_info,
        state,
        pinned=pinned,
        statics=tuple(described.statics),
        alternatives=lambda: alternatives,
    )
    return with_meanings(explained, described)

"""What a user says about a schedule: the order, batches, ranks, threads and memory."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.plan.shares.partition import Even
from zarrfeed.spec.sharding import DEFAULT_COALESCE, Coalesce

#: The memory of a machine's readers where none is named.
DEFAULT_BUDGET = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """What a user says about a schedule; `Schedule` has the meaning of what is not described here.

    Attributes
    ----------
    lanes, mix
        Of the order. None: chosen from the layout and the memory.
    """

    lanes: int | None = None
    mix: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    even: Even | None = None
    num_threads: int | None = None
    budget: int | None = None
    limit: int | None = DEFAULT_BUDGET
    coalesce: Coalesce = DEFAULT_COALESCE
    whole_blocks: bool = False

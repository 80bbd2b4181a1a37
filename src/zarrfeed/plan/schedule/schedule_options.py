"""What a user says about a schedule: the order, batches, ranks, threads and memory."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.plan.order.order import Order
from zarrfeed.plan.shares.partition import Even
from zarrfeed.spec.sharding import DEFAULT_COALESCE, Coalesce

#: The memory of a machine's readers where none is named.
DEFAULT_BUDGET = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Options of a schedule, as the user says them.

    Attributes
    ----------
    lanes, mix
        Of the order. None: chosen from the layout and the memory; a state's own mix serves the rest of its epoch.
    batch_size
        None: single samples.
    drop_last, even
        As the user said; `even` None: "drop" where there are several ranks.
    num_threads
        Decode threads of a consumer. None: the cores of the machine, shared.
    budget
        Bytes for all consumers of a machine. None: DEFAULT_BUDGET, or what they need at least.
    limit
        For `budget` None: the most that one consumer may need. None: whatever it needs.
    coalesce
        What may be read in one request, in stores that Python reads.
    whole_blocks
        Whether consumers have runs of whole blocks where rows keep their order, instead of a stride.
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

    def reads_runs(self, order: Order, lanes: int) -> bool:
        """Whether consumers have runs of whole blocks, in an epoch order with this many lanes."""
        return self.whole_blocks and not order.permutes_rows and lanes == 1

"""The options of a schedule that a user gives: the order, batches, ranks, threads and memory."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.job_memory import job_bytes
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.shares.partition import Even
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE, Coalesce
from zarrfeed.spec.fields.field import FieldSet

#: Memory for which lanes and mix are chosen where none is named, and which may be used on any machine.
DEFAULT_BUDGET = 1 << 30
#: Readers get the memory of the job divided by this if no budget is named.
_JOB_DIVISOR = 4
#: Without a batch size, samples are views of internal batches of about this size.
_INTERNAL_BATCH_BYTES = 4 << 20
_INTERNAL_BATCH_SAMPLES = 1024


def default_budget() -> int:
    """Return the bytes that all readers of this machine may use where the user names no budget."""
    return max(DEFAULT_BUDGET, job_bytes() // _JOB_DIVISOR)


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Options of a schedule, as the user says them.

    Attributes
    ----------
    lanes, mix
        Lanes and mix of the order. None: chosen from the layout and the memory; a state's own mix serves the rest of
        its epoch.
    batch_size
        Samples of a batch. None: single samples.
    drop_last, even
        The arguments as the user gives them; `even` None: "drop" where there are several ranks.
    num_threads
        Decode threads of a consumer. None: the cores of the machine, shared.
    budget
        Bytes for all consumers of a machine. None: a quarter of what the job may use there, and at least
        DEFAULT_BUDGET; or what the consumers need at least.
    limit
        With `budget` None: the most bytes that one consumer may get if it needs more than its share. None: whatever it
        needs.
    coalesce
        The rule by which inner chunks share a request, in stores that Python reads.
    whole_blocks
        True if consumers have runs of whole blocks where rows keep their order, instead of a stride.
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

    @property
    def machine_budget(self) -> int:
        """Bytes for all consumers of this machine."""
        return self.budget or default_budget()

    @property
    def order_budget(self) -> int:
        """Bytes for which lanes and mix are chosen: they are the same on any machine."""
        return self.budget or DEFAULT_BUDGET

    def engine_batch_size(self, order: Order, fields: FieldSet) -> int:
        """Return the samples of a batch of the engine, for an order of all samples."""
        if self.batch_size is not None:
            return order.fit_batch(self.batch_size)
        bytes_of_sample = sum(f.sample_bytes for f in fields.fields)
        fitting = max(1, min(_INTERNAL_BATCH_BYTES // max(1, bytes_of_sample), _INTERNAL_BATCH_SAMPLES))
        return min(order.length, fitting)

    def reads_runs(self, order: Order, lanes: int) -> bool:
        """Return True if consumers have runs of whole blocks, in an epoch order with this many lanes."""
        return self.whole_blocks and not order.permutes_rows and lanes == 1

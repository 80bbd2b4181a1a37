"""The line that `explain()` leads with, and remedies for its poor figures."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.units import format_bytes
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.schedule.shuffle_measure import ShuffleMeasure
from zarrfeed.report.field_explanation import FieldExplanation


def verdict(
    fields: Sequence[FieldExplanation],
    memory: MemoryPlan,
    memory_bytes: int,
    shuffling: ShuffleMeasure | None,
    *,
    otherwise: str,
    mixes_better: bool,
) -> str:
    """Return one line: how well the order mixes, how often a chunk is decoded, the memory, and the limiting stage.

    Parameters
    ----------
    fields, memory, memory_bytes, shuffling
        The attributes of `Explanation` with these names.
    otherwise
        The words for an order whose stretches are not measured.
    mixes_better
        True if other options would mix a poor order.
    """
    parts = []
    if shuffling is not None:
        parts.append(f"mixes {shuffling.of_perfect:.0%} as well as a perfect shuffle")
    else:
        parts.append(otherwise)
    stored = [f for f in fields if f.chunks and not f.item_type]
    worst = max(stored, key=lambda f: f.repeats, default=None)
    if worst is not None:
        name = f" of {worst.name}" if len(stored) > 1 else ""
        parts.append(f"decodes each chunk{name} {worst.repeats:.2f} times")
    parts.append(f"takes {format_bytes(memory_bytes)} of {format_bytes(memory.budget)}")
    slow = [f.name for f in fields if f.chunks and not f.native and not f.item_type]
    if slow:
        limit = f"limited by codecs that zarr-python decodes ({', '.join(slow)})"
    elif mixes_better:
        limit = "limited by its shuffle"
    elif worst is not None and worst.is_amplified:
        limit = "limited by chunks that are decoded again"
    elif lacks_memory(memory):
        limit = "limited by memory"
    else:
        limit = "nothing in its plan limits it"
    return "; ".join([*parts, limit])


def lacks_memory(memory: MemoryPlan) -> bool:
    """Return whether more memory would let threads or requests be more."""
    return (
        memory.lacks_threads
        or (memory.reads_local and not memory.num_fetch_threads)
        or (memory.max_requests > 0 and memory.requests_bounded_by == "memory")
    )


def remedy_of_field(f: FieldExplanation, *, is_primary: bool, lanes: int, strip: int) -> str:
    """Return the change that would make decodes of a field's chunks fewer; "" if they are decoded about once."""
    if f.item_type or not f.chunks:
        return ""
    if not f.native:
        return "remedy: `zarrfeed pack` writes them with codecs that the engine decodes"
    if not f.is_amplified:
        return ""
    if f.reads_slabs:
        return 'remedy: a larger memory_budget= has room for longer slabs, which mixing={"block": ...} names'
    if "lies over" in f.choice:
        return "remedy: `zarrfeed pack` with chunks that nest along the sample axis"
    if f.window and strip == 1 and "share" not in f.choice:
        return "remedy: a larger memory_budget= has room for the chunks that neighbouring blocks share"
    if is_primary and lanes > 1:
        return f'remedy: fewer lanes cut fewer blocks, such as mixing={{"lanes": {max(1, lanes // 2)}}}'
    return "remedy: longer blocks, of `zarrfeed pack` with other chunks, or of mixing={'block': 'shard'}"

"""`GivenShares`: the order that a user gave with `select(keep_order=True)`, and its cost, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zarrfeed.base.page import Row
from zarrfeed.plan.order.given_order import GivenOrder
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.report.field_explanation import FieldExplanation


@dataclass(frozen=True)
class GivenShares:
    """The samples of an epoch, over all ranks.

    Attributes
    ----------
    length, distinct
        Samples of the epoch, and how many different ones these are.
    span_rows, num_spans
        Samples of a span, in which a chunk is decoded once, and the spans of the epoch.
    ranks
        Ranks, each of which decodes the chunks of its samples.
    verdict, said, remedy
        The order in a few words, in a line, and the way to decode chunks once.
    """

    length: int
    distinct: int
    span_rows: int
    num_spans: int
    ranks: int
    verdict: str = field(default="keeps an order", repr=False)
    said: str = field(default="given by select(keep_order=True)", repr=False)
    remedy: str = field(default="; keep_order=False decodes it once", repr=False)

    @classmethod
    def of(cls, order: GivenOrder, plan: EpochPlan, **words: str) -> GivenShares:
        """Count the samples of an epoch."""
        distinct = len(np.unique(order.reads.listed()))
        return cls(order.length, distinct, order.max_rows, order.num_blocks, plan.stride, **words)

    def rows(self, fields: Sequence[FieldExplanation]) -> list[Row]:
        """Return the rows of a page; `fields` are the fields of the epoch."""
        rows = [
            (
                "order",
                f"{self.said}: {self.length} samples an epoch, {self.distinct} different ones, in "
                f"spans of up to {self.span_rows}",
            )
        ]
        worst = max((f for f in fields if f.chunks and not f.item_type), key=lambda f: f.repeats, default=None)
        if worst is None:
            return rows
        causes = [f"for each of {self.num_spans} spans"] * (self.num_spans > 1)
        causes += [f"by each of {self.ranks} ranks"] * (self.ranks > 1)
        because = f": once {' and '.join(causes)} that needs it" * bool(causes)
        often = f"a chunk of {worst.name} is decoded {worst.repeats:.2f} times{because}"
        rows.append(("", f"{often}{self.remedy}"))
        if worst.is_amplified and self.num_spans > 1:
            rows.append(("", "remedy: a larger memory_budget= has room for longer spans"))
        return rows

"""Count the ranks that decode each chunk because of the number of lanes, for a row of `explain()` and for a warning."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from zarrfeed.base.page import Row
from zarrfeed.base.redaction import without_secrets
from zarrfeed.plan.mixture.mixture import COLUMNS
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.rank_lanes import nearest_multiple, ranks_of_chunk
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo

#: No warning is given if ranks have fewer blocks each than this.
_FEW_BLOCKS = 16


@dataclass(frozen=True)
class RankSharing:
    """The number of ranks that decode each chunk, because of the lanes, if chunks are long enough.

    Attributes
    ----------
    ranks
        Ranks that divide the epoch order, without workers.
    lanes
        The lanes of the epoch order. In a mixture, those of the source whose chunks most ranks decode.
    readers
        Number of ranks that decode each chunk, except for chunks that the end of a lane cuts. 1 if the number of ranks
        divides the number of lanes.
    better
        The nearest number of lanes that the number of ranks divides; None if no number helps.
    in_order
        True if the sources of a mixture are read in their own order, which is then the cause.
    why_one_lane
        As of the order.
    """

    ranks: int
    lanes: int
    readers: int
    better: int | None
    in_order: bool = False
    why_one_lane: str = ""

    @classmethod
    def of(cls, order: Order, ranks: int) -> RankSharing:
        """Count the ranks that decode each chunk of an epoch order which a number of ranks read."""
        columns = order.columns_for(ranks)
        readers, one = max(
            ((min(one.max_rows, ranks_of_chunk(ranks, math.gcd(one.lanes, columns))), one) for one in order.orders),
            key=lambda found: found[0],
        )
        if order.why_one_lane:
            return cls(ranks, one.lanes, readers, None, why_one_lane=order.why_one_lane)
        if order.has_ordered_sources:
            better = COLUMNS if COLUMNS % ranks == 0 else ranks
            return cls(ranks, one.lanes, readers, None if columns else better, in_order=True)
        return cls(ranks, one.lanes, readers, None if columns else nearest_multiple(one.lanes, ranks))

    def __str__(self) -> str:
        if self.why_one_lane:
            return f"each chunk is decoded by up to {self.readers} ranks, since {self.why_one_lane}"
        if self.in_order and self.better is not None:
            return (
                f"each chunk is decoded by {self.readers} ranks, since each source of the mixture is read in order: "
                f'mixing={{"lanes": {self.better}}} reads {self.better} parts of it side by side, each in order'
            )
        text = f"each chunk is decoded by {self.readers} ranks, since {self.ranks} ranks do not divide "
        if self.better is None:
            return f"{text}the columns of a mixture: worlds of 2, 3, 4, 6, 8, 12 and 24 ranks do"
        return f'{text}{self.lanes} lanes: mixing={{"lanes": {self.better}}}'

    def rows(self, about: str = "") -> list[Row]:
        """Return the row of a page, if several ranks decode a chunk; `about` begins the row with its subject."""
        return [("", f"{about}{self}")] if self.readers > 1 else []


def warn_of_sharing(schedule: Schedule, rank_info: RankInfo) -> None:
    """Warn, on rank 0, if several ranks decode each chunk because of the lanes; not if there are few blocks."""
    if rank_info.rank != 0 or rank_info.world_size == 1:
        return
    if schedule.order.why_one_lane or not any(f.is_stored and not f.resident for f in schedule.fields.fields):
        return
    if schedule.order.num_blocks < _FEW_BLOCKS * rank_info.world_size:
        return
    found = RankSharing.of(
        schedule.order_of(schedule.settle(EpochState(0), rank_info.consumer())), rank_info.world_size
    )
    if found.readers > 1:
        warnings.warn(without_secrets(str(found)), stacklevel=1)  # of this line, so that it is shown once

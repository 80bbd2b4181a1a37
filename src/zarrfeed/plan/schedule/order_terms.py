"""The terms that an epoch order depends on, by name, to be compared with those of another rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, describe_layout
from zarrfeed.plan.shares.partition import RankInfo


@dataclass(frozen=True)
class OrderTerms:
    """The schedule that a dataset was made with, as ranks compare it.

    Attributes
    ----------
    schedule
        The schedule of the first epoch.
    affinity
        The argument `affinity`, as the user gives it.
    grows
        True if the store grows: ranks may have seen several lengths of it, and agree on one when a pass begins.
    """

    schedule: Schedule
    affinity: str | None = None
    grows: bool = False

    def on(self, world_size: int) -> dict[str, Any]:
        """Return the terms that the order, and the share of each of `world_size` ranks, depend on."""
        schedule, options = self.schedule, self.schedule.options
        order = schedule.part.whole
        terms: dict[str, Any] = {
            "batch_size": options.batch_size,
            "drop_last": options.drop_last,
            "even": options.even,
            "affinity": self.affinity,
            "shuffle": order.shuffle,
            "seed": order.seed,
        }
        if self.grows:
            return terms
        settled = schedule.settle(EpochState(0), RankInfo(0, world_size).consumer()).to_json()
        begin = {name: value for name, value in settled.items() if name not in ("epoch", "used")}
        slab_rows = 0 if order.slabs is None else order.slabs.rows
        layout = describe_layout(schedule.fields.fields)
        described = order.describe()
        described.pop("row_seed", None)  # ranks agree on it (compat/zarrdataset.py)
        return {**described, **begin, **terms, "slab_rows": slab_rows, "layout": layout}

    @property
    def causes(self) -> dict[str, Any]:
        """Arguments that the order does not depend on by themselves, and that may explain a difference."""
        return {"memory_budget": self.schedule.options.budget}

"""The kind of order that `epoch_size` asks for: epochs of so many samples, each of which goes on where the last ended.

It is the order of a mixture of one source: passes over all samples, each shuffled anew, follow each other without end,
and epoch k has the positions [k n, (k + 1) n) of that sequence, for n = `epoch_size`. So a pass has each sample once,
whatever n is; without shuffling it is in the order of the array, in one lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.order_state import OrderState


@dataclass(frozen=True, kw_only=True)
class CycledOrder(MixedOrder):
    """The order of epochs that go on where the epoch before them ended."""

    @classmethod
    def with_epochs(cls, order: Order, epoch_size: int, *, lanes: int | None, mix: int | None) -> CycledOrder:
        """Return an order with epochs of `epoch_size` samples, over the samples of another order."""
        made = cls.of(order, Blend((0, order.num_samples), (1,), stop=epoch_size), lanes=lanes, mix=mix)
        assert isinstance(made, cls)
        return made

    def check_dealt(self) -> None:
        """Raise ConfigError: nodes would need sequences of their own."""
        raise ConfigError("affinity = 'node' is not for epoch_size: all nodes share one sequence of passes")

    def describe(self) -> dict[str, Any]:
        """Return the terms that the order of the epochs depends on, as JSON."""
        described = super().describe()
        del described["mixture"]
        return {**described, "epoch_size": self.length}

    def describe_as(self, theirs: object) -> dict[str, Any]:
        """Return the description in the form of the release that made another one: they all have this one."""
        del theirs
        return self.describe()

    def describe_state(self, state: OrderState) -> dict[str, Any]:
        """Return for people the pass over all samples, and the position in it, that come next."""
        number, position = divmod(self.begin_of(state.epoch) + state.used, self.lengths[0])
        return {"next": {"pass": number, "position": position}}

    def columns_for(self, ranks: int) -> int:
        """Return 0: each rank has a regular stride of each pass."""
        del ranks
        return 0

    @property
    def why_one_lane(self) -> str:
        """Why it has one lane, if rows keep their order; "" otherwise."""
        return "epochs of epoch_size samples are read in the order of the array" if self.is_in_order() else ""

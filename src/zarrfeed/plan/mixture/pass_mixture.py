"""The order of a mixture whose passes have blocks of their own: an epoch reads the passes that its steps touch.

Invariants, beside those of the mixture itself in `mixed_order.py`:

- **One length.** All passes over a source have as many samples, so turns, lanes and the position of a step are those of
  any mixture, and depend on no pass.
- **One table.** An epoch reads the passes that its steps touch, one after another in one table. A group of a pass has
  blocks of this table. The table has whole passes, also where an epoch takes a part of one.
- **Blocks have one number.** In the table of any epoch, a block of a pass has the number that it has in the pass, by
  which its rows are permuted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.order_state import OrderState
from zarrfeed.plan.order.portion import WHOLE, Portion


@dataclass(frozen=True, kw_only=True)
class PassMixture(MixedOrder):
    """The epoch order of a mixture whose passes differ in their blocks, in one epoch.

    Attributes
    ----------
    epoch
        The epoch that it is of.
    """

    epoch: int = 0

    @cached_property
    def touched(self) -> tuple[tuple[int, int], ...]:
        """The passes that the epoch touches: source and number of each."""
        low, high = self._position_range(self.begin_of(self.epoch), WHOLE.settled(self.length)[0])
        return tuple(
            (source, one)
            for source, n in enumerate(self.lengths)
            for one in range(low[source] // n, max(low[source] // n + 1, -(-high[source] // n)))
        )

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """For each source, the order of the first pass that the epoch touches."""
        first = dict(reversed(self.touched))
        return tuple(self.pass_order(source, first[source])[0] for source in range(self.blend.num_sources))

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that comes next: epochs differ in the passes that they read."""
        return upcoming

    def of_epoch(self, epoch: int) -> Self:
        """Return the order of an epoch."""
        return self if epoch == self.epoch else replace(self, epoch=epoch)

    def at(self, state: OrderState) -> MixedOrder:
        """Return the order of a settled state's epoch."""
        made = super().at(state)
        assert isinstance(made, PassMixture)
        return made.of_epoch(state.epoch)

    def plan(self, epoch: int, portion: Portion = WHOLE) -> EpochPlan:
        """Return the pieces of blocks that a consumer needs in an epoch, in the order in which it needs them."""
        return super().plan(epoch, portion) if epoch == self.epoch else self.of_epoch(epoch).plan(epoch, portion)

    def groups_bytes(self, *, are_shared: bool) -> int:
        """Return the bytes of the groups of a plan: of all passes that the epoch touches."""
        return super(MixedOrder, self).groups_bytes(are_shared=are_shared)

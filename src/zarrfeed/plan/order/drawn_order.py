"""`DrawnOrder`: the orders whose epochs draw their samples anew, of which each epoch has the plain order.

Invariants:

- **One length.** All epochs have as many samples, and so the same lanes, and the same division among ranks and workers.
- **Blocks of an epoch.** An epoch has blocks of its own: those of which it draws samples. So `at` returns another order
  for each epoch, with what depends on the number of blocks settled anew.
- **Nothing in states.** The samples of an epoch follow from what they are drawn by, the seed and the epoch. A state
  names the epoch, and what it describes of its order has a digest of the former.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

from zarrfeed.plan.order.block_order import RowKeys
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.order_state import OrderState, Readers, S
from zarrfeed.plan.order.remembered import Remembered
from zarrfeed.plan.samples.selection import Selection


class Expected(Protocol):
    """The rule by which epochs draw samples."""

    @property
    def total(self) -> int:
        """Samples of an epoch."""

    @property
    def digest(self) -> str:
        """A hash that tells rules apart."""


class DrawnBlocks(Protocol):
    """Blocks of the samples that may come, of which an epoch draws some."""

    def draw(self, epoch: int) -> Selection:
        """Return the samples of an epoch, in the blocks that have any."""

    @property
    def max_rows(self) -> int:
        """Samples of a block in any epoch, at most."""

    @property
    def nbytes(self) -> int:
        """Bytes that the rule takes, and the samples of any epoch, at most."""


class _Drawn:
    """The blocks of drawn orders that differ in lanes alone, and the samples of the epochs that were drawn last."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[Any, ...], tuple[Selection | None, DrawnBlocks]] = {}
        self._epochs: Remembered[Selection] = Remembered()

    def __reduce__(self) -> tuple[type[_Drawn], tuple[()]]:
        return _Drawn, ()  # another process draws them anew

    def blocks(self, order: DrawnOrder) -> DrawnBlocks:
        """Return the blocks of an order."""
        known = self._blocks.get(order.drawn_by)
        if known is None or known[0] is not order.selection:
            known = order.selection, order.make_blocks()
            self._blocks.clear()
            self._blocks[order.drawn_by] = known
            self._epochs = Remembered()
        return known[1]

    def epoch(self, order: DrawnOrder) -> Selection:
        """Return the samples of an order's epoch."""
        blocks = self.blocks(order)
        return self._epochs.get((*order.drawn_by, order.epoch), lambda: blocks.draw(order.epoch))


@dataclass(frozen=True, kw_only=True)
class DrawnOrder(Order, unfolds=True):
    """The order of the samples that one epoch draws; `selection` has the samples that may come, each once.

    Attributes
    ----------
    expected
        The rule by which samples are drawn.
    epoch
        The epoch that it is of.
    """

    expected: Expected = field(compare=False, repr=False)
    epoch: int = 0
    _drawn: _Drawn = field(default_factory=_Drawn, compare=False, repr=False)

    @classmethod
    def drawing(cls, order: Order, expected: Expected, **changes: Any) -> Self:
        """Return the order of the samples that a rule draws of those of another order, with `changes` of these."""
        named = {**{one.name: getattr(order, one.name) for one in dataclasses.fields(order)}, **changes}
        made = cls(**{**named, "mix": 1, "lanes": min(order.lanes, expected.total)}, expected=expected)
        return made if order.mix == 1 else replace(made, mix=min(order.mix, made.num_blocks))

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    # Samples

    def row_keys(self, epoch: int) -> RowKeys:
        """Return the keys of the order of the rows inside of blocks, in the form that the engine takes."""
        assert epoch == self.epoch, (epoch, self.epoch)
        return super().row_keys(epoch)

    @property
    def drawn_by(self) -> tuple[Any, ...]:
        """All that the samples of an epoch depend on, beside `expected`, the selection and the epoch."""
        return self.seed, self.shuffle, self.block_rows, self.slabs

    @abstractmethod
    def make_blocks(self) -> DrawnBlocks:
        """Return the blocks that samples are drawn from, which are made once for all epochs."""

    @property
    def blocks(self) -> DrawnBlocks:
        """The blocks that samples are drawn from."""
        return self._drawn.blocks(self)

    @cached_property
    def reads(self) -> Selection:
        """The samples of the epoch, each as often as it comes, in the blocks and visits of the order."""
        return self._drawn.epoch(self)

    @cached_property
    def length(self) -> int:
        """n, the number of positions of the epoch order."""
        return self.expected.total

    @cached_property
    def max_rows(self) -> int:
        """Samples of a block, at most, in any epoch."""
        return self.blocks.max_rows

    @property
    def selected_bytes(self) -> int:
        """Bytes that the samples take, what they are drawn by, and the samples of an epoch."""
        return super().selected_bytes + self.blocks.nbytes

    # Epochs

    def of_epoch(self, epoch: int) -> Self:
        """Return the order of an epoch."""
        if epoch == self.epoch:
            return self
        made = replace(self, epoch=epoch, strip=1)
        return made if self.strip == 1 else replace(made, strip=min(self.strip, made.num_blocks))

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that comes next: epochs differ in the samples that they draw."""
        return upcoming

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state in which nothing is left to be decided, by the blocks of its epoch."""
        if state.lanes is not None:
            return state
        order = self.of_epoch(state.epoch)
        return super(DrawnOrder, order).settle(state, replace(readers, fewest_blocks=order.num_blocks))

    def as_in(self, state: OrderState) -> Self:
        """Return the order with what a state says of its blocks."""
        del state
        return self

    def at(self, state: OrderState) -> Order:
        """Return the order of a settled state's epoch."""
        return super(DrawnOrder, self.as_in(state).of_epoch(state.epoch)).at(state)

    # States

    def check_state(self, state: OrderState, *, shortest: int, fewest_blocks: int) -> None:
        """Raise ValueError unless a state is such as this order can have in its epoch."""
        if state.lanes is not None:
            fewest_blocks = self.as_in(state).of_epoch(state.epoch).num_blocks
        super().check_state(state, shortest=shortest, fewest_blocks=fewest_blocks)

"""The kind of order that `select(keep_order=True)` asks for: samples come exactly as the user listed them.

Invariants:

- **One sequence.** Position p of the epoch order is sample p of the list, on any number of ranks and workers: there is
  one lane, and the workers of a rank take whole batches in turn. So global batch i has the samples of the positions
  [i G, (i + 1) G). All ranks decode all chunks that their samples lie in.
- **Spans.** A consumer reads some consecutive positions at a time, a *span*, and decodes each chunk of a span
  once. Spans are as long as a quarter of the memory has room for. They change what is decoded, and never the order.
- **Epochs.** An epoch has the whole list; or `epoch_size` positions of the list, which is repeated without end, from
  where the epoch before ended.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.order.groups import NEVER, Groups
from zarrfeed.plan.order.order import EpochPlan, Order, Room
from zarrfeed.plan.order.order_state import OrderState, Readers, S
from zarrfeed.plan.order.portion import Strides
from zarrfeed.plan.samples.given_samples import GivenSamples
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.selection import Int64, Selection

#: Samples of a span, at most: the rows of a span are listed when it is begun, with 64 bytes each.
_MOST_ROWS = 1 << 17
_BYTES_OF_ROW = 64
#: Spans of an epoch, at most, before the memory is known.
_FEW_SPANS = 1 << 16
#: Spans that are open side by side: one is read while the one before is delivered.
_OPEN_WINDOWS = 2


@dataclass(frozen=True, kw_only=True)
class GivenOrder(Order):
    """The epoch order of samples that the user listed; `selection` has these samples, ascending and each once.

    Attributes
    ----------
    given
        The samples in the order of the user.
    epoch_size
        Samples of an epoch. None: all that are listed.
    epoch
        The epoch that it is of.
    span_rows
        Samples of a span.
    """

    given: GivenSamples = field(compare=False, repr=False)
    epoch_size: int | None = None
    epoch: int = 0
    span_rows: int = 1

    @classmethod
    def of(cls, order: Order, given: GivenSamples, epoch_size: int | None = None) -> GivenOrder:
        """Return the order of samples that are listed, which are those of another order.

        Raises
        ------
        ConfigError
            If the other order is shuffled.
        """
        if order.shuffle:
            raise ConfigError(
                "shuffle = True, but select(keep_order=True) says in which order samples come: leave shuffle out; or "
                "leave keep_order out, or call weight(), whose samples repeat and are shuffled"
            )
        named = {one.name: getattr(order, one.name) for one in dataclasses.fields(order)}
        few = max(1, (epoch_size or len(given)) // _FEW_SPANS)  # until `suit` chooses
        return cls(**{**named, "lanes": 1, "mix": 1}, given=given, epoch_size=epoch_size, span_rows=few)

    # Samples

    @cached_property
    def length(self) -> int:
        """n, the number of positions of the epoch order."""
        return self.epoch_size or len(self.given)

    @cached_property
    def reads(self) -> Selection:
        """The samples of the epoch, in spans in the place of blocks."""
        return Selection(self._spans, samples=self.given)

    @cached_property
    def _spans(self) -> ListedBlocks:
        """The spans of the epoch, which are cut where the list begins anew."""
        begin = self.epoch * self.length if self.epoch_size else 0
        first_end = -begin % len(self.given)
        anew = np.arange(first_end, self.length, len(self.given))
        begins = np.union1d(np.arange(0, self.length, self.span_rows), anew)
        return ListedBlocks(
            np.arange(len(begins)), np.diff(begins, append=self.length), (begin + begins) % len(self.given)
        )

    @property
    def by_block(self) -> Order:
        """The order of the same samples, each once, in the blocks of the array."""
        return Order(**{one.name: getattr(self, one.name) for one in dataclasses.fields(Order)})

    @property
    def selected_bytes(self) -> int:
        """Bytes that the samples take, in both orders."""
        return super().selected_bytes + self.reads.nbytes

    # Epochs

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that comes next, if epochs have parts of the list."""
        return upcoming if self.epoch_size else 0

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state in which nothing is left to be decided: an order of the user's depends on no reader."""
        del readers
        return state if state.lanes is not None else replace(state, lanes=1, mix=1)

    def at(self, state: OrderState) -> GivenOrder:
        """Return the order of a settled state's epoch."""
        return replace(self, epoch=state.epoch) if self.epoch_size else self

    def deals_batches(self, num_workers: int, state: OrderState) -> bool:
        """Return True if there are several workers: they take whole batches in turn."""
        del state
        return num_workers > 1

    def check_dealt(self) -> None:
        """Raise ConfigError: nodes would have orders of their own."""
        raise ConfigError("affinity = 'node' is not for select(keep_order=True): all nodes share one order")

    def steps_of(self, groups: Groups, strides: Strides) -> tuple[Int64, Int64]:
        """Return the first and the last regular step that each span serves; `NEVER` and -1 for none."""
        before = _steps_before(groups.sequence_begin, strides)
        behind = _steps_before(groups.sequence_begin + groups.rows, strides)
        some = behind > before
        return np.where(some, strides.begin + before, NEVER), np.where(some, strides.begin + behind - 1, -1)

    # Memory

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> GivenOrder:
        """Return the order with spans that suit the memory."""
        del lanes, mix
        limits = room.limits(self)
        rows = min(max(limits.quarter_steps, limits.batch_size), _MOST_ROWS, self.length)
        return self if rows == self.span_rows else replace(self, span_rows=rows)

    def wanted_batches(self, batch_size: int, stride: int) -> int:
        """Return how many batches to keep open, so that a span is read while the one before is delivered."""
        return _OPEN_WINDOWS * self.open_batches(batch_size, stride)

    def groups_bytes(self, *, are_shared: bool) -> int:
        """Return what the spans of a plan take, and the rows of those that are open."""
        return super().groups_bytes(are_shared=are_shared) + _OPEN_WINDOWS * _BYTES_OF_ROW * self.max_rows

    @property
    def keeps_neighbours(self) -> bool:
        """Never: neighbouring spans need any chunks."""
        return False

    @property
    def caches_chunks(self) -> bool:
        """Always False: memory goes into longer spans instead."""
        return False

    # Plans and reports

    def pieces_of(self, plan: EpochPlan) -> Selection:
        """Return the samples that a consumer reads of each span."""
        first = plan.first_step
        held = ListedBlocks(np.arange(len(first)), np.diff(first, append=plan.steps), first)
        return Selection(held, samples=GivenSamples.of(core.sample_order(plan.to_core())))

    def blocks_at(self, held_indices: Int64) -> Int64:
        """Return the numbers of spans."""
        return held_indices

    def describe(self) -> dict[str, Any]:
        """Return what the epoch order depends on, except for epoch and lanes, as JSON."""
        of_epochs = {} if self.epoch_size is None else {"epoch_size": self.epoch_size}
        return {**super().describe(), "given": self._digest, **of_epochs}

    @cached_property
    def _digest(self) -> str:
        """The number of samples that are listed, and a hash that tells lists apart."""
        return f"{len(self.given)} ({self.given.digest.hex()[:16]})"

    @property
    def why_one_lane(self) -> str:
        """Why it has one lane."""
        return "batches follow the order of select(keep_order=True)"

    def wider_lanes(self, counts: Any) -> list[int]:
        """Return no number of lanes: there is one."""
        del counts
        return []


def _steps_before(positions: Int64, strides: Strides) -> Int64:
    """Return how many regular steps read a position below each of some."""
    ahead = np.maximum(positions - strides.first, 0)
    if strides.run:
        rounds, rest = np.divmod(ahead, strides.period)
        before = rounds * strides.run + np.minimum(-(-rest // strides.stride), strides.run)
    else:
        before = -(-ahead // strides.stride)
    clipped: Int64 = np.minimum(before, strides.count)
    return clipped

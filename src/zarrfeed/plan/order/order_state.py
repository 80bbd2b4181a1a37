"""The part of an epoch's state that its order reads and settles, and the readers that it depends on.

`EpochState` of `plan/schedule/state.py` adds how far the epoch is. A kind of order that needs more than lanes, mix and
strip has an `OwnState`, which it alone makes and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

S = TypeVar("S", bound="OrderState")


class OwnState(Protocol):
    """The part of the state of an epoch that one kind of order has alone."""

    @property
    def lasts(self) -> bool:
        """True if later epochs keep this state; False: the next epoch decides anew."""

    def to_json(self) -> dict[str, Any]:
        """Return the entries that it adds to the JSON object of a state."""


@dataclass(frozen=True)
class OrderState:
    """The choices that an epoch's order is settled to.

    Attributes
    ----------
    epoch
        The number of the epoch.
    lanes, mix, strip, combs, first_block, short_last
        The attributes of the epoch order. `lanes` None: no position is used up, and the pass that begins here decides.
    own
        The entries that this kind of order alone has, such as the lanes of each source of a mixture. None: the pass
        that begins here decides, or this kind has no such entries.
    """

    epoch: int
    lanes: int | None = None
    first_block: int = 0
    mix: int | None = None
    short_last: bool = False
    strip: int = 1
    combs: int = 0
    own: OwnState | None = None

    @property
    def key(self) -> Hashable:
        """The state as a key: states with one key have the same order."""
        lanes = self.lanes, self.mix, self.strip, self.combs
        return self.epoch, lanes, self.first_block, self.short_last, self.own

    @property
    def used(self) -> int:
        """The number of positions of the epoch order that are used up."""
        return 0


@dataclass(frozen=True)
class Readers:
    """All consumers of an epoch, as far as its order depends on them.

    Attributes
    ----------
    ranks
        Ranks that divide the epoch order.
    stride
        Distance between two positions of one rank, or of one of its workers.
    batch
        Samples of a batch of all ranks.
    shortest, fewest_blocks
        Samples and blocks of the shortest epoch order, where nodes have orders of their own.
    drop_some
        True if each epoch leaves out the tail of its order.
    read_runs
        True if each consumer has a run of whole blocks, instead of a stride.
    are_objects
        True if samples are whole objects: a rank reads no object twice, whatever lane it lies in.
    name_lanes
        True if the user named the lanes.
    suits
        Says of a larger number of lanes whether memory has room for it, and whether it cuts few blocks. None: no larger
        number does.
    """

    ranks: int
    stride: int
    batch: int
    shortest: int
    fewest_blocks: int
    drop_some: bool = False
    read_runs: bool = False
    are_objects: bool = False
    name_lanes: bool = False
    suits: Callable[[int], bool] | None = None


def whole_number(value: object, limit: int = 2**62, *, least: int = 0) -> int:
    """Return a number of a JSON document.

    Raises
    ------
    ValueError
        If it is no integer in [least, limit).
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < limit:
        raise ValueError(f"{value!r} is no number in [{least}, {limit})")
    return value

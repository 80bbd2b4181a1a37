"""The order of a mixture of patches: each pass over a source is an epoch of the source's patches, swept in columns.

Invariants, beside those of any mixture whose passes have blocks of their own (`plan/mixture/pass_mixture.py`):

- **Passes.** Pass j over a source has the patches of epoch j of the source alone, by the key of the source, in runs of
  columns that are permuted as those of any patches. So drawn patches are drawn anew in each pass.
- **Columns last.** A pass spans epochs, and its order depends on columns, which depend on memory. So a state names the
  columns of each source beside its lanes, and all later epochs keep them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.pass_mixture import PassMixture
from zarrfeed.plan.mixture.source_lanes import SourceLanes, SourceState
from zarrfeed.plan.order.block_order import RowKeys
from zarrfeed.plan.order.order import EpochPlan, Order, Room
from zarrfeed.plan.order.order_state import OrderState, OwnState
from zarrfeed.plan.order.portion import WHOLE, Portion
from zarrfeed.plan.order.remembered import Remembered
from zarrfeed.plan.patches.listed_order import ListedOrder
from zarrfeed.plan.patches.position_blocks import PositionBlocks
from zarrfeed.plan.patches.sweep import Sweep
from zarrfeed.plan.patches.swept_order import SPARE_BATCHES, SweptOrder
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.spec.fields.field import Field


@dataclass(frozen=True)
class SweptSources(SourceState):
    """Lanes and columns of the sources in the state of an epoch, which later epochs keep."""

    sweeps: tuple[Sweep, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the JSON object of a state."""
        return {**super().to_json(), "sweeps": [one.to_json()["sweep"] for one in self.sweeps]}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> SweptSources | None:
        """Return the state that `to_json` wrote; None if it names no sources.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        plain = SourceState.from_json(json)
        if plain is None:
            return None
        return cls(plain.sources, plain.unit, tuple(map(Sweep.from_json, json["sweeps"])))


@dataclass(frozen=True, kw_only=True)
class PassTable(SweptOrder):
    """All patches of the passes that an epoch touches, one pass after another.

    Attributes
    ----------
    ends
        For each source, the number of blocks of all its passes and of those of the sources before it.
    """

    ends: Int64 = field(compare=False)

    def next_held_indices(self, epoch: int) -> Int64:
        """Return, for each held index, that of the next block of the same source; the first follows the last."""
        del epoch
        following = np.arange(1, self.num_blocks + 1)
        following[self.ends - 1] = np.append(0, self.ends[:-1])
        return following


@dataclass(frozen=True, eq=False)
class SweptPasses:
    """The patches of the passes that an epoch touches.

    Attributes
    ----------
    table
        The patches of all passes.
    reads
        The blocks of the table; each has the number that it has in its pass.
    orders
        (source, pass) -> the order of the pass alone, and the held index of its first block.
    """

    table: PassTable
    reads: Selection
    orders: dict[tuple[int, int], tuple[SweptOrder, int]]

    @classmethod
    def of(cls, sources: Sequence[ListedOrder], touched: Sequence[tuple[int, int]], seed: int) -> SweptPasses:
        """Put the patches of passes one after another; `seed` is the key of the turns of patches."""
        # passes over a source that has the same patches in each are one entry
        named = list(dict.fromkeys((source, one if sources[source].changes else 0) for source, one in touched))
        alone = [sources[source].at(one) for source, one in named]
        tiles = [one.tiles for one in alone]
        blocks = np.cumsum([0, *map(len, tiles)])
        samples = np.cumsum([0, *(one.num_samples for one in tiles)])
        runs = np.cumsum([0, *(int(one.run[-1]) + 1 for one in tiles)])
        first = [one.first[:-1] + base for one, base in zip(tiles, samples, strict=False)]
        listed = [one for one in tiles if isinstance(one, PositionBlocks)]
        whole = PositionBlocks(
            listed[0].grid,
            listed[0].sweep,
            np.concatenate([one.volume for one in listed]),
            np.concatenate([one.start for one in listed]),
            np.concatenate([*first, samples[-1:]]),
            np.concatenate([one.run + base for one, base in zip(listed, runs, strict=False)]),
        )
        numbers = np.concatenate([np.arange(len(one)) for one in tiles])
        reads = Selection(ListedBlocks(numbers, np.diff(whole.first), whole.first[:-1]))
        of_source = np.array([source for source, _ in named])
        plain = SweptOrder.of(whole, shuffle=False, seed=seed, lanes=1)
        table = PassTable(
            **{one.name: getattr(plain, one.name) for one in dataclasses.fields(SweptOrder)},
            ends=blocks[1:][np.append(of_source[1:] != of_source[:-1], True)],
        )
        orders = {}
        for number, (name, order) in enumerate(zip(named, alone, strict=True)):
            begin, end = blocks[number : number + 2].tolist()
            orders[name] = replace(order, selection=reads.at(np.arange(begin, end))), begin
        return cls(replace(table, of_epochs=replace(sources[0], seed=seed)), reads, orders)


@dataclass(frozen=True, kw_only=True)
class MixedPatches(PassMixture):
    """The epoch order of a mixture of patches, in one epoch.

    Attributes
    ----------
    patches
        For each source, the orders of its passes.
    """

    patches: tuple[ListedOrder, ...] = field(compare=False, repr=False)
    _epochs: Remembered[SweptPasses] = field(default_factory=Remembered, compare=False, repr=False)

    @classmethod
    def of_sources(cls, patches: Sequence[ListedOrder], blend: Blend) -> MixedPatches:
        """Return the order of a mixture of sources, each given by the orders of its passes."""
        first = patches[0]
        total = sum(one.longest for one in patches)
        made = cls(total, 1, shuffle=first.shuffle, seed=first.seed, lanes=1, blend=blend, patches=tuple(patches))
        keyed = (replace(one, seed=made.source_seed(source)) for source, one in enumerate(patches))
        return replace(made, patches=tuple(keyed)).with_sources([SourceLanes(one.lanes, 1, 1) for one in patches])

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    # Patches

    @cached_property
    def passes(self) -> SweptPasses:
        """The patches of the passes that the epoch touches."""
        key = self.touched, self.sweeps, self.seed
        return self._epochs.get(key, lambda: SweptPasses.of(self.patches, self.touched, self.seed))

    @cached_property
    def reads(self) -> Selection:
        """The blocks of the passes that the epoch touches."""
        return self.passes.reads

    @property
    def by_block(self) -> Order:
        """The patches of the epoch's passes, by whose blocks patches are found, counted and replaced."""
        return self.passes.table

    @property
    def selected_bytes(self) -> int:
        """Bytes that the patches of an epoch's passes take, and their blocks."""
        tiles = self.passes.table.tiles
        listed = tiles.volume.nbytes + tiles.start.nbytes if isinstance(tiles, PositionBlocks) else 0
        return listed + self.reads.nbytes

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The patches of a pass over each source."""
        return tuple(one.longest for one in self.patches)

    @cached_property
    def max_rows(self) -> int:
        """Patches of a block, at most, in any epoch."""
        return max(self._block_rows(source) for source in range(self.blend.num_sources))

    def _block_rows(self, source: int) -> int:
        one = self.patches[source]
        return one.cells.max_rows(one.sweep)

    def open_positions(self, source: int) -> int:
        """Return the most positions that the groups of all lanes of a source have at once, in any pass."""
        return self._block_rows(source) * self.sources[source].lanes

    def pass_order(self, source: int, number: int) -> tuple[Order, int]:
        """Return the order of a pass over a source, and the held index of its first block."""
        order, begin = self.passes.orders[source, number if self.patches[source].changes else 0]
        return replace(order, lanes=self.sources[source].lanes), begin

    def check_blocks(self, *, listed: bool, count: int | None = None) -> None:
        """Raise ConfigError if there are more blocks than a plan may list; a plan asks, which has made them."""
        if count is not None:
            super().check_blocks(listed=listed, count=count)

    def plan(self, epoch: int, portion: Portion = WHOLE) -> EpochPlan:
        """Return the pieces of blocks that a consumer needs in an epoch, in the order in which it needs them."""
        if epoch == self.epoch:
            self.check_blocks(listed=True, count=self.num_blocks)
        return super().plan(epoch, portion)

    def row_keys(self, epoch: int) -> RowKeys:
        """Return the keys of the order of the rows inside of blocks, in the form that the engine takes."""
        return {**super().row_keys(epoch), "num_samples": self.passes.table.num_samples}

    def numbers(self, samples: Int64) -> Int64:
        """Return the numbers of the samples' patches, which are the same in every epoch."""
        return self.passes.table.numbers(samples)

    def patch_table(self) -> core.PatchTable:
        """Convert the first voxels of samples, and their possible turns, to the form that the engine takes."""
        return self.passes.table.patch_table()

    @property
    def shuffled_orders(self) -> tuple[Order, ...]:
        """No order: columns are swept, so neighbours are near each other on purpose."""
        return ()

    # Lanes and memory

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The columns of each source."""
        return tuple(one.sweep for one in self.patches)

    def with_sources(self, wanted: Sequence[SourceLanes]) -> Self:
        """Return the same order with other lanes, no more of them than patches."""
        lanes = [min(one.lanes, length) for one, length in zip(wanted, self.lengths, strict=True)]
        return replace(self, sources=tuple(SourceLanes(one, 1, 1) for one in lanes), lanes=sum(lanes))

    def with_sweeps(self, sweeps: Sequence[Sweep]) -> Self:
        """Return the same order with other columns."""
        return replace(
            self, patches=tuple(one.with_sweep(sweep) for one, sweep in zip(self.patches, sweeps, strict=True))
        )

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> Self:
        """Return the order with columns and lanes that suit each source alone, in its share of the memory."""
        del mix
        memory = room.bytes_for_batches(self, spare=SPARE_BATCHES)
        chosen = [
            one.layout(room.fields.fields).choose(
                memory=int(memory * self.least_share(source)),
                num_threads=room.num_threads,
                lanes=lanes,
                shuffle=self.shuffle,
            )
            for source, one in enumerate(self.patches)
        ]
        made = self.with_sweeps([one.sweep for one in chosen])
        return made.with_sources([SourceLanes(one.lanes, 1, 1) for one in chosen])

    def carried_bytes(self, fields: Sequence[Field], lanes: int, num_threads: int) -> int:
        """Return the memory that some lanes want for decoded chunks that layers of a column share."""
        return sum(
            one.layout(fields).carried_bytes(one.sweep, -(-of.lanes * lanes // self.lanes), num_threads)
            for one, of in zip(self.patches, self.sources, strict=True)
        )

    # States

    def new_own(self, sources: tuple[SourceLanes, ...], unit: int) -> SweptSources:
        """Return what the state of a run that begins keeps for all later epochs."""
        return SweptSources(sources, unit, self.sweeps)

    def at(self, state: OrderState) -> MixedPatches:
        """Return the order of a settled state's epoch."""
        own = SweptSources.of(state)
        assert isinstance(own, SweptSources)
        made = super(MixedPatches, self.with_sweeps(own.sweeps)).at(state)
        assert isinstance(made, MixedPatches)
        return made

    def own_in(self, json: Mapping[str, Any]) -> OwnState | None:
        """Return the lanes and the columns of the sources that a state in its JSON form names."""
        return SweptSources.from_json(json)

    def check_own(self, state: OrderState) -> None:
        """Raise ValueError unless a state names lanes and columns for each source, such as this order can have."""
        super().check_own(state)
        dimensions = [one.tiling.num_dimensions for one in self.patches]
        if isinstance(state.own, SweptSources) and [len(one.width) for one in state.own.sweeps] != dimensions:
            raise ValueError(f"sweeps = {state.own.sweeps} of sources with {dimensions} dimensions")

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches of the epochs depend on, as JSON."""
        described = super().describe()
        kept = {name: described[name] for name in ("shuffle", "seed", "mix", "mixture")}
        return {"patches": [one.describe() for one in self.patches], **kept}

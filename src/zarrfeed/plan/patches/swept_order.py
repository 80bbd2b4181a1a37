"""The epoch order of patches: runs are permuted, and the layers of a run stay together.

Invariants, which tests check:

- **Runs stay together.** A lane goes through a run, which is a column or a part of one, layer by layer, so that chunks
  that two layers share are carried from one group to the next, and decoded once.
- **Rotation.** Each run is begun at a random layer, keyed by (seed, epoch, run), and goes on with its first layer
  behind its last one. Otherwise all lanes would stand at the same height of their columns most of the time.
- **Epochs differ in length.** Tiles have another phase in each epoch, so each epoch has an order of its own, with
  blocks of its own. Their lanes are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.order.block_order import permuted
from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.order.order import Order, Room
from zarrfeed.plan.order.order_state import OrderState, OwnState, Readers, S
from zarrfeed.plan.patches.columns import ColumnLayout
from zarrfeed.plan.patches.patch_numbers import Numbering
from zarrfeed.plan.patches.patch_turns import Turns
from zarrfeed.plan.patches.position_blocks import PositionBlocks
from zarrfeed.plan.patches.sweep import Sweep, SweepChoice, TileBlocks, blocks_of
from zarrfeed.plan.patches.tiling import Tiling
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.spec.fields.field import Field

_ROTATION = 0x726F74617465
#: Batches that are open where patches are read, beside those that hold the blocks of all lanes.
SPARE_BATCHES = 2
#: The epoch that is read, and the next one, which may be planned meanwhile.
_CACHED_EPOCHS = 2


@dataclass(frozen=True, kw_only=True)
class SweptOrder(Order):
    """The epoch order of the blocks of one epoch; `selection` has the samples that are read.

    Attributes
    ----------
    tiles
        The tiles of the samples.
    tiles_epoch
        The epoch that has these tiles. None: any.
    of_epochs
        The orders of all epochs, of which this is one.
    """

    tiles: TileBlocks | PositionBlocks = field(compare=False)
    tiles_epoch: int | None = None
    of_epochs: PatchOrder | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, tiles: TileBlocks | PositionBlocks, *, shuffle: bool, seed: int, lanes: int, epoch: int | None = None
    ) -> SweptOrder:
        """Return the order of all patches of some blocks."""
        num_samples, max_rows = tiles.num_samples, tiles.max_rows
        return cls(
            num_samples,
            max_rows,
            shuffle=shuffle,
            seed=seed,
            lanes=lanes,
            selection=Selection.of_range(range(num_samples), max_rows, tiles.first),
            edges=tiles.first,
            tiles=tiles,
            tiles_epoch=epoch,
        )

    @property
    def epochs(self) -> PatchOrder:
        """The orders of all epochs, of which this is one."""
        assert self.of_epochs is not None
        return self.of_epochs

    @property
    def shuffled_orders(self) -> tuple[Order, ...]:
        """No order: columns are swept, so neighbours are near each other on purpose."""
        return ()

    # Epochs

    @property
    def shortest(self) -> int:
        """Samples of the shortest epoch."""
        return self.epochs.shortest

    def epoch_length(self, state: OrderState, batch: int) -> int:
        """Return the number of patches in a state's epoch."""
        del batch
        return self.epochs.length(state.epoch)

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that comes next: epochs differ."""
        return upcoming

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state with the columns, which serve the rest of its epoch."""
        return super().settle(replace(state, own=self.tiles.sweep) if state.lanes is None else state, readers)

    def lanes_for(self, readers: Readers) -> int:
        """Return the lanes of an epoch that begins: no more than columns are cut for, as more lanes decode more."""
        return super().lanes_for(replace(readers, suits=None))

    def at(self, state: OrderState) -> Order:
        """Return the order of a settled state's epoch."""
        assert isinstance(state.own, Sweep)
        return super(SweptOrder, self.epochs.with_sweep(state.own).at(state.epoch)).at(state)

    def check_dealt(self) -> None:
        """Raise ConfigError: patches are not dealt to nodes."""
        raise ConfigError("affinity = 'node' is not for patches: all nodes share one order of columns")

    # Memory

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> SweptOrder:
        """Return the order of the first epoch, in columns and lanes that suit layout and memory."""
        del mix
        choice = self.epochs.layout(room.fields.fields).choose(
            memory=room.bytes_for_batches(self, spare=SPARE_BATCHES),
            num_threads=room.num_threads,
            lanes=lanes,
            shuffle=self.shuffle,
        )
        return replace(self.epochs, sweep=choice.sweep, lanes=choice.lanes, choice=choice).at(0)

    def fit_batch(self, batch_size: int) -> int:
        """Return the samples of the engine's batches, which all epochs have."""
        return batch_size

    def chunks_of_block(self, fields: Sequence[Field]) -> int:
        """Return how many chunks a block of tiles is the first to need, on average and at least 1."""
        choice = self.epochs.choice
        if self.epochs.is_listed or choice is None:
            return 1
        return self.epochs.layout(fields).chunks_of_block(choice.block_tiles)

    def carried_bytes(self, fields: Sequence[Field], lanes: int, num_threads: int) -> int:
        """Return the memory that some lanes want for decoded chunks that layers of a column share."""
        return self.epochs.layout(fields).carried_bytes(self.tiles.sweep, lanes, num_threads)

    @property
    def caches_chunks(self) -> bool:
        """True if memory that is left caches chunks that several columns need; also in a resumed sweep."""
        choice = self.epochs.choice
        return not self.epochs.is_listed and (choice is None or choice.keeps)

    # States

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches of the epochs depend on, as JSON."""
        return {"patches": self.epochs.describe(), "shuffle": self.shuffle, "seed": self.seed, "mix": self.mix}

    def own_in(self, json: Mapping[str, Any]) -> OwnState | None:
        """Return the columns that a state in its JSON form names."""
        return Sweep.from_json(json["sweep"]) if "sweep" in json else None

    def check_own(self, state: OrderState) -> None:
        """Raise ValueError unless a state of an epoch that was begun names columns of as many dimensions."""
        dimensions = self.epochs.tiling.num_dimensions
        if state.lanes is not None and (not isinstance(state.own, Sweep) or len(state.own.width) != dimensions):
            raise ValueError(f"sweep = {state.own} of patches with {dimensions} dimensions")

    # Patches

    @cached_property
    def numbering(self) -> Numbering:
        """The numbers of patches."""
        return Numbering.of(self.tiles.grid.extents, self.tiles.grid.size)

    @property
    def periods(self) -> Int64:
        """The extent of each volume along periodic dimensions, 0 along others, shape (V, D)."""
        return np.where(self.tiles.grid.wraps, self.tiles.grid.extents, 0)

    def numbers(self, samples: Int64) -> Int64:
        """Return the numbers of the samples' patches, which are the same in every epoch."""
        volume, start = self.tiles.starts(samples)
        period = self.periods[volume]
        return self.numbering.number(volume, np.where(period > 0, start % np.maximum(period, 1), start))

    def patch_table(self) -> core.PatchTable:
        """Convert the first voxels of samples, and their possible turns, to the form that the engine takes."""
        turns = None if self.of_epochs is None else self.of_epochs.turns
        orientations = np.zeros((0, len(self.tiles.grid.size)), dtype=np.int64) if turns is None else turns.table
        return self.tiles.table(self.numbering, self.periods, orientations)

    def held_indices(self, epoch: int) -> Int64:
        """Return the held indices of blocks in the order of an epoch, shape (num_blocks,)."""
        assert self.tiles_epoch in (None, epoch), (self.tiles_epoch, epoch)
        if not self.shuffle:
            return super().held_indices(epoch)
        assert self.selection is not None
        # one entry per run that has samples
        run = self.tiles.run[self.selection.blocks]
        begin = np.flatnonzero(np.diff(run, prepend=-1))
        layers = np.diff(begin, append=len(run))
        first_layer = below(keys_of(_ROTATION, self.seed, epoch, run[begin]), layers)
        order = permuted(len(begin), self.seed, epoch)
        # one entry per block from here on
        layers = layers[order]
        layer = np.arange(len(run)) - np.repeat(np.cumsum(layers) - layers, layers)
        layer = (layer + np.repeat(first_layer[order], layers)) % np.repeat(layers, layers)
        held_indices: Int64 = np.repeat(begin[order], layers) + layer
        return held_indices


@dataclass(frozen=True)
class PatchOrder:
    """The orders of all epochs: the terms that they depend on, except for the number of the epoch.

    Attributes
    ----------
    tiling
        The tiles of each epoch.
    sweep
        The cut of tiles into columns.
    shuffle
        True if runs and rows are permuted; False: tiles keep their order.
    seed
        Key of the permutations, in [0, 2**64). That of the phases is `tiling.seed`.
    lanes
        L; no order has more lanes than the shortest epoch has samples.
    phase
        True if epochs have a phase; False: all have the phase 0.
    choice
        The choice that led to these columns. None: nothing was chosen.
    turns
        The turns of each patch, drawn anew in each epoch, with `seed`. None: patches are not turned.
    """

    tiling: Tiling
    sweep: Sweep
    shuffle: bool = True
    seed: int = 0
    lanes: int = 1
    phase: bool = True
    choice: SweepChoice | None = field(default=None, compare=False, repr=False)
    turns: Turns | None = None
    _orders: dict[int, SweptOrder] = field(default_factory=dict, init=False, repr=False, compare=False)

    def layout(self, fields: Sequence[Field]) -> ColumnLayout:
        """Return the tiles, with the fields that they are cut out of."""
        return ColumnLayout(self.tiling, fields, self.is_listed, self.samples_of_tile)

    def with_sweep(self, sweep: Sweep) -> Self:
        """Return the same orders with other columns."""
        return self if sweep == self.sweep else replace(self, sweep=sweep)

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches of the epochs depend on, beside the seed, as JSON."""
        tiling = self.tiling
        extents = np.ascontiguousarray(tiling.extents.astype("<i8"))
        return {
            "volumes": f"{tiling.num_volumes} ({hashlib.sha256(extents.tobytes()).hexdigest()[:16]})",
            "size": list(tiling.size),
            "sampling": tiling.sampling,
            "border": list(tiling.border),
            "stride": list(tiling.step),
            **({} if self.turns is None else self.turns.describe()),
        }

    def at(self, epoch: int) -> SweptOrder:
        """Return the order of an epoch; those of the last two that were asked for are cached."""
        key = epoch if self.changes else 0
        order = self._orders.get(key)
        if order is None:
            tiles = self.blocks(epoch)
            of_epoch = epoch if self.changes else None
            lanes = min(self.lanes, self.shortest)
            made = SweptOrder.of(tiles, shuffle=self.shuffle, seed=self.seed, lanes=lanes, epoch=of_epoch)
            order = replace(made, of_epochs=self)
            cached = list(self._orders.items())[1 - _CACHED_EPOCHS :]
            self._orders.clear()
            self._orders.update([*cached, (key, order)])
        return order

    def blocks(self, epoch: int) -> TileBlocks | PositionBlocks:
        """Return the blocks of an epoch."""
        return blocks_of(self.tiling.at(epoch, phase=self.phase), self.sweep)

    @property
    def samples_of_tile(self) -> float:
        """Samples for each tile of `tiling`."""
        return 1.0

    @property
    def is_listed(self) -> bool:
        """True if patches begin at any voxels, instead of on a grid."""
        return False

    @property
    def how_sampled(self) -> str:
        """The user's name for the way in which patches are chosen: "tiles", "grid", "positions" or "random"."""
        return self.tiling.sampling

    @property
    def borders(self) -> tuple[str, ...]:
        """For each dimension the handling of patches that reach beyond a volume."""
        border = self.tiling.border
        return (border,) * self.tiling.num_dimensions if isinstance(border, str) else border

    @property
    def cell(self) -> tuple[int, ...] | None:
        """Voxels of the cells that patches are sorted into, if they begin at any voxels. None: there are no cells."""
        return self.tiling.step if self.is_listed else None

    @property
    def size(self) -> tuple[int, ...]:
        """Voxels of a patch, for each dimension."""
        return self.tiling.size

    @property
    def stride(self) -> tuple[int, ...]:
        """Voxels from one patch to the next; where patches are listed, their size."""
        return self.size if self.is_listed else self.tiling.step

    def length(self, epoch: int) -> int:
        """Return the number of samples of an epoch, without making its order."""
        return self.tiling.length(epoch, phase=self.phase)

    @property
    def changes(self) -> bool:
        """True if epochs have different tiles."""
        return self.phase and bool((self.tiling.num_phases > 1).any())

    @cached_property
    def longest(self) -> int:
        """Samples of an epoch, at most."""
        return self.tiling.longest if self.changes else self.length(0)

    @cached_property
    def shortest(self) -> int:
        """Samples of an epoch, at least."""
        return self.tiling.shortest if self.changes else self.length(0)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached orders: they follow from the rest."""
        return {**self.__dict__, "_orders": {}}

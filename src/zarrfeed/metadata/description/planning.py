"""From the description of samples to the order of an epoch, in a dataset and where there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.plan.blocks.decoded_bytes import Grain
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.cycled_order import CycledOrder
from zarrfeed.plan.mixture.drawn_mixture import DrawnMixture
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.bucketed_order import BucketedOrder
from zarrfeed.plan.order.crop_order import CropOrder
from zarrfeed.plan.order.given_order import GivenOrder
from zarrfeed.plan.order.order import Order, make_order
from zarrfeed.plan.order.weighted_order import WeightedOrder
from zarrfeed.plan.patches.columns import patch_fields
from zarrfeed.plan.patches.listed_order import ListedOrder
from zarrfeed.plan.patches.mixed_patches import MixedPatches
from zarrfeed.plan.patches.position_blocks import Cells, PatchPositions, PositionsOfSource
from zarrfeed.plan.patches.sweep import Sweep
from zarrfeed.plan.patches.swept_order import PatchOrder
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.spec.description.feeding import Mixing
from zarrfeed.spec.fields.field import BLOCK_KINDS, FieldSet


@dataclass(frozen=True)
class Planning:
    """The options by which the samples of a `Data` become fields and an epoch order, whatever their number is.

    Attributes
    ----------
    epoch_size
        Samples of an epoch, which goes on where the one before ended. None: epochs have all samples.
    slab_rows
        Rows of a slab; 0: blocks are whole. `slab_choice.py` chooses them.
    grains
        The grain of each array, where there are slabs.
    strip_reaches
        As in `Edition`: 0 if lanes hand no rows from slab to slab.
    aligns
        True if blocks may be joined so that no chunk is read twice.
    resident
        True if small arrays may be read into memory as a whole; not if their oldest samples may be deleted.
    """

    return_index: bool
    shuffle: bool
    seed: int
    mixing: Mixing
    options: ScheduleOptions
    aligns: bool = True
    resident: bool = True
    epoch_size: int | None = None
    slab_rows: int = 0
    grains: tuple[Grain, ...] = ()
    strip_reaches: int = 0

    @property
    def may_cut(self) -> bool:
        """True if the user leaves it to us to cut chunks, or asks for it; named lanes keep the order that they had."""
        mixing = self.mixing
        if mixing.block is None:
            return mixing.lanes is None and mixing.mix is None
        return mixing.block not in BLOCK_KINDS

    @property
    def whole(self) -> Planning:
        """The planning with whole blocks, before slabs are chosen."""
        return replace(self, slab_rows=0, grains=(), strip_reaches=0)

    def takes_shards(self, resolved: ResolvedData) -> bool:
        """Return True if samples were dealt by whole shards, which make the blocks unless the user names others."""
        return resolved.choice.kind == "shard"

    def order(self, resolved: ResolvedData) -> tuple[FieldSet, Order]:
        """Return the fields, and the epoch order."""
        fields, selection = resolved.planned(
            return_index=self.return_index,
            room=self.options.order_budget // 16 if self.resident else 0,
            block=None if self.mixing.block not in BLOCK_KINDS else self.mixing.block,
            aligns=self.aligns,
        )
        if resolved.patching is not None:
            if self.epoch_size is not None:
                raise ConfigError("epoch_size is not for patches: patch(n=) says how many an epoch has")
            if resolved.blend is not None:
                return fields, self._with_batches(self._patch_mixture(resolved.patching, resolved.blend, fields))
            return fields, self._patch_orders(resolved.patching, fields).at(0)
        buckets = resolved.expected if isinstance(resolved.expected, Buckets) else None
        if buckets is not None and self.options.batch_size and buckets.batch_size % self.options.batch_size:
            raise ConfigError(
                f"batch_size = {self.options.batch_size}, must divide that of bucket_by_length, {buckets.batch_size}, "
                "which is the number of samples of a batch of all ranks"
            )
        order = make_order(
            fields.num_samples,
            fields.block_rows,
            selection,
            shuffle=self.shuffle and buckets is None,
            seed=self.seed,
            lanes=self.mixing.lanes,
            mix=self.mixing.mix,
            edges=fields.edges,
            slabs=self._slabs(fields) if self.slab_rows else None,
        )
        if self.epoch_size is not None:
            _check_epochs_may_go_on(resolved)
        if resolved.given is not None:
            order = GivenOrder.of(order, resolved.given, self.epoch_size)
        elif self.epoch_size is not None:
            named = self.mixing.lanes, self.mixing.mix
            order = CycledOrder.with_epochs(order, self.epoch_size, lanes=named[0], mix=named[1])
        if isinstance(resolved.expected, CropStarts):
            order = CropOrder.of(order, resolved.expected)
        elif buckets is not None:
            order = BucketedOrder.bucketed(order, buckets, permutes=self.shuffle)
        elif isinstance(resolved.expected, ExpectedCounts):
            order = WeightedOrder.of(order, resolved.expected)
        if resolved.blend is not None:
            mixed = DrawnMixture.drawing if resolved.blend.expected else MixedOrder.of
            order = self._with_batches(mixed(order, resolved.blend, lanes=self.mixing.lanes, mix=self.mixing.mix))
        return fields, order

    def _with_batches(self, order: MixedOrder) -> MixedOrder:
        """Return the order of a mixture, after a check that there are batches if each is to have one source."""
        if order.is_per_batch and self.options.batch_size is None:
            raise ConfigError("batching = 'per_batch' is for batches: give the dataset a batch_size")
        return order

    def _slabs(self, fields: FieldSet) -> Slabs | None:
        """Return the slabs of the array that makes the blocks; None: its chunks are no longer than a slab."""
        assert fields.primary is not None
        layouts = fields.fields[fields.primary].layouts
        if self.slab_rows >= max(layout.spec.rows_per_chunk for layout in layouts):
            return None
        slabs = Slabs.of(layouts, fields.num_samples, self.slab_rows)
        return replace(slabs, grains=self.grains, strip_reaches=self.strip_reaches)

    def _patch_mixture(self, patching: Patching, blend: Blend, fields: FieldSet) -> MixedPatches:
        """Return the order of a mixture of patches, whose volumes are numbered over all sources."""
        ends = np.cumsum([len(one.volumes) for one in patching.sources]).tolist()
        orders = []
        for one, end in zip(patching.sources, ends, strict=True):
            volumes = slice(end - len(one.volumes), end)
            positions = PositionsOfSource(one.all_positions, volumes.start)
            order = self._listed_patches(replace(patching, positions=positions, request=one.request), positions, fields)
            orders.append(replace(order, volumes=volumes))
        return MixedPatches.of_sources(orders, blend)

    def _patch_orders(self, patching: Patching, fields: FieldSet) -> PatchOrder:
        """Return the orders of all epochs of patches, in single tiles until `Schedule.make` chooses columns."""
        if patching.positions is not None:
            return self._listed_patches(patching, patching.positions, fields)
        sweep, lanes = self._swept(patching)
        tiling, phase, turns = patching.tiling(self.seed), self.shuffle, patching.turns
        return PatchOrder(tiling, sweep, self.shuffle, self.seed, lanes, phase=phase, turns=turns)

    def _listed_patches(self, patching: Patching, positions: PatchPositions, fields: FieldSet) -> ListedOrder:
        """Return the orders of all epochs of patches at positions that are given, or drawn for each epoch."""
        sweep, lanes = self._swept(patching)
        chunk = patch_fields(fields.fields)[0].chunk
        cells = Cells.of(positions, patching.all_extents, patching.sizes, patching.wraps, chunk)
        return ListedOrder(
            cells.tiling,
            sweep,
            self.shuffle,
            self.seed,
            lanes,
            phase=self.shuffle,
            turns=patching.turns,
            positions=positions,
            cells=cells,
            sampling=patching.request.sampling,
            border=patching.borders,
        )

    def _swept(self, patching: Patching) -> tuple[Sweep, int]:
        """Return single tiles and the lanes that read them; refuse options of orders of rows."""
        if self.mixing.block is not None or self.mixing.mix is not None:
            raise ConfigError("mixing: patches take neither block= nor mix=, as their blocks are layers of columns")
        return Sweep(0, (1,) * len(patching.sizes)), self.mixing.lanes or 1 if self.shuffle else 1


def _check_epochs_may_go_on(resolved: ResolvedData) -> None:
    """Raise ConfigError for samples whose epochs have a length of their own."""
    if resolved.blend is not None:
        raise ConfigError("epoch_size is not for mixtures: zarrfeed.mix(stop=) says how many samples an epoch has")
    if resolved.expected is not None:
        raise ConfigError(
            f"epoch_size is not for {resolved.expected.noun}, which are drawn anew in each epoch: weight(n=) and "
            "random_crop(n=) have it"
        )

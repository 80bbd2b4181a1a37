"""The columns in which the patches of a dataset are read, in the memory that it has, and the arrays they are cut of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.plan.patches.footprint import Footprint
from zarrfeed.plan.patches.sweep import Sweep, SweepChoice
from zarrfeed.plan.patches.sweep_choice import PatchField, carried_bytes, choose_sweep
from zarrfeed.plan.patches.sweep_cost import num_chunks
from zarrfeed.plan.patches.tiling import Tiling
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.patches.patch import FieldPatch


@dataclass(frozen=True)
class ColumnLayout:
    """The tiles that columns consist of, and the arrays that they are cut out of.

    Attributes
    ----------
    tiling
        The tiles; if patches begin at any voxels, the cells that they are sorted into.
    fields
        The fields of the dataset.
    is_listed
        True if patches begin at any voxels.
    samples_of_tile
        Samples for each tile.
    volumes
        The volumes of the fields that the tiles lie in. None: all.
    """

    tiling: Tiling
    fields: Sequence[Field]
    is_listed: bool = False
    samples_of_tile: float = 1.0
    volumes: slice | None = None

    def in_volumes(self, volumes: slice) -> ColumnLayout:
        """Return the tiles that lie in some volumes."""
        tiling = replace(self.tiling, extents=self.tiling.extents[volumes])
        return replace(self, tiling=tiling, volumes=volumes)

    def choose(self, *, memory: int, num_threads: int, lanes: int | None, shuffle: bool) -> SweepChoice:
        """Return columns and lanes that suit the layout and the memory for batches.

        `lanes` is the user's number of lanes. None: chosen.
        """
        fields = [
            replace(one, sample_bytes=math.ceil(one.sample_bytes * self.samples_of_tile)) for one in self._tile_fields()
        ]
        return choose_sweep(
            self.tiling,
            fields,
            memory=max(0, memory),
            num_threads=num_threads,
            lanes=lanes if shuffle else 1,
            shuffle=shuffle,
            listed=self.is_listed,
            crops=not self.is_listed,
            keeps=not self.is_listed,
        )

    def carried_bytes(self, sweep: Sweep, lanes: int, num_threads: int) -> int:
        """Return the memory that some lanes want for decoded chunks that layers of a column share."""
        of_lane, changing = carried_bytes(self.tiling, self._tile_fields(), sweep, crops=not self.is_listed)
        if self.is_listed:  # blocks of one layer follow each other, and share all of its chunks
            return lanes * (of_lane + changing)
        return lanes * of_lane + min(lanes, num_threads) * changing

    def chunks_of_block(self, block_tiles: int) -> int:
        """Return how many chunks a block of `block_tiles` tiles is the first to need, on average and at least 1."""
        grid = self.tiling.typical()
        chunks = sum(num_chunks(grid, one.array) for one in self._patch_fields())
        return max(1, chunks * block_tiles // max(1, grid.num_tiles))

    def _tile_fields(self) -> list[PatchField]:
        """Return the fields that tiles are cut out of; where a tile is a cell, with the items of all its patches."""
        found = self._patch_fields()
        if not self.is_listed:
            return found
        cell = self.tiling.step
        return [one if one.footprint is None else replace(one, footprint=one.footprint.of_cells(cell)) for one in found]

    def _patch_fields(self) -> list[PatchField]:
        """Return the fields that patches are cut out of, with their items in the volumes that have tiles."""
        found = patch_fields(self.fields)
        if self.volumes is None:
            return found
        return [
            one
            if one.footprint is None
            else replace(one, footprint=replace(one.footprint, extents=one.footprint.extents[self.volumes]))
            for one in found
        ]


def patch_fields(fields: Sequence[Field]) -> list[PatchField]:
    """Return the chunks and the bytes of each array that patches are cut out of, in its first layout.

    Fields that draw from one array are one: its chunks are decoded once for all of them.
    """
    made = []
    for source in array_sources(fields):
        drawing = [fields[number] for number, layout in source.draws if layout == 0]
        patches = [(f, f.patch) for f in drawing if f.patch is not None]
        if not patches:
            continue
        spec = source.spec
        chunk = [1] * (1 + max(axis.dim for axis in patches[0][1].axes if axis.dim is not None))
        # chunks along axes that patches are not cut along, and the part of them that crops have
        others, crop_share = 1, 1.0
        for number, (length, whole) in enumerate(zip(spec.chunk_shape, spec.shape, strict=True)):
            axes = [patch.axes[number] for _, patch in patches]
            if axes[0].dim is not None:
                chunk[axes[0].dim] = length
                continue
            positions = range(whole) if spec.choice is None else spec.choice.positions(number, whole)
            listed = {positions[one] for a in axes for one in a.offsets or range(len(positions))}
            of_axis, items = _chunks_of_items(sorted(listed), length)
            others *= of_axis
            crop_share *= items / (of_axis * length)
        made.append(
            PatchField(
                tuple(chunk),
                math.prod((others, spec.decoded_bytes)),
                sum(f.sample_bytes for f, _ in patches),
                _footprint([patch for _, patch in patches], chunk),
                crop_share,
                others,
            )
        )
    return made


def _chunks_of_items(items: Sequence[int], length: int) -> tuple[int, int]:
    """Return how many chunks of a length have some of the items, and the sum of the items' spans within the chunks."""
    chunk, offset = np.divmod(np.asarray(items), length)
    return len(np.unique(chunk)), sum(int(np.ptp(offset[chunk == one])) + 1 for one in np.unique(chunk))


def _footprint(patches: Sequence[FieldPatch], chunk: Sequence[int]) -> Footprint | None:
    """Return the items of an array that some patches cover together; None if they are the voxels of the grid."""
    extents = next((patch.extents for patch in patches if patch.extents is not None), None)
    if extents is None:
        return None
    found = [_footprint_of(patch, chunk, extents) for patch in patches]
    first = [min(of_dim) for of_dim in zip(*(one.shift for one in found), strict=True)]
    ends = [[shift + size for shift, size in zip(one.shift, one.size, strict=True)] for one in found]
    sizes = [max(of_dim) - begin for of_dim, begin in zip(zip(*ends, strict=True), first, strict=True)]
    return replace(found[0], shift=tuple(first), size=tuple(sizes))


def _footprint_of(patch: FieldPatch, chunk: Sequence[int], extents: Int64) -> Footprint:
    size, scale, origin, shift = ([value] * len(chunk) for value in (1, 1, 0, 0))
    pads = [True] * len(chunk)
    for axis in patch.axes:
        if axis.dim is not None:
            size[axis.dim], scale[axis.dim] = axis.size, axis.scale
            origin[axis.dim], shift[axis.dim], pads[axis.dim] = axis.origin, axis.shift, axis.border == "fill"
    return Footprint(tuple(chunk), tuple(size), extents, tuple(scale), tuple(origin), tuple(shift), tuple(pads))

"""`PatchExplanation`: the boxes of arrays in an epoch, and the columns in which they are read, in a few lines."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zarrfeed.base.page import Row
from zarrfeed.base.units import format_bytes
from zarrfeed.plan.patches.mixed_patches import MixedPatches
from zarrfeed.plan.patches.sweep import GOOD_AMPLIFICATION, SweepChoice
from zarrfeed.plan.patches.swept_order import SweptOrder

_SAMPLINGS = {
    "tiles": "tiles, laid anew in each epoch",
    "grid": "a grid",
    "positions": "listed positions",
    "random": "drawn anew in each epoch",
}


@dataclass(frozen=True)
class PatchExplanation:
    """The patches of an epoch.

    Attributes
    ----------
    size, stride
        Voxels of a patch, and from one patch to the next, for each dimension, the sample axis first.
    border
        The treatment of patches that reach beyond a volume, for each dimension.
    sampling
        "tiles", "grid", "positions" or "random".
    volumes
        Number of volumes that are cut: stores, or runs of selected samples.
    axis, width
        The dimension that columns are swept along, and the largest number of patches of a column along each dimension.
        `width` is empty for a mixture, each source of which has columns of its own.
    choice
        The reason of the choice: the cost that was expected of these columns and their lanes.
    cell
        For patches that begin at any voxels: voxels of a cell, in which `width` is counted then. Else None.
    flip, rotate
        The dimensions along which patches are flipped, and rotated.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    border: tuple[str, ...]
    sampling: str
    volumes: int
    axis: int
    width: tuple[int, ...]
    choice: SweepChoice | None
    cell: tuple[int, ...] | None = None
    flip: tuple[int, ...] = ()
    rotate: tuple[int, ...] = ()

    @classmethod
    def of(cls, order: SweptOrder) -> PatchExplanation:
        """Describe the patches of an order."""
        epochs, sweep = order.epochs, order.tiles.sweep
        tiling, choice, turns = epochs.tiling, epochs.choice, epochs.turns
        return cls(
            epochs.size,
            epochs.stride,
            epochs.borders,
            epochs.how_sampled,
            tiling.num_volumes,
            sweep.axis,
            sweep.width,
            choice if choice is not None and choice.sweep == sweep else None,
            epochs.cell,
            () if turns is None else turns.flip,
            () if turns is None else turns.rotate,
        )

    @classmethod
    def of_sources(cls, order: MixedPatches) -> PatchExplanation:
        """Describe the patches of a mixture, whose sources are cut alike."""
        return replace(cls.of(order.passes.table), width=(), choice=None)

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        size = " x ".join(map(str, self.size))
        volumes = f" of {self.volumes} volumes" * (self.volumes > 1)
        how = _SAMPLINGS[self.sampling]
        if self.stride != self.size:
            how += f", {' x '.join(map(str, self.stride))} apart"
        borders = dict.fromkeys(one for one, length in zip(self.border, self.size, strict=True) if length > 1)
        rows = [("patches", f"{size} voxels{volumes}: {how}; border: {', '.join(borders) or 'none'}")]
        turned = {"flipped along": self.flip, "rotated in": self.rotate}
        if turns := [f"{word} dimensions {', '.join(map(str, dims))}" for word, dims in turned.items() if dims]:
            rows.append(("", f"{' and '.join(turns)}, anew in each epoch"))
        if not self.width:
            return [*rows, ("", "each source is read in columns of its own")]
        width = " x ".join("1" if d == self.axis else str(w) for d, w in enumerate(self.width))
        of = "patches"
        if self.cell is not None:
            of = f"cells of {' x '.join(map(str, self.cell))} voxels that patches begin in"
        rows.append(("", f"read along dimension {self.axis}, in columns with layers of up to {width} {of}"))
        if self.choice is not None and self.cell is None:  # the formula is for patches that are everywhere
            expected = f"expected to decode each byte {self.choice.amplification:.2f} times"
            rows.append(("", f"{expected}, in {format_bytes(self.choice.total_bytes)} for {self.choice.lanes} lanes"))
            if self.choice.amplification > GOOD_AMPLIFICATION and self.choice.good_bytes is not None:
                rows.append(("", f"{format_bytes(self.choice.good_bytes)} would do for {GOOD_AMPLIFICATION} times"))
            elif self.choice.amplification > GOOD_AMPLIFICATION:
                rows.append(("", f"with so many lanes no memory does for {GOOD_AMPLIFICATION} times"))
        return rows

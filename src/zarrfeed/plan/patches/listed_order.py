"""The epoch orders of patches that begin at listed, or at drawn, voxels: runs of columns, as those of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zarrfeed.plan.patches.columns import ColumnLayout
from zarrfeed.plan.patches.position_blocks import Cells, PatchPositions, PositionBlocks
from zarrfeed.plan.patches.swept_order import PatchOrder
from zarrfeed.spec.fields.field import Field


@dataclass(frozen=True, kw_only=True)
class ListedOrder(PatchOrder):
    """The orders of all epochs; `tiling` has the cells that patches are sorted into.

    Attributes
    ----------
    positions
        The first voxels of the patches. Without a phase, the patches of epoch 0 are read in each epoch.
    cells
        The cells that patches are sorted into.
    sampling, border
        The values that the user gave for these arguments.
    volumes
        The volumes that have patches, for the choice of columns. None: all.
    """

    positions: PatchPositions
    cells: Cells
    sampling: str
    border: tuple[str, ...]
    volumes: slice | None = None

    def layout(self, fields: Sequence[Field]) -> ColumnLayout:
        """Return the cells of the volumes that have patches, with the fields that patches are cut out of."""
        whole = super().layout(fields)
        return whole if self.volumes is None else whole.in_volumes(self.volumes)

    @property
    def samples_of_tile(self) -> float:
        """The number of patches in a cell, on average over the cells that have a patch."""
        return self.cells.density

    @property
    def how_sampled(self) -> str:
        """The user's name for the way in which patches are chosen: "positions" or "random"."""
        return self.sampling

    @property
    def borders(self) -> tuple[str, ...]:
        """For each dimension the handling of patches that reach beyond a volume."""
        return self.border

    @property
    def size(self) -> tuple[int, ...]:
        """Voxels of a patch."""
        return tuple(self.cells.size.tolist())

    @property
    def is_listed(self) -> bool:
        """True if patches begin at any voxels: always."""
        return True

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches of the epochs depend on, beside the seed, as JSON."""
        return {
            "volumes": super().describe()["volumes"],
            "size": list(self.size),
            "sampling": self.sampling,
            "border": list(self.border),
            "cell": list(self.tiling.step),
            **self.positions.describe(),
            **({} if self.turns is None else self.turns.describe()),
        }

    def blocks(self, epoch: int) -> PositionBlocks:
        """Return the blocks of an epoch."""
        volume, start = self.positions.at(self.seed, epoch if self.phase else 0)
        return PositionBlocks.of(self.cells, self.sweep, volume, start)

    def length(self, epoch: int) -> int:
        """Return the number of samples of an epoch, which is the same for all epochs."""
        del epoch
        return self.positions.num_samples

    @property
    def changes(self) -> bool:
        """True if epochs have different patches."""
        return self.phase and self.positions.changes

    @property
    def longest(self) -> int:
        """Samples of an epoch."""
        return self.positions.num_samples

    @property
    def shortest(self) -> int:
        """Samples of an epoch."""
        return self.positions.num_samples

"""Compute the figure of samples that are rows: the step and the rank that decode each block, and the first batches.

A pure function of the plans; `draw_rows.py` draws its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.tools.plot.lane_rows import LaneRows
from zarrfeed.tools.plot.pieces import Pieces

Float64 = npt.NDArray[np.float64]

#: Cells along the sample axis, at most; of more blocks, some are drawn.
MOST_CELLS = 1000
#: Batches whose samples are shown, and samples of a batch that are, at most.
NUM_FIRST = 3
_SAMPLES_OF_BATCH = 4096


@dataclass(frozen=True, eq=False)
class RowFigure:
    """The order of an epoch along the sample axis.

    Attributes
    ----------
    epoch
        The number of the epoch.
    num_samples, num_blocks
        Number of samples, and of blocks, of the array.
    batch_size
        Samples of a batch; None: single samples.
    unit
        The kind of a block: "chunk", "shard", "slab", or "block" if it is several chunks or no field is stored.
    source
        The field whose chunks make the blocks; empty where all are in memory.
    every
        One of so many blocks is drawn.
    edges
        The first sample of each cell, and the end of the sample axis, shape (cells + 1,).
    block
        The block that a cell stands for, shape (cells,).
    when
        The step at which each rank decodes it first, shape (ranks, cells); NaN where the rank does not read it.
    steps
        Samples that each rank delivers, shape (ranks,).
    first_batches
        For each rank, its first samples, shape (batches, batch_size); a short batch ends in -1.
    lanes
        The lanes that are read at the same time.
    """

    epoch: int
    num_samples: int
    num_blocks: int
    batch_size: int | None
    unit: str
    source: str
    every: int
    edges: Int64
    block: Int64
    when: Float64
    steps: Int64
    first_batches: tuple[Int64, ...]
    lanes: LaneRows

    @classmethod
    def of(cls, schedule: Schedule, epoch: int = 0, ranks: int = 1) -> RowFigure:
        """Return the figure of an epoch that `ranks` ranks share."""
        shown = min(schedule.options.batch_size or 1, _SAMPLES_OF_BATCH)
        pieces = Pieces.of(schedule, epoch, ranks, NUM_FIRST * (schedule.options.batch_size or 1))
        order = pieces.order
        edges = order.edges if order.slabs is None else order.slabs.edges
        if edges is None:
            edges = np.append(np.arange(0, order.num_samples, order.block_rows), order.num_samples)
        edges = np.asarray(edges)
        num_blocks = len(edges) - 1
        every = -(-num_blocks // MOST_CELLS)
        begin = np.arange(0, num_blocks, every)
        drawn = np.minimum(begin + every // 2, num_blocks - 1)
        when = np.full((ranks, num_blocks), np.inf)
        np.minimum.at(when, (pieces.rank, pieces.block), pieces.first_step)
        when[np.isinf(when)] = np.nan
        return cls(
            epoch,
            order.num_samples,
            num_blocks,
            schedule.options.batch_size,
            _unit(schedule) if order.slabs is None else "slab",
            "" if schedule.fields.primary is None else schedule.fields.fields[schedule.fields.primary].name,
            every,
            np.append(edges[begin], order.num_samples),
            drawn,
            when[:, drawn],
            pieces.steps,
            tuple(_batches(samples, schedule.options.batch_size or 1)[:, :shown] for samples in pieces.first_samples),
            LaneRows.of(pieces, pieces.block),
        )


def _batches(samples: Int64, batch_size: int) -> Int64:
    """Return samples as batches, shape (batches, batch_size)."""
    lacking = -len(samples) % batch_size
    return np.append(samples, np.full(lacking, -1)).reshape(-1, batch_size)


def _unit(schedule: Schedule) -> str:
    fields = schedule.fields
    if fields.primary is None:
        return "block"
    if fields.block == "shard":
        return "shard"
    spec = getattr(fields.fields[fields.primary], "spec", None)
    return "chunk" if spec is not None and spec.rows_per_chunk >= fields.block_rows else "block"

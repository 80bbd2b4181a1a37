"""`Blend`: the options of a mixture, as the user gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.mixture import COLUMNS, Mixture
from zarrfeed.plan.mixture.mixture_stop import Stop
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.samples.block_edges import Edges, GridEdges

#: "per_sample": each sample of a batch is of the source whose turn it is. "per_batch": all samples of a batch of all
#: ranks are of one source.
Batching: TypeAlias = Literal["per_sample", "per_batch"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)

#: Purpose of the key of the turns.
_TURNS = 0x7475726E73


@dataclass(frozen=True)
class Blend:
    """The mixture that a user asks for.

    Attributes
    ----------
    first
        The first sample of each source, and the number of samples at the end.
    weights, changes
        The arguments of `Mixture`; the steps of `changes` count samples.
    stop
        The rule by which an epoch ends.
    batching
        The run of samples that has one source: a sample, or a batch of all ranks.
    expected
        For each source, the expected counts of its chosen samples in a pass, or the recordings that these are starts of
        random crops of; None for one of which a pass has each sample once. Empty: all sources are such.
    """

    first: tuple[int, ...]
    weights: tuple[int, ...]
    changes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    stop: Stop = "first"
    batching: Batching = "per_sample"
    expected: tuple[ExpectedCounts | CropStarts | None, ...] = field(default=(), compare=False, repr=False)

    @property
    def num_sources(self) -> int:
        """The number of sources."""
        return len(self.weights)

    def edges(self, edges: Edges | None, block_rows: int) -> Int64 | GridEdges:
        """Return the first samples of blocks, cut so that no block has samples of two sources."""
        if isinstance(edges, GridEdges):  # boxes, which have samples of one store
            return edges
        if edges is None:
            edges = np.append(np.arange(0, self.first[-1], block_rows), self.first[-1])
        return np.union1d(np.asarray(edges), np.array(self.first))

    def mixture(self, seed: int, unit: int) -> Mixture:
        """Return the source of each step, or of each run of `unit` steps where batches have one source."""
        key = key_of(_TURNS, seed)
        if self.batching == "per_sample":
            return Mixture(self.weights, key, COLUMNS, self.changes)
        rounded: dict[int, tuple[int, ...]] = {-(-step // unit): weights for step, weights in self.changes}
        return Mixture(self.weights, key, 1, tuple(rounded.items()))

"""Deal the samples of an epoch order to nodes, so that each node reads the same part of the blocks in every epoch.

Invariants:

1. The parts follow from the layout, the selection, `shuffle`, the seed and the number of nodes. They depend neither on
   the epoch nor on memory, ranks or workers. So every node computes the same parts without talking to another one.
2. The parts are disjoint, and together they are all samples. Of N samples and W nodes, the first N mod W parts have
   N // W + 1 samples, the others N // W.
3. A part consists of whole blocks, except at the W - 1 borders between parts, which may cut a block.
4. If the array grows, few blocks move to another part: which of two runs of blocks comes first does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.carry import STRIP_REACHES
from zarrfeed.plan.order.keyed_random import GAMMA, finish_all
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.order_state import OrderState
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.plan.windows.windows import reach
from zarrfeed.spec.fields.field import FieldSet

#: The reader that gets the same part of the samples in every epoch.
Affinity: TypeAlias = Literal["node"]

#: Fewest runs of blocks of a node, if blocks are dealt in runs.
_LEAST_RUNS = 8
#: Purposes of random numbers; part of their key.
_DEALING, _SEED_OF_NODE = 0x6465616C, 0x6E6F6465


@dataclass(frozen=True)
class Part:
    """The part of an epoch order that one node reads, and what all nodes have to know of all parts.

    Attributes
    ----------
    node, num_nodes
        Number of the node, and the number of nodes.
    whole
        The order of the samples of all nodes.
    longest
        Samples of the longest part.
    long_nodes
        The nodes 0 ... long_nodes - 1 have `longest` samples, the others one less. 0: all have `longest`.
    fewest_blocks
        Blocks of the part that has the fewest.
    """

    node: int
    num_nodes: int
    whole: Order
    longest: int
    long_nodes: int
    fewest_blocks: int

    @classmethod
    def only(cls, order: Order) -> Part:
        """Return the part of the only node."""
        return cls(0, 1, order, order.length, 0, order.num_blocks)

    @property
    def shortest(self) -> int:
        """Samples of the shortest epoch of a part."""
        return self.whole.shortest if self.num_nodes == 1 else self.longest - (self.long_nodes > 0)

    def epoch_length(self, state: OrderState, batch: int) -> int:
        """Return the positions of the longest part in a state's epoch, for `batch` samples in a batch of all ranks."""
        return self.whole.epoch_length(state, batch) if self.num_nodes == 1 else self.longest


@dataclass(frozen=True)
class Dealing:
    """The parts of all nodes.

    Attributes
    ----------
    whole
        The selection of all samples, which is dealt to nodes.
    drawn
        The held indices of all blocks, in the order in which they are dealt, shape (blocks,).
    num_nodes
        Number of parts.
    """

    whole: Selection
    drawn: Int64
    num_nodes: int

    @classmethod
    def of(cls, order: Order, num_nodes: int, run: int) -> Dealing:
        """Deal the samples of an order; `run` neighbouring blocks stay together.

        Blocks that keep their order in an epoch are dealt in that order.

        Raises
        ------
        ConfigError
            If there are fewer samples than nodes.
        """
        if order.length < num_nodes:
            raise ConfigError(
                f"affinity = 'node': {order.length} samples for {num_nodes} nodes, must be at least one for each node"
            )
        order.check_blocks(listed=True)
        whole = order.uncut
        if not order.shuffle:
            return cls(whole, np.arange(len(whole.blocks)), num_nodes)
        keys = _random(order.seed, _DEALING, whole.blocks // run)
        return cls(whole, np.argsort(keys, kind="stable"), num_nodes)  # stable: the blocks of a run ascend

    @property
    def long_nodes(self) -> int:
        """Number of parts that have a sample more than the others."""
        return self.whole.length % self.num_nodes

    @cached_property
    def longest(self) -> int:
        """Samples of the longest part."""
        return -(-self.whole.length // self.num_nodes)

    @property
    def fewest_blocks(self) -> int:
        """Blocks of the part that has the fewest."""
        return min(end - begin for begin, end in self._blocks)

    @property
    def hardest(self) -> int:
        """The node whose part needs most memory: the one with the longest block, and of several the fewest blocks."""
        parts = [self._rows(node)[1] for node in range(self.num_nodes)]
        return max(range(self.num_nodes), key=lambda node: (parts[node].max(), -len(parts[node]), -node))

    def part(self, node: int) -> Selection:
        """Return the samples of a node."""
        begin, end = self._blocks[node]
        skipped, rows = self._rows(node)
        held_indices = self.drawn[begin:end]
        ascending = np.argsort(held_indices)
        held_indices, skipped, rows = held_indices[ascending], skipped[ascending], rows[ascending]
        whole = self.whole
        first = whole.first[held_indices] + (whole.step if whole.samples is None else 1) * skipped
        blocks = whole.blocks[held_indices]
        return replace(whole, held=ListedBlocks(blocks, rows, first), whole_blocks=False)

    @cached_property
    def _ends(self) -> Int64:
        """Number of samples that are dealt up to the end of each block, shape (blocks,)."""
        return np.cumsum(self.whole.rows[self.drawn])

    @cached_property
    def _borders(self) -> Int64:
        """Number of samples that are dealt before each node, and to all nodes, shape (nodes + 1,)."""
        node = np.arange(self.num_nodes + 1)
        return node * (self.whole.length // self.num_nodes) + np.minimum(node, self.long_nodes)

    @cached_property
    def _blocks(self) -> Sequence[tuple[int, int]]:
        """The blocks that each node reads something of, as [begin, end) in the order of dealing."""
        begin = np.searchsorted(self._ends, self._borders[:-1], side="right")
        end = np.searchsorted(self._ends, self._borders[1:], side="left") + 1
        return list(zip(begin.tolist(), end.tolist(), strict=True))

    def _rows(self, node: int) -> tuple[Int64, Int64]:
        """Return for each block of a node the number of rows that nodes before it read, and that it reads."""
        begin, end = self._blocks[node]
        ends = self._ends[begin:end]
        begins = ends - self.whole.rows[self.drawn[begin:end]]
        first = np.maximum(begins, self._borders[node])
        return first - begins, np.minimum(ends, self._borders[node + 1]) - first


def blocks_together(fields: FieldSet, order: Order, num_nodes: int) -> int:
    """Return how many neighbouring blocks are dealt together, since the windows of their samples share chunks.

    This follows from the primary array alone, and not from what memory has room for, nor from slabs.
    """
    primary = None if fields.primary is None else fields.fields[fields.primary]
    if primary is None or primary.window is None:
        return 1
    rows = primary.layouts[0].spec.rows_per_chunk
    shared = sum(-(-beyond // rows) for beyond in reach([primary.window])) * rows / order.block_rows
    return max(1, min(math.ceil(STRIP_REACHES * shared), len(order.uncut.held) // (_LEAST_RUNS * num_nodes)))


def seed_of_node(seed: int, node: int) -> int:
    """Return the key of a node's permutations; with one key, all nodes would permute their blocks alike."""
    return int(_random(seed, _SEED_OF_NODE, np.array([node]))[0])


def _random(seed: int, purpose: int, numbers: Int64) -> npt.NDArray[np.uint64]:
    """Return a random word for each number, by SplitMix64: the word of a number depends on no other number."""
    state = finish_all(np.array([seed], dtype=np.uint64) ^ np.uint64(purpose * GAMMA % 2**64))
    return finish_all(state + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA))

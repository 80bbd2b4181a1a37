"""Divide an epoch order among consumers so that each consumer reads one run of whole blocks.

This is arithmetic, as in partition.py, for an epoch order of one lane in which rows keep their order. Every rank gets
the same number of whole blocks, side by side, and divides them among its workers; the first workers may have one more.
The blocks that are left, fewer than there are ranks, and a short block are cut into pieces of equal length, one for
each rank: at most W - 1 samples are left out. A single rank divides all blocks.

Invariant: every rank has the same runs, counted in samples. So ranks have as many batches, though each worker ends
with a short batch of its own. A DataLoader takes batches from its workers in turn, and leaves out those that have none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.plan.order.order_state import whole_number
from zarrfeed.plan.shares.partition import Consumer, Share
from zarrfeed.plan.shares.progress import Int64

#: More ranks or workers than any run has; a damaged state must not make large arrays.
_MOST_CONSUMERS = 1 << 20


@dataclass(frozen=True)
class RunDivision:
    """The division of the positions that are left of an epoch order among consumers, in runs of whole blocks.

    Attributes
    ----------
    length
        Positions that are left.
    world_size, num_workers
        Number of ranks W, and number of workers K of each rank.
    batch_size
        Samples of a batch of a worker; 1 where single samples are handed out.
    block_rows
        Positions of a block, the last one may be shorter; 1 where blocks do not matter.
    turn
        Any number: it decides which samples are left out. The epoch's makes them others in each epoch.
    drop_last
        True if the short last batch of each worker is left out.
    """

    length: int
    world_size: int
    num_workers: int
    batch_size: int
    block_rows: int
    turn: int
    drop_last: bool = False

    def length_on(self, node: int) -> int:  # noqa: ARG002 - as in Division
        """Return the positions that are left: the same on all nodes, as runs are not dealt to nodes."""
        return self.length

    def samples(self, rank: int, node: int = 0) -> int:  # noqa: ARG002 - as in Division
        """Return the samples that a rank delivers."""
        return int(self._steps.sum())

    def batches(self, rank: int, node: int = 0) -> int:  # noqa: ARG002 - as in Division
        """Return the batches that a rank delivers: the same for all."""
        return int(self._batches.sum())

    def steps(self, consumer: Consumer) -> int:
        """Return the samples that a consumer delivers."""
        return int(self._steps[consumer.worker])

    def share(self, consumer: Consumer, begin: int = 0) -> Share:
        """Return the positions of a consumer, from its step `begin` on."""
        first, end = self._borders[consumer.worker : consumer.worker + 2]
        count = min(int(end - first), self.steps(consumer))
        piece = self._piece(consumer.rank) if consumer.worker == self._with_piece else np.zeros(0, dtype=np.int64)
        skipped = min(begin, count)
        return Share(
            first=consumer.rank * self._rank_rows + int(first) + skipped,
            stride=1,
            count=count - skipped,
            tail=piece[: self.steps(consumer) - count][begin - skipped :],
        )

    def continued(self, consumer: Consumer, batches: int) -> tuple[Consumer, int]:
        """Return the consumer whose share this one takes over, and the first batch of it that is due.

        A DataLoader asks worker 0 first, so worker 0 takes over the share of the worker whose turn it is.
        """
        delivered, turn = self._after(batches)
        worker = (consumer.worker + turn) % self.num_workers
        return replace(consumer, worker=worker), int(delivered[worker])

    def cut(self, batches: int) -> RunCut:
        """Return the positions that are used up when every rank has delivered `batches` batches."""
        return RunCut(self, batches)

    def used(self, batches: int) -> Int64:
        """Return the positions used up after `batches` batches a rank, as [begin, end) pairs, shape (pairs, 2)."""
        steps = np.minimum(self._after(batches)[0] * self.batch_size, self._steps)
        pairs = []
        for rank in range(self.world_size):
            first = rank * self._rank_rows + self._borders[:-1]
            pairs.append(np.stack([first, np.minimum(first + steps, first + np.diff(self._borders))], axis=1))
            of_piece = steps[self._with_piece] - np.diff(self._borders)[self._with_piece]
            piece = self._piece(rank)[: max(0, int(of_piece))]
            if len(piece):
                starts = np.flatnonzero(np.diff(piece, prepend=piece[0] - 2) != 1)
                ends = np.append(starts[1:], len(piece)) - 1
                pairs.append(np.stack([piece[starts], piece[ends] + 1], axis=1))
        found = np.concatenate(pairs)
        found = found[found[:, 0] < found[:, 1]]
        return found[np.argsort(found[:, 0])]

    def _after(self, batches: int) -> tuple[Int64, int]:
        """Return the batches that each worker has delivered after `batches` of a rank, and the worker whose turn it is.

        In round j every worker delivers its batch j that has one.
        """
        of_worker = self._batches
        rounds = range(int(of_worker.max()) + 1)
        done = bisect_right(rounds, batches, key=lambda j: int(np.minimum(of_worker, j).sum())) - 1
        delivered = np.minimum(of_worker, done)
        in_round = np.flatnonzero(of_worker > done)
        ahead = batches - int(delivered.sum())
        delivered[in_round[:ahead]] += 1
        return delivered, int(in_round[ahead]) if ahead < len(in_round) else 0

    @cached_property
    def _rank_blocks(self) -> int:
        """Whole blocks of a rank; a single rank has the short one, too."""
        if self.world_size == 1:
            return -(-self.length // self.block_rows)
        return self.length // self.block_rows // self.world_size

    @property
    def _rank_rows(self) -> int:
        """Positions of the whole blocks of a rank."""
        return self._rank_blocks * self.block_rows

    @property
    def _with_piece(self) -> int:
        """The worker that reads the rank's piece of the blocks that are left: the first with one block less."""
        return self._rank_blocks % self.num_workers

    @cached_property
    def _borders(self) -> Int64:
        """Edges of the workers' runs, counted from the begin of the rank's, shape (workers + 1,)."""
        each, more = divmod(self._rank_blocks, self.num_workers)
        worker = np.arange(self.num_workers + 1)
        block = worker * each + np.minimum(worker, more)
        return np.minimum(block * self.block_rows, self.length)

    @cached_property
    def _steps(self) -> Int64:
        """Samples of each worker, the same on every rank, shape (workers,)."""
        steps = np.diff(self._borders)
        if self.world_size > 1:
            steps[self._with_piece] += self._left // self.world_size
        return steps // self.batch_size * self.batch_size if self.drop_last else steps

    @cached_property
    def _batches(self) -> Int64:
        """Batches of each worker, the same on every rank, shape (workers,)."""
        return -(-self._steps // self.batch_size)

    @property
    def _left(self) -> int:
        """Positions behind the whole blocks of the ranks."""
        return self.length - self.world_size * self._rank_rows

    def _piece(self, rank: int) -> Int64:
        """Return a rank's positions among those that are left, the same number for each rank, shape (positions,)."""
        each = self._left // self.world_size if self.world_size > 1 else 0
        piece = rank * each + np.arange(each, dtype=np.int64)
        return self.length - self._left + (piece + self.turn) % max(1, self._left)


@dataclass(frozen=True)
class RunCut:
    """The positions that one run used up, among those that it found: the beginnings of its consumers' runs.

    It has the attributes of `progress.Cut`, and is as small in a state, since its division says where they are.
    """

    division: RunDivision
    batches: int

    @property
    def used(self) -> int:
        """Number of used positions."""
        return int(np.diff(self._pairs).sum())

    @cached_property
    def gaps(self) -> int:
        """Positions that are left before the last used one: from there on, the positions that are left have no gap."""
        return int(self._left_before[-1]) if len(self._pairs) else 0

    @property
    def prefix(self) -> int | None:
        """Number of used positions, if they are the first ones."""
        return self.used if self.gaps == 0 else None

    def position(self, left: Int64) -> Int64:
        """Return the position of each of the positions that are left, given their number."""
        used = np.concatenate([[0], np.cumsum(np.diff(self._pairs))])
        positions: Int64 = left + used[np.searchsorted(self._left_before, left, side="right")]
        return positions

    def to_json(self) -> dict[str, Any]:
        """Return the cut as a JSON object."""
        return {**asdict(self.division), "batches": self.batches}

    @classmethod
    def from_json(cls, json: Mapping[str, Any], found: int) -> RunCut:
        """Return the cut that `to_json` described, made in `found` positions.

        Raises
        ------
        ValueError, TypeError, KeyError
            If it cannot be one.
        """
        counts = dict(json)
        batches, drop_last = whole_number(counts.pop("batches")), counts.pop("drop_last")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last = {drop_last!r}, must be a bool")
        for name in ("world_size", "num_workers"):
            whole_number(counts[name], _MOST_CONSUMERS)
        length = whole_number(counts.pop("length"), found + 1)
        counts = {name: whole_number(value, least=name != "turn") for name, value in counts.items()}
        cut = cls(RunDivision(length=length, drop_last=drop_last, **counts), batches)
        if batches > cut.division.batches(0):
            raise ValueError(f"{batches} batches were delivered, of {cut.division.batches(0)}")
        return cut

    @cached_property
    def _pairs(self) -> Int64:
        return self.division.used(self.batches)

    @cached_property
    def _left_before(self) -> Int64:
        """Number of positions that are left before each used pair, shape (pairs,)."""
        length = np.diff(self._pairs)[:, 0]
        before: Int64 = self._pairs[:, 0] - np.cumsum(length) + length
        return before

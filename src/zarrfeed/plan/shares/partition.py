"""Divide the positions that are left of an epoch order among consumers.

A consumer is one (rank, DataLoader worker) pair. The positions that are left are numbered from 0. Rank r of W reads the
positions r, r + W, r + 2 W, ...: its position q is r + W q. The K workers of a rank share whole rounds of K batches by
stride: worker k reads the positions q = k, k + K, ... They share what is less than a round batch by batch. So batch i
of a rank comes from worker i mod K, only the last batch is short, and the number of batches does not depend on K. Where
batches have one source each (mixed_order.py), the workers share whole rounds batch by batch, too: batch i of a rank
then has the same positions for any K.

If samples are dealt to nodes (affinity.py), each node has an epoch order of its own, which the ranks of the node divide
as above. All nodes have one division, though some orders lack the last position: what consumers take by stride, and
what a number of batches uses up, is the same on all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.shares.progress import Cut, Int64, Progress

Even: TypeAlias = Literal["drop", "repeat", "off"]
EVEN_MODES: tuple[Even, ...] = get_args(Even)


@dataclass(frozen=True)
class Consumer:
    """One reader: DataLoader worker `worker` of `num_workers` on rank `rank` of `world_size`.

    `split_over` is the number of processes that somebody else splits its batches for. `node` says whose part of the
    samples the ranks divide, if samples are dealt to nodes. `is_gathered` says that what the ranks make of a batch is
    put together again, rank by rank.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    split_over: int = field(default=1, compare=False)
    node: int = 0
    is_gathered: bool = field(default=False, compare=False)

    @cached_property
    def stride(self) -> int:
        """S, the number of consumers."""
        return self.world_size * self.num_workers

    @cached_property
    def num_receivers(self) -> int:
        """Number of processes that get samples in the end, whoever shares them out."""
        return self.world_size * self.split_over


@dataclass(frozen=True)
class RankInfo:
    """The rank of the training process, and how many ranks run on its machine.

    `split_over` is the number of processes that get their parts of what this one reads, from a library that sends them
    (`torch/ranks/callers.py`); `idle` says that this process is one that only gets them. If samples are dealt to
    nodes, it is the rank among those of the node `node` of `num_nodes`.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    split_over: int = 1
    idle: bool = False
    node: int = 0
    num_nodes: int = 1
    is_gathered: bool = False

    def consumer(self, worker: int = 0, num_workers: int = 1) -> Consumer:
        """Return the consumer that a DataLoader worker of this rank is."""
        return Consumer(self.rank, self.world_size, worker, num_workers, self.split_over, self.node, self.is_gathered)

    def in_node(self) -> RankInfo:
        """Return the rank within its node; the ranks of a node follow each other."""
        local = self.local_world_size
        node, rank = divmod(self.rank, local)
        return RankInfo(rank, local, local, node=node, num_nodes=self.world_size // local)


@dataclass(frozen=True)
class Division:
    """The division of the positions that are left of an epoch order among consumers.

    Attributes
    ----------
    length
        Positions that are left.
    world_size, num_workers
        Number of ranks W, and number of workers K of each rank.
    batch_size
        Samples of a batch of a worker; 1 where single samples are handed out.
    even
        "drop": every rank has length // W samples; "repeat": length / W, rounded up, positions from `length` on being
        those from 0 on; "off": each position goes to one rank, so that some ranks have one sample more.
    drop_last
        True if a short last batch is left out.
    long_nodes
        If samples are dealt to nodes: only the nodes 0 ... long_nodes - 1 have the last position. 0: all nodes have it.
    whole_batches
        True if worker k has the whole batches k, k + K, ... of its rank, instead of a stride of them all.
    repeats_last
        With "repeat": True if the last batch of all ranks is dealt out in runs, one a rank. Repeated samples are then
        the last ones where the batches of the ranks are put together. All ranks together have the same samples in each
        batch, so it makes no difference to a state.
    """

    length: int
    world_size: int
    num_workers: int
    batch_size: int
    even: Even
    drop_last: bool = False
    long_nodes: int = 0
    whole_batches: bool = False
    repeats_last: bool = field(default=False, compare=False)

    @cached_property
    def rounds(self) -> int:
        """Whole rounds of one batch a worker: the same on every rank."""
        return self._shortest // self.world_size // (self.num_workers * self.batch_size)

    def length_on(self, node: int) -> int:
        """Return the positions that are left on a node."""
        return self.length if node < self.long_nodes else self._shortest

    def samples(self, rank: int, node: int = 0) -> int:
        """Return the samples that a rank delivers."""
        if self.even == "drop":
            samples = self._shortest // self.world_size
        elif self.even == "repeat":
            samples = -(-self.length // self.world_size)
        else:
            all_ranks, more = divmod(self.length_on(node), self.world_size)
            samples = all_ranks + (rank < more)
        return samples // self.batch_size * self.batch_size if self.drop_last else samples

    def batches(self, rank: int, node: int = 0) -> int:
        """Return the batches that a rank delivers."""
        return -(-self.samples(rank, node) // self.batch_size)

    def steps(self, consumer: Consumer) -> int:
        """Return the samples that a consumer delivers."""
        return self.rounds * self.batch_size + len(self._tail(consumer))

    def share(self, consumer: Consumer, begin: int = 0) -> Share:
        """Return the positions of a consumer, from its step `begin` on."""
        strided = self.rounds * self.batch_size
        tail = self._tail(consumer)
        if (
            consumer.num_workers == 1 and not self._ends_in_runs
        ):  # the tail goes on where the stride ends, but for what is repeated
            plain = int(np.searchsorted(tail, self.length_on(consumer.node)))
            strided, tail = strided + plain, tail[plain:]
        elif self.whole_batches:
            return self._whole_batches(consumer, min(begin, strided), strided, tail[begin - min(begin, strided) :])
        first = consumer.rank + consumer.world_size * consumer.worker
        skipped = min(begin, strided)
        return Share(
            first=first + consumer.stride * skipped,
            stride=consumer.stride,
            count=strided - skipped,
            tail=tail[begin - skipped :],
        )

    def _whole_batches(self, consumer: Consumer, begin: int, end: int, tail: Int64) -> Share:
        of_batch = self.world_size * self.batch_size
        period = self.num_workers * of_batch
        first = consumer.rank + of_batch * consumer.worker + begin // self.batch_size * period
        return Share(first, self.world_size, end - begin, tail, self.batch_size, period)

    def continued(self, consumer: Consumer, batches: int) -> tuple[Consumer, int]:
        """Return the consumer whose share `consumer` takes over, and how many batches of that share were delivered.

        A DataLoader asks worker 0 first. In a run that continues this division, worker 0 therefore delivers the next
        batch that is due: it takes over the share of worker `batches` mod K, worker 1 that of the worker after it, ...
        """
        worker = (consumer.worker + batches) % self.num_workers
        delivered = (batches - worker + self.num_workers - 1) // self.num_workers
        return replace(consumer, worker=worker), delivered

    def _tail(self, consumer: Consumer) -> Int64:
        """Positions of a consumer behind the whole rounds: one batch at most, shape (steps,)."""
        begin = (self.rounds * self.num_workers + consumer.worker) * self.batch_size
        end = min(self.samples(consumer.rank, consumer.node), begin + self.batch_size)
        if self._ends_in_runs and end == self.samples(consumer.rank):
            first = self.world_size * begin + (end - begin) * consumer.rank
            return np.arange(first, first + end - begin, dtype=np.int64)
        return consumer.rank + consumer.world_size * np.arange(begin, end, dtype=np.int64)

    @property
    def repeated(self) -> int:
        """Samples that ranks of one node repeat to have as many as the others; each is in a rank's last batch."""
        return max(0, self.world_size * self.samples(0) - self.length) if self.even == "repeat" else 0

    @property
    def last_batch(self) -> int:
        """Samples of the last batch of a rank, if all ranks have as many."""
        return self.samples(0) - (self.batches(0) - 1) * self.batch_size

    @property
    def _ends_in_runs(self) -> bool:
        return self.repeats_last and self.repeated > 0

    @cached_property
    def _shortest(self) -> int:
        """Positions that every node has."""
        return self.length - (self.long_nodes > 0)

    def cut(self, batches: int) -> Cut:
        """Return the positions that are used up when every rank has delivered `batches` batches."""
        in_rounds = self.num_workers * self.rounds
        if batches <= in_rounds and not self.whole_batches:
            rounds, workers = divmod(batches, self.num_workers)
            prefix = rounds * self.num_workers * self.batch_size * self.world_size
            if workers:
                period = self.world_size * self.num_workers
                return Cut(prefix, self.world_size * workers, period, self.batch_size)
            return Cut(prefix)
        return Cut(min(self.length, batches * self.batch_size * self.world_size))


@dataclass(frozen=True)
class Share:
    """The positions of one consumer: `count` of them by stride, then those of `tail`.

    With a `run`, a stride has so many positions, and goes on `period` positions behind the first of these.

    A position is a number among the positions that earlier runs left. A position of the tail may lie beyond the last of
    them; it then means one from the beginning.
    """

    first: int
    stride: int
    count: int
    tail: Int64
    run: int = 0
    period: int = 0

    def portion(self, progress: Progress, left: int, length: int, most_steps: int | None = None) -> Portion:
        """Return the share's positions in an epoch order of `length` positions, of which earlier runs left some.

        If these positions have gaps, they are listed one by one. `most_steps` is that of the portion.
        """
        regular, shift = progress.regular_from()
        in_head = min(self.count, max(0, -(-(regular - self.first) // self.stride)))
        tail = length + self.tail
        if left:  # positions beyond what is left are repeated ones
            turn, number = np.divmod(self.tail, left)
            tail = progress.position(number) + turn * length
        return Portion(
            first=self.first + self.stride * in_head + shift,
            stride=self.stride,
            steps=self.count - in_head,
            head=progress.position(self.first + self.stride * np.arange(in_head, dtype=np.int64)),
            tail=tail,
            run=self.run,
            period=self.period,
            most_steps=most_steps,
        )

"""Which chunks the ranks of a cluster read, which of them a node cache has, and how even that is: no store, no data.

The assignment of blocks to ranks and nodes is the planner's own (`Schedule`, `Order.groups`, `Dealing`). The caches are
a model of docs/decisions/0025: a cache admits each chunk that it lacks until it is full, and evicts nothing.

What holds: `formula_hits` says what `simulate_hits` finds, up to chance and to chunks that the end of a lane cuts.
tests/benchmarks/test_scale_benchmark.py compares the simulation with real caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.order.order import make_order
from zarrfeed.plan.order.rank_lanes import ranks_of_chunk
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.affinity import Dealing
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.spec.fields.field import FieldSet, IndexField

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_BATCH = 64
_BINS = 40


@dataclass(frozen=True)
class Cluster:
    """What is read by whom.

    Attributes
    ----------
    chunks, rows
        Chunks along the sample axis, each of which is a block, and the samples of one.
    nodes, local
        Machines, and the ranks of one.
    affinity
        Whether each node reads the same part in every epoch.
    lanes
        Of the order. None: as the planner chooses.
    """

    chunks: int
    rows: int
    nodes: int
    local: int
    affinity: bool = False
    lanes: int | None = None
    seed: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.local

    def schedule(self) -> Schedule:
        """Return the schedule of the samples of all nodes."""
        return self.schedule_of_samples(self.chunks * self.rows)

    def schedule_of_samples(self, samples: int) -> Schedule:
        """Return the schedule of so many samples, of which the last chunk may hold fewer."""
        order = make_order(samples, self.rows, None, shuffle=True, seed=self.seed, lanes=self.lanes, mix=None)
        fields = FieldSet((IndexField(samples),), (None,), None, self.rows)
        return Schedule.make(fields, order, ScheduleOptions(lanes=self.lanes, batch_size=_BATCH))

    def rank_infos(self, node: int) -> list[RankInfo]:
        """Return the ranks of a node: of all ranks, or with affinity of those that divide the part of the node."""
        infos = [RankInfo(node * self.local + i, self.ranks, self.local) for i in range(self.local)]
        return [info.in_node() for info in infos] if self.affinity and self.nodes > 1 else infos

    def schedule_of(self, schedule: Schedule, node: int) -> Schedule:
        """Return the schedule of what a node reads."""
        return schedule.for_node(node, self.nodes) if self.affinity and self.nodes > 1 else schedule


def blocks_of_ranks(schedule: Schedule, rank_infos: Sequence[RankInfo], epoch: int) -> list[Int64]:
    """Return the blocks that ranks read in an epoch, in order, one array a rank; a block is named each time.

    Where each rank has a lane of its own, the blocks are permuted once for all ranks; else each rank is planned.
    """
    state = schedule.settle(EpochState(epoch), rank_infos[0].consumer())
    order = schedule.order_of(state)
    if order.lanes == rank_infos[0].world_size:
        lanes = np.array([rank_info.rank for rank_info in rank_infos])
        assert (np.diff(lanes) > 0).all()
        groups = order.groups(epoch, lanes)
        blocks = order.blocks_at(groups.held_index)
        pieces = np.bincount(np.searchsorted(lanes, groups.lane), np.diff(groups.begin), len(lanes)).astype(np.int64)
        return np.split(blocks, np.cumsum(pieces)[:-1])
    return [schedule.plan(state, rank_info.consumer()).segment_block for rank_info in rank_infos]


def interleaved(reads: Sequence[Int64]) -> Int64:
    """Return the reads of ranks that are equally fast, in the order of time."""
    when = np.concatenate([(np.arange(len(one)) + 0.5) / max(1, len(one)) for one in reads])
    return np.concatenate(list(reads))[np.argsort(when, kind="stable")]


class NodeCache:
    """The chunks that a node has: those that it read first, as long as there was room.

    Parameters
    ----------
    chunks
        Of the store.
    room
        How many the cache holds, all of one size. None: all.
    """

    def __init__(self, chunks: int, room: int | None = None) -> None:
        self._has = np.zeros(chunks, dtype=bool)
        self._room = chunks if room is None else room

    def read(self, chunks: Int64) -> int:
        """Read chunks in order; return how many were hits. What is not there is added, while there is room."""
        hits = int(self._has[chunks].sum())
        missing = chunks[~self._has[chunks]]
        _, first = np.unique(missing, return_index=True)
        first.sort()
        added = missing[first[: self._room]]
        self._room -= len(added)
        self._has[added] = True
        # Of a chunk that was read twice, the second time is a hit, if the first one was added.
        return hits + int(self._has[missing].sum()) - len(added)


def simulate_hits(cluster: Cluster, *, sampled: Sequence[int], epochs: int, rooms: Sequence[float]) -> dict[str, Any]:
    """Return what the caches of some nodes hit over some epochs.

    `rooms` are sizes of a cache, each as a share of the part of one node (1: it holds chunks / nodes).
    """
    schedule = cluster.schedule()
    of_nodes = {node: cluster.schedule_of(schedule, node) for node in sampled[:1]}
    part = cluster.chunks / cluster.nodes
    caches = {
        (node, room): NodeCache(cluster.chunks, None if math.isinf(room) else math.ceil(room * part))
        for node in sampled
        for room in rooms
    }
    hits = np.zeros((len(rooms), epochs))
    reads = np.zeros(epochs)
    together = not cluster.affinity  # all nodes divide one order, which is permuted once for all sampled ones
    everyone = [rank_info for node in sampled for rank_info in cluster.rank_infos(node)]
    for turn in [list(sampled)] if together else [[node] for node in sampled]:
        for epoch in range(epochs):
            if together:
                of_ranks = blocks_of_ranks(schedule, everyone, epoch)
            else:
                of_node = of_nodes.get(turn[0]) or cluster.schedule_of(schedule, turn[0])
                of_nodes = {turn[0]: of_node}
                of_ranks = blocks_of_ranks(of_node, cluster.rank_infos(turn[0]), epoch)
            for number, node in enumerate(turn):
                blocks = interleaved(of_ranks[number * cluster.local : (number + 1) * cluster.local])
                reads[epoch] += len(blocks)
                for i, room in enumerate(rooms):
                    hits[i, epoch] += caches[node, room].read(blocks)
    return {
        "cluster": asdict(cluster),
        "sampled_nodes": len(sampled),
        "reads_per_node": float(reads.mean() / len(sampled)),
        "part": part,
        "rooms": [None if math.isinf(room) else room for room in rooms],
        "hit_ratios": (hits / reads).round(6).tolist(),
        "formula": [[formula_hits(cluster, room, epoch) for epoch in range(epochs)] for room in rooms],
    }


def formula_hits(cluster: Cluster, room: float, epoch: int) -> float:
    """Return the share of its reads that a node's cache hits in an epoch, counted from 0.

    With affinity, from the second epoch on it is what fits of the node's part. Without, a node reads 1 / nodes of all
    chunks in each epoch, others each time: after e epochs it has met 1 - (1 - 1 / nodes)^e of them.
    """
    if cluster.affinity:
        return min(1.0, room) if epoch else 0.0
    share = min(1.0, room / cluster.nodes)
    return min(share, 1 - (1 - 1 / cluster.nodes) ** epoch)


def network_copies(cluster: Cluster, room: float, epochs: int) -> list[float]:
    """Return how many copies of the stored data all nodes together have fetched after each epoch, by the formula."""
    copies: list[float] = np.cumsum([1 - formula_hits(cluster, room, epoch) for epoch in range(epochs)]).tolist()
    return copies


def sharing(cluster: Cluster, asked: int = 8) -> dict[str, Any]:
    """Return how often a chunk is read in an epoch, by some of the ranks, scaled up to all; and by the formula."""
    schedule = cluster.schedule()
    ranks = range(0, cluster.ranks, max(1, cluster.ranks // asked))
    of_ranks = blocks_of_ranks(schedule, [RankInfo(rank, cluster.ranks, cluster.local) for rank in ranks], 0)
    reads = sum(map(len, of_ranks)) / len(ranks) * cluster.ranks / cluster.chunks
    lanes = schedule.settle(EpochState(0), RankInfo(0, cluster.ranks, cluster.local).consumer()).lanes
    assert lanes is not None
    formula = formula_sharing(cluster.ranks, lanes, cluster.rows)
    return {"ranks": cluster.ranks, "lanes": lanes, "reads": round(reads, 4), "formula": formula}


def formula_sharing(ranks: int, lanes: int, rows: int) -> int:
    """Return how many ranks read each chunk, of so many rows, if an epoch has these lanes: 1 if the ranks divide them.

    Rank r takes each `ranks`-th position, and position g is of lane g mod `lanes`. So a lane's samples go in turn to
    ranks / gcd(ranks, lanes) ranks.
    """
    return min(rows, ranks_of_chunk(ranks, lanes))


def chunk_sizes(chunks: int, variation: float, seed: int = 0) -> Float64:
    """Return stored sizes of chunks with a mean of about 1: lognormal, with this standard deviation over the mean."""
    sigma = math.sqrt(math.log1p(variation**2))
    return np.random.default_rng(seed).lognormal(-(sigma**2) / 2, sigma, chunks)


def evenness(cluster: Cluster, variation: float) -> dict[str, Any]:
    """Return how even an epoch is over all ranks and over all nodes: samples, chunk reads and stored bytes.

    Without affinity these are sums over the lanes that the ranks have; with affinity over the parts of the nodes.
    """
    schedule, sizes = cluster.schedule(), chunk_sizes(cluster.chunks, variation)
    made: dict[str, Any] = {"cluster": asdict(cluster), "variation": variation}
    if cluster.affinity:
        dealing = Dealing.of(schedule.order, cluster.nodes, 1)
        parts = [dealing.part(node) for node in range(cluster.nodes)]
        return made | {
            "samples_per_node": spread([part.length for part in parts]),
            "reads_per_node": spread([len(part.blocks) for part in parts]),
            "bytes_per_node": spread([sizes[part.blocks].sum() for part in parts]),
        }
    rank_info = RankInfo(0, cluster.ranks, cluster.local)
    state = schedule.settle(EpochState(0), rank_info.consumer())
    division = schedule.division(state, rank_info.consumer())
    rank_infos = [rank_info for node in range(cluster.nodes) for rank_info in cluster.rank_infos(node)]
    of_ranks = blocks_of_ranks(schedule, rank_infos, 0)
    reads = [len(blocks) for blocks in of_ranks]
    stored = np.array([sizes[blocks].sum() for blocks in of_ranks])
    node_bytes = stored.reshape(cluster.nodes, cluster.local).sum(1)
    return made | {
        "samples_per_rank": spread([division.samples(r) for r in range(cluster.ranks)]),
        "reads_per_rank": spread(reads),
        "bytes_per_rank": spread(stored, bins=True),
        "bytes_per_node": spread(node_bytes, bins=True),
    }


def spread(values: npt.ArrayLike, *, bins: bool = False) -> dict[str, Any]:
    """Return least, mean and most of some values, and their standard deviation over the mean."""
    found = np.asarray(values, dtype=np.float64)
    mean = found.mean()
    made: dict[str, Any] = {
        "least": float(found.min()),
        "mean": float(mean),
        "most": float(found.max()),
        "deviation": float(found.std() / mean),
    }
    if bins:
        counts, edges = np.histogram(found / mean, _BINS)
        made |= {"counts": counts.tolist(), "edges": edges.round(6).tolist()}
    return made


def formula_deviation(variation: float, chunks_each: float) -> float:
    """Return the deviation of bytes over the mean, if each reader has so many chunks of independent sizes."""
    return variation / math.sqrt(chunks_each)


def formula_most(deviation: float, readers: int) -> float:
    """Return what the busiest of some readers has over the mean: the largest of so many normal numbers (Blom, 1958)."""
    return 1 + deviation * NormalDist().inv_cdf((readers - 0.375) / (readers + 0.25))

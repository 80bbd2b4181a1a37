"""Requests and bytes of a cluster, by arithmetic: from the layout, the rate of a rank, and what an object store allows.

What holds, tested against a server that counts: a chunk that is an object costs one GET. A rank asks for an inner chunk
of a shard with one GET, and once for the index of each shard that it reads from, as long as it has room for indices.
Where whole shards are the blocks, neighbouring chunks come in requests of up to `DEFAULT_COALESCE.limit` bytes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from zarrfeed.plan.order.block_order import MOST_UNFOLDED
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE

#: GET and HEAD requests a second that S3 promises for each partitioned prefix:
#: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
S3_GETS = 5500
#: Reads a second that a bucket of Google Cloud Storage begins with: https://cloud.google.com/storage/docs/request-rate
GCS_READS = 5000
#: Keys that a listing of S3 answers with at once:
#: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
LISTED_AT_ONCE = 1000

Layout = Literal["chunks", "shards", "whole shards"]
LAYOUTS: tuple[Layout, ...] = ("chunks", "shards", "whole shards")


@dataclass(frozen=True)
class Scenario:
    """A data set of a kind, and how fast a rank trains on it: inputs, not measurements.

    Attributes
    ----------
    what
        For people.
    sample_bytes, rows
        Decoded bytes of a sample; samples of a chunk.
    ratio
        Stored bytes over decoded ones.
    chunks_per_shard
        Inner chunks of a shard, in the layouts with shards.
    samples_per_s
        That a rank trains on.
    """

    what: str
    sample_bytes: int
    rows: int
    ratio: float
    chunks_per_shard: int
    samples_per_s: float

    @property
    def stored_chunk_bytes(self) -> float:
        """Of one chunk."""
        return self.sample_bytes * self.rows * self.ratio


SCENARIOS = {
    "weather": Scenario("hourly fields of 721 x 1440 float32, one a chunk", 721 * 1440 * 4, 1, 0.5, 24, 120),
    "microscopy": Scenario("patches of 64^3 voxels of uint16, one a chunk", 64**3 * 2, 1, 0.5, 512, 2000),
    "web images": Scenario("JPEGs of 100 kB, 16 a chunk", 100_000, 16, 1.0, 64, 1500),
    "tokens": Scenario("4096 tokens of 2 bytes, 128 a chunk", 8192, 128, 0.6, 128, 10),
}


@dataclass(frozen=True)
class Load:
    """What a cluster asks a store for, without caches.

    Attributes
    ----------
    scenario, layout
        Which.
    blocks, planned
        Blocks of an epoch, and whether the planner takes as many.
    gets_per_chunk
        Requests for each chunk that is read.
    amplification
        How often a chunk is read: the end of a lane cuts a block, and both ranks read all of it.
    gets_per_rank_s, gets_s
        Requests a second of a rank, and of all.
    prefixes
        That S3 needs for them: 5500 a second each.
    node_gbit_s, all_tbit_s
        Stored bits a second that a node receives, and all nodes.
    stored_tb, epoch_s
        Stored size of the data; seconds that an epoch takes.
    cache_gb
        Of a node's cache that holds the node's part of the data.
    """

    scenario: str
    layout: Layout
    blocks: int
    planned: bool
    gets_per_chunk: float
    amplification: float
    gets_per_rank_s: float
    gets_s: float
    prefixes: int
    node_gbit_s: float
    all_tbit_s: float
    stored_tb: float
    epoch_s: float
    cache_gb: float


def gets_per_chunk(layout: Layout, chunks: int, chunks_per_shard: int, stored_bytes: float, ranks: int) -> float:
    """Return the requests for each chunk that one of some ranks reads.

    Parameters
    ----------
    layout
        What is stored, and what is a block.
    chunks, chunks_per_shard, stored_bytes
        Chunks of the array, inner chunks of a shard, and stored bytes of one.
    ranks
        Over which the chunks of an epoch are dealt.
    """
    if layout == "chunks":
        return 1.0
    if layout == "whole shards":
        in_request = max(1, math.floor(DEFAULT_COALESCE.limit / stored_bytes))
        return (1 + math.ceil(chunks_per_shard / in_request)) / chunks_per_shard
    shards, of_rank = chunks / chunks_per_shard, chunks / ranks
    touched = shards * -math.expm1(of_rank * math.log1p(-1 / shards)) if shards > 1 else 1.0
    return 1 + touched / of_rank


def load_of(name: str, layout: Layout, *, chunks: int, nodes: int, local: int) -> Load:
    """Return what a cluster that reads a scenario asks for."""
    one, ranks = SCENARIOS[name], nodes * local
    each = gets_per_chunk(layout, chunks, one.chunks_per_shard, one.stored_chunk_bytes, ranks)
    blocks = -(-chunks // one.chunks_per_shard) if layout == "whole shards" else chunks
    amplification = 1 + (ranks - 1) / blocks
    chunks_s = one.samples_per_s / one.rows * amplification
    bytes_s = chunks_s * one.stored_chunk_bytes
    stored = chunks * one.stored_chunk_bytes
    gets_s = chunks_s * each * ranks
    return Load(
        scenario=name,
        layout=layout,
        blocks=blocks,
        planned=blocks <= MOST_UNFOLDED,
        gets_per_chunk=each,
        amplification=amplification,
        gets_per_rank_s=chunks_s * each,
        gets_s=gets_s,
        prefixes=math.ceil(gets_s / S3_GETS),
        node_gbit_s=bytes_s * local * 8 / 1e9,
        all_tbit_s=bytes_s * ranks * 8 / 1e12,
        stored_tb=stored / 1e12,
        epoch_s=chunks * one.rows / (one.samples_per_s * ranks),
        cache_gb=stored / nodes / 1e9,
    )


def listings(chunks: int, processes: int) -> dict[str, int]:
    """Return the requests for listings, if each process asks for the versions of all objects when it opens the data."""
    pages = -(-chunks // LISTED_AT_ONCE)
    return {"pages": pages, "all": pages * processes}


def loads(*, chunks: int, nodes: int, local: int) -> list[dict[str, Any]]:
    """Return the loads of all scenarios and layouts, as JSON."""
    cluster = {"chunks": chunks, "nodes": nodes, "local": local}
    return [asdict(load_of(name, layout, **cluster)) for name in SCENARIOS for layout in LAYOUTS]

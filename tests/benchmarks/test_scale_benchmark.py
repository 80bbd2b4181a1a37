"""The benchmark of internet scale: its simulations agree with formulas, with the planner, and with real caches."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from benchmarks.suites import scale
from benchmarks.suites.scale_cluster import (
    Cluster,
    Int64,
    NodeCache,
    blocks_of_ranks,
    evenness,
    formula_deviation,
    formula_hits,
    formula_most,
    formula_sharing,
    interleaved,
    network_copies,
    sharing,
    simulate_hits,
)
from benchmarks.suites.scale_probe import Limits, run_probe
from benchmarks.suites.scale_rates import LAYOUTS, SCENARIOS, Layout, gets_per_chunk, listings, load_of
from tests.support.counting_server import CountingServer
from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.order.block_order import MOST_BLOCKS
from zarrfeed.plan.schedule.state import EpochState

#: Bytes that a chunk of 1 KiB counts in a cache, with its header.
_COUNTED = 4096


def test_a_quick_run_plans_simulates_and_says_what_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert scale.main(["--quick", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "each sample once" in out
    document = json.loads((tmp_path / "scale.json").read_text())
    planned, refused = document["plans"]
    assert refused["status"] == "refused"
    assert str(MOST_BLOCKS) in refused["why"]
    assert planned["status"] == "ok"
    assert planned["samples"] == 10 * planned["chunks"] // 40
    assert planned["samples"] / 10 <= planned["reads"] <= 1.1 * planned["samples"] / 10
    peaks = [step["peak_mib"] for step in planned["steps"].values()]
    assert sorted(peaks) == peaks
    assert {"dataset", "epoch 1", "resumed"} <= set(planned["steps"])
    assert {one["status"] for one in (*document["hits"], *document["evenness"], document["versions"])} == {"ok"}
    assert len(document["loads"]) == len(SCENARIOS) * len(LAYOUTS)


def test_a_probe_ends_at_its_limits() -> None:
    objects = {"objects": 50_000_000}
    assert run_probe("versions", objects, Limits(memory_bytes=400 << 20)) == {"status": "memory"}
    assert run_probe("versions", objects, Limits(timeout_s=0.1)) == {"status": "time"}
    with pytest.raises(RuntimeError, match="unexpected keyword"):
        run_probe("versions", {"chunks": 1}, Limits())


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(1000, 4, 5, 2, lanes=2),  # fewer lanes than ranks: each rank has a lane
        Cluster(1000, 4, 5, 2, lanes=40),
        Cluster(1000, 4, 5, 2, affinity=True, lanes=40),
        Cluster(1001, 4, 6, 2, affinity=True),
    ],
    ids=str,
)
def test_the_blocks_of_ranks_are_those_of_their_plans(cluster: Cluster) -> None:
    schedule = cluster.schedule()
    everything = []
    for node in range(cluster.nodes):
        rank_infos, of_node = cluster.rank_infos(node), cluster.schedule_of(schedule, node)
        of_ranks = blocks_of_ranks(of_node, rank_infos, 3)
        state = of_node.settle(EpochState(3), rank_infos[0].consumer())
        for rank_info, blocks in zip(rank_infos, of_ranks, strict=True):
            assert blocks.tolist() == of_node.plan(state, rank_info.consumer()).segment_block.tolist()
        everything += of_ranks
    assert np.unique(np.concatenate(everything)).tolist() == list(range(cluster.chunks))


def read_one_by_one(epochs: list[Int64], room: int) -> list[int]:
    """Return the hits of each epoch of a cache that admits until it is full: what `NodeCache` does with arrays."""
    has: set[int] = set()
    found = []
    for epoch in epochs:
        hits = 0
        for chunk in epoch.tolist():
            hits += chunk in has
            if len(has) < room:
                has.add(chunk)
        found.append(hits)
    return found


@pytest.mark.parametrize("room", [0, 1, 7, 30, 1000])
def test_a_cache_hits_what_one_that_looks_at_chunk_after_chunk_hits(room: int) -> None:
    rng = np.random.default_rng(room)
    epochs = [rng.integers(0, 60, 40) for _ in range(5)]  # some chunks come twice
    cache = NodeCache(60, room)
    assert [cache.read(epoch) for epoch in epochs] == read_one_by_one(epochs, room)


def test_reads_of_equally_fast_ranks_take_turns() -> None:
    assert interleaved([np.array([0, 1, 2, 3]), np.array([10, 11])]).tolist() == [0, 10, 1, 2, 11, 3]


@pytest.mark.parametrize("affinity", [False, True])
def test_simulated_hits_are_those_of_the_formula(affinity: bool) -> None:
    cluster = Cluster(40_000, 10, 20, 2, affinity)
    rooms = (0.5, 1, 10, math.inf)
    found = simulate_hits(cluster, sampled=(0, 7, 19), epochs=6, rooms=rooms)
    simulated, formula = np.array(found["hit_ratios"]), np.array(found["formula"])
    # An in-epoch hit is a chunk that the end of a lane cuts, which the epoch before the first one cannot have had.
    cuts = found["reads_per_node"] / found["part"] - 1
    assert (abs(simulated - formula) < 0.01 + cuts).all()
    assert formula[:, 0].tolist() == [0] * 4
    if affinity:
        assert simulated[1:, 1:].min() == 1
    else:
        assert simulated[1:, 1:].max() < 0.3


def test_the_formula_is_what_was_derived() -> None:
    free, bound = Cluster(1000, 1, 4, 1), Cluster(1000, 1, 4, 1, affinity=True)
    assert [formula_hits(free, 4, epoch) for epoch in range(4)] == [0, 1 / 4, 7 / 16, 37 / 64]
    assert [formula_hits(free, 1, epoch) for epoch in range(4)] == [0, 1 / 4, 1 / 4, 1 / 4]
    assert [formula_hits(bound, 1, epoch) for epoch in range(3)] == [0, 1, 1]
    assert [formula_hits(bound, 0.5, epoch) for epoch in range(3)] == [0, 0.5, 0.5]
    assert network_copies(bound, 1, 3) == [1, 1, 1]
    assert network_copies(free, 4, 3) == [1, 1.75, 2.3125]


@pytest.mark.parametrize(
    ("named", "ranks", "lanes", "reads"),
    [
        *((None, 8, 720, 1), (None, 32, 768, 1), (None, 64, 768, 1), (None, 72, 720, 1), (None, 1024, 1024, 1)),
        *((720, 32, 720, 2), (720, 64, 720, 4), (720, 1024, 1024, 1)),
    ],
)
def test_each_chunk_is_read_by_as_many_ranks_as_the_formula_says(
    named: int | None, ranks: int, lanes: int, reads: int
) -> None:
    """720 lanes are the default for 8 ranks here, and neither 32 nor 64 divides them."""
    found = sharing(Cluster(20_000, 16, ranks // 8, 8, lanes=named))
    assert (found["lanes"], found["formula"]) == (lanes, reads)
    cuts = lanes / 20_000
    assert reads <= found["reads"] <= reads + 2 * cuts
    assert formula_sharing(ranks, 8 * ranks, 16) == 1


def test_ranks_and_nodes_are_as_even_as_the_formulas_say() -> None:
    free, bound = (evenness(Cluster(72_000, 10, 20, 6, affinity), 0.5) for affinity in (False, True))
    assert free["samples_per_rank"]["deviation"] == bound["samples_per_node"]["deviation"] == 0
    assert free["reads_per_rank"]["most"] <= free["reads_per_rank"]["least"] + 20
    for found, readers in ((free["bytes_per_rank"], 120), (free["bytes_per_node"], 20), (bound["bytes_per_node"], 20)):
        deviation = formula_deviation(0.5, 72_000 / readers)
        assert found["deviation"] == pytest.approx(deviation, rel=0.5)
        assert found["most"] / found["mean"] - 1 == pytest.approx(formula_most(deviation, readers) - 1, rel=0.6)
    assert sum(free["bytes_per_rank"]["counts"]) == 120


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CountingServer]:
    """Serve an empty directory."""
    (tmp_path / "site").mkdir()
    with CountingServer(tmp_path / "site") as server:
        yield server


def write(server: CountingServer, chunks: int, rows: int, per_shard: int = 0) -> str:
    """Write an array of chunks of 1 KiB whose samples hold their index; return its URL."""
    root, shape = server.directory / "a.zarr", (chunks * rows, 256 // rows)
    shards = (per_shard * rows, shape[1]) if per_shard else None
    array = zarr.create_array(root, shape=shape, chunks=(rows, shape[1]), shards=shards, dtype="i4", compressors=None)
    array[:] = np.arange(shape[0])[:, None]
    for path in root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return f"{server.url}/a.zarr"


@pytest.mark.parametrize("affinity", [False, True])
@pytest.mark.parametrize("room", [0.5, 4.0])
def test_real_caches_of_two_nodes_hit_what_is_simulated(
    site: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: bool, room: float
) -> None:
    """Two nodes of two ranks, one after another, read a store of 240 chunks over HTTP, each with its own cache."""
    cluster = Cluster(240, 4, 2, 2, affinity, lanes=8)
    part = cluster.chunks // cluster.nodes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(cluster.local))
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    url, limit = write(site, cluster.chunks, cluster.rows), int(room * part * _COUNTED)
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": cluster.seed, "mixing": {"lanes": 8}}
    schedule = cluster.schedule()
    for node in range(cluster.nodes):
        data = zarrfeed.open(url, cache=tmp_path / f"cache{node}", cache_limit=limit)
        ranks = [
            ZarrIterableDataset(
                data, rank=rank, world_size=4, num_threads=1, affinity="node" if affinity else None, **options
            )
            for rank in range(node * 2, node * 2 + 2)
        ]
        model, rank_infos = NodeCache(cluster.chunks, int(room * part)), cluster.rank_infos(node)
        for epoch in range(3):
            site.chunk_gets()
            before = sum(rank.stats().cache.hits for rank in ranks)
            samples = [sum(len(batch) for batch in rank) for rank in ranks]
            assert samples == [cluster.chunks] * 2  # 4 samples a chunk, 4 ranks
            hits = sum(rank.stats().cache.hits for rank in ranks) - before
            reads = blocks_of_ranks(cluster.schedule_of(schedule, node), rank_infos, epoch)
            simulated = model.read(np.concatenate(reads))
            requests = sum(site.chunk_gets().values())
            assert hits == pytest.approx(
                simulated, abs=1 if room > 1 else 8
            )  # which chunk finds the last room is chance
            assert hits + requests == pytest.approx(sum(map(len, reads)), abs=1)
        if affinity:
            assert hits / sum(map(len, reads)) == pytest.approx(min(1, room), abs=0.03)
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_server_counts_the_requests_of_the_arithmetic(
    site: CountingServer, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    chunks, per_shard, ranks = 512, 16, 4
    url = write(site, chunks, 4, 0 if layout == "chunks" else per_shard)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    block = "shard" if layout == "whole shards" else "chunk"
    mixing = {"block": block, "lanes": ranks}
    # In an array as small as this one, inner chunks that are wanted at the same time often lie in one shard.
    requests = {"coalesce_limit": 1} if layout == "shards" else {}
    counted = reads = 0.0
    for rank in range(ranks):
        with ZarrIterableDataset(
            url,
            batch_size=16,
            shuffle=True,
            seed=1,
            rank=rank,
            world_size=ranks,
            num_threads=1,
            mixing=mixing,
            requests=requests,
        ) as dataset:
            site.chunk_gets()
            assert sum(len(batch) for batch in dataset) == chunks
            counted += sum(site.chunk_gets().values())
            reads += dataset.stats().chunks_read
    assert counted / reads == pytest.approx(gets_per_chunk(layout, chunks, per_shard, 1024, ranks), rel=0.05)


def test_loads_are_those_that_were_calculated_by_hand() -> None:
    one = load_of("microscopy", "chunks", chunks=10**8, nodes=1000, local=10)
    assert one.gets_per_rank_s == pytest.approx(2000, rel=1e-3)
    assert one.gets_s == pytest.approx(2e7, rel=1e-3)
    assert one.prefixes == 3637  # 20 million requests, and those of the chunks that are cut, at 5500 each
    assert one.stored_tb == pytest.approx(26.2, rel=1e-2)
    assert one.all_tbit_s == pytest.approx(2000 * 2**18 * 8 * 1e4 / 1e12, rel=1e-3)
    assert one.epoch_s == 5
    assert one.planned
    whole = load_of("microscopy", "whole shards", chunks=10**8, nodes=1000, local=10)
    assert whole.planned
    assert whole.gets_per_chunk == pytest.approx((1 + 16) / 512)  # 32 chunks of 256 KiB a request
    gets = [load_of("weather", layout, chunks=10**8, nodes=1000, local=10).gets_per_chunk for layout in LAYOUTS]
    assert gets[0] == 1
    assert gets[2] < gets[0] < gets[1] < 2
    assert all(a <= b for a, b in pairwise(sorted(gets)))
    assert listings(10**8, 10**4) == {"pages": 10**5, "all": 10**9}

"""What one process takes to plan, or to simulate a cluster: each probe runs in a fresh process with a memory limit.

    python -m benchmarks.suites.scale_probe plan '{"chunks": 1000000, "affinity": true}'

prints one JSON object. The array that is planned has metadata alone: no chunk of it is stored.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr

import zarrfeed
from benchmarks.harness.process import reset_peak, status_mib
from benchmarks.suites import scale_cluster
from benchmarks.suites.scale_cluster import Cluster
from zarrfeed import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.order import block_order
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import Consumer, RankInfo

_ROOT = Path(__file__).parents[2]
_BATCH, _ROWS, _SIDE = 64, 10, 64
_NO_LIMIT = 1 << 62

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a probe may take: bytes of memory, and seconds."""

    memory_bytes: int = 8 << 30
    timeout_s: float = 600.0


def run_probe(probe: str, arguments: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Run a probe in a fresh process; return its figures with `status`.

    `status` is "ok", "refused" (the planner took no such array), "memory" or "time" (it reached a limit).

    Raises
    ------
    RuntimeError
        If the probe failed for another reason.
    """
    command = [sys.executable, "-m", "benchmarks.suites.scale_probe", probe, json.dumps(dict(arguments))]
    environment = {**os.environ, "SCALE_PROBE_BYTES": str(limits.memory_bytes)}
    try:
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=limits.timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"status": "time"}
    if done.returncode:
        if "MemoryError" in done.stderr or "bad_alloc" in done.stderr:
            return {"status": "memory"}
        raise RuntimeError(f"{probe} {dict(arguments)} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"status": "ok"} | figures


class _Clock:
    """Seconds by the clock, CPU seconds, and the peak of this process's memory, of steps."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}

    def step(self, name: str, work: Callable[[], T]) -> T:
        begin, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.steps[name] = {
            "s": round(time.perf_counter() - begin, 4),
            "cpu_s": round(time.process_time() - cpu, 4),
            "peak_mib": round(status_mib("VmHWM"), 1),
        }
        return result


def plan(
    *,
    chunks: int,
    nodes: int,
    local: int,
    affinity: bool = False,
    per_shard: int = 0,
    lifted: bool = False,
    epochs: int = 2,
    explains: bool = False,
) -> dict[str, Any]:
    """Open an array of so many chunks as one rank of a cluster, and plan epochs of it.

    `per_shard` chunks make a shard, which is then a block. `lifted`: the planner's limit of blocks does not hold.
    """
    zarrfeed.ZarrIterableDataset  # noqa: B018 (imports torch, which the other probes do without)
    if lifted:
        block_order.MOST_BLOCKS = _NO_LIMIT
    os.environ["LOCAL_WORLD_SIZE"] = str(local)
    base_mib, clock = status_mib("VmRSS"), _Clock()
    options: dict[str, Any] = {"affinity": "node"} if affinity else {}
    shape = (chunks * _ROWS, _SIDE, _SIDE)
    shards = (per_shard * _ROWS, _SIDE, _SIDE) if per_shard else None
    if per_shard:
        options["mixing"] = {"block": "shard"}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "array.zarr"
        zarr.create_array(path, shape=shape, chunks=(_ROWS, _SIDE, _SIDE), shards=shards, dtype="u1")
        reset_peak()
        data = clock.step("open", lambda: zarrfeed.open(path))
        rank = nodes * local // 2
        made: dict[str, Any] = {"seed": 1, "batch_size": _BATCH, "shuffle": True, "rank": rank}
        try:
            dataset = clock.step(
                "dataset", lambda: zarrfeed.ZarrIterableDataset(data, world_size=nodes * local, **made, **options)
            )
        except ConfigError as error:
            return {"status": "refused", "why": str(error), "base_mib": base_mib}
        session = dataset._session  # noqa: SLF001 (nothing public plans an epoch without reading it)
        for epoch in range(epochs):
            planned = clock.step(f"epoch {epoch}", partial(session.plan_of_rank, epoch))
            clock.step(f"engine {epoch}", planned.to_core)
        figures = {
            "base_mib": round(base_mib, 1),
            "lanes": planned.order.lanes,
            "mix": planned.order.mix,
            "blocks": session.schedule.order.num_blocks,
            "block_rows": session.schedule.order.block_rows,
            "reads": planned.to_core().count_pieces(),
            "samples": planned.steps,
            "state_bytes": len(json.dumps(dataset.state_dict())),
        }
        schedule, rank_info = session.schedule, RankInfo(rank, nodes * local, local)
        if affinity:
            rank_info = rank_info.in_node()
            schedule = schedule.for_node(rank_info.node, nodes)
        state = resumable(schedule, rank_info)
        half = Consumer(rank_info.rank // 2, rank_info.world_size // 2, node=rank_info.node)
        clock.step("resumed", lambda: schedule.reading(state, half).to_core())
        if explains:
            clock.step("explain", dataset.explain)
    return figures | {"steps": clock.steps}


def resumable(schedule: Schedule, rank_info: RankInfo) -> EpochState:
    """Return a state between the batches of two of 4 workers, in the middle of an epoch."""
    saved = replace(rank_info.consumer(), num_workers=4)
    state = schedule.settle(EpochState(0), saved)
    division = schedule.division(state, saved)
    cut = division.cut(division.batches(rank_info.rank, rank_info.node) // 2 | 1)
    return replace(state, progress=state.progress.then(cut))


def hits(*, cluster: dict[str, Any], sampled: list[int], epochs: int, rooms: list[float | None]) -> dict[str, Any]:
    """Simulate node caches; see `simulate_hits`. A room that is null holds everything."""
    block_order.MOST_BLOCKS = _NO_LIMIT
    sizes = [np.inf if room is None else room for room in rooms]
    found = scale_cluster.simulate_hits(Cluster(**cluster), sampled=sampled, epochs=epochs, rooms=sizes)
    return found | {"peak_mib": round(status_mib("VmHWM"), 1)}


def evenness(*, cluster: dict[str, Any], variation: float) -> dict[str, Any]:
    """Compare all ranks and nodes; see `evenness` of scale_cluster."""
    found = scale_cluster.evenness(Cluster(**cluster), variation)
    return found | {"peak_mib": round(status_mib("VmHWM"), 1)}


def versions(*, objects: int) -> dict[str, Any]:
    """Keep the versions of so many objects, as the node cache does after a listing."""
    names = [(f"c/{number}/0/0", f'"{number:032x}"  1700000000.000000 40960') for number in range(objects)]
    before = status_mib("VmRSS")
    kept = core.ObjectVersions(names)
    after = status_mib("VmRSS")
    assert kept.find(names[-1][0])
    return {"objects": objects, "bytes_each": round((after - before) * 2**20 / objects, 1)}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "plan": plan,
    "hits": hits,
    "evenness": evenness,
    "versions": versions,
}


def main() -> None:
    """Run the probe that the command line names."""
    limit = int(os.environ.get("SCALE_PROBE_BYTES", "0"))
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()

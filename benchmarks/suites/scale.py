"""What a rank's epoch costs to plan at scale, by simulation: no store, no data, only the order.

    python -m benchmarks.scale

plans the epoch of some of 1024 ranks over 1 billion samples in 10 million chunks, and prints seconds and memory. Then
it checks, on a line that is small enough to be listed, that the strides of thousands of consumers partition it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from dataclasses import replace

import numpy as np

from benchmarks.harness.machine import machine_line
from zarrfeed import Digest, audit
from zarrfeed.base.native import core
from zarrfeed.plan.epoch_plan import Schedule
from zarrfeed.plan.order import Order
from zarrfeed.plan.partition import Consumer
from zarrfeed.plan.state import EpochState
from zarrfeed.spec.field import FieldSet, IndexField


def make_schedule(num_samples: int, block_rows: int, *, lanes: int, batch_size: int) -> Schedule:
    order = Order(num_samples, block_rows, shuffle=True, seed=1, lanes=lanes)
    fields = FieldSet((IndexField(num_samples),), (None,), None, block_rows)
    return Schedule(fields, order, batch_size, drop_last=False, even=None, num_threads=None, budget=None)


def peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_ranks(schedule: Schedule, world_size: int, num_workers: int, ranks: list[int]) -> None:
    before = peak_rss_mib()
    seconds = []
    for rank in ranks:
        start = time.perf_counter()
        consumer = Consumer(rank, world_size, 0, num_workers)
        plan = schedule.plan(schedule.settle(EpochState(rank), consumer), consumer)
        plan.to_core()
        seconds.append(time.perf_counter() - start)
    print(
        f"{schedule.order.num_blocks:,} chunks, {schedule.order.length:,} samples, {world_size} ranks x {num_workers} "
        f"workers: an epoch of a consumer planned in {statistics.median(seconds):.2f} s (median of {len(ranks)} ranks, "
        f"most {max(seconds):.2f} s), {len(plan.segment_block):,} block pieces; peak memory {peak_rss_mib():.0f} MiB, "
        f"{peak_rss_mib() - before:.0f} MiB more than before"
    )


def time_resuming(schedule: Schedule, world_size: int, ranks: list[int]) -> None:
    """Save between the batches of two workers in the middle of the epoch, resume on half as many ranks."""
    saved = Consumer(0, world_size, 0, 4)
    state = schedule.settle(EpochState(0), saved)
    division = schedule.division(state, saved)
    batches = division.batches(0) // 2 | 1
    state = replace(state, progress=state.progress.then(division.cut(batches)))
    seconds = []
    for rank in ranks:
        start = time.perf_counter()
        schedule.plan(state, Consumer(rank % (world_size // 2), world_size // 2)).to_core()
        seconds.append(time.perf_counter() - start)
    print(
        f"saved on {world_size} ranks x 4 workers after {batches:,} batches each, resumed on {world_size // 2} ranks: "
        f"planned in {statistics.median(seconds):.2f} s (most {max(seconds):.2f} s)"
    )


def check_partition(schedule: Schedule, world_size: int, num_workers: int) -> None:
    delivered = Digest()
    for rank in range(world_size):
        for worker in range(num_workers):
            consumer = Consumer(rank, world_size, worker, num_workers)
            plan = schedule.plan(schedule.settle(EpochState(3), consumer), consumer)
            delivered += audit([core.sample_order(plan.to_core())])
    dropped = schedule.order.length % world_size
    if delivered.count + dropped != schedule.order.length:
        raise SystemExit(f"{delivered.count:,} of {schedule.order.length:,} samples were delivered")
    if dropped == 0 and delivered != Digest.of_range(schedule.order.length):
        raise SystemExit("some samples were delivered twice, others never")
    print(f"{schedule.order.length:,} samples, {world_size} ranks x {num_workers} workers: each delivered exactly once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000_000, help="chunks along the sample axis")
    parser.add_argument("--rows", type=int, default=100, help="samples of a chunk")
    parser.add_argument("--world-size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=5, help="how many ranks are timed")
    arguments = parser.parse_args()
    print(machine_line())
    schedule = make_schedule(arguments.chunks * arguments.rows, arguments.rows, lanes=64, batch_size=256)
    ranks = np.linspace(0, arguments.world_size - 1, arguments.ranks, dtype=int).tolist()
    time_ranks(schedule, arguments.world_size, 1, ranks)
    time_ranks(schedule, arguments.world_size, 4, ranks)
    time_ranks(schedule, 8, 1, ranks=[0])
    time_resuming(schedule, arguments.world_size, ranks)
    check_partition(make_schedule(1 << 20, 64, lanes=64, batch_size=32), 1024, 4)
    check_partition(make_schedule(360_000, 50, lanes=48, batch_size=7), 96, 5)

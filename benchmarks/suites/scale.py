"""What internet scale costs: 10^8 chunks, 10^4 ranks, 10^3 nodes with caches. No data are stored or read.

    python -m benchmarks.scale              # --quick: small clusters, seconds
    python -m benchmarks.scale --full       # what docs/scale.md states: minutes, and up to 8 GiB of memory

- Plans: the real planner, in fresh processes, opens an array that has metadata alone. Its limit of blocks is lifted
  where the table says so; then it does what it would do without the limit.
- Caches: which chunks the ranks of some nodes read is the planner's own; the caches are a model.
- Loads: requests and bytes by arithmetic, for data sets and training rates that are inputs.
- Checks: of small epoch orders, that thousands of consumers partition them.

Results are printed, and written as JSON (`--out`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.options import positive, rate
from benchmarks.report.tables import make_console, print_rows
from benchmarks.suites.scale_cluster import Cluster, evenness, formula_deviation, formula_most, sharing, simulate_hits
from benchmarks.suites.scale_probe import Limits, run_probe
from benchmarks.suites.scale_rates import S3_GETS, listings, loads
from zarrfeed import Digest, audit
from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.native import core
from zarrfeed.plan.order.block_order import MOST_BLOCKS, MOST_UNFOLDED
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import Consumer

_ROOT = Path(__file__).parents[2]
#: Standard deviation of the stored sizes of chunks over their mean: an input.
_VARIATION = 0.5
#: Chunks of the arrays for which shared reads are counted.
_SHARED_CHUNKS = 100_000

Json = dict[str, Any]


@dataclass(frozen=True)
class HitsCase:
    """A cluster whose caches are simulated: nodes that are looked at, epochs, and sizes of caches in parts of a node.

    A room of None holds everything.
    """

    cluster: Cluster
    sampled: tuple[int, ...]
    epochs: int
    rooms: tuple[float | None, ...]


@dataclass(frozen=True)
class Scale:
    """What is run.

    Attributes
    ----------
    nodes, local
        Machines, and ranks of one, in plans and loads.
    chunks
        Of the loads.
    plans
        Arguments of the probe `plan`.
    hits, even
        Simulations of caches; clusters whose ranks and nodes are compared.
    objects
        Versions that are kept, to know what one takes.
    shared
        Numbers of ranks, 8 on each node, for which the reads of a chunk are counted.
    checks
        Samples, samples of a block, lanes, ranks and workers of epoch orders that are checked.
    in_processes
        Whether simulations have fresh processes, with a limit of memory.
    """

    nodes: int
    local: int
    chunks: int
    plans: tuple[Mapping[str, Any], ...]
    hits: tuple[HitsCase, ...]
    even: tuple[Cluster, ...]
    objects: int
    shared: tuple[int, ...]
    checks: tuple[tuple[int, int, int, int, int], ...]
    in_processes: bool
    limits: Limits = field(default_factory=Limits)


def _both(chunks: int, nodes: int, local: int, lanes: int | None = None) -> tuple[Cluster, Cluster]:
    return Cluster(chunks, 10, nodes, local, lanes=lanes), Cluster(chunks, 10, nodes, local, affinity=True)


def _cases(chunks: int, nodes: int, local: int, epochs: int, lanes: int | None = None) -> list[HitsCase]:
    free, bound = _both(chunks, nodes, local, lanes)
    half = nodes / 2
    sampled = (0, nodes // 2, nodes - 1)
    return [HitsCase(free, sampled, epochs, (1, half, None)), HitsCase(bound, sampled[1:2], epochs, (0.5, 1))]


# Chunks that do not divide by the ranks: the ends of lanes cut chunks, as in real data.
SCALES = {
    "quick": Scale(
        nodes=10,
        local=4,
        chunks=100_000_000,
        plans=({"chunks": 50_000, "affinity": True}, {"chunks": 100_000_000, "affinity": True}),
        hits=tuple(_cases(20_003, 10, 4, 5)),
        even=_both(20_003, 10, 4),
        objects=20_000,
        shared=(8, 32),
        checks=((1 << 13, 64, 16, 16, 2), (4000, 50, 48, 12, 5)),
        in_processes=False,
    ),
    "full": Scale(
        nodes=1000,
        local=10,
        chunks=100_000_000,
        plans=(
            {"chunks": 1_000_000, "explains": True},
            {"chunks": 10_000_000, "explains": True},
            {"chunks": 100_000_000},
            {"chunks": 1_000_000_000},
            {"chunks": 1_000_000, "affinity": True},
            {"chunks": 10_000_000, "affinity": True},
            {"chunks": 100_000_000, "affinity": True, "lifted": True},
            {"chunks": 1_000_000, "per_shard": 64},
            {"chunks": 10_000_000, "per_shard": 64},
            {"chunks": 100_000_000, "per_shard": 64},
            {"chunks": 100_000_000, "per_shard": 64, "affinity": True},
        ),
        hits=(
            *_cases(1_000_003, 8, 8, 30, lanes=64),
            *_cases(1_000_003, 64, 8, 30, lanes=512),
            *_cases(100_000_003, 1000, 10, 5),
        ),
        even=_both(10_000_019, 1000, 10),
        objects=1_000_000,
        shared=(8, 16, 24, 32, 48, 64, 72, 80, 96, 128, 240, 256, 512, 720, 1024, 10_000),
        checks=((1 << 20, 64, 64, 1024, 4), (360_000, 50, 48, 96, 5)),
        in_processes=True,
    ),
}


def run_plans(scale: Scale, console: Console) -> list[Json]:
    """Plan in fresh processes; return the cases with their figures."""
    made = []
    for case in scale.plans:
        arguments = {"nodes": scale.nodes, "local": scale.local, **case}
        figures = run_probe("plan", arguments, scale.limits)
        console.print(f"planned {dict(case)}: {figures['status']}", highlight=False)
        made.append(arguments | figures)
    return made


def run_hits(scale: Scale, console: Console) -> list[Json]:
    """Simulate caches; return what they hit, beside the formula."""
    made = []
    for case in scale.hits:
        if scale.in_processes:
            found = run_probe(
                "hits",
                {
                    "cluster": asdict(case.cluster),
                    "sampled": list(case.sampled),
                    "epochs": case.epochs,
                    "rooms": list(case.rooms),
                },
                scale.limits,
            )
        else:
            rooms = [float("inf") if room is None else room for room in case.rooms]
            found = {"status": "ok"}
            found |= simulate_hits(case.cluster, sampled=case.sampled, epochs=case.epochs, rooms=rooms)
        console.print(f"caches of {case.cluster.nodes} nodes: {found['status']}", highlight=False)
        made.append({"cluster": asdict(case.cluster), **found})
    return made


def run_evenness(scale: Scale) -> list[Json]:
    """Compare ranks and nodes, beside the formulas."""
    made = []
    for cluster in scale.even:
        if scale.in_processes:
            found = run_probe("evenness", {"cluster": asdict(cluster), "variation": _VARIATION}, scale.limits)
        else:
            found = {"status": "ok"} | evenness(cluster, _VARIATION)
        for readers, name in ((cluster.ranks, "bytes_per_rank"), (cluster.nodes, "bytes_per_node")):
            if name in found:
                deviation = formula_deviation(_VARIATION, cluster.chunks / readers)
                found[name] |= {"formula_deviation": deviation, "formula_most": formula_most(deviation, readers)}
        made.append({"cluster": asdict(cluster), **found})
    return made


def check_partition(samples: int, rows: int, lanes: int, ranks: int, workers: int) -> Json:
    """Return what all consumers of an epoch deliver; each sample once, but for those that are dropped.

    Raises
    ------
    SystemExit
        If a sample is delivered twice or never.
    """
    schedule = Cluster(-(-samples // rows), rows, ranks, 1, lanes=lanes).schedule_of_samples(samples)
    delivered = Digest()
    for rank in range(ranks):
        for worker in range(workers):
            consumer = Consumer(rank, ranks, worker, workers)
            plan = schedule.plan(schedule.settle(EpochState(3), consumer), consumer)
            delivered += audit([core.sample_order(plan.to_core())])
    dropped = samples % ranks
    if delivered.count + dropped != samples or (dropped == 0 and delivered != Digest.of_range(samples)):
        raise SystemExit(f"{delivered.count:,} of {samples:,} samples were delivered, or some of them twice")
    return {"samples": samples, "ranks": ranks, "workers": workers, "delivered": delivered.count}


def print_plans(console: Console, plans: Sequence[Json], local: int) -> None:
    """Print what planning took."""
    rows = []
    for one in plans:
        kind = "whole shards" if one.get("per_shard") else "chunks"
        kind += ", affinity" * bool(one.get("affinity")) + ", limit lifted" * bool(one.get("lifted"))
        if one["status"] != "ok":
            rows.append([f"{one['chunks']:,}", kind, one["status"]])
            continue
        steps, base = one["steps"], one["base_mib"]
        last = steps["resumed"]["peak_mib"]
        rows.append(
            [
                f"{one['chunks']:,}",
                kind,
                f"{one['blocks']:,}",
                *(f"{steps[name]['cpu_s']:.3g}" for name in ("dataset", "epoch 1", "resumed")),
                f"{steps['epoch 1']['s']:.3g}",
                f"{last - base:.0f}",
                f"{(last - base) * local / 1024:.1f}",
                f"{one['reads']:,}",
                f"{one['reads'] * one['block_rows'] / one['samples']:.2f}",
            ]
        )
    columns = (
        "chunks",
        "blocks are",
        "blocks",
        "once, CPU s",
        "epoch, CPU s",
        "resumed, CPU s",
        "epoch, s",
        "MiB more",
    )
    print_rows(console, (*columns, "GiB a node", "reads a rank", "of a share"), rows, words=3)


def print_hits(console: Console, hits: Sequence[Json]) -> None:
    """Print hit ratios of the last epoch, beside the formula."""
    rows = []
    for one in hits:
        cluster = one["cluster"]
        head = [f"{cluster['nodes']} x {cluster['local']}", "node" if cluster["affinity"] else "none"]
        if one["status"] != "ok":
            rows.append([*head, one["status"]])
            continue
        for room, found, formula in zip(one["rooms"], one["hit_ratios"], one["formula"], strict=True):
            size = "everything" if room is None else f"{room:g} parts"
            second, last = (f"{100 * found[e]:.2f} ({100 * formula[e]:.2f})" for e in (1, -1))
            rows.append([*head, size, f"{cluster['chunks']:,}", second, str(len(found)), last])
    columns = (
        "nodes x ranks",
        "affinity",
        "cache holds",
        "chunks",
        "epoch 2, % (formula)",
        "last",
        "last, % (formula)",
    )
    print_rows(console, columns, rows, words=3)


def print_evenness(console: Console, even: Sequence[Json]) -> None:
    """Print least, most and deviation of what ranks and nodes read, over the mean."""
    rows = []
    for one in even:
        for name in [key for key in one if "_per_" in key]:
            found = one[name]
            least, most = found["least"] / found["mean"], found["most"] / found["mean"]
            formula = f"{found['formula_most']:.4f}" if "formula_most" in found else ""
            affinity = "node" if one["cluster"]["affinity"] else "none"
            rows.append([affinity, name.replace("_", " "), f"{least:.4f}", f"{most:.4f}", formula])
    print_rows(console, ("affinity", "what", "least / mean", "most / mean", "by formula"), rows, words=2)


def print_loads(console: Console, rows: Sequence[Json]) -> None:
    """Print what a cluster asks a store for, in each scenario and layout."""
    table = [
        [
            one["scenario"],
            one["layout"],
            "yes" if one["planned"] else "no",
            f"{one['gets_per_chunk']:.3g}",
            f"{one['gets_per_rank_s']:.3g}",
            f"{one['gets_s']:,.0f}",
            f"{one['prefixes']:,}",
            f"{one['node_gbit_s']:.3g}",
            f"{one['all_tbit_s']:.3g}",
            f"{one['epoch_s']:,.0f}",
        ]
        for one in rows
    ]
    columns = ("scenario", "stored as", "planned", "GETs a chunk", "GET/s a rank", "GET/s", "S3 prefixes")
    print_rows(console, (*columns, "Gbit/s a node", "Tbit/s", "epoch, s"), table, words=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console, scale = make_console(), SCALES[options.scale]
    limits = Limits(int(options.memory * 2**30), options.timeout)
    scale = Scale(**{**vars(scale), "limits": limits})
    before = os.getloadavg()[0]
    console.print(machine_line(), highlight=False, soft_wrap=True)
    document: Json = {
        "machine": describe_machine(),
        "scale": options.scale,
        "limits": asdict(limits),
        "most_blocks": MOST_UNFOLDED,
        "nodes": scale.nodes,
        "local": scale.local,
    }
    document["checks"] = [check_partition(*check) for check in scale.checks]
    for check in document["checks"]:
        console.print(
            f"{check['samples']:,} samples, {check['ranks']} ranks x {check['workers']} workers: each sample once",
            highlight=False,
        )
    document["plans"] = run_plans(scale, console)
    document["versions"] = run_probe("versions", {"objects": scale.objects}, limits)
    document["sharing"] = [sharing(Cluster(_SHARED_CHUNKS, 64, ranks // 8, 8)) for ranks in scale.shared]
    document["hits"] = run_hits(scale, console)
    document["evenness"] = run_evenness(scale)
    ranks = scale.nodes * scale.local
    document["loads"] = loads(chunks=scale.chunks, nodes=scale.nodes, local=scale.local)
    document["listings"] = listings(scale.chunks, ranks)
    document["load_average"] = [before, os.getloadavg()[0]]
    print_plans(console, document["plans"], scale.local)
    for one in document["sharing"]:
        console.print(
            f"{one['ranks']:,} ranks, {one['lanes']} lanes by default: {one['reads']:.2f} reads a chunk "
            f"({one['formula']} by formula)",
            highlight=False,
        )
    print_hits(console, document["hits"])
    print_evenness(console, document["evenness"])
    print_loads(console, document["loads"])
    each, pages = document["versions"]["bytes_each"], document["listings"]
    console.print(
        f"opening with a cache: {pages['pages']:,} listings by each process, {pages['all']:,} by {ranks:,} ranks, and "
        f"{each * scale.chunks / 2**30:.1f} GiB of versions in each ({each:.0f} bytes an object)\n"
        f"S3 prefixes: at {S3_GETS} GET/s each. planned: at most {MOST_UNFOLDED:,} blocks,\n"
        f"with affinity {MOST_BLOCKS:,}.\n"
        f"load average of the machine: {before:.1f} before, {document['load_average'][1]:.1f} after",
        highlight=False,
        soft_wrap=True,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "scale.json", (json.dumps(document, indent=1) + "\n").encode())
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").partition("\n")[0])
    group = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "small clusters, in seconds; the default"), ("full", "what docs/scale.md states")):
        group.add_argument(f"--{name}", dest="scale", action="store_const", const=name, default="quick", help=text)
    parser.add_argument("--memory", type=rate, default=8.0, help="GiB that a process may take")
    parser.add_argument("--timeout", type=positive, default=600, help="seconds that a process may take")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results", help="where scale.json goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

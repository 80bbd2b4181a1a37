"""Rows: SIGKILL of a DataLoader worker, of the training process, of a rank."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process.census import Surroundings
from tests.faults.process.exits import check_temporary_files, send_while_reading, stores
from tests.faults.process.started import Started, run
from tests.support.stalls import StallWatch

_KINDS = ("zstd", "blosc", "shards", "codec", "fed", "fed shards", "text")
#: Workers by spawn and forkserver begin with importing torch, and only then see that they are alone.
_ALONE_S = {"fork": 40.0, "spawn": 150.0, "forkserver": 150.0}
#: Of a loader and a process group, in losses.py; and what a busy machine may add, beside the time for which it stalled.
_WITHIN_S = 15.0 + 5.0


def kill_worker(attempt: Try) -> str:
    """Lose a worker."""
    folder, choose = stores(attempt), attempt.random
    how = "SIGKILL" if attempt.number % 4 else choose.choice(("SystemExit", "KeyboardInterrupt", "other"))
    method = "forkserver" if attempt.number % 16 == 5 else "fork"
    arguments: list[Any] = [choose.choice(_KINDS), folder, attempt.directory, how, choose.choice(("torch", "zarrfeed"))]
    arguments += [method, choose.uniform(0, 0.3)]
    surroundings = Surroundings.look()
    with StallWatch() as watch:
        ended = run("lose_a_worker", attempt.directory, *arguments)
    if ended.status or "terminate called" in ended.err:
        raise UnspecifiedError(f"{arguments}: status {ended.status}: {ended.err}")
    told = json.loads(ended.out)
    # The loader begins to wait when it has started its workers.
    if told["after_s"] > _WITHIN_S + _ALONE_S[method] + watch.total_s:
        raise UnspecifiedError(f"{arguments}: {told['heard']} came after {told['after_s']:.1f} s")
    surroundings.check(_ALONE_S[method])
    check_temporary_files(attempt.directory, str(arguments))
    return "an error" if how == "SIGKILL" else "an error, after its transform raised"


def kill_main(attempt: Try) -> str:
    """Kill the training process."""
    folder, choose = stores(attempt), attempt.random
    method = ("fork", "fork", "fork", "fork", "spawn", "forkserver")[attempt.number % 6]
    arguments = [choose.choice(_KINDS), folder, method, choose.choice(("torch", "zarrfeed")), attempt.directory]
    surroundings = Surroundings.look()
    process = Started("workers_without_end", attempt.directory, *arguments)
    after_s = choose.uniform(0, 0.4 if method == "fork" else 8)
    send_while_reading(process.pid, signal.SIGKILL, attempt.directory, after_s)
    ended = process.wait()
    if ended.status != -signal.SIGKILL:
        raise UnspecifiedError(f"{arguments}: status {ended.status}: {ended.err}")
    surroundings.check(_ALONE_S[method])
    check_temporary_files(attempt.directory, str(arguments))
    return f"{method}: all ended"


def kill_rank(attempt: Try) -> str:
    """Kill one of some ranks."""
    folder, choose = stores(attempt), attempt.random
    world_size, together = choose.randint(2, 4), choose.random() < 0.6
    num_workers, victim = choose.choice((0, 0, 0, 1)), choose.randrange(world_size)
    arguments: list[Any] = [choose.choice(_KINDS), folder, attempt.directory, world_size, num_workers, together, victim]
    surroundings = Surroundings.look()
    with StallWatch() as watch:
        ended = run("lose_a_rank", attempt.directory, *arguments, choose.uniform(0, 0.3))
    if ended.status:
        raise UnspecifiedError(f"{arguments}: status {ended.status}: {ended.err}")
    for rank, result in json.loads(ended.out).items():
        good = result["outcome"].startswith("error: ") if together else result["outcome"] == "right"
        if result["status"] or not good or (together and result["after_s"] > _WITHIN_S + watch.total_s):
            raise UnspecifiedError(f"{arguments}: rank {rank}: {result}, {ended.err}")
    surroundings.check(_ALONE_S["fork"])
    check_temporary_files(attempt.directory, str(arguments))
    return "errors on the others" if together else "right epochs on the others"


ROWS = (
    Row(
        "SIGKILL-worker",
        "a DataLoader worker is killed at a random moment, or ended by its `transform`",
        "an error within a minute (forkserver: three) of a loader with a timeout of 15 s, then a right epoch; "
        "no process, shared memory or file left",
        kill_worker,
        runs=200,
        short_runs=2,
        timeout_s=300,
    ),
    Row(
        "SIGKILL-main",
        "the training process is killed at a random moment, with workers by fork, spawn and forkserver",
        "its workers end within 40 s (spawn, forkserver: 150 s); no shared memory or file left",
        kill_main,
        runs=120,
        short_runs=1,
        timeout_s=300,
    ),
    Row(
        "SIGKILL-rank",
        "one of 2 to 4 ranks is killed at a random moment, some with DataLoader workers",
        "those that talk get an error within 20 s (their timeout is 15 s), others read on; "
        "no process, shared memory or file left",
        kill_rank,
        runs=120,
        short_runs=1,
        timeout_s=200,
    ),
)

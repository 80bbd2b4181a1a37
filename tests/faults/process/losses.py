"""What processes do of which one is lost: a training process, its DataLoader workers, ranks of a process group."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader, get_worker_info

from tests.faults.process.stores import check, check_epoch, make
from zarrfeed import ZarrDataLoader, ZarrIterableDataset

_LONG_S = 100.0
#: What ranks wait for each other, and a loader for its workers.
TIMEOUT_S = 15.0


class _Lost(BaseException):
    """What no library knows."""


class _DieInTransform:
    """Raises in one worker what ends it, some seconds after its first batch."""

    def __init__(self, how: str, after_s: float, mark: Path) -> None:
        self._mark = mark
        self._error = {"SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(), "other": _Lost()}[how]
        self._after_s, self._at = after_s, 0.0

    def __call__(self, batch: Any) -> Any:
        info = get_worker_info()
        if info is not None and info.id == 0:
            self._at = self._at or time.monotonic() + self._after_s
            if time.monotonic() >= self._at:
                self._mark.write_text(str(time.monotonic()))
                raise self._error
        return batch


def lose_a_worker(kind: str, folder: str, marks: str, how: str, loader: str, method: str, after_s: float) -> None:
    """Read with DataLoader workers, one of which ends; print how that was heard of.

    Parameters
    ----------
    how
        "SIGKILL", or what the transform raises in it.
    loader
        "torch" or "zarrfeed".
    """
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "timeout": TIMEOUT_S}
    settings["persistent_workers"] = True
    transform, mark = None, Path(marks) / "lost"
    if how == "SIGKILL":
        settings["worker_init_fn"] = functools.partial(_kill_later, after_s, mark)
    else:
        transform = _DieInTransform(how, after_s, mark)
    dataset = make(kind, Path(folder), transform=transform)
    begin = time.monotonic()
    heard = ""
    try:
        try:
            batches: Any = ZarrDataLoader(dataset, **settings)
            if loader == "torch":
                batches = DataLoader(dataset, batch_size=None, **settings)
            while time.monotonic() < begin + _LONG_S:
                for batch in batches:
                    check(batch)
            raise AssertionError("nobody noticed that a worker is lost")
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            heard, heard_at = type(error).__name__, time.monotonic()
            time.sleep(0.5)  # if it was a connection that broke, torch's signal handler raises as well
    except RuntimeError as error:
        if not heard:
            heard, heard_at = type(error).__name__, time.monotonic()
    batches = batch = None
    for _ in range(3):
        try:
            dataset.set_epoch(0)
            check_epoch(dataset)
            break
        except RuntimeError as error:  # torch raises wherever the process is when it hears of a death
            if "DataLoader worker" not in str(error):
                raise
    else:
        raise AssertionError("there was no epoch to be read afterwards")
    print(json.dumps({"heard": heard, "after_s": heard_at - float(mark.read_text())}))


def _kill_later(after_s: float, mark: Path, worker: int) -> None:
    """Let worker 0 be killed; the moment has nothing to do with what it does."""

    def kill() -> None:
        mark.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if worker == 0:
        timer = threading.Timer(after_s, kill)
        timer.daemon = True
        timer.start()


def workers_without_end(kind: str, folder: str, method: str, loader: str, marks: str) -> None:
    """Read with DataLoader workers until the process is killed."""
    dataset = make(kind, Path(folder))
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "timeout": _LONG_S}
    batches: Any = ZarrDataLoader(dataset, **settings)
    if loader == "torch":
        batches = DataLoader(dataset, batch_size=None, persistent_workers=True, **settings)
    (Path(marks) / "begun").touch()
    deadline = time.monotonic() + _LONG_S
    while time.monotonic() < deadline:
        check_epoch(batches)


def lose_a_rank(
    kind: str, folder: str, marks: str, world_size: int, num_workers: int, together: bool, victim: int, after_s: float
) -> None:
    """Start ranks of one process group, kill one of them, and print what became of each of the others.

    Parameters
    ----------
    together
        Whether ranks talk to each other after each batch.
    after_s
        How long the victim lives, from when all ranks have a process group.
    """
    ranks = {}
    sys.stdout.flush()
    for rank in range(world_size):
        ranks[rank] = os.fork()
        if ranks[rank] == 0:
            _be_rank(kind, Path(folder), Path(marks), rank, world_size, num_workers, together)
    _wait_for([Path(marks) / f"ready-{rank}" for rank in ranks])
    time.sleep(after_s)
    os.kill(ranks[victim], signal.SIGKILL)
    killed_at = time.monotonic()
    os.waitpid(ranks.pop(victim), 0)
    results: dict[int, dict[str, Any]] = {}
    for rank, pid in ranks.items():
        _, status = os.waitpid(pid, 0)
        result = Path(marks) / f"result-{rank}"
        results[rank] = json.loads(result.read_text()) if result.exists() else {"outcome": "", "at": 0.0}
        results[rank] |= {"status": os.waitstatus_to_exitcode(status), "after_s": results[rank]["at"] - killed_at}
    print(json.dumps(results))


def _wait_for(files: list[Path]) -> None:
    deadline = time.monotonic() + _LONG_S
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise AssertionError("the ranks did not find each other")
        time.sleep(0.002)


def _be_rank(
    kind: str, folder: Path, marks: Path, rank: int, world_size: int, num_workers: int, together: bool
) -> None:
    status = 1
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{marks}/rendezvous",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        torch.distributed.barrier()
        dataset = make(kind, folder)
        batches: Any = dataset
        if num_workers:
            batches = ZarrDataLoader(
                dataset, num_workers=num_workers, multiprocessing_context="fork", timeout=TIMEOUT_S
            )
        (marks / f"ready-{rank}").touch()
        outcome = _read_in_step(batches) if together else _read_alone(dataset, batches)
        made = marks / f"made-{rank}"
        made.write_text(json.dumps({"outcome": outcome, "at": time.monotonic()}))
        made.rename(marks / f"result-{rank}")
        status = 0
    except BaseException as error:  # noqa: BLE001 (it leaves the process)
        print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _read_in_step(batches: Any) -> str:
    """Read without end, with an all-reduce after each batch; return how that ended."""
    ones = torch.ones(1)
    try:
        for batch in _endless(batches):
            check(batch)
            torch.distributed.all_reduce(ones)
    except RuntimeError as error:
        return f"error: {error}"
    return "no error"


def _read_alone(dataset: ZarrIterableDataset, batches: Any) -> str:
    """Read three epochs of this rank's share, and compare them with what they should be."""
    for epoch in range(3):
        seen = np.concatenate([check(batch) for batch in batches])
        if not np.array_equal(seen, dataset.sample_order(epoch)):
            return f"epoch {epoch} is wrong"
    return "right"


def _endless(batches: Any) -> Iterator[Any]:
    deadline = time.monotonic() + _LONG_S
    while time.monotonic() < deadline:
        yield from batches

"""Names of passes, by which the DataLoader workers that share a pass find each other in the table of epochs.

Invariant: the workers of one iterator of one DataLoader give each pass the same name, and no other process ever gives
that name. A name has three parts:

  group   the workers of one iterator. A `ZarrDataLoader` tells its workers a random name. Workers of torch's DataLoader
          and of torchdata's StatefulDataLoader share one result queue, and the system numbers the pipe of that queue.
          The number is the same under fork, spawn and forkserver, and no other pipe has it as long as a worker runs.
          A seed alone is no such name: users give several loaders the same one.
  round   one pass of the loader. Persistent workers serve several rounds, each with a new fetcher of torch's.
  number  one pass over the dataset in that round: a wrapper may iterate the dataset several times. What a
          `worker_init_fn` reads comes before all rounds.

Counting rounds by fetchers keeps workers together that left a round at different batches, and workers of which only one
read something in its `worker_init_fn`.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.torch.batches.worker_queue import worker_arguments
from zarrfeed.torch.ranks.callers import find_fetcher

#: The round of passes that a `worker_init_fn` begins.
_BEFORE_ROUNDS = -1


def pass_name(group: str, round_: int, number: int = 0) -> str:
    """Return the name of a pass; a `ZarrDataLoader` gives it to the pass of its `round_` before workers read it."""
    return f"{group}/{round_}/{number}"


class PassNames:
    """Names the passes over one dataset in one DataLoader worker. Threads of the worker may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: str | None = None
        self._fetcher: weakref.ref[Any] | None = None
        self._round = _BEFORE_ROUNDS
        self._number = 0

    def join_group(self, group: str) -> None:
        """Belong to a group that the training process named."""
        self._group = group

    def next(self, num_workers: int) -> str:
        """Return the name of the next pass of this worker, one of `num_workers`.

        Raises
        ------
        ConfigError
            If nothing tells which of several workers read the same pass.
        """
        with self._lock:
            group = self._group or group_of_worker()
            if group is None:
                if num_workers > 1:
                    raise ConfigError(
                        f"this is one of {num_workers} DataLoader workers of an unknown kind, and nothing tells which "
                        "other workers share its pass: use ZarrDataLoader, torch's DataLoader or torchdata's "
                        "StatefulDataLoader, or one worker"
                    )
                return pass_name(uuid.uuid4().hex, _BEFORE_ROUNDS)  # its pass is shared with nobody
            self._group = group
            fetcher = find_fetcher()
            if fetcher is not None and (self._fetcher is None or self._fetcher() is not fetcher):
                self._fetcher = weakref.ref(fetcher)
                self._round, self._number = self._round + 1, 0
            name = pass_name(group, self._round, self._number)
            self._number += 1
            return name


def group_of_worker() -> str | None:
    """Return a name that only the workers of this worker's iterator have; None if there is no such name."""
    arguments = worker_arguments()
    if arguments is None:
        return None
    try:
        pipe = os.fstat(arguments["data_queue"]._reader.fileno())  # noqa: SLF001 - a queue has no public identity
        # The seed tells this pipe from a closed one, should the system use its number again.
        return f"{pipe.st_dev}:{pipe.st_ino}:{arguments['base_seed']}"
    except (AttributeError, KeyError, OSError, TypeError, ValueError):  # of another torch
        return None

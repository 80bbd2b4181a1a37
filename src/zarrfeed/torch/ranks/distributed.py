"""Find the rank of this process, its DataLoader worker, and the number of ranks that share the machine."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.optional_torch import imported
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.base.validate import check_int
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.torch.ranks.callers import rank_under_accelerate

#: The types of `rank=`: a number, or a callable that returns (rank, world size) in the training process.
RankLike: TypeAlias = "int | Callable[[], tuple[int, int]] | None"

#: Torch's workers look every 5 s whether their training process is there, and end between two batches.
_TO_END_S = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RankFinder:
    """Finds the rank info of the process that reads a dataset: in the training process, where workers have it from.

    Sent to another process, it carries what was found where it was sent. A DataLoader worker believes that; any other
    process looks for itself.
    """

    def __init__(self, rank: RankLike, world_size: int | None) -> None:
        self._rank, self._world_size = rank, world_size
        self._carried: RankInfo | None = None
        self._carried_unknown = False
        self._carried_to = OwnerProcess()

    def __getstate__(self) -> dict[str, Any]:
        carried = None
        with suppress(ConfigError):  # a launcher, which is no rank, may send the dataset to those that are
            carried = self.find()
        return self.__dict__ | {"_carried": carried, "_carried_unknown": self.is_unknown()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._carried_to = OwnerProcess()

    def find(self) -> RankInfo:
        """Return the rank info of this process; in a spawned worker, the one that its training process found."""
        if self._carried is not None and self._is_carried():
            return self._carried
        return rank_under_accelerate(find_rank(self._rank, self._world_size))

    def is_unknown(self) -> bool:
        """Return whether nobody says which rank reads: no argument does, and torch.distributed is not initialised."""
        if self._carried is not None and self._is_carried():
            return self._carried_unknown
        return self._is_unnamed and not _is_initialised()

    def is_of_group(self) -> bool:
        """Return whether this is a training process whose rank is that of torch.distributed, unless none is there."""
        return self._is_unnamed and not in_worker()

    @property
    def _is_unnamed(self) -> bool:
        return self._rank is None and self._world_size is None

    def _is_carried(self) -> bool:
        # A forked worker inherits what was carried to its parent, or to a process before that.
        return in_worker() and self._carried_to.is_here


def find_rank(rank: RankLike = None, world_size: int | None = None) -> RankInfo:
    """Return the rank info that `rank` and `world_size` name, or that of torch.distributed, or that of a single rank.

    Raises
    ------
    ConfigError
        If `rank` and `world_size` are no rank and world size.
    """
    initialised = _is_initialised()
    if callable(rank):
        if world_size is not None:
            raise ConfigError(f"world_size = {world_size}: a callable rank returns both, (rank, world size)")
        try:
            rank, world_size = rank()
        except TypeError as error:
            raise ConfigError(f"rank = {rank!r}, must return (rank, world size): {error}") from error
    elif rank is None and world_size is None:
        if not initialised:
            return RankInfo()
        distributed: Any = imported("torch.distributed")
        rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
    if rank is None or world_size is None:
        raise ConfigError(f"rank = {rank}, world_size = {world_size}: give both, or neither")
    check_int("world_size", world_size, 1)
    check_int("rank", rank, 0, world_size - 1)
    return RankInfo(int(rank), int(world_size), _local_world_size(int(world_size), initialised=initialised))


def _is_initialised() -> bool:
    distributed = imported("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def rank_in_node(rank: RankInfo) -> RankInfo:
    """Return a rank's number in its node, if samples are dealt to nodes; `rank` itself if there is one node.

    Raises
    ------
    ConfigError
        If the nodes have not as many ranks each, the ranks of a node do not follow each other, or Accelerate's
        dispatcher reads on process 0 for the ranks of several nodes.
    """
    ranks, local = rank.world_size * rank.split_over, rank.local_world_size
    if ranks == 1:
        return rank
    if ranks % local:
        raise ConfigError(
            f"affinity = 'node': world_size = {ranks}, must be a multiple of {local}, the ranks of this node, since "
            "all nodes must have as many ranks"
        )
    num_nodes = ranks // local
    if not in_worker():  # a worker may have the environment of a server of processes
        _check_launcher(rank.rank, local, num_nodes)
    if num_nodes == 1:
        return rank
    if rank.split_over > 1:
        raise ConfigError(
            f"affinity = 'node' on {num_nodes} nodes, but accelerate reads on process 0 alone for all of them: each "
            "process must read its own share, with a ZarrDataLoader or with dispatch_batches=False"
        )
    return rank.in_node()


def rank_from_torchrun() -> tuple[int, int]:
    """Return (rank, world size) from the environment that torchrun sets. Pass the function itself as `rank=`.

    Raises
    ------
    ConfigError
        If RANK or WORLD_SIZE is not set, or is not a number.

    Examples
    --------
    >>> import numpy as np, os, zarrfeed
    >>> os.environ |= {"RANK": "1", "WORLD_SIZE": "4"}  # as torchrun does
    >>> len(zarrfeed.ZarrIterableDataset(np.arange(100), rank=zarrfeed.rank_from_torchrun))
    25
    """
    return _from_environment("RANK"), _from_environment("WORLD_SIZE")


def rank_from_slurm() -> tuple[int, int]:
    """Return (rank, world size) of this task of a Slurm step. Pass the function itself as `rank=`.

    Raises
    ------
    ConfigError
        If SLURM_PROCID or SLURM_NTASKS is not set, or is not a number; if torchrun started several ranks in the task.

    Examples
    --------
    >>> import numpy as np, os, zarrfeed
    >>> os.environ |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}  # as srun does
    >>> len(zarrfeed.ZarrIterableDataset(np.arange(100), rank=zarrfeed.rank_from_slurm))
    50
    """
    _check_one_rank("SLURM_PROCID")
    return _from_environment("SLURM_PROCID"), _from_environment("SLURM_NTASKS")


def rank_from_kubernetes(world_size: int | None = None) -> tuple[int, int]:
    """Return (rank, world size) of this pod of an indexed Job. Pass the function itself as `rank=`.

    The rank is JOB_COMPLETION_INDEX, which Kubernetes sets in the pods of a Job with `completionMode: Indexed`.
    Kubernetes does not tell a pod how many pods there are. So the manifest must repeat the Job's `completions` in the
    variable WORLD_SIZE, as `examples/kubernetes_job.yaml` does; or the script gives `world_size`.

    Parameters
    ----------
    world_size
        The Job's `completions`. None: the environment variable WORLD_SIZE. To give it and pass the function as `rank=`,
        write `functools.partial(zarrfeed.rank_from_kubernetes, world_size=4)`.

    Raises
    ------
    ConfigError
        If JOB_COMPLETION_INDEX or the world size is not known, or is not a number; if the index is not below the world
        size; if torchrun started several ranks in this pod: `rank_from_torchrun` has their numbers.

    Examples
    --------
    >>> import numpy as np, os, zarrfeed
    >>> os.environ |= {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"}  # as Kubernetes and the manifest do
    >>> len(zarrfeed.ZarrIterableDataset(np.arange(100), rank=zarrfeed.rank_from_kubernetes))
    25
    """
    if os.environ.get("JOB_COMPLETION_INDEX") is None:
        raise ConfigError(
            "the environment variable JOB_COMPLETION_INDEX is not set: Kubernetes sets it in the pods of a Job with "
            "completionMode: Indexed"
        )
    rank = _from_environment("JOB_COMPLETION_INDEX")
    _check_one_rank("JOB_COMPLETION_INDEX")
    if world_size is None and os.environ.get("WORLD_SIZE") is None:
        raise ConfigError(
            "the environment variable WORLD_SIZE is not set, and Kubernetes does not tell a pod how many there are: "
            "set it to the Job's completions in the manifest, or give rank_from_kubernetes(world_size=...)"
        )
    count = _from_environment("WORLD_SIZE") if world_size is None else world_size
    check_int("world_size", count, 1)
    if rank >= count:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX = {rank}, world_size = {count}: the index must be below the world size, which must "
            "be the Job's completions"
        )
    return rank, int(count)


def worker_and_count() -> tuple[int, int]:
    """Return this process's DataLoader worker number and their count; (0, 1) outside of a worker."""
    info = _worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def in_worker() -> bool:
    """Return whether this is a worker process of a DataLoader."""
    return _worker_info() is not None


def _worker_info() -> Any:
    data = imported("torch.utils.data")
    return None if data is None else data.get_worker_info()


@functools.cache  # forked children of a worker have the answer, and no thread: they are not the loader's
def end_with_training_process() -> None:
    """Start a thread that ends this DataLoader worker when its training process is killed.

    torch's own watch compares os.getppid() with the value at the worker's start. It fails in two cases. Under
    forkserver, the parent is the server process, which lives as long as the workers do. And if the training process is
    killed while a worker starts, the worker records the process that adopted it as its parent. In both cases the worker
    would stay for ever.
    """
    training = multiprocessing.parent_process()
    if training is None:
        return

    def wait() -> None:
        with suppress(ProcessLookupError):
            multiprocessing.connection.wait([training.sentinel, *_open_training_process(training.pid)])
        time.sleep(_TO_END_S)  # let a send complete: a batch that is cut off stays in shared memory for ever
        os._exit(1)

    threading.Thread(target=wait, name="zarrfeed: training process", daemon=True).start()


def _open_training_process(pid: int | None) -> list[int]:
    """Return a list with a descriptor that is ready once the training process of this worker has ended.

    The sentinel of multiprocessing is not enough. Workers that are forked later inherit its other end, so it is ready
    only when they have ended, too. The list is empty where the system lacks pidfd_open.

    Raises
    ------
    ProcessLookupError
        If the training process has ended. A process that has its pid, and began after this worker, is another one.
    """
    if pid is None or not hasattr(os, "pidfd_open"):
        return []
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # no descriptor is left, or the system forbids the call
        return []
    if core.process_start(pid) > core.process_start(os.getpid()):
        os.close(descriptor)
        raise ProcessLookupError(f"process {pid} began after this worker")
    return [descriptor]


def _local_world_size(world_size: int, *, initialised: bool) -> int:
    """Return the number of ranks on this machine: as the launcher says, or all of them if they meet on loopback."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        if os.environ.get(name, "").isdecimal():
            return max(1, min(world_size, int(os.environ[name])))
    return world_size if initialised and os.environ.get("MASTER_ADDR") in _LOOPBACK else 1


def _check_launcher(rank: int, local_world_size: int, num_nodes: int) -> None:
    """Raise ConfigError if the launcher says that there are other nodes, or that this is another rank of its node."""
    said = os.environ.get("GROUP_WORLD_SIZE", "")
    if said.isdecimal() and int(said) != num_nodes:
        raise ConfigError(
            f"affinity = 'node': {num_nodes} nodes of {local_world_size} ranks each, but torchrun says that there are "
            f"{said} nodes (GROUP_WORLD_SIZE)"
        )
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        said = os.environ.get(name, "")
        if said.isdecimal():
            if num_nodes > 1 and int(said) != rank % local_world_size:
                raise ConfigError(
                    f"affinity = 'node': the ranks of a node must follow each other. With {local_world_size} ranks "
                    f"a node, rank {rank} must be number {rank % local_world_size} of its node, but {name} = {said}; "
                    "LOCAL_WORLD_SIZE says how many ranks a node has"
                )
            return


def _check_one_rank(number: str) -> None:
    """Raise ConfigError if torchrun started several ranks where `number`, of a task or a pod, is the same for all."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" in os.environ and local.isdecimal() and int(local) > 1:
        raise ConfigError(
            f"torchrun started {local} ranks here, and {number} is the same for all of them, so they would read the "
            "same samples: use rank_from_torchrun"
        )


def _from_environment(name: str) -> int:
    text = os.environ.get(name)
    if text is None or not text.isdecimal():
        raise ConfigError(f"the environment variable {name} is {text!r}, must be a number set by the launcher")
    return int(text)

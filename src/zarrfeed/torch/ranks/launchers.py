"""Launchers that started several processes which read everything, because nobody said that they are ranks.

A launcher tells a process its rank in environment variables. zarrfeed does not follow them by itself: where they stay
in a shell, or where every process is to read everything, that would lose samples without a word. So a process that was
started as one of several, and whose dataset knows of no rank, reads everything and says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Launcher:
    """The environment variables of a launcher that name the process and the number of processes, and its `rank=`."""

    rank: str
    world_size: str
    function: str | None = None

    def remedy(self) -> str:
        """Return the arguments of a dataset that follow this launcher."""
        if self.function is not None:
            return f"rank=zarrfeed.{self.function}"
        return f'rank=int(os.environ["{self.rank}"]), world_size=int(os.environ["{self.world_size}"])'


#: The first launcher whose variables are set decides: torchrun in a task of Slurm numbers its own processes, and so
#: does an MPI that was started in one.
_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "rank_from_torchrun"),
    _Launcher("JOB_COMPLETION_INDEX", "WORLD_SIZE", "rank_from_kubernetes"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    _Launcher("PMI_RANK", "PMI_SIZE"),
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "rank_from_slurm"),
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "rank_from_slurm"),
)

#: True if this process, or one that it was forked from, has warned.
_warned = False


def warn_of_launcher(is_first: Callable[[], bool]) -> None:
    """Warn, once a process, if a launcher started this process as one of several.

    Called when a pass begins whose dataset has no rank: none was given, and torch.distributed is not initialised.

    Parameters
    ----------
    is_first
        Returns True if no other process that reads the same dataset, such as a DataLoader worker, has warned. Called
        only if there is a reason to warn.
    """
    global _warned
    if _warned or (found := _find()) is None:
        return
    _warned = True
    if is_first():
        launcher, rank, world_size = found
        warnings.warn(
            f"{launcher.rank} = {rank} and {launcher.world_size} = {world_size} are set, but torch.distributed is not "
            f"initialised and the dataset has no rank: each of the {world_size} processes reads all samples. Call "
            "torch.distributed.init_process_group() before the first iteration, or give the dataset "
            f"{launcher.remedy()}. If every process is to read all samples, give it rank=0, world_size=1",
            stacklevel=1,  # of this line, so that it is shown once
        )


def _find() -> tuple[_Launcher, int, int] | None:
    """Return the launcher, the rank and the world size, if this process is one of several."""
    for launcher in _LAUNCHERS:
        rank, world_size = os.environ.get(launcher.rank, ""), os.environ.get(launcher.world_size, "")
        if not (rank.isdecimal() and world_size.isdecimal()):
            continue
        # The script of a Slurm job is process 0 of as many as the job has tasks, though only srun starts these.
        is_script = launcher.world_size == "SLURM_NTASKS" and int(rank) == 0
        return None if int(world_size) <= 1 or is_script else (launcher, int(rank), int(world_size))
    return None

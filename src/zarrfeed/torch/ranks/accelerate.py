"""Let a `ZarrDataLoader` pass through `accelerator.prepare()` as it is, and do what accelerate's own loaders do.

accelerate takes a loader apart and builds one of its own over the dataset. That loader has no state of ours, and lets
process 0 read for all. But accelerate takes a loader as it is if the loader says that it was prepared already. So says
a `ZarrDataLoader`, unless the `Accelerator` is to do something that only accelerate's own loaders do.

Invariants of a prepared loader: every process reads its own share; batches arrive on the accelerator's device;
accelerate knows the last batch of a pass, so that it applies accumulated gradients there, and how many samples of it
are no repeated ones, so that `gather_for_metrics()` returns each sample once; `state_dict()` counts what the training
loop received, though the loader is one batch ahead of that; `accelerator.save_state()` saves this state.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.shares.partition import Division, RankInfo
from zarrfeed.torch.batches.batch import Batch
from zarrfeed.torch.batches.pass_positions import CountedPass

_END = object()


@dataclass(frozen=True)
class Preparation:
    """The device and the copy mode that an `Accelerator` asks of a loader; `device` is None if batches do not move."""

    device: torch.device | None
    non_blocking: bool
    rng_types: tuple[Any, ...]


class PreparableLoader(Protocol):
    """The interface of a loader that `prepared_batches` needs."""

    end_of_dataloader: bool
    remainder: int

    def own_batches(self) -> CountedPass:
        """Return a pass over the next epoch."""


def asking_accelerator() -> FrameType | None:
    """Return the frame of `Accelerator.prepare_data_loader`, if that reads the attribute that the caller computes."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented name has an underscore
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    method = getattr(accelerator, "prepare_data_loader", None)
    return frame if frame.f_code is getattr(method, "__code__", None) else None


def preparation(asking: FrameType, rank_info: RankInfo) -> Preparation | None:
    """Return the device and copy mode that an `Accelerator` asks for; None if accelerate's own loader is needed.

    Parameters
    ----------
    asking
        The frame of its `prepare_data_loader`.
    rank_info
        The rank info of the dataset.

    Raises
    ------
    ConfigError
        If the accelerator would split batches, which a `ZarrDataLoader` gives to one process each.
    """
    accelerator, placement = asking.f_locals["self"], asking.f_locals["device_placement"]
    reads_alike = getattr(accelerator.parallelism_config, "non_data_parallel_size", 1) > 1
    if accelerator.dispatch_batches or reads_alike or accelerator.distributed_type in ("XLA", "MEGATRON_LM"):
        return None
    if (rank_info.rank, rank_info.world_size) != (accelerator.process_index, accelerator.num_processes):
        return None
    if accelerator.split_batches and accelerator.num_processes > 1:
        raise ConfigError(
            "split_batches = True, but every process reads batches of its own from a ZarrDataLoader: divide the "
            f"dataset's batch_size by {accelerator.num_processes} and use split_batches=False"
        )
    return Preparation(
        device=accelerator.device if (accelerator.device_placement if placement is None else placement) else None,
        non_blocking=accelerator.non_blocking,
        rng_types=tuple(kind for kind in accelerator.rng_types or () if kind != "generator"),
    )


def prepared_batches(loader: PreparableLoader, preparation: Preparation) -> Iterator[Batch]:
    """Yield the batches of a pass, and treat each as accelerate requires."""
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device, synchronize_rng_states

    if preparation.rng_types:
        synchronize_rng_states(list(preparation.rng_types))
    gradient_state = GradientState()
    loader.end_of_dataloader = False
    gradient_state._add_dataloader(loader)  # noqa: SLF001 - as accelerate's own loaders do
    feed = loader.own_batches()
    try:
        batch = _fetched(feed)
        loader.remainder = 0 if feed.cursor is None else _remainder(feed.cursor)
        while batch is not _END:
            if preparation.device is not None:
                batch = send_to_device(batch, preparation.device, non_blocking=preparation.non_blocking)
            following = _fetched(feed)
            loader.end_of_dataloader = following is _END
            feed.count()
            yield batch
            batch = following
        feed.count_end()
    finally:
        feed.close()
        gradient_state._remove_dataloader(loader)  # noqa: SLF001 - as accelerate's own loaders do


def _fetched(feed: CountedPass) -> Any:
    """Return a batch that is counted when the training loop gets it; `_END` where there is none."""
    try:
        return feed.fetch()
    except StopIteration:
        return _END


def _remainder(cursor: Cursor) -> int:
    """Return how many samples of the last batch of all ranks are not repeated; 0 if none is repeated.

    accelerate puts the batches of the ranks together, rank by rank, and takes so many samples from the beginning. A
    division that `is_gathered` has its repeated samples at the end. With node affinity each node repeats samples of its
    own, so they can lie in between: then a warning says that they stay.
    """
    division, nodes = cursor.division, cursor.begin.nodes
    if not isinstance(division, Division) or not division.repeated:
        return 0
    if nodes > 1:
        warnings.warn(
            "even = 'repeat', affinity = 'node': gather_for_metrics() returns some samples of the last batch twice, as "
            f"each of {nodes} nodes repeats samples of its own: use even='drop', or leave affinity out",
            stacklevel=1,  # of this line, so that it is shown once
        )
        return 0
    return division.world_size * division.last_batch - division.repeated

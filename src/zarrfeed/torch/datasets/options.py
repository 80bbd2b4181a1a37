"""Check the arguments of a dataset that say how samples are fed, and convert them to options of the planner.

For example, `memory_budget="2GiB"` becomes a number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_counts, check_flags, check_int, check_num_threads
from zarrfeed.metadata.description.returned_coords import with_coords
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.face.open_data import open as open_data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.shares.affinity import Affinity
from zarrfeed.plan.shares.partition import EVEN_MODES, Even
from zarrfeed.spec.arrays.sharding import Requests
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import Mixing
from zarrfeed.torch.batches.accelerators import check_not_lost_by_fork, has_accelerator
from zarrfeed.torch.ranks.distributed import RankFinder, RankLike

if TYPE_CHECKING:  # these import torch; `tools/dry_run.py` does without it
    from zarrfeed.torch.batches.batch import BatchAssembler
    from zarrfeed.torch.batches.transform import Transform
    from zarrfeed.torch.passes.session_options import SessionOptions

_OPENED = "said where arrays are opened: zarrfeed.open(path, "

#: Argument of an earlier version that described samples -> its replacement.
MOVED_TO_DATA = {
    "samples": "the first argument, without a name",
    "sample_axis": f"{_OPENED}sample_axis=1)",
    "sample_dim": f"{_OPENED}sample_dim='time')",
    "variables": f"{_OPENED}variables=['t2m', 'z'])",
    "decode_cf": f"{_OPENED}decode_cf=False)",
    "storage_options": f"{_OPENED}storage_options={{'anon': True}})",
    "select": "data.select(...): zarrfeed.open(path).select(slice(0, 1000))",
    "blocks": "data.blocks(...): zarrfeed.open(path).blocks([0, 1])",
    "offsets": "data.window(...): zarrfeed.open(path).window((-1, 0))",
    "segment_ends": "an argument of data.window(...): zarrfeed.open(path).window((-1, 0), segment_ends=ends)",
    "window_rows": "rows= of data.window(...): zarrfeed.open(path).window((-1, 0), rows='all')",
    "dtype": "data.cast(...): zarrfeed.open(path).cast('float16')",
    "normalize": "data.normalize(...): zarrfeed.open(path).normalize((mean, std))",
    "normalize_axis": "axis= of data.normalize(...): zarrfeed.open(path).normalize((mean, std), axis=1)",
    "missing": "a part of faults: faults={'missing': 'raise'}",
    "retries": "a part of faults: faults={'retries': 3}",
    "timeout": "a part of faults: faults={'timeout': 60}",
}

_OF_WEIGHTS = "data.weight(...), which draws anew in each epoch, or data.balance('label')"
#: The same for arguments of `ZarrIterableDataset` alone.
MOVED_TO_OPTIONS = {
    **dict.fromkeys(("weights", "sample_weights", "class_weights"), _OF_WEIGHTS),
    "sampler": f"{_OF_WEIGHTS}; data.select(order, keep_order=True) has an order of your own",
    "lanes": "a part of mixing: mixing={'lanes': 16}",
    "mix": "a part of mixing: mixing={'mix': 2}",
    "block": "a part of mixing: mixing={'block': 'shard'}",
    "on_error": "a part of faults: faults={'on_error': 'skip'}",
    "max_errors": "a part of faults: faults={'on_error': 'skip', 'max_errors': 10}",
    "coalesce_gap": "a part of requests: requests={'coalesce_gap': '128KiB'}",
    "coalesce_limit": "a part of requests: requests={'coalesce_limit': '8MiB'}",
}

_OF_DATALOADER = "an argument of torch's DataLoader: DataLoader(ZarrDataset(data), batch_size=8, shuffle=True)"
#: Arguments of what a map-style dataset is given to -> how to say it.
MOVED_TO_DATALOADER = {
    **dict.fromkeys(("batch_size", "shuffle", "drop_last", "num_workers", "pin_memory", "sampler"), _OF_DATALOADER),
    "seed": "generator= of torch's DataLoader, or seed= of ZarrIterableDataset, which shuffles by it",
}

_OF_LOADER = "an argument of ZarrDataLoader: ZarrDataLoader(dataset, num_workers=2)"
#: Arguments of what a `ZarrIterableDataset` is given to -> how to say it.
MOVED_TO_LOADER = dict.fromkeys(("num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn"), _OF_LOADER)


def as_data(
    data: Data | Source, targets: Source | None, faults: Faults, return_coords: Sequence[str] | str | None = None
) -> Data:
    """Return `data` if it is a description; else open `data` and `targets`, as `zarrfeed.open` does.

    Raises
    ------
    ConfigError
        If there are targets beside a description; if the samples cannot be opened, or lack a coordinate of these names.
    """
    if not isinstance(data, Data):
        data = open_data(data, targets, retries=faults.retries, timeout=faults.timeout)
    elif targets is not None:
        raise ConfigError("targets are given beside a Data: zarrfeed.open(samples, targets) describes both")
    if return_coords is None:
        return data
    if data.growth is not None:
        raise ConfigError("return_coords cannot follow open(..., refresh='epoch'): new samples have other coordinates")
    return replace(data, resolved=with_coords(data.resolved, return_coords))


def faults_for(data: Data, faults: Faults) -> Faults:
    """Return the error policy for the readers of a description: a store that grows may lack no chunk."""
    refuses = data.growth is not None and data.growth.refuses_missing
    return replace(faults, missing="raise") if refuses else faults


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options that all streams take, as `ZarrIterableDataset` documents them.

    Raises
    ------
    ConfigError
        If an option has a value that is not allowed, such as `batch_size=0`.
    """

    batch_size: int | None = None
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    return_index: bool = False
    rank: RankLike = None
    world_size: int | None = None
    even: Even | None = None
    affinity: Affinity | None = None
    num_threads: int | None = None
    memory_budget: int | str | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        check_flags(shuffle=self.shuffle, drop_last=self.drop_last, return_index=self.return_index)
        check_int("seed", self.seed, 0, 2**64 - 1)
        if self.affinity is not None:
            check_choice("affinity", self.affinity, get_args(Affinity))
        check_counts(batch_size=self.batch_size)
        check_num_threads(self.num_threads)
        if self.even is not None:
            check_choice("even", self.even, EVEN_MODES)

    def schedule(self, mixing: Mixing, requests: Requests) -> ScheduleOptions:
        """Return the options of a schedule."""
        return ScheduleOptions(
            lanes=mixing.lanes,
            mix=mixing.mix,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            even=self.even,
            num_threads=self.num_threads,
            budget=None if self.memory_budget is None else parse_bytes(self.memory_budget),
            coalesce=requests.coalesce,
        )

    def session(self, faults: Faults, assembler: BatchAssembler, *, pin_memory: bool | None) -> SessionOptions:
        """Return the options of a session; `assembler` makes its batches."""
        from zarrfeed.torch.batches.transform import prepare_transform
        from zarrfeed.torch.passes.session_options import SessionOptions

        called = prepare_transform(self.transform, len(assembler.fields.sides))
        ranks = RankFinder(self.rank, self.world_size)
        return SessionOptions(faults, ranks, assembler, called, pin_memory, self.affinity)


def check_pin_memory(pin_memory: bool | None) -> None:
    """Raise ConfigError if batches cannot be pinned as asked."""
    if pin_memory is not None:
        check_flags(pin_memory=pin_memory)
    if pin_memory:
        check_not_lost_by_fork("pin_memory = True")
    if pin_memory and not has_accelerator():
        raise ConfigError("pin_memory = True needs an accelerator, and torch finds none; None decides by itself")

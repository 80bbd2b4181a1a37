"""Identify the library that iterates a dataset, and its habits, from the call stack.

torch does not tell a dataset which loader reads it, and some loaders spoil its samples without an error:

  DataLoader(dataset, batch_size=64)   makes batches of the batches that the dataset made;
  random_split(dataset, ...)           makes subsets that look samples up by index;
  accelerate, transformers' Trainer    split what every process reads, though each process reads its own share.

Invariants: a frame is recognised by its code or by the class of its `self`, never by a name of the user's. Where no
frame is recognised, the dataset behaves as if nobody stood between it and the training loop. Nothing is imported: a
library that is on the stack was imported by somebody. The stack is right in DataLoader workers, too: a forked worker
runs on a copy of the stack of its training process, and a spawned worker gets the rank info that was found while the
dataset was pickled, under the loader's own frames.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.shares.partition import RankInfo

_SHARD = "IterableDatasetShard"
_SHARD_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")
_NO_DISPATCH = (
    "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)), or for transformers' Trainer "
    "TrainingArguments(accelerator_config={'dispatch_batches': False})"
)


class Reads(Protocol):
    """A dataset, as far as its readers matter."""

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None for single samples."""

    def rank_info(self) -> RankInfo:
        """Return the rank that reads, and the number of ranks."""


def check_iteration(reads: Reads) -> bool:
    """Check the library that asks for a pass over `dataset`; return whether it will not ask that pass for any batch.

    Raises
    ------
    ConfigError
        If a loader would make batches of its batches, or split this rank's share of the samples once more.
    """
    if reads.batch_size is not None:
        _refuse_second_batching(reads.batch_size)
    for _, reader in _readers_of_hugging_face():
        if _is_a(reader, *_shards()) and reader.num_processes > 1 and reads.rank_info().world_size > 1:
            raise ConfigError(
                "this process reads its own share of the samples, and accelerate's IterableDatasetShard would split "
                "that share once more: give ZarrDataLoader(dataset) to accelerator.prepare(), or let accelerate alone "
                "split, with rank=0, world_size=1 for the dataset"
            )
        if _is_a(reader, *_dispatchers()):
            return reads.rank_info().idle
    return False


def check_length(reads: Reads) -> None:
    """Check the caller that asks for the length of `dataset`; tell an IterableDatasetShard to split nothing.

    Raises
    ------
    ConfigError
        If the caller is torch's `random_split`.
    """
    frame = next(outer_frames(), None)
    random_split = _found("torch.utils.data", "random_split")
    if frame is not None and random_split is not None and frame.f_code is random_split.__code__:
        raise ConfigError(
            "random_split looks samples up by index, which a ZarrIterableDataset does not do: use "
            "data.split((0.8, 0.2)) on what zarrfeed.open returns, or split a ZarrDataset"
        )
    for _, reader in _readers_of_hugging_face():
        if _is_a(reader, *_shards()):
            _pass_whole_share(reader, reads.rank_info())


def check_resumed_epoch(epoch: int) -> None:
    """Raise ConfigError if a pass begins in another epoch than the one that transformers' Trainer resumes.

    The Trainer reads the batches again that it trained on, by `skip_first_batches`. Of a loader that is not
    accelerate's own, that makes one which cannot be told the epoch.
    """
    if any(_is_a(reader, *_classes(_SHARD_MODULES[0], "SkipDataLoader")) for _, reader in _readers_of_hugging_face()):
        for frame in outer_frames():
            if (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("transformers.trainer", "_run_epoch"):
                resumed = frame.f_locals.get("epoch", epoch)
                if resumed != epoch:
                    raise ConfigError(
                        f"the Trainer resumes epoch {resumed}, but the dataset would read epoch {epoch}: call "
                        f"dataset.set_epoch({resumed}) before train(resume_from_checkpoint=...)"
                    )


def find_fetcher() -> Any:
    """Return the object of torch's by which a DataLoader worker is asking for data now; None: it is not asking.

    A thread that a wrapper started in the worker is not on the stack of the fetcher. The main thread is then, because
    it waits for that thread.
    """
    return _fetcher_among(outer_frames()) or _fetcher_among(_frames_of_main_thread())


def _fetcher_among(frames: Iterator[FrameType]) -> Any:
    for frame in frames:
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            return self_of(frame)
    return None


def _frames_of_main_thread() -> Iterator[FrameType]:
    """Yield the frames of the main thread, seen from another one.

    None in the main thread itself: a frame that refers to itself would live, with the pass that it read, until the
    garbage collector runs.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        stack = sys._current_frames().get(main.ident or 0)  # noqa: SLF001 - documented
        if stack is not None:
            yield from outer_frames(stack)


def collates_by_default() -> bool:
    """Return whether torch's `default_collate` is all that sees the samples for which a dataset is asked now.

    So it is where a DataLoader without a `collate_fn` of the user's asks, itself or through `Subset`. Any other
    function that asks may look at the samples.
    """
    passing_on = _code_of("torch.utils.data", "Subset.__getitems__")
    asking = _code_of("torch.utils.data._utils.fetch", "_MapDatasetFetcher.fetch")
    for frame in outer_frames():
        if frame.f_code is asking:
            fetcher = self_of(frame)
            return bool(fetcher.auto_collation) and fetcher.collate_fn is _found("torch.utils.data", "default_collate")
        if frame.f_code is not passing_on:
            return False
    return False


def saves_iterator_too() -> bool:
    """Return whether torchdata asks for a dataset's state: it also saves the iterator's, and goes on by that."""
    frame = next(outer_frames(), None)
    asking = _found("torchdata.stateful_dataloader.worker", "try_to_serialize")
    return frame is not None and frame.f_code is getattr(asking, "__code__", None)


def rank_under_accelerate(rank_info: RankInfo) -> RankInfo:
    """Return the rank info, as changed by a DataLoaderDispatcher of accelerate that reads for all ranks.

    The dispatcher iterates on process 0 alone and sends the other processes their parts, so process 0 reads the whole
    epoch and the others read nothing. `rank_info` is returned as it is where there is no dispatcher on the stack.

    Raises
    ------
    ConfigError
        If the rank of the dataset is not that of accelerate's process.
    """
    if rank_info.world_size == 1:  # whoever splits, we do not
        return rank_info
    for _, reader in _readers_of_hugging_face():
        if _is_a(reader, *_dispatchers()):
            index, count = _process()
            _check_same_rank(rank_info, index, count)
            return replace(rank_info, rank=0, world_size=1, split_over=count, idle=index != 0)
    return rank_info


def hears_accelerate(reads: Reads) -> bool:
    """Return whether a loader of accelerate calls `set_epoch` with its own count of epochs, at the start of a pass.

    This is when the loader on the stack is seen on every rank before it reads: so it is also where an
    IterableDatasetShard is told to split nothing, and where a dispatcher is warned about.

    Raises
    ------
    ConfigError
        If a dispatcher would lose samples.
    """
    counts = False
    for frame, reader in _readers_of_hugging_face():
        if _is_a(reader, *_shards()):
            _pass_whole_share(reader, reads.rank_info())
        elif frame.f_code.co_name == "__iter__":
            counts = True
            if _is_a(reader, *_dispatchers()) and reads.rank_info().split_over > 1:
                _check_dispatcher(reader, reads)
    return counts


def _pass_whole_share(shard: Any, rank_info: RankInfo) -> None:
    """Let an IterableDatasetShard pass on whatever it reads, sample by sample, and pad nothing.

    transformers' Trainer does the same to accelerate's BatchSamplerShard where a sampler knows the ranks already.
    `total_dataset_length` is what accelerate takes for the length, to find out how many samples of the last batch are
    repeated ones: 0 stands for none.
    """
    if rank_info.world_size == 1 or shard.num_processes == 1:
        return
    _check_same_rank(rank_info, shard.process_index, shard.num_processes)
    shard.batch_size = shard.num_processes = 1
    shard.process_index = shard.total_dataset_length = 0
    shard.split_batches = False


def _refuse_second_batching(batch_size: int) -> None:
    for frame in outer_frames():
        reader = self_of(frame)
        if reader is None:
            return
        fetchers = _classes("torch.utils.data._utils.fetch", "_IterableDatasetFetcher")
        if not _is_a(reader, *fetchers, *_classes("torch.utils.data", "ChainDataset"), *_shards()):
            return
        if _is_a(reader, *fetchers):
            if reader.auto_collation and _stacks(reader.collate_fn):
                raise ConfigError(
                    f"the dataset makes batches of {batch_size}, and this DataLoader would make batches of those: use "
                    "DataLoader(dataset, batch_size=None) or ZarrDataLoader(dataset), or leave out the dataset's "
                    "batch_size, as for transformers' Trainer, which makes the batches itself"
                )
            return


def _stacks(collate_fn: Any) -> bool:
    """Return whether a `collate_fn` stacks whatever it gets; a function of the user's may be made for batches."""
    collate_fn = getattr(collate_fn, "data_collator", collate_fn)  # inside of transformers' RemoveColumnsCollator
    module = getattr(collate_fn, "__module__", None) or ""
    return collate_fn is _found("torch.utils.data", "default_collate") or module.partition(".")[0] == "transformers"


def _check_dispatcher(dispatcher: Any, reads: Reads) -> None:
    num_workers = dispatcher.num_workers
    if reads.batch_size is None and num_workers > 1:
        raise ConfigError(
            f"each of {num_workers} DataLoader workers may end with a short batch, of which accelerate's dispatcher "
            f"loses samples: use {_NO_DISPATCH}; or num_workers=1 or 0"
        )
    if _process()[0] == 0:
        warnings.warn(
            "accelerate reads this dataset on process 0 alone and sends the other processes their part of every batch; "
            f"each process reads its own share with {_NO_DISPATCH}",
            stacklevel=1,  # of this line, so that it is shown once
        )


def _check_same_rank(rank_info: RankInfo, index: int, count: int) -> None:
    if (rank_info.rank, rank_info.world_size) != (index, count):
        raise ConfigError(
            f"the dataset has rank = {rank_info.rank}, world_size = {rank_info.world_size}, but accelerate shares "
            f"batches out to {count} processes, of which this is number {index}: give the dataset rank={index}, "
            f"world_size={count}"
        )


def _process() -> tuple[int, int]:
    """Return the number of this process, and how many there are, as accelerate counts them."""
    state = sys.modules["accelerate.state"].PartialState()
    return state.process_index, state.num_processes


def _readers_of_hugging_face() -> Iterator[tuple[FrameType, Any]]:
    """Yield the objects of accelerate's and transformers' loading that are on the stack, innermost first."""
    if "accelerate" in sys.modules or "transformers" in sys.modules:
        for frame in outer_frames():
            if frame.f_globals.get("__name__") in _SHARD_MODULES:
                yield frame, self_of(frame)


def outer_frames(innermost: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the frames of a stack, by default of the caller's, from the innermost one that is not of this package."""
    frame: FrameType | None = innermost or sys._getframe(1)  # noqa: SLF001 - the documented name has an underscore
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != __name__.partition(".")[0]:
            yield frame
        frame = frame.f_back


def self_of(frame: FrameType) -> Any:
    """Return the object whose method a frame runs; None, where it runs a function."""
    code = frame.f_code
    return frame.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None


def _is_a(value: Any, *classes: type) -> bool:
    return issubclass(type(value), classes)  # isinstance() would ask accelerate's loaders, which claim to be torch's


def _shards() -> tuple[type, ...]:
    return tuple(found for module in _SHARD_MODULES for found in _classes(module, _SHARD))


def _dispatchers() -> tuple[type, ...]:
    return _classes(_SHARD_MODULES[0], "DataLoaderDispatcher")


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Return the classes of a module that have these names, if it was imported and has them."""
    found = (_found(module, name) for name in names)
    return tuple(value for value in found if isinstance(value, type))


def _code_of(module: str, name: str) -> Any:
    """Return the code of a method, if the module was imported and has it."""
    owner, _, method = name.partition(".")
    return getattr(getattr(_found(module, owner), method, None), "__code__", None)


def _found(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)

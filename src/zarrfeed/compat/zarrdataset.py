"""The interface of zarr-torch-dataset 0.0.9 over zarrfeed: its names, arguments, defaults and their meaning.

docs/compat.md lists every argument, and what is different here. Change ::

    from zarrdataset import ZarrDataLoader, ZarrIterableDataset

to ::

    from zarrfeed.compat.zarrdataset import ZarrDataLoader, ZarrIterableDataset
"""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import context
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
import zarr

import zarrfeed.metadata.face.open_data
import zarrfeed.torch.datasets.iterable_dataset
import zarrfeed.torch.datasets.loader
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.group.fields import Source
from zarrfeed.plan.samples.selection import Int64, make_selection
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, describe_layout
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.torch.batches.accelerators import has_accelerator
from zarrfeed.torch.batches.batch import Batch, BatchAssembler, Values
from zarrfeed.torch.passes.editions import Editions
from zarrfeed.torch.passes.session import Session
from zarrfeed.torch.passes.session_options import SessionOptions
from zarrfeed.torch.ranks.distributed import in_worker

ChunkIndexes: TypeAlias = "int | Sequence[int] | npt.NDArray[np.integer[Any]] | None"

_SEEDS = 2**64


class _Session(Session):
    """The epochs of a dataset whose ranks agree on the key of the row order, where the user gave none.

    Parameters
    ----------
    row_seed_is_free
        True if the user gave no key, so that a loaded state may set it.
    """

    def __init__(self, schedule: Schedule, options: SessionOptions, *, row_seed_is_free: bool) -> None:
        has_effect = schedule.order.permutes_rows
        self._row_seed_is_free = row_seed_is_free or not has_effect
        self._row_seed_is_agreed = not row_seed_is_free or not has_effect
        super().__init__(schedule, options)

    def __getstate__(self) -> dict[str, Any]:
        self.rank_info()  # a worker cannot ask the other ranks
        return super().__getstate__()

    def rank_info(self) -> RankInfo:
        """Return the rank that reads, and the number of ranks, once all ranks have one key."""
        rank = super().rank_info()
        if not self._row_seed_is_agreed and rank.world_size > 1:
            self._agree_on_row_seed()
        return rank

    def make_state_dict(self, state: EpochState) -> dict[str, Any]:
        """Return a state with the key that the ranks agreed on."""
        self.rank_info()
        return super().make_state_dict(state)

    def read_state_dict(self, state: object) -> EpochState:
        """Return the state of a dict; its key becomes this dataset's, unless the user gave one."""
        order = state.get("order") if isinstance(state, Mapping) else None
        seed = order.get("row_seed") if isinstance(order, Mapping) else None
        if self._row_seed_is_free and isinstance(seed, int) and 0 <= seed < _SEEDS:
            self._set_row_seed(seed)
        return super().read_state_dict(state)

    def _agree_on_row_seed(self) -> None:
        """Take the seed that the first rank to ask has drawn, through the store that the ranks met by.

        Nobody waits: the store keeps the first value that is set. Datasets of one configuration share it.
        """
        if in_worker():
            raise ConfigError(
                "buffer_shuffle_seed is None, and this DataLoader worker cannot ask the other ranks for a common one: "
                "use zarrfeed.compat.zarrdataset.ZarrDataLoader, or give a seed"
            )
        order = {**self.schedule.order.describe(), "row_seed": None}
        key = json.dumps([order, describe_layout(self.schedule.fields.fields)])
        store = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way to it
        name = f"zarrfeed/buffer_shuffle_seed/{hashlib.sha256(key.encode()).hexdigest()}"
        self._set_row_seed(int(store.compare_set(name, "", str(self.schedule.order.row_seed))))

    def _set_row_seed(self, seed: int) -> None:
        self._row_seed_is_agreed = True
        self.schedule = replace(self.schedule, order=replace(self.schedule.order, row_seed=seed))


class _AssemblerOfOriginal(BatchAssembler):
    """Batches as torch collates them, and samples as the original yields them."""

    def assemble(self, tensors: Sequence[Any]) -> Batch:
        """Return a tensor or a dict of them, or a list of these."""
        parts = super().assemble(tensors)
        return list(parts) if isinstance(parts, tuple) else parts

    def assembler(self) -> Callable[[Sequence[Values]], Batch]:
        """Return the function that makes a batch."""
        return self.assemble

    def samples_of(self, tensors: Sequence[Values]) -> Iterator[Batch]:
        """Yield samples one by one: NumPy scalars where they have no axes and NumPy has their dtype."""
        columns: list[Any] = [
            values
            if isinstance(values, list)
            else values.numpy()
            if values.dim() == 1 and values.dtype != torch.bfloat16
            else values.unbind(0)
            for values in tensors
        ]
        return map(super().assemble, zip(*columns, strict=True))


class ZarrIterableDataset(zarrfeed.torch.datasets.iterable_dataset.ZarrIterableDataset):
    """Stream the samples of a Zarr array, a chunk at a time, each to one rank and one worker.

    Parameters
    ----------
    samples
        A `zarr.Array` with samples along its first axis; and all else that `zarrfeed.ZarrIterableDataset` takes.
    targets
        An array with as many samples, or anything else that `samples` may be; or None.
    selected_chunk_indexes
        The chunks along the first axis that are read: an int, a sequence or an array of their numbers; negative numbers
        count from the end. None: all chunks.
    shuffle_chunks
        If True, chunks come in random order, anew in each epoch.
    chunks_shuffle_seed
        Key of that order; needed if `shuffle_chunks`.
    shuffle_buffer
        If True, samples of the chunks that are open side by side are mixed, anew in each epoch.
    buffer_shuffle_seed
        Key of that mixing. None: a random key, the same on all ranks and workers.

    Attributes
    ----------
    samples, targets, shuffle_chunks, chunks_shuffle_seed, shuffle_buffer, buffer_shuffle_seed
        The arguments, as they were passed.
    selected_chunk_indexes
        The numbers of the chunks as an array; all chunks for None.

    Yields
    ------
    A sample, or a tuple (sample, target). Samples of one-dimensional arrays are NumPy scalars, others are tensors;
    those of a group or a mapping are dicts of these.

    Raises
    ------
    ConfigError, a ValueError
        If the selection is empty or out of range, or a seed or lengths are wrong.
    TypeError
        If the selection is of another type.

    Notes
    -----
    All methods of `zarrfeed.ZarrIterableDataset` are here too: `len()`, `set_epoch`, `state_dict`, `explain`, ...
    """

    _aligns_blocks = False  # chunks are selected, not samples

    def __init__(
        self,
        *,
        samples: Source,
        targets: Source | None,
        selected_chunk_indexes: ChunkIndexes = None,
        shuffle_chunks: bool = True,
        chunks_shuffle_seed: int | None = None,
        shuffle_buffer: bool = True,
        buffer_shuffle_seed: int | None = None,
    ) -> None:
        check_flags(shuffle_chunks=shuffle_chunks)
        check_flags(shuffle_buffer=shuffle_buffer)
        if shuffle_chunks and chunks_shuffle_seed is None:
            raise ConfigError(
                "shuffle_chunks = True, but chunks_shuffle_seed is None: give a seed, the same on all ranks"
            )
        self.samples = samples
        self.targets = targets
        self.shuffle_chunks = shuffle_chunks
        self.chunks_shuffle_seed = chunks_shuffle_seed
        self.shuffle_buffer = shuffle_buffer
        self.buffer_shuffle_seed = buffer_shuffle_seed
        self._selection = None if selected_chunk_indexes is None else _index_array(selected_chunk_indexes)
        self._row_seed = (
            secrets.randbelow(_SEEDS)
            if buffer_shuffle_seed is None
            else _seed("buffer_shuffle_seed", buffer_shuffle_seed)
        )
        super().__init__(
            zarrfeed.metadata.face.open_data.open(samples, targets, decode_cf=False),
            shuffle=bool(shuffle_chunks),
            seed=0 if chunks_shuffle_seed is None else _seed("chunks_shuffle_seed", chunks_shuffle_seed),
            pin_memory=False,
        )

    @staticmethod
    def refine_chunk_indexes(nb_chunks_max: int, selected_chunk_indexes: ChunkIndexes) -> Int64:
        """Return a selection as an array; all of `nb_chunks_max` chunks for None. The range is not checked."""
        return np.arange(nb_chunks_max) if selected_chunk_indexes is None else _index_array(selected_chunk_indexes)

    @staticmethod
    def check_distribution_ability(
        array: zarr.Array[Any],
        selected_chunk_indexes: ChunkIndexes,
        world_size: int,
        num_workers: int,
        array_name: str = "",
    ) -> None:
        """Check the arguments. Samples are shared out, not chunks, so any number of ranks and workers is served."""
        check_int("world_size", world_size, 1)
        check_int("num_workers", num_workers, 0)
        num_chunks = -(-array.shape[0] // array.chunks[0])
        selected = ZarrIterableDataset.refine_chunk_indexes(num_chunks, selected_chunk_indexes)
        _check_range(selected, num_chunks, array_name or "the array")

    def in_batches(self, batch_size: int, *, drop_last: bool, pin_memory: bool) -> ZarrIterableDataset:
        """Return a dataset that yields the same samples in batches. Both count the same epochs."""
        batched = copy.copy(self)
        session = batched._session = copy.copy(self._session)  # noqa: SLF001 - of the same class
        session.schedule = session.schedule.with_options(batch_size=batch_size, drop_last=drop_last)
        session.options = replace(session.options, pin_memory=pin_memory)
        return batched

    _assembler_class = _AssemblerOfOriginal

    def _make_session(self, schedule: Schedule, options: SessionOptions, editions: Editions) -> _Session:
        assert editions.versions is None  # there is no argument to open a store that grows
        options = replace(options, may_be_empty=True)  # a DataLoader of the original has no batches then, and no error
        return _Session(schedule, options, row_seed_is_free=self.buffer_shuffle_seed is None)

    def _plan(self, planning: Planning) -> tuple[Planning, Schedule]:
        fields, order = planning.order(self._data.resolved)
        self.selected_chunk_indexes = ZarrIterableDataset.refine_chunk_indexes(order.num_blocks, self._selection)
        _check_range(self.selected_chunk_indexes, order.num_blocks, "samples")
        order = replace(
            order,
            shuffle_rows=bool(self.shuffle_buffer),
            row_seed=self._row_seed,
            selection=make_selection(None, self._selection, num_samples=order.num_samples, block_rows=order.block_rows),
        )
        # There is no argument for the memory: it takes as much as it needs.
        options = replace(planning.options, mix=1, limit=None, whole_blocks=True)
        return planning, Schedule.make(fields, order, options)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if context.get_spawning_popen() is not None:  # a worker reads from the fields alone
            state |= {"samples": None, "targets": None}
        return state


class ZarrDataLoader(zarrfeed.torch.datasets.loader.ZarrDataLoader):
    """Batch the samples of a `ZarrIterableDataset` of this module, in this process or in worker processes.

    Parameters
    ----------
    dataset
        A `ZarrIterableDataset` of this module.
    num_workers
        Worker processes; they persist from epoch to epoch.
    batch_size
        Samples of a batch.
    drop_last
        If True, the last batch of an epoch is dropped if it is short.
    pin_memory, multiprocessing_context, prefetch_factor
        Arguments of torch's DataLoader, with the same meaning.

    Yields
    ------
    A tensor, or a list [samples, targets], as torch's DataLoader collates them.
    """

    def __init__(
        self,
        *,
        dataset: ZarrIterableDataset,
        num_workers: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        pin_memory: bool = False,
        multiprocessing_context: str | None = None,
        prefetch_factor: int | None = None,
    ) -> None:
        if not isinstance(dataset, ZarrIterableDataset):
            raise ConfigError(
                f"dataset: got a {type(dataset).__module__}.{type(dataset).__name__}, must be a "
                "zarrfeed.compat.zarrdataset.ZarrIterableDataset"
            )
        check_int("num_workers", num_workers, 0)
        check_int("batch_size", batch_size, 1)
        check_flags(drop_last=drop_last)
        check_flags(pin_memory=pin_memory)
        self._pins_nothing = pin_memory and not has_accelerator()
        super().__init__(
            dataset.in_batches(
                int(batch_size),
                drop_last=bool(drop_last),
                pin_memory=bool(pin_memory and num_workers == 0 and not self._pins_nothing),
            ),
            num_workers=num_workers,
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context,
            persistent_workers=num_workers > 0,
            prefetch_factor=prefetch_factor,
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank, the short ones of the workers included."""
        session = self._stream.session
        consumer = session.rank_info().consumer(num_workers=max(1, self.num_workers))
        return session.schedule.division(EpochState(0), consumer).batches(consumer.rank)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Return a pass over the next epoch."""
        if self._pins_nothing and self.num_workers == 0:  # with workers, torch says so
            warnings.warn("pin_memory = True, but no accelerator is found: batches are not pinned", stacklevel=2)
        return super().__iter__()


def _index_array(selected: Any) -> Int64:
    """Return chunk indices as an int64 array of shape (selected,), or refuse them in the original's words."""
    if isinstance(selected, int | np.integer) and not isinstance(selected, bool):
        selected = [int(selected)]
    refusal = TypeError(
        f"unsupported type for selected chunk indexes: {selected!r}, must be an int, or a sequence or an array of "
        "integers"
    )
    if isinstance(selected, str | bytes) or not isinstance(selected, Sequence | np.ndarray):
        raise refusal
    try:
        array = np.asarray(selected)
    except ValueError as error:  # nested sequences of several lengths
        raise refusal from error
    if array.shape == (0,):
        raise ConfigError("selected_chunk_indexes: empty list of chunk indexes")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise refusal
    return array.astype(np.int64)


def _check_range(selected: Int64, num_chunks: int, name: str) -> None:
    outside = selected[(selected < -num_chunks) | (selected >= num_chunks)]
    if len(outside):
        raise ConfigError(
            f"one or several chunk indexes are out of range: {outside[0]}, must be in [{-num_chunks}, "
            f"{num_chunks - 1}], as {name} has {num_chunks} chunks along the first axis"
        )
    chunks, counts = np.unique(selected % num_chunks, return_counts=True)
    if counts.max() > 1:
        raise ConfigError(f"one or several chunk indexes are there twice: those of chunk {chunks[counts.argmax()]}")


def _seed(name: str, seed: int) -> int:
    """Return a key in [0, 2**64) for a seed that NumPy's generators would take."""
    check_int(name, seed, 0)
    return int(seed) if seed < _SEEDS else int(np.random.SeedSequence(int(seed)).generate_state(1, np.uint64)[0])

"""`ZarrIterableDataset`: Zarr arrays as a stream of shuffled, ready batches."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Self

import numpy.typing as npt
import torch
import torch.utils.data

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_choice, check_flags, check_int
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.metadata.conversion import Normalization, TorchDtypeLike
from zarrfeed.metadata.data import Data
from zarrfeed.metadata.fields import Source, Variables
from zarrfeed.metadata.xarray import stored_arrays
from zarrfeed.plan.epoch_plan import DEFAULT_BUDGET, Schedule
from zarrfeed.plan.order import Order, make_order
from zarrfeed.plan.partition import Even
from zarrfeed.plan.selection import Int64, Select, Selection
from zarrfeed.plan.state import EpochState
from zarrfeed.plan.window_rows import WindowRows
from zarrfeed.plan.windows import Offsets
from zarrfeed.report.describe import describe
from zarrfeed.report.explain import Explanation
from zarrfeed.report.notebook import dataset_html
from zarrfeed.spec import error_policy
from zarrfeed.spec.error_policy import FaultPolicy, Missing, OnError
from zarrfeed.spec.field import BLOCK_UNITS, BlockUnit, FieldSet
from zarrfeed.spec.sharding import DEFAULT_COALESCE
from zarrfeed.torch.batch import Batch, BatchAssembler
from zarrfeed.torch.callers import check_iteration, check_length, hears_accelerate
from zarrfeed.torch.distributed import RankFinder, RankSource, end_with_training_process, in_worker
from zarrfeed.torch.epoch_iterator import Pass, SamplePass
from zarrfeed.torch.flat_options import DataOptions, as_data
from zarrfeed.torch.host_rows import with_shared_rows
from zarrfeed.torch.options import check_pin_memory, order_options, schedule_options
from zarrfeed.torch.session import Session, SessionOptions
from zarrfeed.torch.transform import Transform, prepare_transform

_INT64_MAX = 2**63 - 1


class ZarrIterableDataset(torch.utils.data.IterableDataset[Batch]):
    """Stream samples of a Zarr array, shuffled and batched by a compiled engine.

    Parameters
    ----------
    samples
        A `Data`, or what `zarrfeed.open` takes: an array, a path, a URL, a group, a mapping of names to arrays. The
        chunks along the sample axis are the blocks that are shuffled; of several arrays, those of a large one with long
        chunks, which `explain()` names.
    targets
        The same, with as many samples along axis 0.
    batch_size
        Samples of a batch. None yields single samples, which are views of a larger buffer: holding one holds about
        4 MiB.
    shuffle
        Whether blocks, and rows inside them, are permuted anew in every epoch.
    seed
        Key of all permutations, in [0, 2**64). The order follows from the layout, seed, epoch, lanes and mix alone.
    drop_last
        Whether the last batch is dropped if it is short. Without effect for `batch_size=None`.
    return_index
        Whether the global sample index (int64) is added as the last tensor.
    sample_axis
        The axis of `samples`, of every array in it, whose indices are samples. A sample has the other axes, in order.
    lanes
        How many blocks are open side by side: consecutive samples come from that many blocks, at most as many as there
        are samples. None: chosen from the layout and `memory_budget`.
    mix
        How many consecutive blocks of a lane are permuted together, to mix more. None: chosen if `lanes` is, else 1.
    block
        What blocks are made of: "chunk", a chunk along `sample_axis`, which in a sharded array is an inner chunk; or
        "shard", a whole shard, for stores where requests cost more than mixing: its inner chunks are read together.
    select
        Which samples are read: a slice, distinct indices in any order, or a mask (bool). None: all. Samples keep their
        index in the array, and only chunks that hold rows of selected ones are read.
    blocks
        Which blocks are read, as indices of chunks (or of shards) along `sample_axis`, in any order. None: all. With
        `select`: what of its samples lies in them.
    rank, world_size
        Which rank this is, of how many; or `rank=` a callable that returns both, such as `rank_from_torchrun`. None:
        torch.distributed's where it is initialised, else one rank. They are looked up in the training process, when a
        pass begins, and carried into DataLoader workers.
    even
        What becomes of samples that do not fill a round on every rank: "drop" (the default where there are several
        ranks), "repeat" others until they do, or "off": some ranks have a sample, hence perhaps a batch, more.
    num_threads
        Decode threads of each reader; fewer where memory is short. None: the cores, shared by ranks and their workers.
    memory_budget
        Bytes, or text such as "2GiB": what all readers of a machine may have in flight, open or ready at once; ranks
        and workers have equal shares. Batches that you hold do not count. None: 1 GiB, and more where so small a share
        would not do.
    coalesce_gap, coalesce_limit
        For sharded arrays in stores that are not local: wanted inner chunks of a shard that are at most
        `coalesce_gap` bytes apart are read in one request of at most `coalesce_limit` bytes, or less where the memory
        is short. Bytes, or text such as "1MiB".
    pin_memory
        Whether batches lie in page-locked memory. None: where there is an accelerator.
    sample_dim
        In place of `sample_axis`, the name of the dimension, such as "time"; of targets too, where those are named.
        Arrays of a group that lack it are left out; others are refused.
    variables
        Which arrays of `samples`, a group or a mapping (of an array of records: which members); or for both sides,
        {"samples": [...], "targets": [...]}. None: all; of a group as xarray writes it, data variables but scalars.
    decode_cf
        Whether stored arrays are unpacked as xarray does it, by their `scale_factor`, `add_offset`, `_FillValue`,
        `missing_value` and `_Unsigned`: packed data and integers with a fill value become float32, NaN for fill.
    dtype
        Of the tensors of `samples`, but for coordinates such as "time": torch's, NumPy's or a name; or a mapping of
        names to dtypes, where "samples" and "targets" stand for the other arrays of that side. Any float dtype, rounded
        once; an integer one where no value is lost. None: as stored or decoded.
    normalize
        (mean, std), numbers or arrays with one a channel, or a mapping as of `dtype`: batches have (x - mean) / std.
    normalize_axis
        Which axis of the array, or dimension by its name, the channels are along.
    offsets
        Lets each sample be a window: the rows at these distances from its own, such as (-2, -1, 0, 1), along a new
        first axis of the sample; for a single integer that row, without the axis. Of every array of `samples`, or a
        mapping as of `dtype`: {"samples": (-1, 0), "targets": 1}. Those that lack a row are left out: see `explain()`.
    segment_ends
        Where the array consists of segments, such as episodes: the index after the last sample of each, ascending, the
        last one being the number of samples. No window reaches from one into another.
    window_rows
        Which rows windows may read; a sample whose window has any other row is left out. "selected": all rows between
        the bounds of a slice in `select`, or those that a list or a mask names. "all": every row of the array. Or rows,
        as `select` names samples: slice(0, 700). None: "selected", but refused where it leaves less than half of a list
        or a mask.
    on_error
        What becomes of a chunk that cannot be read or decoded: "raise", or "skip". Then each of its samples is replaced
        by the same row of the next block of the epoch that is good, the same on every rank. There is a
        `ChunkSkippedWarning` for each, and `skipped_chunks()` lists them.
    max_errors
        How many chunks a pass may skip on this rank (in a worker: in this worker) before it raises.
    missing
        What becomes of a chunk that the store lacks: "fill", the fill value, as the specification says, or "raise".
    retries
        How often a read is tried again after an error that may pass, with pauses that grow from 0.1 to 10 s.
    timeout
        Seconds that a read, also of metadata, may take, all tries included. Then it is an error, also with "skip".
    storage_options
        Options of the stores of URLs, by the names of fsspec or obstore, such as {"anon": True}. None: the environment.
    transform
        Called with every batch (or sample) in the process that iterates, or with its parts, if it requires as many
        arguments as there are parts: `def transform(samples, targets)`. What it returns is yielded.

    Yields
    ------
    `samples` alone gives a tensor of shape (batch, *sample_shape), with `targets` a tuple (samples, targets), with
    `return_index` the index behind these. A group, a mapping, or records (structured dtypes) give a dict of tensors.
    For `batch_size=None` the first axis is absent. Text, or bytes of any length, give (nested) lists for tensors.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, MemoryBudgetError
        At construction, for what cannot work.
    CorruptChunkError, StoreReadError
        From the iteration, for a chunk that cannot be decoded or read; the message names array and chunk.

    Notes
    -----
    A tensor owns its memory: a batch that you hold is never overwritten, and dropped ones are recycled. Iterating a
    second time takes the next epoch, unless `set_epoch` says which, in DataLoader workers too. Threads exist only while
    an epoch is read. After `fork`, and in a process that it was pickled to, a dataset starts afresh.
    """

    _aligns_blocks = True  # where no `blocks` are named

    @checks_option_names
    def __init__(
        self,
        samples: Source | Data,
        targets: Source | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        return_index: bool = False,
        sample_axis: int = 0,
        lanes: int | None = None,
        mix: int | None = None,
        block: BlockUnit = "chunk",
        select: Select | None = None,
        blocks: npt.ArrayLike | None = None,
        rank: RankSource = None,
        world_size: int | None = None,
        even: Even | None = None,
        num_threads: int | None = None,
        memory_budget: int | str | None = None,
        coalesce_gap: int | str = DEFAULT_COALESCE.gap,
        coalesce_limit: int | str = DEFAULT_COALESCE.limit,
        pin_memory: bool | None = None,
        sample_dim: str | None = None,
        variables: Variables | None = None,
        decode_cf: bool = True,
        dtype: TorchDtypeLike | Mapping[str, TorchDtypeLike] | None = None,
        normalize: Normalization | Mapping[str, Normalization] | None = None,
        normalize_axis: int | str | None = None,
        offsets: Offsets | Mapping[str, Offsets] | None = None,
        segment_ends: npt.ArrayLike | None = None,
        window_rows: WindowRows | None = None,
        on_error: OnError = "raise",
        max_errors: int = error_policy.DEFAULT_MAX_ERRORS,
        missing: Missing = "fill",
        retries: int = error_policy.DEFAULT_RETRIES,
        timeout: float = error_policy.DEFAULT_TIMEOUT_S,
        storage_options: Mapping[str, Any] | None = None,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        check_pin_memory(pin_memory)
        self._policy = FaultPolicy(on_error, max_errors, missing, retries, timeout)
        self._order_options = order_options(shuffle=shuffle, seed=seed, lanes=lanes, mix=mix)
        self._options = schedule_options(
            lanes=lanes,
            mix=mix,
            batch_size=batch_size,
            drop_last=drop_last,
            even=even,
            num_threads=num_threads,
            memory_budget=memory_budget,
            coalesce_gap=coalesce_gap,
            coalesce_limit=coalesce_limit,
        )
        check_flags(return_index=return_index)
        check_choice("block", block, BLOCK_UNITS)
        data = as_data(
            samples,
            targets,
            DataOptions(
                sample_axis=sample_axis,
                sample_dim=sample_dim,
                variables=variables,
                decode_cf=decode_cf,
                dtype=dtype,
                normalize=normalize,
                normalize_axis=normalize_axis,
                select=select,
                blocks=blocks,
                block=block,
                offsets=offsets,
                segment_ends=segment_ends,
                window_rows=window_rows,
                storage_options=storage_options,
            ),
            self._policy,
        )
        self._data = with_shared_rows(data)
        fields, selection = self._data.resolved.planned(
            return_index=bool(return_index),
            room=(self._options["budget"] or DEFAULT_BUDGET) // 16,
            block=None if isinstance(samples, Data) and block == "chunk" else block,
            aligns=self._aligns_blocks,
        )
        self._ranks = RankFinder(rank, world_size)
        self._pin_memory = pin_memory
        self._transform = prepare_transform(transform, len(fields.parts))
        self._read(fields, selection)

    def _read(self, fields: FieldSet, selection: Selection | None) -> None:
        """Let the dataset read these samples of these fields, from the first epoch on."""
        order = make_order(fields.num_samples, fields.block_rows, selection, **self._order_options)
        schedule = self._make_schedule(fields, order, **self._options)
        assembler = self._assembler_class(fields)
        options = SessionOptions(self._policy, self._ranks, assembler, self._transform, self._pin_memory)
        self._session = self._make_session(schedule, options)

    @classmethod
    def from_xarray(cls, samples: Any, targets: Any = None, **options: Any) -> Self:
        """Return a dataset of an `xarray.Dataset` or `DataArray` that `xarray.open_zarr` returned, or a part of it.

        Its variables are read straight from the store, but for scalars and those without `sample_dim`. `targets` may be
        such an object, too; `options` are the constructor's, and `decode_cf` is what was opened with, unless given.

        Raises
        ------
        ConfigError
            If a variable is not exactly a stored array: it was loaded, calculated, sliced, or decoded as times.
        """
        return cls(*stored_arrays(samples, targets, options), **options)

    def with_selection(self, selection: Selection) -> Self:
        """Return a dataset of the same configuration that reads other samples, from its own first epoch on."""
        other = copy.copy(self)
        other._read(self._session.schedule.fields, selection)  # noqa: SLF001 - of the same class
        return other

    _assembler_class = BatchAssembler

    def _make_session(self, schedule: Schedule, options: SessionOptions) -> Session:
        return Session(schedule, options)

    def _make_schedule(self, fields: FieldSet, order: Order, **options: Any) -> Schedule:
        return Schedule.make(fields, order, **options)

    @property
    def session(self) -> Session:
        """The epochs of this dataset in this process: for loaders, and not for users."""
        return self._session

    def __len__(self) -> int:
        """Return the number of batches of an epoch, or of samples for `batch_size=None`, on this rank."""
        check_length(self._session)
        return self._session.num_batches()

    def __iter__(self) -> Iterator[Batch]:
        """Return a pass over the next epoch, or the one that `set_epoch` named; it begins with its first batch."""
        session = self._session
        session.check_open()
        unasked = check_iteration(session)
        group = None
        if in_worker():
            end_with_training_process()
            info = torch.utils.data.get_worker_info()
            assert info is not None
            group = f"{os.getppid()}/{info.seed - info.id}"
        name = session.name_pass(group)
        new_pass = (SamplePass if session.batch_size is None else Pass)(session, name)
        if name is not None or unasked:
            new_pass.settle()  # a loader may ask for the worker's state before its first batch
        return new_pass

    def __getitem__(self, index: object) -> NoReturn:
        raise ConfigError(f"got the index {index!r}, but samples come as a stream: use ZarrDataset, or split()")

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next pass reads: any int from 0. One under way is not changed.

        In the training process this is enough for DataLoader workers too, also for persistent ones. Right after
        `load_state_dict` with a state of that very epoch, the rest of the epoch is read.
        """
        check_int("epoch", epoch, 0, _INT64_MAX)
        session = self._session
        session.check_process()
        loaded = session.upcoming()
        hint = hears_accelerate(session)  # after resuming it counts from 0, so it never leads back
        if loaded.epoch < epoch or (not hint and (loaded.lanes is None or loaded.epoch != epoch)):
            session.name_next(EpochState(int(epoch)))

    def state_dict(self) -> dict[str, Any]:
        """Return where the pass under way stands, or the next one will begin: a small JSON-able dict.

        What counts is what was handed out, on this rank, and on all others as many batches; so save between two
        steps, on any rank. A pass that was left with `break` can be resumed; at its end the next epoch's beginning is
        returned. With DataLoader workers use `ZarrDataLoader.state_dict()`.

        Raises
        ------
        ConfigError
            If the batches were handed out by DataLoader workers, so that this process cannot know how many.
        """
        return self._session.make_state_dict(self._session.state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass deliver what was left of the epoch of `state`; on the same setup, the very next batches.

        Raises
        ------
        ConfigError
            If the state is of another dataset, selection or order; the message says what differs.
        MemoryBudgetError
            If the state's lanes need more memory than there is.
        """
        self._session.load(state)

    def sample_order(self, epoch: int | None = None) -> Int64:
        """List the global sample indices in the order of delivery on this rank, without reading data.

        Parameters
        ----------
        epoch
            Which epoch, from its beginning; the next one to be read, unless given.

        Returns
        -------
        int64 array of shape (samples delivered on this rank,). DataLoader workers deliver the same samples, but each
        worker the batches of its own share.
        """
        if epoch is None:
            epoch = self._session.upcoming().epoch
        check_int("epoch", epoch, 0, _INT64_MAX)
        order: Int64 = core.sample_order(self._session.plan_of_rank(int(epoch)).to_core())
        return order

    def explain(self) -> Explanation:
        """Describe how this dataset is read: arrays, blocks, lanes, amplification, memory, quality of the shuffle.

        The figures are attributes of what is returned; `str()` of it is a page for people.
        """
        return self._session.explain()

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process)."""
        return self._session.stats()

    def skipped_chunks(self) -> list[SkippedChunk]:
        """Return what was skipped since this dataset was made (in this process): array, key, epoch and cause."""
        return self._session.skipped_chunks()

    def close(self) -> None:
        """Stop all threads and free the memory of dropped batches. May be called twice; iterating is over after it."""
        self._session.close()

    def __enter__(self) -> ZarrIterableDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def data(self) -> Data:
        """The samples that this dataset reads."""
        return self._data

    def __repr__(self) -> str:
        schedule = self._session.schedule
        order = schedule.order
        return (
            f"ZarrIterableDataset({describe(schedule.fields, order.selection)}, "
            f"batch_size={schedule.batch_size}, shuffle={order.shuffle}, lanes={order.lanes})"
        )

    def _repr_html_(self) -> str:
        schedule = self._session.schedule
        return dataset_html(schedule.fields, schedule.order, schedule.batch_size)

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None for single samples."""
        return self._session.batch_size

"""`ZarrIterableDataset`: Zarr arrays as a stream of shuffled, ready batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import knows_arguments_of_others
from zarrfeed.base.validate import check_counts
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.slab_choice import choose_schedule
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.face.data_samples import OtherWeights
from zarrfeed.metadata.group.fields import Source
from zarrfeed.metadata.patches.stitching import StitchWeights
from zarrfeed.metadata.stores.growth import disposable_in, hold_opened
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.shares.affinity import Affinity
from zarrfeed.plan.shares.partition import Even
from zarrfeed.plan.windows.windows import Offsets
from zarrfeed.report.describe import describe
from zarrfeed.report.explain import Explanation
from zarrfeed.report.notebook import dataset_html
from zarrfeed.report.value_meanings import with_meanings
from zarrfeed.spec.arrays.sharding import Requests
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import Mixing, as_options
from zarrfeed.torch.batches.batch import BatchAssembler
from zarrfeed.torch.batches.host_rows import with_shared_rows
from zarrfeed.torch.batches.static_tensors import StaticTensors
from zarrfeed.torch.batches.transform import Transform
from zarrfeed.torch.datasets.options import (
    MOVED_TO_DATA,
    MOVED_TO_LOADER,
    MOVED_TO_OPTIONS,
    StreamOptions,
    as_data,
    check_pin_memory,
    faults_for,
)
from zarrfeed.torch.datasets.stitched import first_patched, stitch
from zarrfeed.torch.datasets.streaming import StreamingDataset
from zarrfeed.torch.passes.editions import Editions
from zarrfeed.torch.passes.session import Session
from zarrfeed.torch.passes.session_options import SessionOptions
from zarrfeed.torch.ranks.distributed import RankLike

_INT64_MAX = 2**63 - 1


class ZarrIterableDataset(StreamingDataset):
    """Stream samples of Zarr arrays, shuffled and batched by a compiled engine.

    Parameters
    ----------
    data
        A `Data`, as `zarrfeed.open` returns it, which describes the samples. Or whatever `zarrfeed.open` takes as
        `samples`: a path, a URL, an array, a group, a mapping of names to arrays, or a list of these, which is many
        stores as one. The chunks along the sample axis are the blocks that are shuffled; of several arrays, those of
        the primary one, which `explain()` names.
    targets
        Arrays with as many samples along axis 0, as `targets` of `zarrfeed.open`; only if `data` is no `Data`.
    batch_size
        Samples of a batch. None yields single samples, which are views of a larger buffer: holding one holds about
        4 MiB.
    shuffle
        If True, permute the blocks, and the rows inside them, anew in every epoch.
    seed
        Key of all permutations, in [0, 2**64). The order depends only on the layout, the seed, the epoch, and the lanes
        and the mix of `mixing`; with `affinity`, also on the number of nodes.
    drop_last
        If True, drop the last batch if it is short. Without effect for `batch_size=None`.
    return_index
        If True, add the global sample index (int64) as the last tensor.
    return_coords
        Names of coordinates, such as ("time", "member"), whose values come with each batch, as a dict before the index.
        A name is one that `Data.sel` knows: a dimension of samples, another coordinate along these, a column of
        segments. Numbers are tensors, text is a list. Dates are int64 nanoseconds since 1970, and spans of time
        nanoseconds: `values.numpy().view("M8[ns]")`, "m8[ns]". A window has those of its own sample.
    rank, world_size
        The number of this rank, and how many ranks there are; or `rank=` a callable that returns both, such as
        `rank_from_torchrun`. None: torch.distributed's where it is initialised, else one rank. They are looked up in
        the training process, when a pass begins, and carried into DataLoader workers.
    even
        Treatment of the samples that do not fill a round on every rank. "drop" (the default where there are several
        ranks) leaves them out, "repeat" repeats others until the round is full. With "off", some ranks have a sample,
        hence perhaps a batch, more. An epoch in which no rank has a batch is refused.
    affinity
        "node": each node reads the same part of the blocks in every epoch. So W nodes whose caches (`zarrfeed.open(...,
        cache=...)`) hold a share c of the data each have a hit ratio of min(1, W c) instead of c. In return, batches
        are no longer the same for any world size. Samples still come exactly once, ranks are as even, and a state can
        be loaded on the same number of nodes. None: the blocks that a node reads change with the epoch.
    epoch_size
        Samples of an epoch, of all ranks together. The next epoch goes on where this one ended: `set_epoch(k)` names
        the k-th piece of the passes over all samples, each of which has every sample once, shuffled anew. So it may be
        fewer than there are, or more. None: an epoch is one pass. Mixtures, weights and patches say it by `stop` and
        `n`.
    num_threads
        Number of decode threads of each reader; fewer if memory is short. None: the cores, shared by ranks and their
        workers.
    memory_budget
        Bytes, or text such as "2GiB", that all readers of a machine may have in flight, open or ready at once; ranks
        and workers have equal shares. Batches that you hold do not count. None: a quarter of the memory that the job
        may use on the machine (control groups and Slurm are heeded), at least 1 GiB, and more if a reader cannot work
        with so small a share. Lanes and mix are then those of 1 GiB, so that all machines read one order.
    pin_memory
        If True, batches lie in page-locked memory. None: they do if there is an accelerator.
    transform
        A function that is called with every batch (or sample) in the process that iterates. If it requires as many
        arguments as a batch has parts, it is called with the parts: `def transform(samples, targets)`. The pass yields
        its result.
    mixing
        A `Mixing`, or a mapping such as {"lanes": 16}: the number of blocks that are open side by side and permuted
        together.
    faults
        A `Faults`, or a mapping such as {"on_error": "skip"}: the treatment of a chunk that cannot be read. If `data`
        is no `Data`, the retries and the timeout also apply to opening it.
    requests
        A `Requests`, or a mapping such as {"coalesce_gap": "1MiB"}: the rule by which inner chunks of a shard are read
        together.

    Yields
    ------
    A tensor of shape (batch, *sample_shape) for `samples` alone; with `targets` a tuple (samples, targets); with
    `return_coords` a dict of coordinates behind these, and with `return_index` the index at the end. A group, a
    mapping, or records (structured dtypes) give a dict of tensors.
    For `batch_size=None` the first axis is absent. Text, or bytes of any length, give (nested) lists instead of
    tensors.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, MemoryBudgetError
        At construction, if an argument is wrong, the data cannot be read, or memory is too small.
    CorruptChunkError, StoreReadError
        During iteration, for a chunk that cannot be decoded or read; the message names array and chunk.

    Notes
    -----
    A tensor owns its memory: a batch that you hold is never overwritten, and the memory of dropped batches is reused.
    Iterating a second time reads the next epoch, unless `set_epoch` names one, in DataLoader workers too. Threads exist
    only while an epoch is read. After `fork`, and in a process that it was pickled to, a dataset starts afresh.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open(np.arange(1000), np.arange(1000) % 2).select(slice(0, 100))
    >>> with zarrfeed.ZarrIterableDataset(data, batch_size=32, shuffle=True, seed=1) as dataset:
    ...     [samples.shape for samples, targets in dataset]
    [torch.Size([32]), torch.Size([32]), torch.Size([32]), torch.Size([4])]
    """

    _aligns_blocks = True  # unless the user names blocks

    @knows_arguments_of_others(MOVED_TO_DATA | MOVED_TO_OPTIONS | MOVED_TO_LOADER)
    def __init__(
        self,
        data: Data | Source,
        targets: Source | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        return_index: bool = False,
        return_coords: Sequence[str] | str | None = None,
        rank: RankLike = None,
        world_size: int | None = None,
        even: Even | None = None,
        affinity: Affinity | None = None,
        epoch_size: int | None = None,
        num_threads: int | None = None,
        memory_budget: int | str | None = None,
        pin_memory: bool | None = None,
        transform: Transform | None = None,
        mixing: Mixing | Mapping[str, Any] | None = None,
        faults: Faults | Mapping[str, Any] | None = None,
        requests: Requests | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_pin_memory(pin_memory)
        faults = as_options(Faults, "faults", faults)
        given = StreamOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            return_index=return_index,
            rank=rank,
            world_size=world_size,
            even=even,
            affinity=affinity,
            num_threads=num_threads,
            memory_budget=memory_budget,
            transform=transform,
        )
        mixing = as_options(Mixing, "mixing", mixing)
        options = given.schedule(mixing, as_options(Requests, "requests", requests))
        self._data = with_shared_rows(as_data(data, targets, faults, return_coords), faults)
        disposable = disposable_in([one.array for one in self._data.resolved.columns])
        # Each pass over a store that grows holds its own version of the arrays, so the dataset holds none.
        self._leases = () if self._data.growth is not None else hold_opened(self._data.resolved, disposable)
        check_counts(epoch_size=epoch_size)
        if epoch_size is not None and self._data.growth is not None:
            raise ConfigError("epoch_size is not for a store that is opened with refresh, whose epochs become longer")
        planning = Planning(
            bool(return_index),
            shuffle,
            seed,
            mixing,
            options,
            aligns=self._aligns_blocks,
            resident=not disposable,
            epoch_size=epoch_size,
        )
        planning, schedule = self._plan(planning)
        faults = faults_for(self._data, faults)
        assembler = self._assembler_class(schedule.fields, StaticTensors.read(self._data.resolved.statics, faults))
        session_options = given.session(faults, assembler, pin_memory=pin_memory)
        self._session = self._make_session(schedule, session_options, Editions(self._data, planning, schedule))

    _assembler_class = BatchAssembler

    def _make_session(self, schedule: Schedule, options: SessionOptions, editions: Editions) -> Session:
        return Session(schedule, options, editions)

    def _plan(self, planning: Planning) -> tuple[Planning, Schedule]:
        """Return a planning in which nothing is left to be chosen, and the schedule of the first epoch."""
        return choose_schedule(planning, self._data.resolved)

    def refresh(self) -> None:
        """Look at a store that grows before the next pass does, so that `len()` and `explain()` are of that pass.

        The next pass reads the version that is found. With several ranks, each has to call this. A pass that resumes an
        epoch reads the version that the epoch began with.

        Raises
        ------
        ConfigError
            If the store was not opened with `refresh`.
        StoreReadError
            If the store cannot be read, or its data changed or were deleted since.
        """
        self._session.refresh()

    def set_offsets(self, offsets: Offsets | Mapping[str, Offsets]) -> None:
        """Let the next pass, and those after it, read windows with other offsets, as training on longer rollouts does.

        A pass under way is not changed. In the training process this is enough for DataLoader workers too, also for
        persistent ones. A state holds the offsets of its epoch, and `load_state_dict` brings them back. The order of
        the samples stays the same as long as the same samples have all of their rows: pad windows (`Data.window(...,
        pad=)`) to keep them all.

        Parameters
        ----------
        offsets
            The new offsets, as in `Data.window`; its other arguments stay as they were.

        Raises
        ------
        ConfigError
            If the samples are no windows, the store grows, or samples were dealt by `Data.split` after `Data.window`.
        MemoryBudgetError
            If the windows need more memory than there is.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(np.arange(9)).window((0, 1)), batch_size=4)
        >>> [batch.shape[1] for batch in dataset]
        [2, 2]
        >>> dataset.set_offsets((0, 1, 2, 3))
        >>> [batch.shape[1] for batch in dataset]
        [4, 4]
        """
        resolved = self._data.with_offsets(offsets).resolved  # raises for wrong arguments
        before, after = ([info.name for info in one.infos()] for one in (self._data.resolved, resolved))
        if before != after:
            raise ConfigError(
                f"set_offsets: a batch has {', '.join(before)}, and would have {', '.join(after)}: it must keep its "
                "tensors, so zarrfeed.lead is in the first offsets and in later ones, or in none"
            )
        named = {
            one.items.name: one.window.named if one.window.stacked else one.window.named[0]
            for one in resolved.columns
            if one.window is not None
        }
        data = self._session.editions.data_with(named)
        self._session.change_edition(offsets=named)
        self._data = data

    def set_sample_weights(self, weights: OtherWeights) -> None:
        """Let samples come by other weights from the next pass on, as importance sampling and curricula do.

        A pass under way is not changed. In the training process this is enough for DataLoader workers too, also for
        persistent ones. With several ranks, each has to name the same weights. An epoch has as many samples as before.

        A state has a digest of the weights of its epoch, and not the weights. To go on with it, name the same weights,
        then call `load_state_dict`.

        Parameters
        ----------
        weights
            The new weights, as in `Data.weight`: a weight for each sample of `data`, in the order of the array, such as
            its loss in the last epoch; a sample of weight 0 does not come. For a mixture, {source: weights} of some
            sources: passes under way go on with the samples that these weights draw from there on.

        Raises
        ------
        ConfigError
            If the samples have no weights yet: call `Data.weight` or `Data.balance`. If the weights are wrong, or the
            next pass goes on with an epoch that was begun with others.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(4)).weight(np.ones(4), n=8)
        >>> with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
        ...     first = list(dataset)
        ...     dataset.set_sample_weights([0, 1, 2, 5])
        ...     first + list(dataset)
        [tensor([0, 0, 1, 1, 2, 2, 3, 3]), tensor([1, 2, 2, 3, 3, 3, 3, 3])]
        """
        data, weightings = self._data.with_weights(weights), self._session.editions.weightings
        assert weightings is not None
        counts = data.resolved.counts
        assert counts is not None
        self._session.change_edition(weights=weightings.named(counts))
        self._data = data

    def stitch(
        self,
        outputs: Iterable[tuple[Any, Any]],
        store: Any,
        *,
        weights: StitchWeights = "flat",
        dtype: str = "float32",
        memory: int | str = "256 MiB",
        overwrite: bool = False,
    ) -> Any:
        """Assemble a model's predictions for patches into one Zarr array per volume.

        Parameters
        ----------
        outputs
            Pairs of a model's output for a batch and the index of that batch, as `return_index=True` delivers it. The
            output has shape (batch, *channels, *patch) with any number of channel axes. All pairs belong to one epoch;
            they come in any order, also from a DataLoader with workers.
        store
            Destination of the array, or of the group: a path, or what `zarr.create_array` takes.
        weights
            Weights of the patches that overlap in a voxel, whose value is the weighted mean of their predictions.
            "flat": all patches count alike. "hann": a patch counts less near its faces, by sin**2 along each dimension,
            so that no seams show.
        dtype
            Dtype of the array, a floating-point one.
        overwrite
            If True, replace an array or a group that exists.
        memory
            Memory for the chunks to which patches are still added.

        Returns
        -------
        The array, of shape (*channels, *volume); axes that patches lack, such as time, come first. It is chunked as the
        first array of the patches. Voxels without a patch are NaN. For several volumes, a group of such arrays, named
        "0", "1", ... in the order of the volumes, which is that of `data.stores`.

        Raises
        ------
        ConfigError
            If samples are no patches of a grid, or if outputs do not fit in number or shape.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> volume = zarr.array(np.arange(64.0).reshape(8, 8), chunks=(4, 4))
        >>> data = zarrfeed.open(volume).patch({0: 4, 1: 4}, sampling="grid", stride={0: 2, 1: 2})
        >>> dataset = zarrfeed.ZarrIterableDataset(data, batch_size=3, return_index=True)
        >>> stitched = dataset.stitch(((2 * batch, index) for batch, index in dataset), {}, weights="hann")
        >>> bool(np.allclose(stitched[:], 2 * volume[:]))
        True
        """
        order = self._session.schedule.order
        if not isinstance(order, SweptOrder):
            raise ConfigError("stitch: the samples are no patches, which Data.patch makes, or a mixture of several")
        return stitch(
            outputs,
            store,
            field=first_patched(self._session.schedule.fields.fields),
            order=order,
            weights=weights,
            dtype=dtype,
            memory=memory,
            overwrite=overwrite,
        )

    def explain(self) -> Explanation:
        """Describe how this dataset is read: arrays, blocks, lanes, amplification, memory, quality of the shuffle.

        The figures are attributes of what is returned; `str()` of it is a page for people.
        """
        return with_meanings(self._session.explain(), self._data.resolved)

    def close(self) -> None:
        """Stop all threads and free the memory of dropped batches. May be called twice; iterating is over after it."""
        super().close()
        self._leases = ()

    @property
    def data(self) -> Data:
        """The samples that this dataset reads."""
        return self._data

    def __repr__(self) -> str:
        schedule = self._session.schedule
        order = schedule.order
        drawn = self._data.resolved.expected
        drawn_as = "" if drawn is None else f"{order.length} an epoch {drawn.how}, "
        return (
            f"ZarrIterableDataset({describe(schedule.fields, order.selection, self._session.statics)}, {drawn_as}"
            f"batch_size={schedule.options.batch_size}, shuffle={order.shuffles}, lanes={order.lanes})"
        )

    def _repr_html_(self) -> str:
        schedule = self._session.schedule
        return dataset_html(schedule.fields, schedule.order, schedule.options.batch_size, self._session.statics)

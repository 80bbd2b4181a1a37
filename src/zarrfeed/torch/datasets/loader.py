"""`ZarrDataLoader`: torch's DataLoader with the right settings for a Zarr dataset, and with a state."""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.utils.data

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.process_lock import ProcessLock
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_int
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.torch.batches.batch import Batch
from zarrfeed.torch.batches.pass_positions import CountedPass, Positions, SharedIterator
from zarrfeed.torch.batches.worker_queue import report_unsent_batches
from zarrfeed.torch.datasets.loader_passes import OverriddenPass, WorkerPass
from zarrfeed.torch.datasets.sent_batch import SentBatch, as_made
from zarrfeed.torch.datasets.streaming import StreamingDataset
from zarrfeed.torch.passes.epochs import speaking_for
from zarrfeed.torch.passes.pass_names import pass_name
from zarrfeed.torch.passes.session import Session
from zarrfeed.torch.passes.worker_shutdown import ending_workers, keep_until_shutdown
from zarrfeed.torch.ranks.accelerate import Preparation, asking_accelerator, preparation, prepared_batches
from zarrfeed.torch.ranks.lightning_loops import (
    batches_before,
    calling_loop,
    hand_over_state,
    reads_same_batches,
    warn_of_lost_state,
)


class ZarrDataLoader(torch.utils.data.DataLoader[Batch]):
    """Hand out the batches of a `ZarrIterableDataset`, from this process or from worker processes.

    The dataset makes the batches, so the loader does not collate them again, and copies them to pinned memory only if
    they do not lie there already. Without workers, which is the fast default, the engine's threads do the work. With
    workers, each worker decodes its share straight into shared memory. A worker that is killed raises an error in the
    loop; with torch's own loader the loop may wait for ever. A batch has the same types with any number of workers.

    Pass the loader to `accelerator.prepare()` of Hugging Face Accelerate as it is: every process reads its own share,
    and `accelerator.save_state()` saves how far the epoch is.

    Parameters
    ----------
    dataset
        A `ZarrIterableDataset`, or an `ObjectIterableDataset`, that has a `batch_size`.
    num_workers
        Number of worker processes. They share the threads and the memory budget of the dataset.
    pin_memory
        If True, batches from workers are copied to page-locked memory, as in torch's DataLoader. None: they are if
        there is an accelerator. Without workers the dataset's own `pin_memory` decides. With `zarrfeed.device.prefetch`
        nothing is copied on the host: the pages of the workers' memory are locked.
    prefetch_factor, multiprocessing_context, persistent_workers, timeout, worker_init_fn
        Arguments of torch's DataLoader, with the same meaning.
    sampler, batch_sampler
        None. Lightning's Trainer makes a loader anew with these arguments, to predict or with `overfit_batches`.

    Raises
    ------
    ConfigError
        If the dataset is of another class, or has no batch size; if a sampler is given.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> dataset = zarrfeed.ZarrIterableDataset(np.arange(10), batch_size=4)
    >>> loader = zarrfeed.ZarrDataLoader(dataset)
    >>> for batch in loader:
    ...     print(batch)
    ...     state = loader.state_dict()  # for the checkpoint
    tensor([0, 1, 2, 3])
    tensor([4, 5, 6, 7])
    tensor([8, 9])
    """

    # accelerate reads these attributes of a loader that it prepared: True at the last batch of a pass, the number of
    # samples in it that are not repeated ones, and True for a loader with a state.
    end_of_dataloader = False
    remainder = -1
    use_stateful_dataloader = True
    _preparation: Preparation | None = None

    @checks_option_names
    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        sampler: None = None,
        batch_sampler: None = None,
    ) -> None:
        if sampler is not None or batch_sampler is not None:
            raise ConfigError("sampler, batch_sampler: must be None, as the dataset's order decides which samples come")
        if isinstance(worker_init_fn, _WorkerInit):
            worker_init_fn = worker_init_fn.function
        if not isinstance(dataset, StreamingDataset):
            raise ConfigError(f"dataset: got a {type(dataset).__name__}, must be a ZarrIterableDataset")
        check_int("num_workers", num_workers, 0)
        if dataset.batch_size is None:
            raise ConfigError("the dataset has no batch_size: give it one, and batches are made while decoding")
        if pin_memory is None:
            pin_memory = num_workers > 0 and dataset.session.wants_pinned()
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory and num_workers > 0,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            persistent_workers=persistent_workers,
            timeout=timeout,
            worker_init_fn=_WorkerInit(worker_init_fn),
            collate_fn=as_made,
        )
        self._positions: Positions[Cursor] = Positions()
        self._starting = ProcessLock()
        self._serving: weakref.ref[WorkerPass] | None = None  # the pass that has the persistent workers
        self._has_pinning_workers = False  # torch's thread pins the batches of the last workers
        hint = _EpochHint(dataset, self._positions)
        object.__setattr__(self, "sampler", hint)  # torch keeps others from replacing it
        dataset.session.check_memory(num_workers)

    def __repr__(self) -> str:
        return f"ZarrDataLoader({self.dataset!r}, num_workers={self.num_workers})"

    @property
    def session(self) -> Session:
        """The epochs of the dataset in this process: for passes, and not for users."""
        return self._stream.session

    @property
    def _stream(self) -> StreamingDataset:
        return cast(StreamingDataset, self.dataset)

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank."""
        return len(self._stream)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Return a pass over the next epoch; it begins, and starts workers, with its first batch."""
        if self._preparation is not None:
            return SharedIterator(prepared_batches(self, self._preparation))
        return self.own_batches()

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next pass of this loader reads. One under way is not changed, and keeps its state."""
        with speaking_for(self._positions):
            self._stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the pass under way, or the beginning of the next one, as a small JSON-able dict.

        The state counts the batches that this loader handed out: not those that workers have prefetched, and not those
        that other loaders read of the same dataset. If several passes are under way, it is the state of the one that
        handed out a batch last; a pass that handed out a single batch before a later pass began was a look at the data,
        and does not count. A run that loads the state with the same ranks, workers and batch size delivers the batches
        that would have come next. With others, it delivers the same samples in other batches.
        """
        positions = self._positions
        state = self.session.state_of(positions.latest(), positions) or self.session.upcoming(positions)
        return self.session.make_state_dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass of this loader deliver the rest of the epoch of `state`.

        A pass that somebody else begins over the dataset before that reads a whole epoch.

        Raises
        ------
        ConfigError
            If the state is of another dataset, selection or order.
        """
        with speaking_for(self._positions):
            self._stream.load_state_dict(state)
        self._positions.forget()
        cast(_EpochHint, self.sampler).is_told = True

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True if accelerate is to take the loader as it is. accelerate reads and later sets this attribute."""
        asking = asking_accelerator()
        if asking is not None:
            self._preparation = preparation(asking, self.session.rank_info())
            self.session.is_gathered = self._preparation is not None
        return self._preparation is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        pass

    def own_batches(self) -> CountedPass:
        """Return a pass over the next epoch, whatever library prepared the loader."""
        new: Iterator[Batch] = WorkerPass(self) if self.num_workers else iter(self._stream)
        if not isinstance(new, CountedPass):  # of a subclass whose __iter__ the user wrote
            new = OverriddenPass(self.session, new)
        return new.report_to(self._positions)

    def start_workers(self, new: WorkerPass) -> tuple[Cursor, Iterator[SentBatch]]:
        """Begin a pass: take an epoch, and return its cursor and the batches of workers that read it.

        Threads may start passes at once. A pass gets persistent workers if no other pass is reading from them, and new
        workers otherwise: torch would let them leave the pass that they are in.
        """
        with self._starting.held:
            serving = None if self._serving is None else self._serving()
            if serving is not None and not serving.lend_workers():
                self._iterator = None  # they end with the pass that they serve
            pins, context = self.pin_memory, self.multiprocessing_context
            if pins and new.pins and not self._has_pinning_workers:
                self._iterator = None  # they began for a pass that pinned by itself
            if getattr(self, "_iterator", None) is None:
                self._has_pinning_workers = pins and new.pins
                self.worker_init_fn = cast(_WorkerInit, self.worker_init_fn).for_new_group()
            try:
                name = cast(_WorkerInit, self.worker_init_fn).name_pass()
                with self.session.beginning.held:
                    cursor = self.session.settle_for_workers(name, self.num_workers, self._positions)
                self.collate_fn = SentBatch  # of the workers of this loader, not of one that a library makes of it
                self.pin_memory = self._has_pinning_workers
                self.multiprocessing_context = ending_workers(context, self.num_workers)
                batches = cast(Iterator[SentBatch], super().__iter__())
                keep_until_shutdown(batches)
            except BaseException:  # workers that stay would be one pass behind, or some of them would
                self._iterator = None
                raise
            finally:
                self.collate_fn, self.pin_memory, self.multiprocessing_context = as_made, pins, context
            self._serving = weakref.ref(new) if self.persistent_workers else None
            return cursor, batches

    def drop_workers(self, served: WorkerPass) -> None:
        """Let the next pass start new workers, if a pass that was interrupted has the persistent ones."""
        with self._starting.held:
            if self._serving is not None and self._serving() is served:
                self._iterator = None


class _EpochHint(torch.utils.data.Sampler[None]):
    """Takes the place of torch's sampler for iterable datasets, to hear which epoch a framework is in.

    Lightning tells a loader's sampler before each epoch. It does not load the loader's state from a checkpoint of the
    end of an epoch, and may make loaders anew for every epoch: the hint keeps such a loader from beginning with the
    order of epoch 0 again. Others count from 0 after resuming, so a hint never leads back, and never ends a rest.
    With a hint of Lightning, the loader also gets a state that Lightning did not hand over (`lightning_loops.py`).
    """

    def __init__(self, dataset: StreamingDataset, positions: Positions[Cursor]) -> None:
        self._dataset = dataset
        self._positions = positions
        self.is_told = False  # whether the loader was given a state since the last hint

    def __iter__(self) -> Iterator[None]:
        """Ask for a batch without an index, as often as wanted."""
        return itertools.repeat(None)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read this epoch, if it would read an earlier one."""
        session, loop = self._dataset.session, calling_loop()
        with speaking_for(self._positions):
            if loop is not None:
                if reads_same_batches(loop):
                    epoch = 0
                    session.name_next(session.upcoming().at_epoch(epoch))
                elif not hand_over_state(loop, self) and not self.is_told and (batches := batches_before(loop)):
                    warn_of_lost_state(epoch, batches)
            self.is_told = False
            if session.upcoming().epoch < epoch:
                self._dataset.set_epoch(epoch)


class _WorkerInit:
    """The first function that a worker runs. It tells the worker its group of workers, then calls the user's function.

    The passes of a group are counted on both sides, so that each has a name before it begins.
    """

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function
        self._group = uuid.uuid4().hex
        self._passes = 0

    def for_new_group(self) -> _WorkerInit:
        """Return a copy for a new group of workers."""
        return _WorkerInit(self.function)

    def name_pass(self) -> str:
        """Return the name of the group's next pass."""
        self._passes += 1
        return pass_name(self._group, self._passes - 1)

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        report_unsent_batches()
        info = torch.utils.data.get_worker_info()
        assert info is not None
        if self._passes and isinstance(info.dataset, StreamingDataset):  # else another loader's workers call this
            info.dataset.session.names.join_group(self._group)  # a forked worker has names of its own
        if self.function is not None:
            self.function(worker)

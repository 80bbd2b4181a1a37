"""`Session`: the epochs of one dataset in one process, as passes, loaders and reports see them.

The dataset is the face of a session: it checks arguments and documents them. The session knows the schedule, which
epoch comes next, which pass is under way, and the readers. Pickling and copying carry the configuration and the table
of epochs; whatever belongs to a process is made anew in another process, also after a fork.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from zarrfeed.base.errors import ClosedError, ConfigError
from zarrfeed.base.process_lock import ProcessLock
from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.reader_pool import EpochReader, ReaderPool, Running
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.stores.array_watch import ArrayWatch
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.empty_epoch import check_has_batches
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.resources import Resources
from zarrfeed.plan.schedule.state import EpochState, longest_in, make_state_dict, read_state_dict, version_in
from zarrfeed.plan.shares.partition import Consumer, RankInfo
from zarrfeed.report.explain import Explanation, explain_schedule
from zarrfeed.report.rank_sharing import warn_of_sharing
from zarrfeed.report.shuffle_advice import warn_of_shuffle
from zarrfeed.spec.static import StaticField
from zarrfeed.spec.version import Version
from zarrfeed.storage.append.eviction import Lease
from zarrfeed.torch.batches.accelerators import has_accelerator
from zarrfeed.torch.batches.pass_positions import Positions
from zarrfeed.torch.batches.tensors import Tensors, pinned_memory
from zarrfeed.torch.batches.worker_memory import WorkerMemory
from zarrfeed.torch.passes.epochs import EpochTable, State
from zarrfeed.torch.passes.pass_names import PassNames
from zarrfeed.torch.passes.rollouts import Rollouts, offsets_in
from zarrfeed.torch.passes.session_options import SessionOptions
from zarrfeed.torch.passes.versions import Versions
from zarrfeed.torch.ranks.callers import check_resumed_epoch
from zarrfeed.torch.ranks.distributed import in_worker, rank_in_node, worker_and_count
from zarrfeed.torch.ranks.launchers import warn_of_launcher

#: What belongs to one process, and is made anew in another.
_OF_PROCESS = {"_pid", "readers", "_past_readers", "_past_stats", "_past_skipped"}
_OF_PROCESS |= {"passes", "resumed", "names", "watch"}


class Session:
    """The epochs of one dataset in one process.

    Parameters
    ----------
    schedule
        What is read when.
    options
        How it is read.
    versions
        If the store grows: its versions. `schedule` is then of the version that the last pass reads.

    Attributes
    ----------
    passes
        The passes that were begun in this process, by the dataset or by a loader, in the order in which they began.
    beginning
        Held by a thread while a pass of it begins: passes of two threads may read two versions of a store.
    names
        Names the passes of this process, if it is a DataLoader worker.
    resumed
        The state of a DataLoader worker that the next pass begins with.
    is_gathered
        Whether a library puts together what the ranks make of a batch (`torch/ranks/accelerate.py`).
    watch
        Remembers what earlier passes saw of the metadata documents.
    rollouts
        Of samples that are windows: the schedules by their offsets. `schedule` is then of those that the last pass has.
    """

    def __init__(self, schedule: Schedule, options: SessionOptions, versions: Versions | None = None) -> None:
        self.schedule = schedule
        self._versions = versions
        self.rollouts: Rollouts | None = None
        self.is_gathered = False
        self.options = options
        self.closed = False
        self.beginning = ProcessLock()
        self.reset_process()
        self.check_memory()
        rank_info = self._rank_in_node()
        warn_of_sharing(self._schedule_of(rank_info), rank_info)
        warn_of_shuffle(self._schedule_of(rank_info), rank_info)
        if versions is None:  # a store that grows may have too few samples yet
            self._check_has_batches(EpochState(0), rank_info, rank_info.consumer())
        self.epochs = EpochTable(EpochState(0).to_json())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.reset_process()

    def reset_process(self) -> None:
        """Forget engines and passes: they belong to the process that made them."""
        self._pid = os.getpid()
        self.readers = self._new_readers()
        self._past_readers: list[ReaderPool] = []  # of versions before
        self._past_stats = Stats()
        self._past_skipped: list[SkippedChunk] = []
        self.passes: Positions[Cursor] = Positions()
        self.resumed: EpochState | None = None
        self.names = PassNames()
        self.watch = ArrayWatch(self.options.policy)

    @property
    def cursor(self) -> Cursor | None:
        """Progress of the pass that was begun last in this process."""
        return self.passes.last

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None for single samples."""
        return self.schedule.options.batch_size

    @property
    def statics(self) -> tuple[StaticField, ...]:
        """What is the same in all batches."""
        return self.options.assembler.statics.fields

    def check_process(self) -> None:
        """Start afresh in a forked process: the threads of its parent are not here."""
        if os.getpid() != self._pid:
            self.reset_process()

    def check_open(self) -> None:
        """Raise ClosedError if the dataset was closed."""
        self.check_process()
        if self.closed:
            raise ClosedError("this dataset was closed")

    def close(self) -> None:
        """Stop all threads, and free the memory of dropped batches."""
        self.check_process()
        self.closed = True
        for readers in (self.readers, *self._past_readers):
            readers.close()

    def stats(self) -> Stats:
        """Return the counters of this process."""
        self.check_process()
        return sum((readers.stats() for readers in (*self._past_readers, self.readers)), self._past_stats)

    def skipped_chunks(self) -> list[SkippedChunk]:
        """Return the chunks that were skipped in this process."""
        self.check_process()
        pools = (*self._past_readers, self.readers)
        return self._past_skipped + [chunk for readers in pools for chunk in readers.skipped()]

    def rank_info(self) -> RankInfo:
        """Return which rank reads, of how many."""
        return replace(self.options.ranks.find(), is_gathered=self.is_gathered)

    def _rank_in_node(self) -> RankInfo:
        """Return which rank reads, of how many that divide one epoch order: with affinity, those of its node."""
        rank = self.rank_info()
        return rank if self.options.affinity is None else rank_in_node(rank)

    def num_batches(self) -> int:
        """Return the number of batches (samples, without a batch size) of an epoch on this rank."""
        rank_info = self._rank_in_node()
        schedule = self._schedule_of(rank_info)
        division = schedule.division(self._typical(schedule), rank_info.consumer())
        return division.batches(rank_info.rank, rank_info.node)

    def _typical(self, schedule: Schedule) -> EpochState:
        """Return the beginning of an epoch that is like all others; of patches, which differ, of the next one."""
        if not isinstance(schedule.order, SweptOrder | MixedOrder):
            return EpochState(0)
        upcoming = self.upcoming()
        return upcoming.at_epoch(upcoming.epoch if isinstance(schedule.order, SweptOrder) else 0)

    def check_memory(self, num_workers: int = 0, *, state: EpochState | None = None) -> None:
        """Raise MemoryBudgetError if the budget is too small for a reader in each of `num_workers` workers a rank."""
        state, rank_info = state or EpochState(0), self._rank_in_node()
        self._schedule_of(rank_info, state.version).check_memory(rank_info, num_workers, state)

    def wants_pinned(self) -> bool:
        """Return whether batches are to lie in page-locked memory."""
        pins = self.options.pin_memory
        return has_accelerator() if pins is None else pins

    def plan_of_rank(self, epoch: int) -> ReadPlan:
        """Return what this rank reads in an epoch, without workers, from its beginning."""
        rank_info = self._rank_in_node()
        schedule, consumer = self._schedule_of(rank_info), rank_info.consumer()
        return schedule.reading(schedule.settle(self.upcoming().at_epoch(epoch), consumer), consumer)

    def explain(self) -> Explanation:
        """Describe how this rank reads an epoch, without workers."""
        rank_info, upcoming = self._rank_in_node(), self.upcoming()
        schedule = self._schedule_of(rank_info)
        return explain_schedule(
            schedule,
            rank_info,
            self._typical(schedule),
            pinned=self._pins(),
            statics=self.statics,
            resumed=None if upcoming.lanes is None else upcoming,
        )

    # Which version of the store is read

    def refresh(self) -> None:
        """Look at the store on all ranks, and let the next pass read what is found, unless it resumes an epoch.

        Raises
        ------
        ConfigError
            If the store was not opened with `refresh`.
        """
        self.check_open()
        if self._versions is None:
            raise ConfigError("the store was not opened with refresh='epoch', so it is read as it was then")
        version = self._versions.look(self.rank_info())
        upcoming = self.upcoming()
        if upcoming.lanes is None:
            self.epochs.name_next(replace(upcoming, version=version).to_json(), named=self.epochs.is_named())
            self._adopt(version)

    def set_offsets(self, offsets: Mapping[str, Any]) -> Data:
        """Let the next pass, and those after it, have windows with other offsets; return what is read then.

        Raises
        ------
        ConfigError, MemoryBudgetError
            If the offsets do not work, or the next pass goes on with an epoch that was begun with others.
        """
        self.check_open()
        if self.rollouts is None:
            raise ConfigError("set_offsets is for samples that are windows, of a store that does not grow")
        schedule, upcoming = self.rollouts.schedule(offsets), self.upcoming()
        if upcoming.lanes is not None and upcoming.offsets != offsets:
            raise ConfigError("the next pass goes on with an epoch that was begun with other offsets: set_epoch first")
        rank_info = self._rank_in_node()
        consumer = rank_info.consumer()
        state = EpochState(0)
        schedule.resources(schedule.order_of(schedule.settle(state, consumer)), rank_info, consumer)
        self.epochs.name_next(replace(upcoming, offsets=offsets).to_json(), named=self.epochs.is_named())
        self._adopt_offsets(offsets)
        return self.rollouts.data(offsets)

    def _adopt_offsets(self, offsets: Mapping[str, Any] | None) -> None:
        """Read windows with other offsets from now on; passes that run go on with theirs."""
        if self.rollouts is None or offsets == self.rollouts.current:
            return
        self.schedule = self.rollouts.schedule(offsets)
        self.rollouts.current = offsets
        self._renew_readers()

    def hold(self, version: Version | None) -> tuple[Lease, ...]:
        """Return what keeps the samples of a version from being deleted, as long as it is referred to."""
        return () if self._versions is None or version is None else self._versions.hold(version)

    def _found(self, loader: object) -> State | None:
        """Look at the store for the next pass, on all ranks; None: it does not grow, or the pass has its version."""
        return None if self._versions is None or "store" in self.epochs.next_of(loader) else self._look()

    def _look(self) -> State:
        assert self._versions is not None
        return self._versions.look(self.rank_info()).to_json()

    def _adopt(self, version: Version | None) -> None:
        """Read another version from now on; passes that run go on with theirs."""
        if self._versions is None or version is None or version == self._versions.current:
            return
        self.schedule = self._schedule_of_all(version)
        self._versions.current = version
        self._renew_readers()

    def _renew_readers(self) -> None:
        """Let passes that begin now have readers of another schedule."""
        self.readers.retire()
        self._past_readers.append(self.readers)
        self.readers = self._new_readers()
        for readers in [one for one in self._past_readers if not one.is_busy]:
            self._past_readers.remove(readers)
            self._past_stats = self._past_stats + readers.stats()
            self._past_skipped += readers.skipped()

    def _schedule_of_all(self, version: Version | None) -> Schedule:
        """Return the schedule of a version, of the samples of all nodes."""
        return self.schedule if self._versions is None or version is None else self._versions.schedule(version)

    def _schedule_of(self, rank_info: RankInfo, version: Version | None = None) -> Schedule:
        """Return the schedule of what this rank's node reads of a version."""
        schedule = self._schedule_of_all(version)
        return schedule if rank_info.num_nodes == 1 else schedule.for_node(rank_info.node, rank_info.num_nodes)

    def _new_readers(self) -> ReaderPool:
        return ReaderPool(partial(self._make_reader, self.schedule))

    def _make_reader(self, schedule: Schedule, resources: Resources, arrays: BatchArrays) -> EpochReader:
        """Return a reader of what a schedule reads."""
        return Reader(
            schedule.fields.fields,
            batch_size=schedule.engine_batch_size,
            num_threads=resources.memory.num_threads,
            memory=resources.memory,
            arrays=arrays,
            policy=self.options.policy,
        )

    def _parsed(self, json: State) -> EpochState:
        """Return the state that a document of the table holds."""
        schedule = self._schedule_of_all(version_in(json))
        if self.rollouts is not None:
            schedule = self.rollouts.schedule(offsets_in(json))
        return EpochState.from_json(json, longest_in(json, schedule.part))

    # Which epoch comes next

    def upcoming(self, loader: object = None) -> EpochState:
        """Return the state in which the next pass of a loader begins; None: of the loader that loaded one, if any."""
        return self.resumed or self._parsed(self.epochs.next() if loader is None else self.epochs.next_of(loader))

    def name_next(self, state: EpochState) -> None:
        """Let the next pass begin in a state."""
        self.resumed = None
        self.epochs.name_next(state.to_json())

    def state_of(self, cursor: Cursor | None, loader: object = None) -> EpochState | None:
        """Return where a pass (of a loader) stands; None: there was none, or a user named the state of the next one."""
        if cursor is None:
            return None
        keeps = cursor.in_worker or cursor.under_way
        if not keeps and (self.resumed is not None or self.epochs.is_named(loader)):
            return None
        return cursor.stand(at_end=False)

    def state(self) -> EpochState:
        """Return where the pass stands that was begun last, or the state in which the next one begins.

        Raises
        ------
        ConfigError
            If the batches were handed out by DataLoader workers, so that this process cannot know how many.
        """
        self.check_process()
        if not in_worker() and self.epochs.moved_by_workers():
            raise ConfigError(
                "batches were handed out by DataLoader workers, and this process cannot know how many: ask a "
                "ZarrDataLoader for its state_dict(), or name the epoch that comes next with set_epoch()"
            )
        return self.state_of(self.passes.last) or self.upcoming()

    def load(self, state: dict[str, Any]) -> None:
        """Let the next pass deliver what was left of the epoch of `state`."""
        self.check_process()
        loaded = self.read_state_dict(state)
        self.passes.forget()
        if loaded.worker is None:
            self.name_next(loaded)
        else:
            self.resumed = loaded
            self.epochs.name_next(loaded.following().to_json())

    def make_state_dict(self, state: EpochState) -> dict[str, Any]:
        """Return a state as a small JSON-able dict, with what its order depends on."""
        described = None  # the version that the description of order and layout is of
        if self._versions is not None:
            described = state.version or self._versions.current
        schedule = self._schedule_of(self._rank_in_node(), described)
        made = make_state_dict(state, schedule.part, schedule.fields.fields)
        return made if described is None or state.version is not None else {**made, "seen": described.to_json()}

    def read_state_dict(self, state: object) -> EpochState:
        """Return the state of such a dict.

        Raises
        ------
        ConfigError, MemoryBudgetError
            If the state is of other data or of another order, or its lanes need more memory than there is.
        StoreReadError
            If the store no longer holds the version of the state.
        """
        version = None
        if self._versions is not None:
            version = self._versions.saved_in(state)
            self._versions.check(version)
        elif isinstance(state, Mapping) and ("store" in state or "seen" in state):
            raise ConfigError("the state is of a store that grows: open it with zarrfeed.open(..., refresh='epoch')")
        if self.rollouts is not None:
            self._adopt_offsets(offsets_in(state))
        elif offsets_in(state) is not None:
            raise ConfigError("the state has offsets of windows, and the samples are none: call Data.window()")
        schedule = self._schedule_of(self._rank_in_node(), version)
        loaded = read_state_dict(state, schedule.part, schedule.fields.fields, any_mix=schedule.options.mix is None)
        self.check_memory(state=loaded)
        return loaded

    # Passes

    def _rank_of_pass(self) -> RankInfo:
        """Return which rank a pass that begins now is for; say so if each rank reads everything unasked."""
        if self.options.ranks.is_unknown():
            warn_of_launcher(self.epochs.is_first)
        return self._rank_in_node()

    def _check_has_batches(self, begin: EpochState, rank_info: RankInfo, consumer: Consumer) -> None:
        """Raise ConfigError if a whole epoch has no batch on any rank; a rest may have none."""
        if not begin.used and not self.options.may_be_empty:
            check_has_batches(self._schedule_of(rank_info), begin, consumer)

    def settle(self, name: str | None, loaded: EpochState | None, loader: Positions[Cursor] | None = None) -> Cursor:
        """Settle in which state a pass begins, and remember it as the pass under way.

        Parameters
        ----------
        name
            In a DataLoader worker, what all workers of the pass call it.
        loaded
            The state that was loaded for this pass; None: the dataset's next.
        loader
            The loader that begins the pass, by its positions; None: no loader of ours does.
        """
        rank_info = self._rank_of_pass()  # before an epoch is taken: an error takes none
        consumer = rank_info.consumer(*worker_and_count())
        begin, self.resumed = loaded or self.resumed, None
        if begin is not None:
            self.epochs.name_next(begin.following().to_json(), named=False)
        else:
            if name is None:
                json = self.epochs.begin(store=self._found(loader), loader=loader)
            else:
                look = None if self._versions is None else self._look
                json = self.epochs.join(name, consumer.worker, consumer.num_workers, look)
            begin = self._parsed(json)
        if self._versions is not None and begin.version is None:  # a state of the beginning of an epoch was loaded
            if in_worker():
                raise ConfigError("the state names no version of the store, and a worker must not look by itself")
            begin = replace(begin, version=self._versions.look(self.rank_info()))
        self._adopt(begin.version)
        self._adopt_offsets(begin.offsets)
        check_resumed_epoch(begin.epoch)
        self._check_has_batches(begin, rank_info, consumer)
        return self.passes.put_last(Cursor.at(self._schedule_of(rank_info), begin, consumer, in_worker=in_worker()))

    def settle_for_workers(self, name: str, num_workers: int, loader: object) -> Cursor:
        """Settle a pass of DataLoader workers in their training process; they will find it under `name`."""
        self.check_open()
        rank_info = self._rank_of_pass()
        state = self._parsed(self.epochs.begin(name, store=self._found(loader), loader=loader))
        self._adopt(state.version)
        self._adopt_offsets(state.offsets)
        consumer = rank_info.consumer(num_workers=num_workers)
        self._check_has_batches(state, rank_info, consumer)
        return self.passes.put_last(Cursor.at(self._schedule_of(rank_info), state, consumer, in_worker=in_worker()))

    def readers_for(self, cursor: Cursor) -> ReaderPool:
        """Return the readers of the version that a pass reads."""
        self._adopt(cursor.begin.version)  # another pass may have been settled since this one was
        self._adopt_offsets(cursor.begin.offsets)
        return self.readers

    def start_reader(self, running: Running, cursor: Cursor) -> None:
        """Give a pass a reader of `readers` that reads what its cursor says.

        Raises
        ------
        MemoryBudgetError
            If this consumer's share of the budget is too small.
        StoreReadError
            If an array is gone.
        ClosedError
            If another thread closed the dataset meanwhile.
        """
        rank_info = self._rank_in_node()
        schedule = self._schedule_of(rank_info)
        resources = schedule.resources(schedule.order_of(cursor.begin), rank_info, cursor.consumer)
        plan = schedule.reading(cursor.begin, cursor.consumer, resources)
        memory = resources.memory
        arrays: BatchArrays = Tensors()
        if self._pins():
            arrays = Tensors(pinned_memory)
        elif in_worker():
            arrays = Tensors(WorkerMemory(memory.batch_bytes))
        self.readers.start(running, plan, resources, arrays)

    def _pins(self) -> bool:
        return self.wants_pinned() and not in_worker()  # a loader pins what its workers send, in its own process

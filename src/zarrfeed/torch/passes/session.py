"""`Session`: the epochs of one dataset in one process, as passes, loaders and reports see them.

The dataset is the face of a session: it checks arguments and documents them. The session knows the schedule, which
epoch comes next, which pass is under way, and the readers. Pickling and copying carry the configuration and the table
of epochs; whatever belongs to a process is made anew in another process, also after a fork.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from zarrfeed.base.errors import ClosedError, ConfigError
from zarrfeed.base.per_process import PerProcess
from zarrfeed.base.process_lock import ProcessLock
from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.reader_pool import EpochReader, ReaderPool, Running
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.metadata.stores.array_watch import ArrayWatch
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.empty_epoch import check_has_batches
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.order_terms import OrderTerms
from zarrfeed.plan.schedule.resources import Resources
from zarrfeed.plan.schedule.state import EpochState, make_state_dict, read_state_dict
from zarrfeed.plan.shares.partition import Consumer, Division, RankInfo
from zarrfeed.plan.shares.runs import RunDivision
from zarrfeed.report.explain import Explanation, explain_schedule
from zarrfeed.report.rank_sharing import warn_of_sharing
from zarrfeed.report.shuffle_advice import warn_of_shuffle
from zarrfeed.spec.description.edition import Edition
from zarrfeed.spec.description.version import Version
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.storage.append.eviction import Lease
from zarrfeed.torch.batches.accelerators import has_accelerator
from zarrfeed.torch.batches.pass_positions import Positions
from zarrfeed.torch.batches.tensors import Tensors, pinned_memory
from zarrfeed.torch.batches.worker_memory import WorkerMemory
from zarrfeed.torch.passes.editions import Editions
from zarrfeed.torch.passes.epochs import EpochTable, State
from zarrfeed.torch.passes.pass_names import PassNames
from zarrfeed.torch.passes.process_state import ProcessState
from zarrfeed.torch.passes.session_options import SessionOptions
from zarrfeed.torch.ranks.callers import check_resumed_epoch
from zarrfeed.torch.ranks.distributed import in_worker, rank_in_node, worker_and_count
from zarrfeed.torch.ranks.launchers import warn_of_launcher
from zarrfeed.torch.ranks.same_order import SameOrder


class Session:
    """The epochs of one dataset in one process.

    Parameters
    ----------
    schedule
        The schedule of the dataset's epochs, in the edition that the last pass reads.
    options
        The options by which the dataset is read, beside its schedule.
    editions
        The editions that epochs may read. None: all epochs read the same.

    Attributes
    ----------
    beginning
        Lock that a thread holds while a pass of it begins: passes of two threads may read two versions of a store.
    is_gathered
        True if a library gathers the batches of the ranks (`torch/ranks/accelerate.py`).
    """

    def __init__(self, schedule: Schedule, options: SessionOptions, editions: Editions | None = None) -> None:
        self.schedule = schedule
        self.editions = Editions() if editions is None else editions
        self.is_gathered = False
        self.options = options
        self.closed = False
        self.beginning = ProcessLock()
        self._begin_here()
        rank_info = self._rank_in_node()
        of_node, consumer = self._schedule_of(rank_info), rank_info.consumer()
        of_node.check_memory(rank_info, 0, EpochState(0))
        warn_of_sharing(of_node, rank_info)
        warn_of_shuffle(of_node, rank_info, self.editions.alternatives)
        if self.editions.versions is None:  # a store that grows may have too few samples yet
            self._check_has_batches(of_node.division(EpochState(0), consumer), consumer)
        self.epochs = EpochTable(EpochState(0, edition=self.editions.current.lasting).to_json())
        self._same_order = self._new_comparison()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_here()

    def _begin_here(self) -> None:
        self._own = PerProcess(lambda: ProcessState(self._new_readers(), ArrayWatch(self.options.policy)))

    @property
    def readers(self) -> ReaderPool:
        """The readers of this process, of passes that begin now."""
        return self._own.here.readers

    @property
    def passes(self) -> Positions[Cursor]:
        """The passes that were begun in this process, by the dataset or by a loader, in the order of their begin."""
        return self._own.here.passes

    @property
    def names(self) -> PassNames:
        """Names the passes of this process, if it is a DataLoader worker."""
        return self._own.here.names

    @property
    def watch(self) -> ArrayWatch:
        """Remembers the metadata documents that earlier passes saw."""
        return self._own.here.watch

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
        """The fields whose values are the same in all batches."""
        return self.options.assembler.statics.fields

    def check_open(self) -> None:
        """Raise ClosedError if the dataset was closed."""
        if self.closed:
            raise ClosedError("this dataset was closed")

    def close(self) -> None:
        """Stop all threads, and free the memory of dropped batches."""
        self.closed, here = True, self._own.here
        for readers in (here.readers, *here.past_readers):
            readers.close()

    def stats(self) -> Stats:
        """Return the counters of this process."""
        here = self._own.here
        return sum((readers.stats() for readers in (*here.past_readers, here.readers)), here.past_stats)

    def skipped_chunks(self) -> list[SkippedChunk]:
        """Return the chunks that were skipped in this process."""
        here = self._own.here
        pools = (*here.past_readers, here.readers)
        return here.past_skipped + [chunk for readers in pools for chunk in readers.skipped()]

    def rank_info(self) -> RankInfo:
        """Return the rank that reads, and the number of ranks."""
        return replace(self.options.ranks.find(), is_gathered=self.is_gathered)

    def _rank_in_node(self) -> RankInfo:
        """Return the rank that reads, and the number of ranks that share its epoch order: with affinity, its node's."""
        rank = self.rank_info()
        return rank if self.options.affinity is None else rank_in_node(rank)

    def num_batches(self) -> int:
        """Return the number of batches (samples, without a batch size) of an epoch on this rank."""
        rank_info = self._rank_in_node()
        schedule = self._schedule_of(rank_info)
        division = schedule.division(self._typical(schedule), rank_info.consumer())
        return division.batches(rank_info.rank, rank_info.node)

    def _typical(self, schedule: Schedule) -> EpochState:
        """Return the beginning of a typical epoch. Epochs of patches differ in length: of these, the next one."""
        upcoming = self.upcoming()
        return upcoming.at_epoch(schedule.order.typical_epoch(upcoming.epoch))

    def check_memory(self, num_workers: int = 0, *, state: EpochState | None = None) -> None:
        """Raise MemoryBudgetError if the budget is too small for a reader in each of `num_workers` workers a rank."""
        rank_info = self._rank_in_node()
        schedule = self._schedule_of(rank_info, None if state is None else state.edition)
        schedule.check_memory(rank_info, num_workers, state or EpochState(0))

    def wants_pinned(self) -> bool:
        """Return whether batches are to lie in page-locked memory."""
        pins = self.options.pin_memory
        return has_accelerator() if pins is None else pins

    def plan_of_rank(self, epoch: int) -> ReadPlan:
        """Return the plan of this rank for an epoch, without workers, from its beginning."""
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
            alternatives=self.editions.alternatives,
        )

    # Versions and editions of the data

    def refresh(self) -> None:
        """Look at the store on all ranks, and let the next pass read the version found, unless it resumes an epoch.

        Raises
        ------
        ConfigError
            If the store was not opened with `refresh`.
        """
        self.check_open()
        if self.editions.versions is None:
            raise ConfigError("the store was not opened with refresh='epoch', so it is read as it was then")
        version = self._look()
        upcoming = self.upcoming()
        if upcoming.lanes is None:
            self._name_edition(upcoming, replace(upcoming.edition, version=version))

    def change_edition(self, **changes: Any) -> None:
        """Let the next pass, and those after it, read an edition with other offsets, or with other weights.

        Raises
        ------
        ConfigError, MemoryBudgetError
            If they do not work, or the next pass goes on with an epoch that was begun with others.
        """
        self.check_open()
        upcoming = self.upcoming()
        edition = self.editions.complete(replace(upcoming.edition, **changes))
        if upcoming.lanes is not None and self.editions.complete(upcoming.edition) != edition:
            others = ", ".join(changes)
            raise ConfigError(f"the next pass goes on with an epoch begun with other {others}: set_epoch first")
        self.check_memory(state=EpochState(0, edition=edition))
        self._name_edition(upcoming, edition)
        if "weights" in changes:
            self._same_order = self._new_comparison()

    def _new_comparison(self) -> SameOrder:
        """Return the comparison of the order that the next pass has with that of other ranks."""
        terms = OrderTerms(self.schedule, self.options.affinity, grows=self.editions.versions is not None)
        return SameOrder([one.spec.name for one in array_sources(self.schedule.fields.fields)], terms)

    def _name_edition(self, upcoming: EpochState, edition: Edition) -> None:
        """Let the next pass, whose state is given, read an edition."""
        self.epochs.name_next(replace(upcoming, edition=edition).to_json(), named=self.epochs.is_named())
        self._adopt(edition)

    def hold(self, edition: Edition) -> tuple[Lease, ...]:
        """Return leases, which keep the samples of an edition from being deleted, as long as they are referred to."""
        versions = self.editions.versions
        return () if versions is None or edition.version is None else versions.hold(edition.version)

    def _found(self, loader: object) -> State | None:
        """Look at the store for the next pass, on all ranks; None: it does not grow, or the pass has its version."""
        if self.editions.versions is None or "store" in self.epochs.next_of(loader):
            return None
        return self._look().to_json()

    def _look(self) -> Version:
        """Return the version that a store that grows has now."""
        versions, known = self.editions.versions, self.editions.current.version
        assert versions is not None
        assert known is not None
        return versions.look(self.rank_info(), known)

    def _adopt(self, edition: Edition) -> None:
        """Read another edition from now on; passes that run go on with theirs."""
        edition = self.editions.complete(edition)
        if edition != self.editions.current:
            self.schedule = self.editions.schedule(edition)
            self.editions.current = edition
            self._renew_readers()

    def _renew_readers(self) -> None:
        """Let passes that begin now have readers of another schedule."""
        here = self._own.here
        here.readers.retire()
        here.past_readers.append(here.readers)
        here.readers = self._new_readers()
        for readers in [one for one in here.past_readers if not one.is_busy]:
            here.past_readers.remove(readers)
            here.past_stats = here.past_stats + readers.stats()
            here.past_skipped += readers.skipped()

    def _schedule_at(self, edition: Edition | None) -> Schedule:
        """Return the schedule of an edition, of the samples of all nodes. None: of the one that the last pass reads."""
        wanted = self.editions.current if edition is None else self.editions.complete(edition)
        return self.schedule if wanted == self.editions.current else self.editions.schedule(wanted)

    def _schedule_of(self, rank_info: RankInfo, edition: Edition | None = None) -> Schedule:
        """Return the schedule of an edition, for the part that this rank's node reads."""
        schedule = self._schedule_at(edition)
        return schedule if rank_info.num_nodes == 1 else schedule.for_node(rank_info.node, rank_info.num_nodes)

    def _new_readers(self) -> ReaderPool:
        return ReaderPool(partial(self._make_reader, self.schedule))

    def _make_reader(self, schedule: Schedule, resources: Resources, arrays: BatchArrays) -> EpochReader:
        """Return a reader for a schedule."""
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
        edition = Edition.from_json(json)
        return EpochState.from_json(json, self._schedule_at(edition).part, edition)

    # The state in which the next pass begins

    def upcoming(self, loader: object = None) -> EpochState:
        """Return the state in which the next pass of a loader begins; None: the state that was claimed last, if any."""
        resumed = self._own.here.resumed
        return resumed or self._parsed(self.epochs.next() if loader is None else self.epochs.next_of(loader))

    def name_next(self, state: EpochState) -> None:
        """Let the next pass begin in a state."""
        self._own.here.resumed = None
        self.epochs.name_next(state.to_json())

    def state_of(self, cursor: Cursor | None, loader: object = None) -> EpochState | None:
        """Return the position of a loader's pass; None if there is none, or a user has named the next pass's state."""
        if cursor is None:
            return None
        keeps = cursor.in_worker or cursor.under_way
        if not keeps and (self._own.here.resumed is not None or self.epochs.is_named(loader)):
            return None
        state = cursor.stand(at_end=False)
        if cursor.in_worker or not cursor.at_end or self.editions.versions is not None:
            return state
        named = self.upcoming(loader).edition  # a user may have named others since the pass began
        return replace(state, edition=replace(state.edition, offsets=named.offsets, weights=named.weights))

    def state(self) -> EpochState:
        """Return the position of the pass that was begun last, or the state in which the next one begins.

        Raises
        ------
        ConfigError
            If the batches were handed out by DataLoader workers, so that this process cannot know how many.
        """
        if not in_worker() and self.epochs.moved_by_workers():
            raise ConfigError(
                "batches were handed out by DataLoader workers, and this process cannot know how many: ask a "
                "ZarrDataLoader for its state_dict(), or name the epoch that comes next with set_epoch()"
            )
        return self.state_of(self.passes.last) or self.upcoming()

    def load(self, state: dict[str, Any]) -> None:
        """Let the next pass deliver the rest of the epoch of `state`."""
        loaded = self.read_state_dict(state)
        self.passes.forget()
        if loaded.worker is None:
            self.name_next(loaded)
        else:
            self._own.here.resumed = loaded
            self.epochs.name_next(loaded.following().to_json())

    def make_state_dict(self, state: EpochState) -> dict[str, Any]:
        """Return a state as a small JSON-able dict, with the terms of its order."""
        edition = self.editions.complete(state.edition)  # that the description of order and layout is of
        schedule = self._schedule_of(self._rank_in_node(), edition)
        made = make_state_dict(state, schedule.part, schedule.fields.fields)
        seen = edition.version if state.edition.version is None else None
        return made if seen is None else {**made, "seen": seen.to_json()}

    def read_state_dict(self, state: object) -> EpochState:
        """Return the state of such a dict.

        Raises
        ------
        ConfigError, MemoryBudgetError
            If the state is of other data or of another order, or its lanes need more memory than there is.
        StoreReadError
            If the store no longer holds the version of the state.
        """
        edition = self.editions.in_state(state)
        self._adopt(edition.lasting)
        schedule = self._schedule_of(self._rank_in_node(), edition)
        loaded = read_state_dict(state, schedule.part, schedule.fields.fields, any_mix=schedule.options.mix is None)
        self.check_memory(state=loaded)
        return loaded

    # Passes

    def _rank_of_pass(self) -> RankInfo:
        """Return the rank for which a pass begins now; warn if each rank reads everything although nobody asked for it.

        Raises
        ------
        ConfigError
            If another rank reads another order.
        """
        if self.options.ranks.is_unknown():
            warn_of_launcher(self.epochs.is_first)
        rank_info = self._rank_in_node()
        if self.options.ranks.is_of_group() and rank_info.split_over == 1:  # else accelerate reads for all ranks
            self._same_order.check()
        return rank_info

    def _check_has_batches(self, division: Division | RunDivision, consumer: Consumer) -> None:
        """Raise ConfigError if a whole epoch has no batch on any rank."""
        if not self.options.may_be_empty:
            check_has_batches(division, consumer.num_receivers)

    def _begin(self, begin: EpochState, rank_info: RankInfo, consumer: Consumer) -> Cursor:
        """Begin a pass in a state, and remember it as the pass under way."""
        schedule = self._schedule_of(rank_info)
        cursor = Cursor.at(schedule, begin, consumer, in_worker=in_worker(), rank_info=rank_info)
        if begin.run is None and not begin.progress.cuts:  # a rest may have no batches
            self._check_has_batches(cursor.division, consumer)
        return self._own.here.passes.put_last(cursor)

    def settle(self, name: str | None, loaded: EpochState | None, loader: Positions[Cursor] | None = None) -> Cursor:
        """Settle in which state a pass begins, and remember it as the pass under way.

        Parameters
        ----------
        name
            Name of the pass, which all its DataLoader workers give it; None outside of workers.
        loaded
            The state that was loaded for this pass; None: the dataset's next.
        loader
            The loader that begins the pass, by its positions; None: no loader of ours does.
        """
        rank_info = self._rank_of_pass()  # before an epoch is taken: an error takes none
        consumer = rank_info.consumer(*worker_and_count())
        here = self._own.here
        begin, here.resumed = loaded or here.resumed, None
        if begin is not None:
            self.epochs.name_next(begin.following().to_json(), named=False)
        else:
            if name is None:
                json = self.epochs.begin(store=self._found(loader), loader=loader)
            else:
                look = None if self.editions.versions is None else lambda: self._look().to_json()
                json = self.epochs.join(name, consumer.worker, consumer.num_workers, look)
            begin = self._parsed(json)
        if self.editions.versions is not None and begin.edition.version is None:  # loaded, of the beginning of an epoch
            if in_worker():
                raise ConfigError("the state names no version of the store, and a worker must not look by itself")
            begin = replace(begin, edition=replace(begin.edition, version=self._look()))
        self._adopt(begin.edition)
        check_resumed_epoch(begin.epoch)
        return self._begin(begin, rank_info, consumer)

    def settle_for_workers(self, name: str, num_workers: int, loader: object) -> Cursor:
        """Settle a pass of DataLoader workers in their training process; they will find it under `name`."""
        self.check_open()
        rank_info = self._rank_of_pass()
        state = self._parsed(self.epochs.begin(name, store=self._found(loader), loader=loader))
        self._adopt(state.edition)
        return self._begin(state, rank_info, rank_info.consumer(num_workers=num_workers))

    def readers_for(self, cursor: Cursor) -> ReaderPool:
        """Return the readers of the edition that a pass reads."""
        self._adopt(cursor.begin.edition)  # another pass may have been settled since this one was
        return self._own.here.readers

    def start_reader(self, running: Running, cursor: Cursor) -> None:
        """Give a pass a reader of `readers`, which reads from the position of its cursor.

        Raises
        ------
        MemoryBudgetError
            If this consumer's share of the budget is too small.
        StoreReadError
            If an array is gone.
        ClosedError
            If another thread closed the dataset meanwhile.
        """
        schedule = self._schedule_of(cursor.rank_info)
        resources = schedule.resources(schedule.order_of(cursor.begin), cursor.rank_info, cursor.consumer)
        plan = schedule.reading(cursor.begin, cursor.consumer, resources, cursor.division)
        memory = resources.memory
        arrays: BatchArrays = Tensors()
        if self._pins():
            arrays = Tensors(pinned_memory)
        elif cursor.in_worker:
            arrays = Tensors(WorkerMemory(memory.batch_bytes))
        self._own.here.readers.start(running, plan, resources, arrays)

    def _pins(self) -> bool:
        return self.wants_pinned() and not in_worker()  # a loader pins its workers' batches, in its own process

"""`StreamingDataset`: the base of all datasets that deliver their samples as a stream, epoch after epoch.

Such a dataset is the face of a `Session`: its constructor checks arguments and makes the session, and its docstring
says what a sample is. Passes, lengths, states and counters are here.
"""

from __future__ import annotations

import warnings
from typing import Any, NoReturn, Self

import torch
import torch.utils.data

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_int
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.torch.batches.batch import Batch
from zarrfeed.torch.passes.epoch_iterator import Pass, SamplePass
from zarrfeed.torch.passes.session import Session
from zarrfeed.torch.ranks.callers import check_iteration, check_length, hears_accelerate, saves_iterator_too
from zarrfeed.torch.ranks.distributed import end_with_training_process, in_worker, worker_and_count

_INT64_MAX = 2**63 - 1


class StreamingDataset(torch.utils.data.IterableDataset[Batch]):
    """A dataset that delivers samples as a stream; constructors of subclasses set `_session`."""

    _session: Session

    @property
    def session(self) -> Session:
        """The epochs of this dataset in this process: for loaders, and not for users."""
        return self._session

    def __len__(self) -> int:
        """Return the number of batches of an epoch, or of samples for `batch_size=None`, on this rank."""
        check_length(self._session)
        return self._session.num_batches()

    def __iter__(self) -> Pass:
        """Return a pass over the next epoch, or the one that `set_epoch` named; it begins with its first batch."""
        session = self._session
        session.check_open()
        unasked = check_iteration(session)
        name = None
        if in_worker():
            end_with_training_process()
            name = session.names.next(worker_and_count()[1])
        new_pass = (SamplePass if session.batch_size is None else Pass)(session, name)
        if name is not None or unasked:
            new_pass.settle()  # a loader may ask for the worker's state before its first batch
        return new_pass

    def __getitem__(self, index: object) -> NoReturn:
        raise ConfigError(f"got the index {index!r}, but samples come as a stream: use ZarrDataset, or Data.split")

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next pass reads: any int from 0. One under way is not changed.

        In the training process this is enough for DataLoader workers too, also for persistent ones. Right after
        `load_state_dict` with a state of that very epoch, the rest of the epoch is read.
        """
        check_int("epoch", epoch, 0, _INT64_MAX)
        session = self._session
        loaded = session.upcoming()
        hint = hears_accelerate(session)  # after resuming it counts from 0, so it never leads back
        if loaded.epoch < epoch or (not hint and (loaded.lanes is None or loaded.epoch != epoch)):
            session.name_next(loaded.at_epoch(int(epoch)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the pass begun last, or, if it has ended, the beginning of the next: a JSON-able dict.

        The state counts the batches that were handed out on this rank, and assumes as many on all other ranks; so save
        between two steps, on any rank. A pass that was left with `break` can be resumed; at its end the next epoch's
        beginning is returned. `set_epoch` does not move a pass under way. With DataLoader workers, and if several
        loaders read the dataset, use `ZarrDataLoader.state_dict()`: a warning says so when an earlier pass is still
        under way.

        Raises
        ------
        ConfigError
            If the batches were handed out by DataLoader workers, so that this process cannot know how many.
        """
        session = self._session
        if saves_iterator_too():  # the loader resumes from the iterator's state
            return session.make_state_dict(session.state_of(session.passes.last) or session.upcoming())
        state = session.state()
        if any(one is not session.passes.last for one in session.passes.under_way()):
            warnings.warn(
                "a dataset's state_dict() is the position of the pass that was begun last, and an earlier pass is "
                "still under way: save the state_dict() of the ZarrDataLoader whose batches are trained on, or close() "
                "the iterator of the earlier pass if it is over",
                stacklevel=2,
            )
        return session.make_state_dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass deliver the rest of the epoch of `state`; on the same setup, the very next batches.

        Raises
        ------
        ConfigError
            If the state is of another dataset, selection or order; the message says what differs.
        MemoryBudgetError
            If the state's lanes need more memory than there is.
        StoreReadError
            If a store that grows no longer holds the version of the state.
        """
        self._session.load(state)

    def sample_order(self, epoch: int | None = None) -> Int64:
        """List the global sample indices in the order of delivery on this rank, without reading data.

        Parameters
        ----------
        epoch
            Number of the epoch, which is listed from its beginning. None: the epoch that is read next.

        Returns
        -------
        int64 array of shape (samples delivered on this rank,). DataLoader workers deliver the same samples, but each
        worker the batches of its own share.
        """
        if epoch is None:
            epoch = self._session.upcoming().epoch
        check_int("epoch", epoch, 0, _INT64_MAX)
        plan = self._session.plan_of_rank(int(epoch))
        order: Int64 = core.sample_order(plan.to_core())
        return plan.order.numbers(order)

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process)."""
        return self._session.stats()

    def skipped_chunks(self) -> list[SkippedChunk]:
        """Return the chunks, or objects, that this process could not read, and skipped, since the dataset was made."""
        return self._session.skipped_chunks()

    def close(self) -> None:
        """Stop all threads and free the memory of dropped batches. May be called twice; iterating is over after it."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None for single samples."""
        return self._session.batch_size

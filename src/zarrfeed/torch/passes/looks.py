"""Look if the arrays of a pass have changed since they were opened, beside its first batches.

One process of a machine looks for all that read there: the first rank, and among its DataLoader workers worker 0. The
`next()` of that process raises the finding of the look, at the latest the one that would end the pass, which waits for
the look up to 30 s. The first batch waits up to 0.1 s for a look at 256 files at most.

Invariants: the look delays no batch but the last `next()`. No thread of it outlives its pass, but for one inside a read
that storage does not answer: that thread is left behind, and ends by itself. A look that cannot be made is told by a
warning, and is no error.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.utils.data

from zarrfeed.base.errors import ZarrfeedError
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.base.waits import looks
from zarrfeed.metadata.stores.array_watch import ArrayWatch, layouts_of
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.access.exit_finalizers import finalize
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.torch.ranks.distributed import find_rank

if TYPE_CHECKING:
    from zarrfeed.torch.passes.session import Session

#: Seconds that a look is waited for: at the end of a pass; where an error is to be explained; with the first batch.
_UNTIL_ANSWERED_S, _UNTIL_EXPLAINED_S, _WITH_FIRST_S = 30.0, 2.0, 0.1
#: Seconds that the first sample of a dataset that is read by index waits for a look at files.
_BEFORE_FIRST_S = 1.0
#: Seconds that a pass which is closed waits for its look to be given up.
_UNTIL_GIVEN_UP_S = 0.5
#: A first batch or sample waits for the look at so many arrays: it takes some 30 microseconds for each.
_FEW_ARRAYS = 256
#: Seconds between two glances at signals while waiting.
_GLANCE_S = 0.05


class _Found:
    """Findings of a look; shared by its thread and the process that asks."""

    def __init__(self) -> None:
        self.is_over = False
        self.ended = threading.Event()
        self.error: ZarrfeedError | None = None
        self.troubles: list[str] = []
        self.shared = SharedAccess()

    def look(self, watch: ArrayWatch, fields: Sequence[Field], turn: int) -> None:
        """Look; keep an error for `check`."""
        try:
            self.troubles = watch.look(fields, turn, lambda: self.is_over, self.shared)
        except ZarrfeedError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 (a store is anybody's code; cancelled reads among them)
            self.fail(error)
        finally:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        """Keep why the look could not be made; it has ended."""
        self.troubles = [] if self.is_over else [repr(error)]
        self.ended.set()


class Look:
    """A look at the arrays, which begins when it is made.

    Parameters
    ----------
    watch
        Remembers the findings of earlier looks.
    fields
        The fields that are read.
    turn
        The number of the look, such as the epoch.
    is_near
        True if the arrays are few files, so that the look takes less time than the first batch.
    """

    def __init__(self, watch: ArrayWatch, fields: Sequence[Field], turn: int, *, is_near: bool) -> None:
        self._first_timeout_s = _WITH_FIRST_S if is_near else 0.0
        self._found = _Found()
        self._owner = OwnerProcess()
        self._told = False
        self._thread = threading.Thread(
            target=self._found.look, args=(watch, fields, turn), name="zarrfeed-look", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._found.fail(error)
        self._finalizer = finalize(self, _give_up, self._found, self._thread, self._owner)

    @property
    def has_told(self) -> bool:
        """True if all that the look found was told, so that nobody needs to ask again."""
        return self._told

    def check(self, timeout_s: float = 0.0) -> None:
        """Raise the finding, if the look has ended, or ends in so many seconds; warn if it could not be made.

        Raises
        ------
        StoreReadError
            If an array changed since it was opened, or is gone.
        """
        if self._told or not self._has_ended(timeout_s):
            return
        self._told = True
        self.close()  # the thread has nothing more to do, but may still be there
        if self._found.error is not None:
            raise self._found.error
        _warn(self._found.troubles)

    def _has_ended(self, timeout_s: float) -> bool:
        """Return whether the look has ended, after so many seconds at most; False in a forked child."""
        if not self._owner.is_here:
            return False
        if timeout_s == 0 or self._found.ended.is_set():
            return self._found.ended.is_set()
        return any(self._found.ended.wait(seconds) for seconds in looks(timeout_s, _GLANCE_S))

    def check_batch(self, *, is_end: bool) -> None:
        """Raise the finding if there is one; called with each batch. At the end of the pass, wait for the look first.

        The first batch waits a moment for a look at few files, which takes less time than to decode the batch.
        """
        timeout_s, self._first_timeout_s = self._first_timeout_s, 0.0
        self.check(_UNTIL_ANSWERED_S if is_end else timeout_s)
        if is_end and not self._told and self._owner.is_here:
            self._told = True
            _warn([f"storage did not answer within {_UNTIL_ANSWERED_S:g} s after the last batch"])

    def explain(self, error: ZarrfeedError) -> None:
        """Raise the finding, if it explains an error of the engine."""
        if not self._told and self._has_ended(_UNTIL_EXPLAINED_S) and self._found.error is not None:
            raise self._found.error from error

    def close(self) -> None:
        """Give the look up, if it has not ended."""
        self._finalizer()


class LooksOfSamples:
    """Looks of a dataset that is read by index, and so knows no epochs.

    One is made before the first sample, and one more each time that the process has read its share of the samples.

    Parameters
    ----------
    fields
        The fields that are read.
    num_samples
        Samples of the dataset.
    policy
        The error policy of reads, as in `ArrayWatch`.
    """

    def __init__(self, fields: Sequence[Field], num_samples: int, policy: Faults) -> None:
        self._fields = fields
        self._watch = ArrayWatch(policy)
        self._turn = self._left = 0
        self._look: Look | None = None
        layouts = list(layouts_of(fields))
        rank_info, info = find_rank(), torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._looks = bool(layouts) and looks_here(rank_info, worker)
        self._is_near = _is_near(layouts)
        self._share = max(1, num_samples // (rank_info.world_size * workers))

    def before(self, count: int) -> None:
        """Raise the finding, before so many samples are read; begin another look if it is time.

        Raises
        ------
        StoreReadError
            If an array changed since it was opened, or is gone.
        """
        if not self._looks:
            return
        if self._left <= 0:
            if self._look is not None:
                self._look.check(_UNTIL_ANSWERED_S)
            self._look = Look(self._watch, self._fields, self._turn, is_near=self._is_near)
            self._turn, self._left = self._turn + 1, self._share
            self._look.check(_BEFORE_FIRST_S if self._is_near else 0.0)
        self._left -= count
        assert self._look is not None
        self._look.check()

    def explain(self, error: ZarrfeedError) -> None:
        """Raise the finding, if it explains an error of the engine."""
        if self._look is not None:
            self._look.explain(error)

    def close(self) -> None:
        """Give the look up, if it has not ended."""
        if self._look is not None:
            self._look.close()


def _warn(troubles: Sequence[str]) -> None:
    if troubles:
        more = len(troubles) - 1
        warnings.warn(
            f"{troubles[0]}{f'; and {more} more' * bool(more)}: whether the array changed since it was opened cannot "
            "be told; it is read as it was then",
            stacklevel=3,
        )


def _give_up(found: _Found, thread: threading.Thread, owner: OwnerProcess) -> None:
    if not owner.is_here:  # a forked child has neither the thread nor its locks
        return
    if not found.ended.is_set():
        found.is_over = True
        found.shared.give_up()
    if thread.is_alive() and thread is not threading.current_thread():  # where the garbage collector runs there
        thread.join(_UNTIL_GIVEN_UP_S)


def looks_here(rank_info: RankInfo, worker: int) -> bool:
    """Return whether this is the process of its machine that looks for all of them.

    If a launcher deals ranks to machines in turns, its number of the local rank counts, too: two processes may look,
    but never none.
    """
    local = {os.environ.get("LOCAL_RANK"), os.environ.get("SLURM_LOCALID")}
    return worker == 0 and (rank_info.rank % max(1, rank_info.local_world_size) == 0 or "0" in local)


def _is_near(layouts: Sequence[Layout]) -> bool:
    """Return whether all arrays are files, and so few that a look takes less time than a batch."""
    arrays = sum([1 if layout.parts is None else len(layout.parts.names) for layout in layouts])
    return arrays <= _FEW_ARRAYS and not [layout for layout in layouts if layout.spec.source is not None]


def begin_look(session: Session, cursor: Cursor) -> Look | None:
    """Begin to look at the arrays of a pass; None if another process does, or there are no arrays to look at."""
    fields = session.schedule.fields.fields
    layouts = list(layouts_of(fields))
    if not layouts or not looks_here(cursor.rank_info, cursor.consumer.worker):
        return None
    return Look(session.watch, fields, cursor.begin.epoch, is_near=_is_near(layouts))

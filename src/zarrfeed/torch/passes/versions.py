"""Versions of a store that grows: all ranks agree on the version that a pass reads.

Invariants: a pass reads one version on all ranks and in all DataLoader workers. The version of an epoch is looked up
once, by rank 0 in its training process, and travels with the state of the epoch: over the process group to the other
ranks, in the table of epochs to the workers, in `state_dict()` to another run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError
from zarrfeed.base.optional_torch import imported
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.spec.description.version import Version
from zarrfeed.spec.fields.field import HostRows
from zarrfeed.storage.append.eviction import Lease
from zarrfeed.torch.batches.host_rows import rows_of, with_rows
from zarrfeed.torch.ranks.distributed import in_worker

#: Looks at a store of which another process deletes samples.
_ATTEMPTS = 5


class Versions:
    """The versions of a store that grows, in one process.

    Parameters
    ----------
    growth
        The store, and the description that was made of it.
    rows
        The stacked static arrays, by the name of the field.
    """

    def __init__(self, growth: Growth, rows: Mapping[str, HostRows]) -> None:
        self._growth = growth
        self._rows = dict(rows)
        self._found: tuple[Lease, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": ()}  # a lease is of one process

    @classmethod
    def of(cls, data: Data) -> Versions | None:
        """Return the versions of a dataset's store; None if it does not grow."""
        return None if data.growth is None else cls(data.growth, rows_of(data.resolved))

    def resolved(self, version: Version) -> ResolvedData:
        """Return the description of a version's samples; reads nothing but what `Growth.at` reads."""
        return with_rows(self._growth.at(version), self._rows)

    def look(self, rank: RankInfo, known: Version) -> Version:
        """Return the version that the store has now, the same on all ranks; every rank has to call this.

        `known` is a version that it had before.

        Raises
        ------
        ConfigError
            If there are several ranks and they cannot talk to each other: torch.distributed is not initialised, or this
            is a DataLoader worker, or the process group has another number of ranks.
        StoreReadError
            If the store cannot be read, or its data changed or were deleted since.
        """
        return self._look(known) if rank.world_size == 1 else _from_rank_0(rank, partial(self._look, known))

    def hold(self, version: Version) -> tuple[Lease, ...]:
        """Return leases, which keep the samples of a version from being deleted, as long as they are referred to.

        Raises
        ------
        StoreReadError
            If some of them are deleted already.
        """
        leases, self._found = self._growth.hold(version), ()
        return leases

    def _look(self, known: Version) -> Version:
        """Look, and keep the samples found from being deleted until they are held; let go of older ones."""
        for attempt in range(_ATTEMPTS):
            version = self._growth.look(known)
            try:
                self._found = self._growth.hold(version)
                break
            except StoreReadError:  # another process evicted in between
                if attempt == _ATTEMPTS - 1:
                    raise
        self._growth.evict(version)
        return version

    def in_state(self, state: object) -> Version:
        """Return the version that the description of order and layout in a `state_dict()` is of.

        Raises
        ------
        ConfigError
            If the state names no version.
        StoreReadError
            If the store's data changed or were deleted since that version.
        """
        saved = None
        if isinstance(state, Mapping):
            saved = state["store"] if "store" in state else state.get("seen")
        if saved is None:
            raise ConfigError("the state names no version of the store: it was saved without refresh='epoch'")
        try:
            version = Version.from_json(saved)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the state is damaged: {error!r}") from error
        self._growth.look(version)
        self._found = self._growth.hold(version)
        return version


def _from_rank_0(rank: RankInfo, look: Callable[[], Version]) -> Version:
    """Return the version that `look` finds on rank 0, or raise its error on every rank."""
    distributed = imported("torch.distributed")
    several = f"refresh='epoch' on {rank.world_size} ranks"
    if in_worker():
        raise ConfigError(
            f"{several}: a DataLoader worker cannot ask rank 0 for the version of the store; use ZarrDataLoader"
        )
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError(f"{several}: torch.distributed must be initialised, ranks agree on a version through it")
    if distributed.get_world_size() != rank.world_size:
        raise ConfigError(
            f"{several}: the process group has {distributed.get_world_size()} ranks, and must have as many: all of "
            "them take part when an epoch begins"
        )
    said: list[tuple[Version | None, ZarrfeedError | None]] = [(None, None)]
    mine: ZarrfeedError | None = None
    if distributed.get_rank() == 0:
        try:
            said = [(look(), None)]
        except ZarrfeedError as raised:  # sent to the others, who would wait for ever
            mine = raised
            said = [(None, StoreReadError(getattr(raised, "errno", None) or errno.EIO, f"on rank 0: {raised}"))]
    distributed.broadcast_object_list(said, src=0)
    version, error = said[0]
    if version is None:
        assert error is not None
        raise error if mine is None else mine
    return version

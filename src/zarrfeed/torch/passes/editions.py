"""`Editions`: the editions that the epochs of one dataset may read, and the schedule of each.

Invariants: the edition of an epoch, a version of a store that grows, the offsets of windows, the weights of samples, or
the rows of slabs, is part of the epoch's state. So the table of epochs hands it to DataLoader workers, persistent ones
too, and `state_dict()` to another run. A schedule follows from the edition alone, in each process. Passes over two
editions may run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.alternatives import Alternatives
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.slab_choice import with_slabs
from zarrfeed.metadata.face.data import Data
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.spec.description.edition import Edition, offsets_in, slabs_in, weights_in
from zarrfeed.torch.passes.versions import Versions
from zarrfeed.torch.passes.weightings import Weightings

#: Schedules that are remembered: of the pass under way, of a state that is loaded, of the next pass, of one before.
_REMEMBERED = 4


class Editions:
    """The editions of one dataset in one process.

    Parameters
    ----------
    data
        The description of the samples. None: the dataset reads something that has one edition.
    planning
        Makes a schedule of a description.
    schedule
        The schedule of `data`.

    Attributes
    ----------
    current
        The edition that the last pass reads.
    versions
        Looks at a store that grows. None: the store does not grow.
    weightings
        The weights of samples that epochs may have. None: samples have no weights.
    """

    def __init__(
        self, data: Data | None = None, planning: Planning | None = None, schedule: Schedule | None = None
    ) -> None:
        self.versions = None if data is None else Versions.of(data)
        self.current = Edition(
            None if self.versions is None or data is None else data.version,
            slab_rows=0 if planning is None else planning.slab_rows,
            strip_reaches=0 if planning is None else planning.strip_reaches,
        )
        has_windows = data is not None and data.growth is None and data.resolved.windowing is not None
        self._data, self._windows = data, data if has_windows else None
        counts = None if data is None else data.resolved.counts
        self.weightings = None if counts is None else Weightings(counts)
        self._planning = planning
        self._schedules: dict[Any, Schedule] = {}
        if schedule is not None:
            self._schedules[self.current.key] = schedule

    def complete(self, edition: Edition) -> Edition:
        """Return an edition with its open version filled in: the version that the last pass reads."""
        version = None if self.versions is None else edition.version or self.current.version
        offsets = None if self._windows is None else edition.offsets
        weights = None if self.weightings is None else self.weightings.canonical(edition.weights)
        return replace(edition, version=version, offsets=offsets, weights=weights)

    def schedule(self, edition: Edition) -> Schedule:
        """Return the schedule of an edition that leaves nothing open; reads nothing but a coordinate, for gaps.

        Raises
        ------
        ConfigError
            If the offsets do not work, or the weights are not known here.
        """
        made = self._schedules.get(edition.key)
        if made is None:
            assert self._planning is not None
            resolved = self._resolved(edition)
            planning = with_slabs(self._planning, resolved, edition.slab_rows, strip_reaches=edition.strip_reaches)
            made = Schedule.make(*planning.order(resolved), planning.options)
            while len(self._schedules) >= _REMEMBERED:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[edition.key] = made
        return made

    def alternatives(self) -> Alternatives | None:
        """Return the schedules of the current edition with other options. None: nobody planned it."""
        return None if self._planning is None else Alternatives(self._planning, self._resolved(self.current))

    def _resolved(self, edition: Edition) -> ResolvedData:
        if self.versions is not None and edition.version is not None:
            return self.versions.resolved(edition.version)
        if edition.offsets is not None:
            return self.data_with(edition.offsets).resolved
        assert self._data is not None
        if self.weightings is None:
            return self._data.resolved
        return self._data.resolved.with_counts(self.weightings.find(edition.weights))

    def data_with(self, offsets: Mapping[str, Any] | None) -> Data:
        """Return the description with other offsets of its windows; None: as it was.

        Raises
        ------
        ConfigError
            If the description has no windows, or the offsets do not work.
        """
        if self._windows is None:
            raise ConfigError("set_offsets: samples must be windows, of a store that does not grow")
        return self._windows if offsets is None else self._windows.with_offsets(offsets)

    def in_state(self, state: object) -> Edition:
        """Return the edition that a `state_dict()` is of, for a dataset that may read it.

        Raises
        ------
        ConfigError
            If the state has a version of a store and this one does not grow, or the reverse; or offsets, and the
            samples are no windows; or weights that are not known here; or other blocks than those that the user named.
        StoreReadError
            If the store's data changed or were deleted since that version.
        """
        edition = Edition()
        if self.versions is not None:
            edition = Edition(self.versions.in_state(state))
        elif isinstance(state, Mapping) and ("store" in state or "seen" in state):
            raise ConfigError("the state is of a store that grows: open it with zarrfeed.open(..., refresh='epoch')")
        offsets = offsets_in(state)
        if offsets is not None and self._windows is None:
            raise ConfigError("the state has offsets of windows, and the samples are none: call Data.window()")
        weights = weights_in(state)
        if weights is not None:
            if self.weightings is None:
                raise ConfigError("the state has weights of samples, and these have none: call Data.weight()")
            self.weightings.find(weights)
        slab_rows, strip_reaches = slabs_in(state)
        self._check_blocks(slab_rows)
        return replace(edition, offsets=offsets, weights=weights, slab_rows=slab_rows, strip_reaches=strip_reaches)

    def _check_blocks(self, slab_rows: int) -> None:
        """Raise ConfigError if a state has other blocks than those that the user named."""
        planning = self._planning
        named = None if planning is None else planning.mixing.block
        if planning is None and slab_rows:
            raise ConfigError(f"the state is of an order of {_named(slab_rows)}, which this dataset does not have")
        if planning is not None and named not in (None, "auto") and slab_rows != planning.slab_rows:
            raise ConfigError(
                f"the state is of an order of {_named(slab_rows)}, and mixing has block = {named!r}: "
                f"{_named(planning.slab_rows)}; leave `block` out to go on with the order of the state"
            )


def _named(slab_rows: int) -> str:
    return f"slabs of {slab_rows} rows" if slab_rows else "whole chunks"

"""`Rollouts`: the schedules of one dataset whose windows change between epochs.

What holds: the offsets of an epoch are part of its state. So the table of epochs hands them to DataLoader workers,
persistent ones too, and `state_dict()` to another run. A schedule follows from the offsets alone, in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.schedule.epoch_plan import Schedule

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data

#: Schedules that are remembered: a rollout returns to offsets of before, at most.
_REMEMBERED = 4


class Rollouts:
    """The schedules of a dataset by the offsets of its windows.

    Parameters
    ----------
    data
        What the dataset reads.
    make
        Makes the schedule of a description.
    schedule
        That of `data`.

    Attributes
    ----------
    current
        The offsets of the last pass, by the names of arrays. None: those of `data`.
    """

    def __init__(self, data: Data, make: Callable[[Data], Schedule], schedule: Schedule) -> None:
        self._data = data
        self._make = make
        self._schedules: dict[str, Schedule] = {repr(None): schedule}
        self.current: Mapping[str, Any] | None = None

    def data(self, offsets: Mapping[str, Any] | None = None) -> Data:
        """Return the description with other offsets; None: as it was.

        Raises
        ------
        ConfigError
            If it has no windows, or the offsets do not work.
        """
        return self._data if offsets is None else self._data.with_offsets(offsets)

    def schedule(self, offsets: Mapping[str, Any] | None) -> Schedule:
        """Return the schedule of an epoch with these offsets.

        Raises
        ------
        ConfigError
            As of `data`.
        """
        key = repr(offsets)
        made = self._schedules.get(key)
        if made is None:
            made = self._make(self.data(offsets))
            while len(self._schedules) >= _REMEMBERED:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[key] = made
        return made


def offsets_in(json: object) -> Mapping[str, Any] | None:
    """Return the offsets that a state in its JSON form names; None if it names none.

    Raises
    ------
    ConfigError
        If they cannot be any.
    """
    offsets = json.get("offsets") if isinstance(json, Mapping) else None
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping) or not all(isinstance(name, str) for name in offsets):
        raise ConfigError(f"the state is damaged: offsets = {offsets!r}")
    return dict(offsets)

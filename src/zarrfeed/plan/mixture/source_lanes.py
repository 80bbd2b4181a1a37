"""Lanes, mix and strip of each source of a mixture, as a state keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from zarrfeed.plan.order.order_state import OrderState, whole_number

#: Steps of a unit in a state, at most.
_MOST_STEPS = 2**40


class SourceLanes(NamedTuple):
    """The parameters that the order of a source follows from, together with its blocks and its key."""

    lanes: int
    mix: int
    strip: int


@dataclass(frozen=True)
class SourceState:
    """Lanes of the sources in the state of an epoch. Later epochs keep them, since passes over a source span epochs.

    Attributes
    ----------
    sources
        Lanes, mix and strip of each source.
    unit
        Steps in a row that are of one source.
    """

    lasts: ClassVar[bool] = True

    sources: tuple[SourceLanes, ...]
    unit: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the JSON object of a state."""
        unit = {} if self.unit == 1 else {"unit": self.unit}
        return {"sources": [list(one) for one in self.sources], **unit}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> SourceState | None:
        """Return the state that `to_json` wrote; None if it names no sources.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        unit = whole_number(json.get("unit", 1), _MOST_STEPS, least=1)
        if "sources" not in json:
            return None
        sources = (SourceLanes(*(whole_number(value, least=1) for value in one)) for one in json["sources"])
        return cls(tuple(sources), unit)

    @classmethod
    def of(cls, state: OrderState) -> SourceState:
        """Return the lanes that a settled state holds."""
        assert isinstance(state.own, cls)
        return state.own

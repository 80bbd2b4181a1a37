"""`variables=`: the names of the arrays that are read, of one side of a batch or of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean

#: Names of arrays of `samples`; or by side, {"samples": [...], "targets": [...]}.
Variables: TypeAlias = "Sequence[str] | Mapping[str, Sequence[str]]"


def select_variables(part: str, arrays: Mapping[str, Any], variables: Sequence[str]) -> dict[str, Any]:
    """Return arrays by name, in the order of the names.

    Raises
    ------
    ConfigError
        If there is no array of a name.
    """
    for name in variables:
        if name not in arrays:
            known = ", ".join(map(repr, arrays))
            raise ConfigError(
                f"variables: {name!r} is not in {part}, must be one of {known}{did_you_mean(name, arrays)}"
            )
    return {name: arrays[name] for name in variables}


def variables_of(sides: Sequence[str], variables: Variables | None) -> list[list[str] | None]:
    """Return, for each side of a batch, the names that `variables` lists for it; None for all."""
    by_side = variables if isinstance(variables, Mapping) else {"samples": variables}
    for side in by_side:
        if side not in sides:
            raise ConfigError(
                f"variables names {side!r}, must be one of {', '.join(map(repr, sides))}{did_you_mean(side, sides)}"
            )
    return [_checked_names(by_side.get(side)) for side in sides]


def _checked_names(variables: Sequence[str] | None) -> list[str] | None:
    if variables is None:
        return None
    if isinstance(variables, str) or not all(isinstance(name, str) for name in variables):
        raise ConfigError(f"variables = {variables!r}, must be a list of names")
    names = list(variables)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"variables = {variables!r}, must name at least one array, and each once")
    return names

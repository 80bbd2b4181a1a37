"""The arrays that are read: `variables=` names them; of those that differ in length, `sample_dim=` may choose some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_list
from zarrfeed.metadata.array.conversion import Items

#: Names of arrays of `samples`; or by side, {"samples": [...], "targets": [...]}.
Variables: TypeAlias = "Sequence[str] | Mapping[str, Sequence[str]]"


def select_variables(side: str, arrays: Mapping[str, Any], variables: Sequence[str]) -> dict[str, Any]:
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
                f"variables: {name!r} is not in {side}, must be one of {known}{did_you_mean(name, arrays)}"
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
    names = check_list("variables", variables, "names, such as ['t2m', 'z']")
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"variables = {variables!r}, must be a list of names")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"variables = {variables!r}, must name at least one array, and each once")
    return names


def sample_dim_advice(items: Sequence[Items]) -> str:
    """Return the end of an error message that names the dimensions which `sample_dim=` can take.

    Parameters
    ----------
    items
        The arrays of `samples`, with the names of their dimensions. The dimension that most of them have first is
        recommended, with the arrays that have it; of several such, the longest.

    Returns
    -------
    "; give ...", or "" if no array has named dimensions.

    Examples
    --------
    >>> arrays = [
    ...     Items("samples", "mask", "int8", (3, 4), 0, ("lat", "lon")),
    ...     Items("samples", "t2m", "float32", (9, 3, 4), 0, ("time", "lat", "lon")),
    ... ]
    >>> sample_dim_advice(arrays)
    "; give sample_dim='time' to read the arrays that have this dimension (t2m), or one of the dimensions 'lat', 'lon'"
    """
    named = [(f.key, dict(zip(f.dimensions, f.shape, strict=True))) for f in items if f.key and f.dimensions]
    lengths = {dim: n for _, dimensions in named for dim, n in dimensions.items() if dim is not None}
    if not lengths:
        return ""
    first = Counter(next(iter(dimensions)) for _, dimensions in named)
    best = max(lengths, key=lambda dim: (first[dim], lengths[dim]))
    having = ", ".join(str(key) for key, dimensions in named if best in dimensions)
    others = ", ".join(repr(dim) for dim in lengths if dim != best)
    rest = f", or one of the dimensions {others}" if others else ""
    return f"; give sample_dim={best!r} to read the arrays that have this dimension ({having}){rest}"

"""Advice for a group whose arrays have named dimensions and differ in length: which of them can be the sample axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from zarrfeed.metadata.array.conversion import Items


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

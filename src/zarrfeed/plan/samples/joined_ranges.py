"""`joined_ranges`: many ranges of integers as one array, without a loop over them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]


def joined_ranges(first: Int64 | int, counts: npt.NDArray[np.integer[Any]]) -> Int64:
    """Return the integers of ranges, one range behind the other.

    Parameters
    ----------
    first
        The first integer of each range, shape (ranges,); or one for all.
    counts
        The number of integers of each range, shape (ranges,), at least 0.

    Returns
    -------
    numpy.ndarray
        Shape (sum of counts,).

    Examples
    --------
    >>> joined_ranges(np.array([3, 10, 7]), np.array([2, 0, 3]))
    array([3, 4, 7, 8, 9])
    """
    joined: Int64 = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return joined

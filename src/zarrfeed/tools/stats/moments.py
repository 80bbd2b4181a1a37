"""`Moments`: the number of values in a part of an array, their mean, spread and bounds, merged part by part.

Invariants: the moments of an array are a function of its values and its shape, bit by bit, whatever thread calculates
them and when. An array is halved until a piece fits the processor's cache; a piece is measured in two passes over
float64; and two pieces are merged as in T. F. Chan, G. H. Golub, R. J. LeVeque (1979), "Updating formulae and a
pairwise algorithm for computing sample variances".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

#: Items of a piece: two arrays of float64 of this length fit the second-level cache.
_PIECE = 1 << 15
#: With more entries than this, pieces are halved along `axes`, as merging costs work for each entry.
_MANY_ENTRIES = 1 << 10


@dataclass(frozen=True)
class Moments:
    """Moments of some values: an entry for each index along the axes that are not reduced.

    Attributes
    ----------
    count
        Number of values that are no NaN.
    missing
        Number of NaNs.
    mean
        The mean of the values that are no NaN; 0 if there are none.
    squares
        The sum of their squared distances from the mean.
    low, high
        The least and the greatest of these values; infinity and minus infinity if there are none.
    """

    count: Counts
    missing: Counts
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats

    @classmethod
    def none_yet(cls, shape: tuple[int, ...]) -> Moments:
        """Return the moments of no values."""
        counts, zeros = np.zeros(shape, np.int64), np.zeros(shape)
        return cls(counts, counts, zeros, zeros, np.full(shape, np.inf), np.full(shape, -np.inf))

    @classmethod
    def of(cls, values: npt.NDArray[np.generic], axes: tuple[int, ...]) -> Moments:
        """Return the moments of an array.

        Parameters
        ----------
        values
            Numbers of any real dtype, C-contiguous, of shape (samples, *sample_shape).
        axes
            Axes that have moments of their own, ascending: none of them is axis 0.

        Returns
        -------
        Moments of the shape that `values` has along these axes.
        """
        entries = math.prod(values.shape[a] for a in axes)
        order = (*axes, *range(values.ndim)) if entries > _MANY_ENTRIES else range(values.ndim)
        axis = next((a for a in order if values.shape[a] > 1), None)
        if values.size <= _PIECE or axis is None:
            return cls._of_piece(values, axes)
        half = values.shape[axis] // 2
        index = (slice(None),) * axis
        first, second = cls.of(values[*index, :half], axes), cls.of(values[*index, half:], axes)
        if axis not in axes:
            return first.merge(second)
        along = axes.index(axis)
        pairs = zip(first.arrays(), second.arrays(), strict=True)
        return cls(*(np.concatenate(pair, axis=along) for pair in pairs))

    @classmethod
    def _of_piece(cls, values: npt.NDArray[np.generic], axes: tuple[int, ...]) -> Moments:
        over = tuple(a for a in range(values.ndim) if a not in axes)
        shape = tuple(values.shape[a] for a in axes)
        x = values.astype(np.float64)
        size = x.size // max(1, math.prod(shape))
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values have no variance, which is NaN then
            total = x.sum(axis=over, keepdims=True)
            if not np.isnan(total).any():
                missing, count = np.zeros(shape, np.int64), np.full(shape, size, np.int64)
                low, high = x.min(axis=over), x.max(axis=over)
                x -= (mean := total / size)
            else:
                is_missing = np.isnan(x)
                missing = is_missing.sum(axis=over, dtype=np.int64)
                count = size - missing
                low = x.min(axis=over, initial=np.inf, where=~is_missing)
                high = x.max(axis=over, initial=-np.inf, where=~is_missing)
                total = x.sum(axis=over, keepdims=True, where=~is_missing)
                x -= (mean := total / np.maximum(count, 1).reshape(total.shape))
                x[is_missing] = 0
            # The mean was rounded; the values' distances from it tell by how much.
            left = x.sum(axis=over)
            left = np.where(np.isfinite(left), left, 0)
            rest = left / np.maximum(count, 1)
            squares = np.square(x, out=x).sum(axis=over) - left * rest
        return cls(count, missing, mean.reshape(shape) + rest, np.maximum(squares, 0), low, high)

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        """Return the six arrays, in the order of the attributes."""
        return self.count, self.missing, self.mean, self.squares, self.low, self.high

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the values of both."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = other.mean - self.mean
            # an empty side has the mean 0, which counts for nothing
            mean = np.where(self.count == 0, other.mean, self.mean + distance * share)
            squares = self.squares + other.squares
            both = (self.count > 0) & (other.count > 0)
            squares = np.where(both, squares + distance * distance * (self.count * share), squares)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Moments(count, self.missing + other.missing, mean, squares, low, high)

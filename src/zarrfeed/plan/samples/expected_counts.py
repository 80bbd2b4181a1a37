"""`ExpectedCounts`: how often each sample is to come in an epoch, on average, in whole shares of a sample.

Invariants, for weights w and an epoch of n samples:

1. Sample i is expected `c_i = n w_i / sum(w)` times, in shares of 2^-32 (of 2^-31 or more beyond 2^30 samples). All
   shares together are n samples exactly.
2. Where each c_i is a whole number, so are its shares. A weight of 0 has no shares, and neither has one that lets its
   sample come in fewer than one of 2^33 epochs.
3. Equal weights give the same shares on every machine: no sum depends on how NumPy adds.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.samples.sample_set import AT_ONCE, Int64

#: Units of a sample are this power of two, at most.
_BITS = 32
#: All shares together are less than this power of two.
_MOST_BITS = 62
#: Units that rounding leaves over go to samples that have more than this part of what the largest one has.
_LEAST_SHARE = 1 / 16


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """The average number of times that each of some samples comes in an epoch.

    Attributes
    ----------
    total
        Samples of an epoch.
    shares
        The expected count of each sample, in shares of 2^-bits; shape (samples,).
    bits
        2^bits shares are one sample.

    Examples
    --------
    >>> expected = ExpectedCounts.of(np.array([1.0, 0.0, 3.0]), 8)
    >>> (expected.shares / 2**expected.bits).tolist()
    [2.0, 0.0, 6.0]
    """

    total: int
    shares: Int64
    bits: int

    #: The words of messages for such samples.
    noun: ClassVar[str] = "weighted samples"
    state: ClassVar[str] = "weighted"
    how: ClassVar[str] = "by weights"
    verb: ClassVar[str] = "weight"
    advice: ClassVar[str] = "call weight() or balance() last of what chooses samples"

    @classmethod
    def of(cls, weights: npt.NDArray[Any], total: int) -> Self:
        """Return the expected counts of samples with some weights, in epochs of `total` samples.

        Raises
        ------
        ConfigError
            If a weight is negative or not finite, or no weight is above 0.
        """
        if weights.dtype.kind not in "biuf":
            raise ConfigError(f"weights: have the dtype {weights.dtype}, must be numbers")
        given = weights.astype(np.float64)
        wrong = ~(np.isfinite(given) & (given >= 0))
        if wrong.any():
            at = int(wrong.argmax())
            raise ConfigError(f"weights: number {at} is {given[at]}, must be finite and not negative")
        largest = float(given.max(initial=0.0))
        if largest == 0:
            raise ConfigError(f"weights: all {len(given)} are 0, at least one must be above 0")
        given /= largest  # no sum overflows
        bits = min(_BITS, _MOST_BITS - total.bit_length())
        shares = np.rint(given * (total / math.fsum(given) * 2.0**bits)).astype(np.int64)
        return cls(total, _with_sum(shares, total << bits, bits), bits)

    def row(self) -> tuple[str, str]:
        """Return a row of a page for people."""
        return "weights", f"{self.total} samples an epoch; the most frequent one comes {self.most:.3g} times"

    def with_shares(self, shares: Int64) -> ExpectedCounts:
        """Return the expected counts of the same samples in other shares."""
        return ExpectedCounts(self.total, shares, self.bits)

    def taken(self, samples: Int64) -> ExpectedCounts:
        """Return the expected counts of some of the samples, which have all shares."""
        return self.with_shares(self.shares[samples])

    @property
    def nbytes(self) -> int:
        """Bytes that the expected counts take."""
        return self.shares.nbytes

    @property
    def ceilings(self) -> Int64:
        """The largest number of times that each sample comes in an epoch, shape (samples,)."""
        return self.rounded_up(self.shares)

    def rounded_up(self, shares: Int64) -> Int64:
        """Return whole samples for shares of a sample, rounded up."""
        return (shares + ((1 << self.bits) - 1)) >> self.bits

    def draw(self, rows: Int64, seed: int, epoch: int) -> Int64:
        """Draw the number of times that each sample comes in an epoch, shape (samples,).

        `rows` are the samples of each block: the number that comes of a block is its expected one, rounded up or down.
        """
        counts: Int64 = core.draw_counts(expected=self.shares, bits=self.bits, rows=rows, seed=seed, epoch=epoch)
        return counts

    @property
    def most(self) -> float:
        """The expected count of the sample that comes most often."""
        return int(self.shares.max()) / (1 << self.bits)

    @cached_property
    def digest(self) -> str:
        """The number of samples of an epoch, and a hash that tells expected counts apart."""
        hashed = hashlib.sha256(str(self.bits).encode())
        for begin in range(0, len(self.shares), AT_ONCE):
            hashed.update(self.shares[begin : begin + AT_ONCE].astype("<i8").tobytes())
        return f"{self.total} ({hashed.hexdigest()[:16]})"


def balancing_weights(codes: npt.NDArray[np.integer], power: float) -> npt.NDArray[np.float64]:
    """Return a weight for each sample, by the code of its class: a power of one over the samples of the class."""
    counts = np.maximum(np.bincount(codes), 1).astype(np.float64)  # no sample has a class of none
    of_class = (counts / counts.max()) ** -power
    weights: npt.NDArray[np.float64] = of_class[codes]
    return weights


def _with_sum(shares: Int64, wanted: int, bits: int) -> Int64:
    """Return shares whose sum is as wanted: what rounding left over goes to samples that come no whole number of times.

    The rest goes to samples that come often, so that it is small beside their shares.
    """
    left = wanted - int(shares.sum())
    if left:
        is_whole = (shares & ((1 << bits) - 1)) == 0
        of_parts = np.where(is_whole, 0, shares) if not is_whole.all() else shares
        takers = np.flatnonzero(of_parts > of_parts.max() * _LEAST_SHARE)
        each, rest = divmod(left, len(takers))
        shares[takers] += each
        shares[takers[:rest]] += 1
    return shares

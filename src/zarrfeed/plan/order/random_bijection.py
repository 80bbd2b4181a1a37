"""A random permutation of [0, n) that is never listed: the position of any number, and its inverse, from a seed alone.

Source: M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988 (Feistel
networks); J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking: a number whose image
is not below n is mapped again, until it is). So memory does not grow with n, and any process computes any part. The
order depends on the seed alone: it is the same on every machine and with every version of NumPy.

Invariant: `positions` is a bijection of [0, n), and `numbers` is its inverse.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zarrfeed.base.validate import check_int
from zarrfeed.plan.order.keyed_random import Int64, UInt64, key_of, keys_of

#: Four rounds suffice in theory; small domains are mixed better by more.
_ROUNDS = 8
_DOMAIN_TAG = 0x7061636B  # keeps these keys apart from those of epochs


class RandomBijection:
    """A permutation of [0, n) that a seed chooses.

    Parameters
    ----------
    n
        Number of numbers, from 1 to 2**62.
    seed
        Seed of the bijection, in [0, 2**64).

    Examples
    --------
    >>> import numpy as np
    >>> order = RandomBijection(10, seed=1)
    >>> sorted(order.positions(np.arange(10)).tolist()) == list(range(10))
    True
    >>> order.numbers(order.positions(np.array([3, 7]))).tolist()
    [3, 7]
    """

    def __init__(self, n: int, seed: int) -> None:
        check_int("n", n, 1, 1 << 62)
        check_int("seed", seed, 0, (1 << 64) - 1)
        self.n = n
        half = max(1, -(-(n - 1).bit_length() // 2))
        self._half, self._mask = np.uint64(half), np.uint64((1 << half) - 1)
        self._keys = [key_of(_DOMAIN_TAG, seed, n, number) for number in range(_ROUNDS)]

    def positions(self, numbers: Int64) -> Int64:
        """Return the position of each number."""
        return self._walk(numbers, self._keys, forward=True)

    def numbers(self, positions: Int64) -> Int64:
        """Return the number at each position."""
        return self._walk(positions, self._keys[::-1], forward=False)

    def _walk(self, values: Int64, keys: list[int], *, forward: bool) -> Int64:
        """Map values, and those that leave [0, n) again, until none does."""
        mapped = np.asarray(values).astype(np.uint64)
        outside = np.arange(len(mapped))
        while len(outside):
            mapped[outside] = self._rounds(mapped[outside], keys, forward=forward)
            outside = outside[mapped[outside] >= self.n]
        return mapped.astype(np.int64)

    def _rounds(self, values: UInt64, keys: list[int], *, forward: bool) -> UInt64:
        left, right = values >> self._half, values & self._mask
        for key in keys:
            if forward:
                left, right = right, left ^ self._noise(right, key)
            else:
                left, right = right ^ self._noise(left, key), left
        return (left << self._half) | right

    def _noise(self, values: UInt64, key: int) -> UInt64:
        words: npt.NDArray[np.uint64] = keys_of(np.uint64(key), values)  # type: ignore[arg-type]
        return words & self._mask

"""Random numbers that depend on a key alone: SplitMix64, as `KeyedRandom` of cpp/plan/row_order.h has it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UInt64: TypeAlias = npt.NDArray[np.uint64]
Int64: TypeAlias = npt.NDArray[np.int64]

GAMMA, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class KeyedRandom:
    """Words in [0, 2**64) that depend on a key alone; the key is a hash of words."""

    def __init__(self, *key: int) -> None:
        self._state = 0
        for word in key:
            self._state = _finish(((self._state + GAMMA) & WORD) ^ word)

    def word(self) -> int:
        """Return the next word."""
        self._state = (self._state + GAMMA) & WORD
        return _finish(self._state)


def key_of(*words: int) -> int:
    """Return a key in [0, 2**64) that is a hash of words."""
    return KeyedRandom(*words).word()


def keys_of(*words: int | Int64) -> UInt64:
    """Return `key_of` of arrays of words that broadcast against each other, with at least one axis."""
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = finish_all((state + np.uint64(GAMMA)) ^ np.asarray(word).astype(np.uint64))
    return finish_all(state + np.uint64(GAMMA))


def below(words: UInt64, bounds: Int64) -> Int64:
    """Return a number in [0, bound) for each word and bound: the high word of their product, of 128 bits."""
    half, low_bits = np.uint64(32), np.uint64(0xFFFFFFFF)
    bound = np.asarray(bounds).astype(np.uint64)
    high, low = words >> half, words & low_bits
    bound_high, bound_low = bound >> half, bound & low_bits
    middle = high * bound_low + (low * bound_low >> half)
    carried = (middle & low_bits) + low * bound_high
    product = high * bound_high + (middle >> half) + (carried >> half)
    return np.asarray(product, dtype=np.int64)


def permutation(count: int, *key: int) -> list[int]:
    """Return a random permutation (Fisher and Yates, inside out), as `random_permutation` of cpp/plan/row_order.cc."""
    random, order = KeyedRandom(*key), [0] * count
    for i in range(count):
        j = random.word() * (i + 1) >> 64
        order[i] = order[j]
        order[j] = i
    return order


def _finish(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def finish_all(z: UInt64) -> UInt64:
    """Apply the finisher of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) to words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

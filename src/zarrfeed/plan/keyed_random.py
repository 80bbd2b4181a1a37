"""Random numbers that depend on a key alone: SplitMix64, as `KeyedRandom` of cpp/plan/row_order.h has it."""

from __future__ import annotations

_GAMMA, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class KeyedRandom:
    """Words in [0, 2**64) that depend on a key alone; the key is a hash of words."""

    def __init__(self, *key: int) -> None:
        self._state = 0
        for word in key:
            self._state = _finish(((self._state + _GAMMA) & WORD) ^ word)

    def word(self) -> int:
        """Return the next word."""
        self._state = (self._state + _GAMMA) & WORD
        return _finish(self._state)


def key_of(*words: int) -> int:
    """Return a key in [0, 2**64) that is a hash of words."""
    return KeyedRandom(*words).word()


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

"""How many random examples a test has: few each time, many with --large."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: What a test without `examples` has, in pytest's usual run and with --large.
USUAL, LARGE = 12, 2000


def examples(count: int, **options: Any) -> settings:
    """Return settings for a fifth of `count` examples in the usual run, and for three times `count` with --large.

    Parameters
    ----------
    count
        How many are many enough to rely on.
    **options
        Those of hypothesis.
    """
    return settings(max_examples=tries(-(-count // 5), 3 * count), **options)


def tries(usual: int, large: int) -> int:
    """Return how often a test tries something random: `usual` times, or `large` times with --large."""
    return large if is_large() else usual


def is_large() -> bool:
    """Return whether pytest runs with --large."""
    return settings().max_examples == LARGE

"""How many random examples a test has: few each time, many with --large."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: What a test without `examples` has, in pytest's usual run and with --large.
USUAL, LARGE = 20, 2000


def examples(count: int, **options: Any) -> settings:
    """Return settings for a third of `count` examples in the usual run, and for three times `count` with --large.

    Parameters
    ----------
    count
        How many are many enough to rely on.
    **options
        Those of hypothesis.
    """
    is_large = settings().max_examples == LARGE
    return settings(max_examples=3 * count if is_large else -(-count // 3), **options)

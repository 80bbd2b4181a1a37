"""How many random examples and cases a test has: few each time, many with --large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
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


def slow(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that runs with --large alone."""
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


def usual(cases: Sequence[Any], *numbers: int) -> list[Any]:
    """Return cases of `parametrize`; the usual run has those with the given numbers, and --large has all."""
    return [
        one if number in numbers else slow(*(one if isinstance(one, tuple) else (one,)))
        for number, one in enumerate(cases)
    ]

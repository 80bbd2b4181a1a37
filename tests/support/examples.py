"""The number of random examples and cases that a test has: few each time, many with --large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

#: What a test without `examples` has, in pytest's usual run and with --large.
USUAL, LARGE = 12, 2000

#: Characters that UTF-8 has. The default of `st.text` asks the codec about each of a million, in each process.
CHARACTERS = st.characters(exclude_categories=["Cs"])


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


def slow(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that runs with --large alone."""
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


def usual(cases: Sequence[Any], *numbers: int) -> list[Any]:
    """Return cases of `parametrize`; the usual run has those with the given numbers, and --large has all."""
    return [
        one if number in numbers else slow(*(one if isinstance(one, tuple) else (one,)))
        for number, one in enumerate(cases)
    ]

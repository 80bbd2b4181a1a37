"""The end of an epoch of a mixture, and the progress of its sources at that step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_int
from zarrfeed.plan.mixture.mixture import END, Int64, Mixture

#: "first": the epoch ends before a source would repeat a sample. "all": when every sample of every source was read.
#: "longest": when every sample of the source with most samples was read. Or a number of steps.
Stop: TypeAlias = Literal["first", "all", "longest"] | int
_STOPS = ("first", "all", "longest")


@dataclass(frozen=True)
class SourceEnd:
    """The progress of a source after some steps of a mixture.

    Attributes
    ----------
    taken
        Samples that were taken of it, those of later passes included.
    passes
        Passes that were begun: the orders of its own that the source needs.
    next_pass, next_in_pass
        The first position of its endless sequence that was not taken: the pass, and the position in it. A few later
        positions may have been taken, as columns differ by up to two samples.
    """

    taken: int
    passes: int
    next_pass: int
    next_in_pass: int


def epoch_steps(mixture: Mixture, lengths: Sequence[int], stop: Stop) -> int:
    """Return the number of steps of an epoch of a mixture.

    Columns differ by up to two samples of a source. So with "first", up to two samples a column are left of the source
    that would repeat; with the other rules, as many may be repeated.

    Parameters
    ----------
    mixture
        The source of each step.
    lengths
        Samples of each source.
    stop
        The rule by which the epoch ends, or its number of steps.

    Raises
    ------
    ConfigError
        If there is no such rule, or a source that has to be read once never is, since its weight becomes 0.

    Examples
    --------
    >>> mixture = Mixture((7, 2, 1), seed=0)
    >>> [epoch_steps(mixture, (7000, 4000, 1000), stop) for stop in ("first", "all", "longest", 500)]
    [9863, 20054, 10021, 500]
    """
    _check_lengths(mixture, lengths)
    check_stop(stop)
    if not isinstance(stop, str):
        return int(stop)
    return _steps_by_rule(mixture, tuple(lengths), stop)


def check_stop(stop: object) -> None:
    """Raise ConfigError unless an epoch can end so."""
    if not isinstance(stop, str):
        check_int("stop", stop, 1, END - 1)
    elif stop not in _STOPS:
        known = ", ".join(map(repr, _STOPS))
        raise ConfigError(f"stop = {stop!r}, must be one of {known}, or a number of steps{did_you_mean(stop, _STOPS)}")


def source_ends(mixture: Mixture, lengths: Sequence[int], steps: int) -> list[SourceEnd]:
    """Return the progress of each source after the first `steps` steps.

    Examples
    --------
    >>> source_ends(Mixture((1,), seed=0), [1000], 2500)
    [SourceEnd(taken=2500, passes=3, next_pass=2, next_in_pass=500)]
    """
    _check_lengths(mixture, lengths)
    check_int("steps", steps, 0, END - 1)
    ends = []
    for front, length in zip(mixture.front(steps), lengths, strict=True):
        first, last = int(front.min()), int(front.max()) - mixture.columns
        passes = 0 if last < 0 else 1 + last // length
        ends.append(SourceEnd(int((front // mixture.columns).sum()), passes, *divmod(first, length)))
    return ends


@lru_cache(maxsize=64)
def _steps_by_rule(mixture: Mixture, lengths: tuple[int, ...], stop: str) -> int:
    """Return the result of `epoch_steps` for a rule; cached, since each worker's plan and each state asks."""
    if stop == "first":
        # In each column, the first position of the second pass is among the C positions behind the first pass.
        steps = _steps(mixture, [np.arange(n, n + mixture.columns) for n in lengths])
        first = [of_source[of_source >= 0] for of_source in steps]
        return min(int(of_source.min()) for of_source in first if len(of_source))
    # In each column, the last position of the first pass is among the last C positions of the pass.
    longest = max(lengths)
    asked = [source for source, n in enumerate(lengths) if stop == "all" or n == longest]
    steps = _steps(mixture, [np.arange(max(0, n - mixture.columns), n) for n in lengths])
    for source in asked:
        if steps[source].min() < 0:
            raise ConfigError(
                f"stop = {stop!r}: source {source} has {lengths[source]} samples, and is never read to its end, as its "
                "weight becomes 0 before that"
            )
    return 1 + max(int(steps[source].max()) for source in asked)


def _steps(mixture: Mixture, positions: Sequence[Int64]) -> list[Int64]:
    return [mixture.steps_of(source, of_source) for source, of_source in enumerate(positions)]


def _check_lengths(mixture: Mixture, lengths: Sequence[int]) -> None:
    if len(lengths) != mixture.num_sources:
        raise ConfigError(f"{len(lengths)} lengths, must be {mixture.num_sources}, one for each source")
    for source, length in enumerate(lengths):
        check_int(f"length of source {source}", length, 1, END - 1)

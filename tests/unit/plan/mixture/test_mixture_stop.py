"""When an epoch of a mixture ends, by counting what its steps take."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.mixture.test_mixture import mixtures
from zarrfeed import ConfigError
from zarrfeed.plan.mixture.mixture import Mixture
from zarrfeed.plan.mixture.mixture_stop import SourceEnd, epoch_steps, source_ends


def counted(mixture: Mixture, lengths: list[int], stop: str) -> int:
    """Return the number of steps of an epoch by going through them."""
    seen: list[set[int]] = [set() for _ in lengths]
    longest = [n == max(lengths) for n in lengths]
    parts = (np.arange(begin, begin + 1000) for begin in range(0, 500_000, 1000))
    for step, source, position in chain.from_iterable(zip(part, *mixture.at(part), strict=True) for part in parts):
        if stop == "first" and position >= lengths[source]:
            return int(step)
        if position < lengths[source]:
            seen[source].add(int(position))
        is_whole = [len(one) == n for one, n in zip(seen, lengths, strict=True)]
        if stop == "all" and all(is_whole):
            return int(step) + 1
        if stop == "longest" and all(whole for whole, asked in zip(is_whole, longest, strict=True) if asked):
            return int(step) + 1
    raise AssertionError("it has no end")


WEIGHTS = st.lists(st.sampled_from([1, 1, 2, 3, 7, 20]), min_size=1, max_size=4)


@examples(60)
@given(
    weights=WEIGHTS,
    lengths=st.lists(st.integers(1, 120), min_size=4, max_size=4),
    stop=st.sampled_from(["first", "all", "longest"]),
    seed=st.integers(0, 9),
    columns=st.sampled_from([1, 4, 24]),
)
def test_epochs_end_where_counting_says(
    weights: list[int], lengths: list[int], stop: Any, seed: int, columns: int
) -> None:
    lengths = lengths[: len(weights)]
    mixture = Mixture(tuple(weights), seed, columns)
    assert epoch_steps(mixture, lengths, stop) == counted(mixture, lengths, stop)
    assert epoch_steps(mixture, lengths, 17) == 17


@examples(60)
@given(mixture=mixtures(), length=st.integers(1, 200), steps=st.integers(0, 1500))
def test_ends_of_sources_are_those_of_the_positions_that_were_taken(mixture: Mixture, length: int, steps: int) -> None:
    source, position = mixture.at(np.arange(steps))
    ends = source_ends(mixture, [length] * mixture.num_sources, steps)
    for one, end in enumerate(ends):
        taken = set(position[source == one].tolist())
        first = next(p for p in range(steps + mixture.columns + 1) if p not in taken)
        passes = max(taken) // length + 1 if taken else 0
        assert end == SourceEnd(len(taken), passes, *divmod(first, length))


def test_what_is_left_of_a_source_at_the_first_end_is_few_samples() -> None:
    mixture, lengths = Mixture((7, 2, 1), 0), [70_000, 50_000, 40_000]
    steps = epoch_steps(mixture, lengths, "first")
    end, *others = source_ends(mixture, lengths, steps)
    assert end.passes == 1
    assert 70_000 - 48 <= end.taken <= 70_000  # at most two samples a column are left
    assert [one.passes for one in others] == [1, 1]


def test_weights_that_become_0_may_keep_a_source_from_its_end() -> None:
    mixture = Mixture((1, 1), 0, changes=((1000, (1, 0)),))
    assert epoch_steps(mixture, [2000, 400], "all") > 2000
    assert epoch_steps(mixture, [2000, 501], "first") < 3000
    with pytest.raises(ConfigError, match="source 1 has 800 samples, and is never read to its end"):
        epoch_steps(mixture, [2000, 800], "all")
    assert epoch_steps(mixture, [2000, 800], "longest") > 2000
    with pytest.raises(ConfigError, match="stop = 'longest': source 1 has 3000 samples"):
        epoch_steps(mixture, [2000, 3000], "longest")


@pytest.mark.parametrize(
    ("lengths", "stop", "message"),
    [
        ([5, 5], "frist", "stop = 'frist', must be one of 'first', 'all', 'longest', or a number of steps; did you"),
        ([5, 5], 0, "stop = 0, must be"),
        ([5, 5], 1.5, "stop = 1.5, must be"),
        ([5], "first", "1 lengths, must be 2, one for each source"),
        ([5, 0], "first", "length of source 1 = 0, must be"),
    ],
)
def test_bad_arguments_are_refused(lengths: Any, stop: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        epoch_steps(Mixture((1, 1), 0), lengths, stop)
    with pytest.raises(ConfigError, match="steps = -1, must be"):
        source_ends(Mixture((1, 1), 0), [5, 5], -1)


def test_the_end_of_an_epoch_is_searched_once_for_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Mixture:
        return Mixture((5, 3), seed=20_261)

    first = epoch_steps(made(), (70, 30), "all")
    monkeypatch.setattr(Mixture, "steps_of", None)
    assert epoch_steps(made(), [70, 30], "all") == first
    with pytest.raises(TypeError):
        epoch_steps(made(), (70, 31), "all")

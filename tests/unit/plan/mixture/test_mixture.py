"""Mixtures: a bijection of steps and the sources' positions, with small errors, in exact integers."""

from __future__ import annotations

import doctest
import math
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed import ConfigError
from zarrfeed.plan.mixture import mixture as mixture_module
from zarrfeed.plan.mixture import mixture_stop
from zarrfeed.plan.mixture.mixture import END, MOST_WEIGHT, Mixture, parse_weights

ONE = 1 << 62
#: Those of the promise about errors.
USUAL: dict[str, tuple[int, ...]] = {
    "7:2:1": (7, 2, 1),
    "1:1": (1, 1),
    "8 sources": (850, 637, 511, 270, 308, 41, 76, 17),
    "8 equal sources": (1,) * 8,
    "20 sources": tuple(10**6 // (i + 1) for i in range(20)),
    "20 equal sources": (1,) * 20,
    "one heavy source": (970, 10, 10, 10),
}


@st.composite
def mixtures(draw: st.DrawFn, *, most_changes: int = 3) -> Mixture:
    """Draw a mixture, with weights that change."""
    count = draw(st.integers(1, 7))
    weight = st.sampled_from([0, 1, 1, 2, 7, 100, 12345, 10**9])
    stages = draw(
        st.lists(
            st.lists(weight, min_size=count, max_size=count).filter(any), min_size=1, max_size=1 + most_changes
        ).filter(lambda stages: all(map(any, zip(*stages, strict=True))))
    )
    steps = sorted(draw(st.lists(st.integers(1, 900), min_size=3, max_size=3, unique=True)))
    changes = tuple((step, tuple(weights)) for step, weights in zip(steps, stages[1:], strict=False))
    return Mixture(tuple(stages[0]), draw(st.integers(0, 2**64 - 1)), draw(st.sampled_from([1, 2, 5, 24])), changes)


def plain(mixture: Mixture, end: int) -> tuple[list[int], list[int]]:
    """Return source and position of each step, by counting, with Python's own integers.

    Ratios are calculated anew. Of the mixture, the tree and the first phases are taken.
    """
    children = mixture._tree.children.tolist()
    count, columns = len(mixture.weights), mixture.columns
    stages = [(0, mixture.weights), *mixture.changes]
    firsts = [-(-step // columns) for step, _ in stages]

    def weight(number: int, weights: tuple[int, ...]) -> int:
        return weights[number] if number < count else sum(weight(c, weights) for c in children[number - count])

    sources, positions = [0] * end, [0] * end
    for column in range(columns):
        taken: Counter[int] = Counter()
        # what the rows of a node gave its left child so far, with its fraction
        given = [int(mixture._settled[0].phase[v, column]) for v in range(len(children))]
        for row, step in enumerate(range(column, end, columns)):
            weights = next(w for first, (_, w) in reversed(list(zip(firsts, stages, strict=True))) if first <= row)
            number = count if children else 0
            while number >= count:
                left, right = children[number - count]
                whole = weight(number, weights)
                before = given[number - count]
                given[number - count] += (weight(left, weights) << 62) // whole if whole else 0
                number = left if given[number - count] >> 62 > before >> 62 else right
            sources[step], positions[step] = number, taken[number] * columns + column
            taken[number] += 1
    return sources, positions


@examples(80)
@given(mixture=mixtures(), end=st.integers(1, 1500))
def test_steps_are_those_of_counting_with_big_integers(mixture: Mixture, end: int) -> None:
    steps = np.arange(end)
    source, position = mixture.at(steps)
    expected = plain(mixture, end)
    assert (source.tolist(), position.tolist()) == expected
    assert mixture.at(steps)[0].tolist() == expected[0]


@examples(80)
@given(mixture=mixtures(), data=st.data())
def test_every_step_has_one_position_and_the_other_way_round(mixture: Mixture, data: st.DataObject) -> None:
    steps = np.arange(2000)
    source, position = mixture.at(steps)
    assert mixture.steps_of(source, position).tolist() == steps.tolist()
    # every position of every source, in each column from its first on, is of one step, or never comes
    wanted = np.arange(300)
    for one in range(mixture.num_sources):
        found = mixture.steps_of(one, wanted)
        known = found >= 0
        again = mixture.at(found[known])
        assert set(again[0].tolist()) <= {one}
        assert again[1].tolist() == wanted[known].tolist()
    shape = data.draw(st.sampled_from([(), (3,), (2, 3), (0,)]))
    far = data.draw(st.integers(0, END - 10**6)) + np.arange(math.prod(shape)).reshape(shape) * 997
    sources, positions = mixture.at(far)
    assert sources.shape == positions.shape == shape
    assert (mixture.steps_of(sources, positions) == far).all()


@examples(60)
@given(mixture=mixtures(), end=st.integers(0, 1500))
def test_counts_are_those_of_the_steps_before(mixture: Mixture, end: int) -> None:
    source = mixture.at(np.arange(end))[0]
    assert mixture.taken(end).tolist() == [int((source == one).sum()) for one in range(mixture.num_sources)]
    for column in range(mixture.columns):
        rows = len(source[column :: mixture.columns])
        expected = [int((source[column :: mixture.columns] == one).sum()) for one in range(mixture.num_sources)]
        assert mixture.count(column, rows).tolist() == expected
    every = np.arange(mixture.columns)
    front = mixture.count(every, -(-(end - every) // mixture.columns)).T * mixture.columns + every
    assert mixture.front(end).tolist() == front.tolist()


def errors(sources: npt.NDArray[Any], weights: tuple[int, ...]) -> float:
    """Return how far a prefix is from the weights, at most, in samples of a source."""
    prefix = np.arange(1, len(sources) + 1)
    return max(
        float(np.abs(np.cumsum(sources == one) - prefix * (weight / sum(weights))).max())
        for one, weight in enumerate(weights)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weights", USUAL.values(), ids=USUAL.keys())
def test_errors_are_below_2_in_a_column_and_at_most_8_at_any_prefix(weights: tuple[int, ...], seed: int) -> None:
    sources = Mixture(weights, seed).at(np.arange(24_000))[0]
    assert errors(sources, weights) <= 8
    assert max(errors(sources[column::24], weights) for column in range(24)) < 2


@pytest.mark.parametrize("world_size", [2, 3, 8, 24])
def test_a_rank_has_the_weights_too_and_a_regular_stride_of_every_source(world_size: int) -> None:
    weights = (7, 2, 1)
    steps = np.arange(24_000)
    source, position = Mixture(weights, 3).at(steps)
    for rank in range(world_size):
        ours = steps[rank::world_size]
        assert errors(source[ours], weights) <= 8
        for one in range(3):
            taken = position[ours][source[ours] == one]  # those with the rank's remainder, whatever the weights
            assert set((taken % world_size).tolist()) == {rank}


def test_seeds_make_different_mixtures_and_equal_ones_the_same() -> None:
    steps = np.arange(480)
    first, again, other = (Mixture((7, 2, 1), seed).at(steps)[0] for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert Mixture((7, 2, 1), 0) == Mixture((7, 2, 1), 0) != Mixture((7, 2, 1), 1)
    assert hash(Mixture((7, 2, 1), 0)) == hash(Mixture((7, 2, 1), 0))


def test_one_mixture_is_pinned_number_by_number() -> None:
    mixture = Mixture((7, 2, 1), 12345, changes=((1000, (1, 1, 1)),))
    source, position = mixture.at(np.array([*range(24), 24_000, 10**12, 10**15 + 7, 10**18 + 11]))
    assert source.tolist() == PINNED_SOURCES
    assert position.tolist() == PINNED_POSITIONS
    assert [int(stage.ratio[0]) for stage in mixture._settled] == PINNED_RATIOS
    assert mixture._settled[0].phase[:, :2].tolist() == PINNED_PHASES


PINNED_SOURCES = [1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
PINNED_POSITIONS = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
    8352,
    333333333712,
    333333333333215,
    333333333333333195,
]
PINNED_RATIOS = [3228180212899171532, 1537228672809129301]
PINNED_PHASES = [[348271564497608393, 2846268157812443507], [4279885614591373836, 1781889021276538721]]


@pytest.mark.parametrize("module", [mixture_module, mixture_stop])
def test_the_examples_of_the_docstrings_run(module: ModuleType) -> None:
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


# --- weights that change ----------------------------------------------------------------------------------------


def test_changes_hold_from_the_next_row_on() -> None:
    mixture = Mixture((1, 0), 0, columns=4, changes=((5, (0, 1)), (12, (1, 0))))
    assert mixture.at(np.arange(16))[0].tolist() == [0] * 8 + [1] * 4 + [0] * 4
    assert mixture.steps_of(0, np.arange(12)).tolist() == [*range(8), *range(12, 16)]
    assert mixture.steps_of(1, np.arange(8)).tolist() == [*range(8, 12), -1, -1, -1, -1]


def test_the_least_share_leaves_out_the_times_without_the_source() -> None:
    """Memory is divided by it: a share of 0 would leave a source none, in the times in which it is read."""
    mixture = Mixture((1, 1, 2), 5, changes=((480, (0, 1, 1)), (960, (1, 9, 0))))
    assert [mixture.least_share(source) for source in range(3)] == [1 / 10, 1 / 4, 1 / 2]


def test_a_change_to_the_same_weights_changes_nothing() -> None:
    plain, changed = Mixture((7, 2, 1), 4), Mixture((7, 2, 1), 4, changes=((100, (7, 2, 1)), (500, (7, 2, 1))))
    steps = np.arange(3000)
    for ours, theirs in zip(plain.at(steps), changed.at(steps), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_fractions_are_carried_over_so_that_frequent_changes_add_no_error() -> None:
    stages = [((i % 9) + 1, 3, 10 - (i % 9)) for i in range(100)]
    mixture = Mixture(stages[0], 1, changes=tuple((i * 24, stages[i]) for i in range(1, 100)))
    source = mixture.at(np.arange(2400))[0]
    due = np.repeat(np.array(stages) / np.sum(stages, axis=1, keepdims=True), 24, axis=0).cumsum(axis=0)
    for one in range(3):
        taken = np.cumsum(source == one)
        assert np.abs(taken - due[:, one]).max() <= 8
        in_column = np.cumsum((source == one)[::24])
        assert np.abs(in_column - due[23::24, one] / 24).max() < 2


# --- weights of users -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([7, 2, 1], (7, 2, 1)),
        ((0.7, 0.2, 0.1), (7, 2, 1)),
        ([0.5, 1], (1, 2)),
        ([10, 20], (1, 2)),
        ([np.float64(0.25), np.int64(1)], (1, 4)),
        ([0, 3], (0, 1)),
        ([1e-3, 1], (1, 1000)),
    ],
)
def test_weights_are_exact(weights: Any, expected: tuple[int, ...]) -> None:
    assert parse_weights(weights) == expected


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2], [float("nan"), 1], [float("inf")]])
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(ConfigError, match="must be finite numbers of at least 0, and one above 0"):
        parse_weights(weights)


def test_weights_of_too_many_digits_are_refused() -> None:
    with pytest.raises(ConfigError, match="in lowest terms"):
        parse_weights([1e-14, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": ()}, "weights has 0 numbers, must have 1 to 65536, one for each source"),
        ({"weights": (1, -1)}, r"weights = \(1, -1\): must be integers in \[0, 1099511627776\]"),
        ({"weights": (1, MOST_WEIGHT + 1)}, "must be integers in"),
        ({"weights": (0, 0)}, "and one above 0"),
        ({"weights": (1, 0)}, "source 1 always has the weight 0; leave it out"),
        ({"seed": -1}, "seed = -1, must be at least 0"),
        ({"seed": 2**64}, "seed = 18446744073709551616, must be"),
        ({"columns": 0}, "columns = 0, must be"),
        ({"changes": ((5, (1,)),)}, r"weights = \(1,\) from step 5 on: 1 weights, must be 2"),
        ({"changes": ((5, (1, 1)), (5, (1, 2)))}, "weights: step = 5, must be above 5, as steps ascend"),
        ({"changes": ((0, (1, 1)),)}, "weights: step = 0, must be above 0"),
    ],
)
def test_bad_mixtures_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(**{"weights": (1, 1), "seed": 0, **arguments})

"""Patches that are drawn: all positions equally likely, others in each epoch, the same for the same key."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.plan.patches.random_positions import PositionsOfParts, RandomPositions, middles
from zarrfeed.plan.patches.tiling import Border
from zarrfeed.plan.patches.weight_table import WeightTable

EXTENTS = np.array([[7, 9], [4, 6]])
SIZE = (3, 4)


@pytest.mark.parametrize(
    ("border", "low", "num_starts"),
    [
        (("drop", "drop"), (0, 0), [(5, 6), (2, 3)]),
        (("pad", "pad"), (-2, -3), [(9, 12), (6, 9)]),
        (("wrap", "wrap"), (0, 0), [(7, 9), (4, 6)]),
        (("wrap", "drop"), (0, 0), [(7, 6), (4, 3)]),
    ],
)
def test_all_positions_of_all_volumes_are_equally_likely(
    border: tuple[Border, ...], low: tuple[int, int], num_starts: list[tuple[int, int]]
) -> None:
    n = 20_000
    volume, start = RandomPositions(EXTENTS, SIZE, border, n).at(1, 2)
    counts = [np.zeros(shape) for shape in num_starts]
    for number, count in enumerate(counts):
        np.add.at(count, tuple((start[volume == number] - low).T), 1)
    found = np.concatenate([count.ravel() for count in counts])
    wanted = n / len(found)
    freedom = len(found) - 1
    assert found.sum() == n
    assert ((found - wanted) ** 2 / wanted).sum() < freedom + 4 * np.sqrt(2 * freedom)


def test_draws_depend_on_seed_and_epoch_and_not_on_how_many_there_are() -> None:
    made = RandomPositions(EXTENTS, SIZE, ("pad", "drop"), 50)
    more = RandomPositions(EXTENTS, SIZE, ("pad", "drop"), 80)
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        np.testing.assert_array_equal(made.at(seed, epoch)[1], more.at(seed, epoch)[1][:50])
    assert len({made.at(*key)[1].tobytes() for key in ((0, 0), (0, 1), (1, 0), (1, 1))}) == 4


@pytest.mark.parametrize("border", ["drop", "pad", "wrap"])
def test_weights_are_of_the_voxel_in_the_middle(border: Border) -> None:
    first, extents = np.array([2, 11]), np.array([[7, 6], [4, 6]])
    weights = np.zeros((15, 6))
    weights[[5, 12, 13], [3, 3, 2]] = 1, 2, 5
    borders: tuple[Border, ...] = (border, border)
    table = WeightTable(weights.ravel(), (15, 6), (1, 1), middles(first, extents, SIZE, borders))
    volume, start = RandomPositions(extents, SIZE, borders, 4000, table, first).at(0, 0)
    middle = start + np.array(SIZE) // 2
    middle = np.where(border == "wrap", middle % extents[volume], middle)
    middle[:, 0] += first[volume]
    found, count = np.unique(middle, axis=0, return_counts=True)
    assert found.tolist() == [[5, 3], [12, 3], [13, 2]]
    wanted = np.array([1, 2, 5]) * 500
    assert ((count - wanted) ** 2 / wanted).sum() < 13.8  # two degrees of freedom, p = 0.001


def test_descriptions_are_concatenated_with_and_without_weights() -> None:
    parts = [RandomPositions(EXTENTS[i : i + 1], SIZE, ("pad", "pad"), 10 + i) for i in range(2)]
    made = parts[0].concat([(one, 1) for one in parts])
    assert made.num_samples == 21
    assert set(made.at(0, 0)[0].tolist()) == {0, 1}
    table = WeightTable(np.ones(63), (7, 9), (1, 1), middles(np.array([0]), EXTENTS[:1], SIZE, ("pad", "pad")))
    weighted = RandomPositions(EXTENTS[:1], SIZE, ("pad", "pad"), 10, table, np.array([0]))
    assert weighted.describe() != parts[0].describe()
    apart = weighted.concat([(weighted, 1), (parts[1], 1)])
    assert isinstance(apart, PositionsOfParts)
    assert [one.num_samples for one in apart.parts] == [10, 11]

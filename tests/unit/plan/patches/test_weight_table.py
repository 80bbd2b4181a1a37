"""Draws by weights: as likely as the weights say, within bounds, and never a voxel without a weight."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.keyed_random import keys_of
from zarrfeed.plan.patches.weight_table import Ranges, WeightTable
from zarrfeed.plan.samples.selection import Int64


def ranges(*pairs: tuple[int, int]) -> Ranges:
    begin, end = np.array(pairs).T
    return Ranges(begin, end)


def words(n: int, dimensions: int, key: int = 0) -> list[np.ndarray]:
    return [keys_of(key, np.arange(n), d) for d in range(1 + dimensions)]


def expected(weights: np.ndarray, cell: tuple[int, ...], bounds: tuple[Ranges, ...]) -> np.ndarray:
    """Return the probability of each voxel."""
    voxels = np.kron(weights.astype(float), np.ones(cell))
    for d, of_dimension in enumerate(bounds):
        inside = np.zeros(voxels.shape[d])
        for begin, end in zip(of_dimension.begin, of_dimension.end, strict=True):
            inside[begin:end] = 1
        voxels *= inside.reshape([-1 if d == e else 1 for e in range(voxels.ndim)])
    probability: np.ndarray = voxels / voxels.sum()
    return probability


def test_ranges_count_voxels_and_find_them() -> None:
    made = ranges((2, 5), (5, 6), (9, 12))
    voxels = [2, 3, 4, 5, 9, 10, 11]
    assert made.voxel(np.arange(7)).tolist() == voxels
    assert made.below(np.arange(15)).tolist() == [sum(v < x for v in voxels) for x in range(15)]


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "?"])
@pytest.mark.parametrize(
    ("cell", "bounds"),
    [
        ((1, 1), (ranges((0, 20)), ranges((0, 15)))),
        ((1, 1), (ranges((3, 9), (11, 12), (15, 20)), ranges((2, 14)))),
        ((4, 5), (ranges((3, 9), (11, 12), (15, 20)), ranges((2, 14)))),
        ((20, 1), (ranges((0, 20)), ranges((0, 15)))),
    ],
)
def test_voxels_are_drawn_as_often_as_their_weights_say(
    cell: tuple[int, ...], bounds: tuple[Ranges, ...], dtype: str
) -> None:
    shape = (20 // cell[0], 15 // cell[1])
    weights = np.random.default_rng(3).integers(0, 4, shape).astype(dtype)
    table = WeightTable(weights.reshape(-1), shape, cell, bounds)
    n = 40_000
    voxels = table.draw(words(n, 2))
    count = np.zeros((20, 15))
    np.add.at(count, tuple(voxels.T), 1)
    wanted = expected(weights, cell, bounds) * n
    assert (count[wanted == 0] == 0).all()
    held = wanted > 0
    freedom = held.sum() - 1
    chi_square = ((count - wanted)[held] ** 2 / wanted[held]).sum()
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)  # p = 0.0003, about


def test_draws_from_many_runs_are_those_of_one_sum_over_all() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(100_000) * (rng.random(100_000) < 0.01)
    table = WeightTable(weights, (100_000,), (1,), (ranges((0, 100_000)),))
    given = words(5000, 1)
    drawn: Int64 = table.draw(given)[:, 0]
    part = (given[0] >> np.uint64(11)) * 2.0**-53
    sums = np.cumsum(weights)
    near = np.searchsorted(sums, part * sums[-1], side="right")
    assert (weights[drawn] > 0).all()
    assert (drawn == near).mean() > 0.999  # but for what is rounded


def test_the_first_and_the_last_weight_can_be_drawn_and_zeros_beside_them_cannot() -> None:
    weights = np.zeros(1000)
    weights[[10, 990]] = 1e-3, 1e9
    table = WeightTable(weights, (1000,), (1,), (ranges((0, 1000)),))
    extremes = [np.array([0, 2**64 - 1], dtype=np.uint64)] * 2
    assert table.draw(extremes)[:, 0].tolist() == [10, 990]


def test_weights_that_are_0_where_patches_may_lie_are_refused() -> None:
    weights = np.zeros(10)
    weights[0] = 1
    with pytest.raises(ConfigError, match="weights are 0"):
        WeightTable(weights, (10,), (1,), (ranges((1, 10)),))
    with pytest.raises(ConfigError, match="finite"):
        WeightTable(np.full(10, 1e308), (10,), (1,), (ranges((1, 10)),))
    digests = {WeightTable(one, (10,), (1,), (ranges((0, 10)),)).digest for one in (weights, weights * 2)}
    assert len(digests) == 2

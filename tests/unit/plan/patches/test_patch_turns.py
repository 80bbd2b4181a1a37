"""Orientations of patches, against np.rot90 and np.flip, and against what groups must be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.examples import tries
from tests.support.patches import Voxels, turned
from zarrfeed.plan.order.keyed_random import KeyedRandom
from zarrfeed.plan.patches.patch_turns import Turns


def images(turns: Turns, box: Voxels) -> list[bytes]:
    return sorted(turned(box, orientation).tobytes() for orientation in turns.table)


def test_a_plane_is_rotated_as_rot90_does_and_then_flipped() -> None:
    box = np.arange(2 * 5 * 5).reshape(2, 5, 5)
    rotated = [np.rot90(box, k, axes=(1, 2)) for k in range(4)]
    assert images(Turns(3, rotate=(2, 1)), box) == sorted(one.tobytes() for one in rotated)
    flipped = [np.flip(one, axes) for one in rotated for axes in ((), (0,), (1,), (0, 1))]
    assert images(Turns(3, (0, 1), (1, 2)), box) == sorted(one.tobytes() for one in flipped)


def test_flips_are_all_subsets_of_the_dimensions() -> None:
    box = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    flipped = [np.flip(box, axes) for axes in ((), (0,), (2,), (0, 2))]
    assert images(Turns(3, flip=(2, 0)), box) == sorted(one.tobytes() for one in flipped)
    assert Turns(3).table.tolist() == [[0, 1, 2]]


def test_a_cube_has_the_24_orientations_that_rotations_about_its_axes_give() -> None:
    box = np.arange(3**3).reshape(3, 3, 3)
    made = {box.tobytes(): box}
    while True:  # what rotations of what was found add
        planes = itertools.product(list(made.values()), ((0, 1), (0, 2), (1, 2)))
        more = {np.rot90(one, axes=axes).tobytes(): np.rot90(one, axes=axes) for one, axes in planes}
        if more.keys() <= made.keys():
            break
        made |= more
    assert len(made) == 24
    assert images(Turns(3, rotate=(0, 1, 2)), box) == sorted(made)


@pytest.mark.parametrize(("dims", "orientations"), [((0, 1), 8), ((0, 1, 2), 48)])
def test_flips_and_rotations_of_all_dimensions_are_all_signed_permutations_alike(
    dims: tuple[int, ...], orientations: int
) -> None:
    different, times = np.unique(Turns(len(dims), dims, dims).table, axis=0, return_counts=True)
    assert len(different) == orientations
    assert len(set(times)) == 1


def test_an_orientation_is_drawn_by_seed_epoch_and_patch_alone() -> None:
    turns, numbers = Turns(3, (0, 1, 2), (0, 1, 2)), np.arange(400)
    drawn = turns.at(5, 2, numbers)
    for number in (0, 17, 399):
        row = KeyedRandom(0x6F7269656E74, 5, 2, number).word() * 192 >> 64
        assert drawn[number].tolist() == turns.table[row].tolist()
    order = np.random.default_rng(0).permutation(400)
    assert np.array_equal(turns.at(5, 2, numbers[order]), drawn[order])
    assert np.array_equal(turns.at(5, 2, numbers[:7]), drawn[:7])
    assert not np.array_equal(turns.at(5, 3, numbers), drawn)
    assert not np.array_equal(turns.at(6, 2, numbers), drawn)
    assert turns.at(2**64 - 1, 0, numbers).shape == (400, 3)


@pytest.mark.parametrize("turns", [Turns(2, (1,)), Turns(2, (0,), (0, 1)), Turns(3, (0, 1, 2), (0, 1, 2))])
def test_orientations_are_uniform_over_the_epochs_of_a_patch_and_over_the_patches_of_an_epoch(turns: Turns) -> None:
    different, times = np.unique(turns.table, axis=0, return_counts=True)
    of_epochs = np.concatenate([turns.at(1, epoch, np.array([4711])) for epoch in range(tries(5000, 20_000))])
    for drawn in (of_epochs, turns.at(1, 1, np.arange(20_000))):
        found, count = np.unique(drawn, axis=0, return_counts=True)
        assert np.array_equal(found, different)
        expected = len(drawn) * times / times.sum()
        chi_square = ((count - expected) ** 2 / expected).sum()
        freedom = len(different) - 1
        assert chi_square < freedom + 3.3 * np.sqrt(2 * freedom) + 8  # beyond p = 0.001 for 1 to 47 degrees of freedom

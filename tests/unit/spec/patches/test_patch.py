"""Volumes: the runs of samples that patches do not leave."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.patches.patch import FieldPatch, PatchAxis, Volumes


def pairs(volumes: Volumes) -> list[tuple[int, int]]:
    return list(zip(volumes.begin.tolist(), volumes.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("samples", "store_ends", "expected"),
    [
        (range(3, 20), [], [(3, 20)]),
        (range(3, 20), [0, 7, 19, 30], [(3, 7), (7, 19), (19, 20)]),
        (range(0, 9, 4), [], [(0, 1), (4, 5), (8, 9)]),
        (np.array([2, 3, 4, 8, 9, 20]), [0, 9, 30], [(2, 5), (8, 9), (9, 10), (20, 21)]),
    ],
)
def test_a_volume_has_no_gap_and_lies_in_one_store(
    samples: range | np.ndarray[tuple[int], np.dtype[np.int64]], store_ends: list[int], expected: list[tuple[int, int]]
) -> None:
    assert pairs(Volumes.of(samples, store_ends)) == expected


def test_volumes_are_rows_of_the_array_that_has_their_store() -> None:
    volumes = Volumes.of(range(3, 20), [0, 7, 15, 30])
    assert volumes.rows_of(None).tolist() == [[0, 3, 7], [0, 7, 15], [0, 15, 20]]
    # this array has the first store and the last one, in chunks of 4 rows
    parts = ArrayParts(np.array([0, 15]), np.array([7, 30]), [b"a/", b"b/"], ["a", "b"], 4)
    assert volumes.rows_of(parts).tolist() == [[0, 3, 7], [0, 0, 0], [2, 0, 5]]


def test_volumes_compare_by_their_samples() -> None:
    first, same, other = (Volumes.of(range(3, end), []) for end in (20, 20, 21))
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    assert first != 3


def test_a_patch_lacks_an_axis_of_single_images() -> None:
    axes = (PatchAxis(0, 1, dropped=True), PatchAxis(None, 3), PatchAxis(1, 64), PatchAxis(2, 32, "wrap"))
    patch = FieldPatch(axes, Volumes.of(range(5), []))
    assert patch.shape == (3, 64, 32)
    assert str(patch) == "patches of 1 x 64 x 32"

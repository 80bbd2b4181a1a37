"""Numbers of patches: each start has one, in each volume."""

from __future__ import annotations

import itertools

import numpy as np

from zarrfeed.plan.patches.patch_numbers import Numbering


def test_numbers_tell_all_starts_apart_and_say_where_patches_begin() -> None:
    extents, sizes = np.array([[4, 3], [2, 5]]), np.array([2, 3])
    numbering = Numbering.of(extents, sizes)
    seen = []
    for volume in range(2):
        starts = [range(-int(p), int(n)) for p, n in zip(sizes, extents[volume], strict=True)]
        for start in itertools.product(*starts):
            number = numbering.number(np.array([volume]), np.array([start]))
            seen.append(int(number[0]))
            found, begin = numbering.locate(number)
            assert found.tolist() == [volume]
            assert begin.tolist() == [list(start)]
    assert sorted(seen) == list(range(int(numbering.first[-1])))

"""Patches of volumes with bad chunks, which are replaced: a slot has its own patch, or another one, whole and right.

What holds: a patch without a voxel of a bad chunk stays where it is, a patch with one is replaced by a patch without
one, and all fields of a slot are of the same patch. The replacement is the same on any number of ranks.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import zarrfeed
from tests.support.patches import SHAPE, patch_of, stored, volume
from zarrfeed import ZarrIterableDataset

CHUNKS = (8, 9, 7)
SIZE = (6, 5, 4)
BAD = ((1, 1, 1), (3, 0, 2))
SKIP = {"faults": {"on_error": "skip"}}

pytestmark = pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")


def damaged(folder: Path, bad: tuple[tuple[int, int, int], ...] = BAD) -> Path:
    """Write an image, whose chunks `bad` do not decode, and a label that is chunked otherwise."""
    stored(folder / "image", volume(), chunks=CHUNKS)
    stored(folder / "label", volume(first=100_000), chunks=(30, 5, 21))
    for index in bad:
        (folder / "image" / "c" / "/".join(map(str, index))).write_bytes(b"no chunk")
    return folder


def touches_bad(start: npt.NDArray[Any], wraps: tuple[int, ...]) -> bool:
    """Return whether the patch that begins there has a voxel of a bad chunk of the image."""
    for bad in BAD:
        inside = True
        for axis, (index, chunk) in enumerate(zip(bad, CHUNKS, strict=True)):
            voxels = np.arange(start[axis], start[axis] + SIZE[axis])
            voxels = voxels % SHAPE[axis] if axis in wraps else voxels
            inside &= bool(((voxels // chunk == index) & (voxels >= 0) & (voxels < SHAPE[axis])).any())
        if inside:
            return True
    return False


def patched(folder: Path, sampling: str, wraps: tuple[int, ...]) -> zarrfeed.Data:
    options: dict[str, Any] = {"border": {axis: "wrap" if axis in wraps else "pad" for axis in range(3)}}
    if sampling == "positions":
        options["positions"] = np.random.default_rng(0).integers(-3, 18, (90, 3))
    if sampling == "random":
        options["n"] = 90
    data = zarrfeed.open({"image": str(folder / "image"), "label": str(folder / "label")})
    return data.patch(dict(enumerate(SIZE)), sampling=sampling, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wraps", [(), (1,)])
@pytest.mark.parametrize("sampling", ["tiles", "grid", "positions", "random"])
def test_patches_of_bad_chunks_are_replaced_on_any_number_of_ranks(
    sampling: str, wraps: tuple[int, ...], tmp_path: Path
) -> None:
    data = patched(damaged(tmp_path), sampling, wraps)
    order = ZarrIterableDataset(data, shuffle=True, seed=5).sample_order(1)
    seen: dict[int, list[list[int]]] = {}
    for world_size in (1, 3):
        of_ranks = []
        for rank in range(world_size):
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "even": "off", **SKIP}
            dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=5, return_index=True, **options)
            dataset.set_epoch(1)
            numbers = []
            for samples, index in dataset:
                numbers += index.tolist()
                for image, label, start in zip(samples["image"], samples["label"], data.locate(index)[1], strict=True):
                    assert not touches_bad(start, wraps)
                    np.testing.assert_array_equal(image.numpy(), patch_of(volume(), start, SIZE, wraps=wraps))
                    np.testing.assert_array_equal(
                        label.numpy(), patch_of(volume(first=100_000), start, SIZE, wraps=wraps)
                    )
            of_ranks.append(numbers)
            assert {chunk.key for chunk in dataset.skipped_chunks()} <= {"c/1/1/1", "c/3/0/2"}
        seen[world_size] = of_ranks
    (whole,) = seen[1]
    dealt = [n for one in itertools.zip_longest(*seen[3]) for n in one if n is not None]
    assert dealt == whole
    starts = data.locate(order)[1]
    replaced = [touches_bad(start, wraps) for start in starts]
    assert 0 < sum(replaced) < len(replaced)
    for number, wanted, is_bad in zip(whole, order.tolist(), replaced, strict=True):
        assert is_bad or number == wanted


def test_more_bad_chunks_than_are_allowed_end_the_epoch(tmp_path: Path) -> None:
    data = patched(damaged(tmp_path), "tiles", ())
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, faults={"on_error": "skip", "max_errors": 1})
    with pytest.raises(zarrfeed.CorruptChunkError, match="max_errors = 1"):
        list(dataset)


def test_a_volume_without_a_good_chunk_is_an_error_and_no_endless_search(tmp_path: Path) -> None:
    every = tuple(np.ndindex(4, 3, 3))
    data = patched(damaged(tmp_path, every), "tiles", ())
    dataset = ZarrIterableDataset(data, batch_size=4, faults={"on_error": "skip", "max_errors": 1000})
    with pytest.raises(zarrfeed.CorruptChunkError, match="no block of the epoch has a good sample"):
        list(dataset)

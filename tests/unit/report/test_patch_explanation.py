"""Which patches an epoch has, and how they are read: on the page of `explain()`, and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ZarrIterableDataset


def opened(folder: Path) -> zarrfeed.Data:
    options = {"chunks": (16, 16, 16), "dimension_names": ("z", "y", "x")}
    zarr.create_array(folder / "v", data=np.ones((96, 80, 64), dtype="u1"), **options)  # type: ignore[arg-type]
    return zarrfeed.open(folder / "v")


@pytest.mark.parametrize("options", [{}, {"memory_budget": "2 MiB"}, {"mixing": {"lanes": 2}}])
def test_what_is_decoded_is_what_the_page_says(options: dict[str, object], tmp_path: Path) -> None:
    data = opened(tmp_path).patch({"z": 8, "y": 24, "x": 16})
    dataset = ZarrIterableDataset(data, batch_size=8, shuffle=True, num_threads=1, **options)  # type: ignore[arg-type]
    field = dataset.explain().fields[0]
    for _ in dataset:
        pass
    assert field.chunks == 6 * 5 * 4
    assert field.chunk_reads == pytest.approx(dataset.stats().chunks_read, rel=0.05)
    assert field.amplification == pytest.approx(field.chunk_reads / field.chunks)


def test_the_page_names_sizes_borders_and_columns(tmp_path: Path) -> None:
    data = opened(tmp_path).patch(
        {"z": 8, "y": 24, "x": 16}, sampling="grid", stride={"z": 4}, border={"z": "shift", "y": "pad", "x": "drop"}
    )
    explanation = ZarrIterableDataset(data, batch_size=8, shuffle=True).explain()
    patches = explanation.patches
    assert patches is not None
    assert (patches.size, patches.stride, patches.border) == ((8, 24, 16), (4, 24, 16), ("shift", "pad", "drop"))
    rows = [text for name, text in explanation.rows() if name in ("", "patches", "samples")]
    assert rows[0] == f"{23 * 4 * 4} patches in this epoch, {23 * 4 * 4} delivered in batches of 8"
    assert rows[1] == "8 x 24 x 16 voxels: a grid, 4 x 24 x 16 apart; border: shift, pad, drop"
    assert rows[2].startswith(f"read along dimension {patches.axis}, in columns with layers of up to ")
    assert "blocks are layers of columns" in rows


def test_the_page_says_what_is_turned(tmp_path: Path) -> None:
    turned = opened(tmp_path).patch({"z": 8, "y": 16, "x": 16}, flip=["z", "x"], rotate=["y", "x"])
    explanation = ZarrIterableDataset(turned, shuffle=True).explain()
    assert explanation.patches is not None
    assert (explanation.patches.flip, explanation.patches.rotate) == ((0, 2), (1, 2))
    rows = [text for _, text in explanation.rows()]
    assert "flipped along dimensions 0, 2 and rotated in dimensions 1, 2, anew in each epoch" in rows

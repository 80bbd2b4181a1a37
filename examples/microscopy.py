"""Microscopy: patches of a volume and of its labels, each voxel once an epoch; a 3-d convolution finds the cells.

python examples/microscopy.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import zarr

import zarrfeed as zf


def write_volume(path: Path) -> None:
    """Write a noisy volume (64, 96, 96) with 40 bright cells, and their labels."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*map(np.arange, (64, 96, 96)), indexing="ij"))
    cells = np.zeros((64, 96, 96), "u1")
    for center in rng.uniform(5, (59, 91, 91), (40, 3)):
        cells[((grid - center[:, None, None, None]) ** 2).sum(0) < 30] = 1
    image = np.clip(60 + 90 * cells + rng.normal(0, 40, cells.shape), 0, 255).astype("u1")
    group = zarr.create_group(path)
    names = ("z", "y", "x")
    group.create_array("image", data=image, chunks=(16, 48, 48), dimension_names=names)
    group.create_array("cells", data=cells, chunks=(32, 32, 32), dimension_names=names)


def main() -> None:
    """Train on patches of 16 x 32 x 32 voxels, and say how many voxels are found."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "volume.zarr"
        write_volume(store)
        data = zf.open(store).patch({"z": 16, "y": 32, "x": 32}).cast({"image": "float32"})
        dataset = zf.ZarrIterableDataset(data, batch_size=8, shuffle=True, seed=0)
        model = torch.nn.Sequential(
            torch.nn.Conv3d(1, 4, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv3d(4, 1, 3, padding=1)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(6):
            overlap = union = 0
            for batch in dataset:
                image, cells = batch["image"][:, None] / 255 - 0.3, batch["cells"][:, None].float()
                logits = model(image)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, cells)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found = logits > 0
                overlap += int((found & (cells > 0)).sum())
                union += int((found | (cells > 0)).sum())
        print(f"epoch 5: intersection over union {overlap / union:.2f}")


if __name__ == "__main__":
    main()

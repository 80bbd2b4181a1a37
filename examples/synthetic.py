"""A small Zarr store for the examples: noisy maps, and for each the strength of the pattern in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

NUM_SAMPLES = 2048
SIZE = 16


def open_or_make_store(path: Path) -> tuple[Path, Path]:
    """Return the paths of samples (2048, 16, 16) and targets (2048), written now unless they are there already."""
    samples, targets = path / "samples", path / "targets"
    if not targets.exists():
        rng = np.random.default_rng(0)
        x, y = np.meshgrid(np.linspace(-2, 2, SIZE), np.linspace(-2, 2, SIZE))
        pattern = np.exp(-(x**2) - y**2)
        strength = rng.normal(size=NUM_SAMPLES)
        maps = strength[:, None, None] * pattern + 0.3 * rng.normal(size=(NUM_SAMPLES, SIZE, SIZE))
        group = zarr.create_group(path, overwrite=True)
        group.create_array("samples", data=maps.astype(np.float32), chunks=(32, SIZE, SIZE))
        group.create_array("targets", data=strength.astype(np.float32), chunks=(256,))
    return samples, targets

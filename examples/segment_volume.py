"""Train a small 3-d U-Net on patches of a real volume; stitch its predictions; score them where it never trained.

    pip install nilearn
    python examples/segment_volume.py

The volume is the MNI152 template of the human brain, which nilearn has in its package: nothing is downloaded. The model
learns to find grey matter. It trains on the back of the head, up to `MID`, and is scored in front of it. Left and right
would be no test, as this template is symmetric. The run stops after 70 steps, as if the machine had gone down, and
starts again from its checkpoint. To do that by hand, give a place for the data (made if it is not there) and the
checkpoint (read if it is there), and interrupt the run when you like:

    python examples/segment_volume.py --data brain.zarr --checkpoint run.pt

`--foreground` draws more patches where there is grey matter, in place of tiles; `--small` has a small made-up head in
place of the brain, and needs no nilearn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch.nn import functional

import zarrfeed as zf

DIMS = ("y", "x", "z")  # back to front first: it is split along the first dimension
SAVE_EVERY = 20  # steps


@dataclass(frozen=True)
class Run:
    """What differs between the brain and the small head."""

    patch: int
    channels: int
    drawn: int  # patches of an epoch, if they are drawn
    epochs: int
    stop_after: int


BRAIN, SMALL = Run(32, 8, 200, 5, 70), Run(16, 4, 48, 4, 30)


def read_brain() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the T1 image of the template, and where grey matter is likely, of shape (y, x, z): 233 x 197 x 189 mm."""
    from nilearn.datasets import load_mni152_gm_template, load_mni152_template

    image = np.moveaxis(load_mni152_template(resolution=1).get_fdata(), 1, 0)
    grey = np.moveaxis(load_mni152_gm_template(resolution=1).get_fdata(), 1, 0) >= 0.5
    return (255 * image / image.max()).astype(np.uint8), grey.astype(np.uint8)


def make_head() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the same of a small head: a noisy ball with a bright core, and a grey layer around it."""
    rng = np.random.default_rng(0)
    radius = np.linalg.norm(
        np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in (64, 48, 40)], indexing="ij")), axis=0
    )
    radius += 0.1 * np.sin(9 * np.linspace(-1, 1, 48))[:, None]
    image = np.select([radius < 0.5, radius < 0.8, radius < 0.9], [220, 140, 60], 0)
    noisy = np.clip(image + rng.normal(0, 12, image.shape), 0, 255)
    return noisy.astype(np.uint8), ((radius >= 0.5) & (radius < 0.8)).astype(np.uint8)


def open_or_make_store(path: Path, *, small: bool) -> Path:
    """Write the arrays image and label in chunks of 64 x 64 x 64, unless they are there already."""
    if not (path / "label").exists():
        image, label = make_head() if small else read_brain()
        group = zarr.create_group(path, overwrite=True)
        chunks = (16, 16, 16) if small else (64, 64, 64)
        group.create_array("image", data=image, chunks=chunks, dimension_names=DIMS)
        group.create_array("label", data=label, chunks=chunks, dimension_names=DIMS)
    return path


class UNet(torch.nn.Module):
    """Two halvings, with a layer of each size handed across."""

    def __init__(self, channels: int) -> None:
        super().__init__()

        def block(before: int, after: int) -> torch.nn.Sequential:
            layers: list[torch.nn.Module] = []
            for first in (before, after):
                layers += [torch.nn.Conv3d(first, after, 3, padding=1), torch.nn.GroupNorm(2, after), torch.nn.ReLU()]
            return torch.nn.Sequential(*layers)

        c = channels
        self.down = torch.nn.ModuleList([block(1, c), block(c, 2 * c)])
        self.bottom = block(2 * c, 4 * c)
        self.up = torch.nn.ModuleList([block(6 * c, 2 * c), block(3 * c, c)])
        self.head = torch.nn.Conv3d(c, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return a logit for each voxel, shape (batch, p, p, p), of uint8 patches of the same shape."""
        x, across = image[:, None].float() / 255, []
        for block in self.down:
            across.append(block(x))
            x = functional.max_pool3d(across[-1], 2)
        x = self.bottom(x)
        for block in self.up:
            x = block(torch.cat([functional.interpolate(x, scale_factor=2), across.pop()], dim=1))
        logits: torch.Tensor = self.head(x)[:, 0]
        return logits


def loss_of(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return cross entropy and one minus the Dice score."""
    wanted, found = label.float(), logits.sigmoid()
    dice = (2 * (found * wanted).sum() + 1) / (found.sum() + wanted.sum() + 1)
    return functional.binary_cross_entropy_with_logits(logits, wanted) + 1 - dice


def open_training(store: Path, run: Run, *, foreground: bool) -> zf.Data:
    """Return patches behind the middle: tiles that each epoch lays anew, or patches around voxels of grey matter."""
    data = zf.open(store)
    data, size = data.isel(y=slice(0, len(data) // 2)), dict.fromkeys(DIMS, run.patch)
    if not foreground:
        return data.patch(size)
    return data.patch(size, sampling="random", n=run.drawn, weights=store / "label")


def train(store: Path, checkpoint: Path, run: Run, *, foreground: bool = False, stop_after: int | None = None) -> UNet:
    """Train until the last epoch ends, or stop after so many steps, without any farewell."""
    data = open_training(store, run, foreground=foreground)
    dataset = zf.ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=7)
    loader = zf.ZarrDataLoader(dataset)
    torch.manual_seed(0)
    model = UNet(run.channels).to(memory_format=torch.channels_last_3d)  # half the time on a CPU
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    epoch, step, patches, grey, total = 0, 0, 0, 0, 0.0

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "progress": (epoch, step, patches, grey, total),
        }
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(checkpoint)  # never half a checkpoint

    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        epoch, step, patches, grey, total = saved["progress"]
        print(f"continuing in epoch {epoch} after {step} steps", flush=True)

    while epoch < run.epochs:
        for batch in loader:
            loss = loss_of(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, patches, total = step + 1, patches + len(batch["label"]), total + loss.item() * len(batch["label"])
            grey += int(batch["label"].sum())
            if step % SAVE_EVERY == 0:
                save()
            if step == stop_after:
                print(f"stopped in epoch {epoch} after {step} steps", flush=True)
                return model
        read = f"{patches} patches with {grey} voxels of grey matter"
        print(f"epoch {epoch}: {read}, loss {total / patches:.3f}", flush=True)
        epoch, patches, grey, total = epoch + 1, 0, 0, 0.0
        save()
    return model


@torch.inference_mode()
def validate(model: UNet, store: Path, run: Run, predictions: Path) -> float:
    """Predict the voxels in front of the middle from patches that overlap; return the Dice score of grey matter."""
    data = zf.open(store)
    held_out = slice(len(data) // 2, None)
    grid = data.isel(y=held_out).patch(
        dict.fromkeys(DIMS, run.patch), sampling="grid", stride=dict.fromkeys(DIMS, run.patch * 3 // 4)
    )
    dataset = zf.ZarrIterableDataset(grid, batch_size=8, return_index=True)

    def outputs() -> Iterator[tuple[torch.Tensor, Any]]:
        for batch, index in dataset:
            yield model(batch["image"]).sigmoid(), index

    stitched = dataset.stitch(outputs(), predictions, weights="hann", overwrite=True)
    label = np.asarray(zarr.open_array(store / "label", mode="r")[held_out]) > 0
    found = np.asarray(stitched[:]) > 0.5
    return float(2 * (found & label).sum() / (found.sum() + label.sum()))


def main() -> None:
    """Train where the arguments say, or show a stop and a new start in a temporary directory; then validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with the Zarr arrays image and label")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    parser.add_argument("--foreground", action="store_true", help="draw patches around voxels of grey matter")
    parser.add_argument("--small", action="store_true", help="a small made-up head, for a few seconds")
    arguments = parser.parse_args()
    run, begin = SMALL if arguments.small else BRAIN, time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) if arguments.data is None else arguments.data.parent
        data = folder / "brain.zarr" if arguments.data is None else arguments.data
        checkpoint = folder / "run.pt" if arguments.data is None else arguments.checkpoint
        store = open_or_make_store(data, small=arguments.small)
        if arguments.data is None:
            train(store, checkpoint, run, foreground=arguments.foreground, stop_after=run.stop_after)
        model = train(store, checkpoint, run, foreground=arguments.foreground)
        model.eval()
        dice = validate(model, store, run, data.with_name("grey_matter.zarr"))
    print(
        f"Dice score of grey matter in the half that was not trained on: {dice:.3f} ({time.monotonic() - begin:.0f} s)"
    )


if __name__ == "__main__":
    main()

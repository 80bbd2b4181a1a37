"""Accelerate: the same loop on one process or many, and a stop in the middle of an epoch.

python examples/accelerate_loop.py
accelerate launch --num_processes 2 --cpu examples/accelerate_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from synthetic import SIZE, open_or_make_store

import zarrfeed as zf


def main() -> None:
    """Train for an epoch and a half, save, load, and count the samples of the rest."""
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as own:
        (folder,) = broadcast_object_list([own])
        with accelerator.main_process_first():
            data = zf.open(*open_or_make_store(Path(folder) / "train.zarr"))
        dataset = zf.ZarrIterableDataset(data, batch_size=64, shuffle=True, seed=0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, zf.ZarrDataLoader(dataset))
        half = len(loader) // 2
        for epoch in range(2):
            for step, (x, y) in enumerate(loader):
                loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                if epoch == 1 and step + 1 == half:
                    break
        accelerator.save_state(f"{folder}/checkpoint")
        accelerator.load_state(f"{folder}/checkpoint")
        rest = torch.tensor([sum(len(x) for x, _ in loader)])
        total = int(accelerator.gather(rest).sum())
        accelerator.print(f"loss {float(loss.detach()):.2f}; {total} of 2048 samples are left of the epoch")
        accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()

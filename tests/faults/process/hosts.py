"""Rows: a framework that resumes an epoch, and does not tell the loader where it stood."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.support import warm
from tests.support.later import Later
from zarrfeed import ZarrDataLoader, ZarrIterableDataset

lightning: Any = Later("lightning")
models: Any = Later("tests.faults.process.host_models")

N, BATCH_SIZE = 211, 6
STEPS = -(-N // BATCH_SIZE)
#: Of these tries each has DataLoader workers, which take longer.
_WORKERS_EVERY = 4


def _fit(
    directory: Path, seed: int, workers: int, *, asks: bool, every: int, checkpoint: Path | None = None, **settings: Any
) -> tuple[Any, int]:
    """Train, save after so many steps, and return the model, and how many warnings spoke of repeated batches."""
    dataset = ZarrIterableDataset(
        directory / "samples.zarr", batch_size=BATCH_SIZE, shuffle=True, seed=seed, num_threads=1
    )
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "timeout": 60}
    loader = ZarrDataLoader(dataset, **(options if workers else {}))
    model = models.Model(asks=asks)
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    saves = lightning.pytorch.callbacks.ModelCheckpoint(
        directory, filename="{step}", every_n_train_steps=every, save_top_k=-1
    )
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = lightning.Trainer(accelerator="cpu", callbacks=[saves], max_epochs=3, **quiet, **settings)
        trainer.fit(model, loader, ckpt_path=checkpoint)
    return model, sum("trained on a second time" in str(one.message) for one in caught)


def forgets(attempt: Try) -> str:
    """Save within an epoch, resume in a Trainer that hands no state over, and count the samples of the epoch."""
    random = attempt.random
    epoch, step = random.randrange(3), random.randrange(1, STEPS)
    seed, has_state, asks = random.randrange(2**64), attempt.number % 3 < 2, random.random() < 0.8
    zarr.create_array(attempt.directory / "samples.zarr", data=np.arange(N), chunks=(4,))
    workers = 2 if attempt.number % _WORKERS_EVERY == _WORKERS_EVERY - 1 else 0
    saved_at = epoch * STEPS + step
    before, _ = _fit(attempt.directory, seed, workers, asks=asks, every=saved_at, max_steps=saved_at)
    saved = attempt.directory / f"step={saved_at}.ckpt"
    if not has_state:
        checkpoint = torch.load(saved, weights_only=False)
        del checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        torch.save(checkpoint, saved)
    after, said = _fit(attempt.directory, seed, workers, asks=asks, every=STEPS, checkpoint=saved)
    once = sorted(before.epochs[epoch] + after.epochs[epoch]) == list(range(N))
    if once != has_state or said != (not has_state):
        raise UnspecifiedError(f"epoch {epoch}, step {step}: each sample once: {once}, warnings: {said}")
    for later in range(epoch + 1, 3):
        if sorted(after.epochs[later]) != list(range(N)):
            raise UnspecifiedError(f"epoch {later} has not each sample once")
    return "each sample once" if once else "a warning that says what comes twice"


ROWS = (
    Row(
        "host-forgets",
        "Lightning resumes within an epoch with a loader that it made before it read the checkpoint, or from a "
        "checkpoint without the loader's state",
        "each sample of the epoch once in both runs, or a warning that says how many batches come twice; then right "
        "epochs",
        forgets,
        runs=60,
        modules=warm.LIGHTNING,
    ),
)

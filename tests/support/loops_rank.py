"""One process of a run of two: Lightning Fabric and pytorch-ignite read a store, and what they got is written down.

Run as `main(store, output)` with torchrun's environment variables.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from torch.utils.data import DataLoader

from tests.support.flat import iterable_dataset
from zarrfeed import ZarrDataLoader, ZarrDataset

BATCH_SIZE = 6
#: Batches of the second epoch after which a run is saved.
SAVED_AFTER = 5

Batches = list[list[int]]


def make(store: str, kind: str) -> Any:
    """Return a loader that nothing was done to."""
    if kind == "map":
        return DataLoader(ZarrDataset(store, return_index=True, num_threads=1), batch_size=BATCH_SIZE, shuffle=True)
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "lanes": 6, "return_index": True, "num_threads": 1}
    if kind == "samples":
        return DataLoader(iterable_dataset(store, **options), batch_size=BATCH_SIZE)
    dataset = iterable_dataset(store, batch_size=BATCH_SIZE, **options)
    if kind == "batches":
        return DataLoader(dataset, batch_size=None)
    if kind == "workers":
        return ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork", timeout=240)
    return ZarrDataLoader(dataset)


def take(loader: Any, count: int | None = None) -> Batches:
    return [index.tolist() for _, index in itertools.islice(loader, count)]


def with_fabric(store: str, directory: Path) -> dict[str, Any]:
    """Return three epochs of each loader, and of those with a state the same with a stop and new objects."""
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    results: dict[str, Any] = {"rank": [fabric.global_rank, fabric.world_size]}
    for kind in ("zarr", "workers", "batches", "samples", "map"):
        loader: Any = fabric.setup_dataloaders(make(store, kind))
        results[kind] = {"sampler": type(loader.sampler).__name__, "length": len(loader)}
        results[kind]["whole"] = [take(loader) for _ in range(3)]
    for kind in ("zarr", "workers"):
        loader = fabric.setup_dataloaders(make(store, kind))
        before = [take(loader), take(loader, SAVED_AFTER)]
        path = directory / f"fabric-{kind}.ckpt"
        fabric.save(path, {"loader": loader, "step": 1})
        loader = fabric.setup_dataloaders(make(store, kind))
        fabric.load(path, {"loader": loader, "step": 0})
        results[kind]["resumed"] = [before[0], before[1] + take(loader), take(loader)]
    return results


def engine(batches: Batches) -> Engine:
    """Return a trainer that writes down what it is given."""

    def step(_: Engine, batch: Any) -> None:
        samples, index = batch
        assert torch.equal(samples, index[:, None].expand(samples.shape))
        batches.append(index.tolist())

    return Engine(step)


def with_ignite(store: str, directory: Path) -> dict[str, Any]:
    """Return the batches of three epochs, whole, and with a stop in and at the end of the second epoch."""
    results: dict[str, Any] = {}
    for kind in ("zarr", "workers", "batches"):
        whole: Batches = []
        loader = make(store, kind)
        engine(whole).run(loader, max_epochs=3)
        results[kind] = {"length": len(loader), "whole": whole}
    for kind, stop in itertools.product(("zarr", "workers"), (SAVED_AFTER, 0)):
        length = results[kind]["length"]
        stop_at = length + stop if stop else 2 * length
        results[kind][f"resumed/{stop}"] = resumed(functools.partial(make, store, kind), directory, stop_at, {})
    # an epoch of the engine that is no epoch of the data: 7 batches, of which the last pass is not used up
    short = {"epoch_length": 7}
    whole = []
    engine(whole).run(make(store, "zarr"), max_epochs=6, **short)
    results["short"] = {
        "whole": whole,
        "resumed": resumed(functools.partial(make, store, "zarr"), directory, 23, short, epochs=6),
    }
    return results


def resumed(
    new_loader: Callable[[], Any], directory: Path, stop_at: int, settings: dict[str, int], *, epochs: int = 3
) -> Batches:
    """Return the batches of a run that saves itself after `stop_at` steps and ends, and is continued by new objects."""
    batches: Batches = []
    trainer, loader = engine(batches), new_loader()
    to_save = {"trainer": trainer, "loader": loader}
    saver = Checkpoint(to_save, DiskSaver(str(directory), require_empty=False), filename_pattern=f"ignite-{stop_at}.pt")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop_at), saver)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop_at), trainer.terminate)
    trainer.run(loader, max_epochs=epochs, **settings)
    assert len(batches) == stop_at
    torch.distributed.barrier()  # one rank writes
    state = torch.load(directory / f"ignite-{stop_at}.pt")
    trainer, loader = engine(batches), new_loader()
    Checkpoint.load_objects({"trainer": trainer, "loader": loader}, state)
    trainer.run(loader, max_epochs=epochs)
    torch.distributed.barrier()
    return batches


def main(store: str, output: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # so that Fabric knows who started the ranks
    directory = Path(output).parent
    result = {"fabric": with_fabric(store, directory), "ignite": with_ignite(store, directory)}
    Path(output).write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

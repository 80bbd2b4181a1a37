"""One process of a run that `accelerate launch` would start: reads a store in many ways, and writes what it got.

Run as `main(store, output, python, grid)` with torchrun's environment variables, by `python -c`: forkserver's workers
would import a script again. `python` is a command that starts a forkserver, or "" for no case with one. `grid` is the
JSON of what `read_all` takes.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import IterableDatasetShard
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

from tests.support.flat import iterable_dataset
from tests.support.preload import start_forkserver
from zarrfeed import ZarrDataLoader, ZarrDataset, ZarrIterableDataset

BATCH_SIZE = 6
EPOCHS = 2
FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 300}
FORKSERVER: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "forkserver", "timeout": 300}


class Single(IterableDataset[Any]):
    """Somebody's dataset around ours: cuts its batches into samples."""

    def __init__(self, batches: ZarrIterableDataset, *, forwards: bool) -> None:
        self._batches = batches
        if forwards:
            self.set_epoch = batches.set_epoch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield from zip(*batch, strict=True)


def dataset(store: str, *, batched: bool, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(
        store,
        **{"shuffle": True, "seed": 3, "lanes": 6, **options},
        batch_size=BATCH_SIZE if batched else None,
        return_index=True,
        num_threads=1,
    )


def make(store: str, kind: str, **settings: Any) -> tuple[Any, Any]:
    """Return a dataset and a loader that is not prepared."""
    options = settings.pop("dataset", {})
    if kind == "zarr":
        ours = dataset(store, batched=True, **options)
        return ours, ZarrDataLoader(ours, **settings)
    if kind == "map":
        indexed = ZarrDataset(store, return_index=True, num_threads=1)
        return indexed, DataLoader(indexed, batch_size=BATCH_SIZE, shuffle=True, **settings)
    ours = dataset(store, batched=kind not in ("samples", "shard"), **options)
    if kind == "batches":
        return ours, DataLoader(ours, batch_size=None, **settings)
    read: Any = ours
    if kind in ("forwarding", "opaque"):
        read = Single(ours, forwards=kind == "forwarding")
    elif kind == "shard":
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        read = IterableDatasetShard(ours, BATCH_SIZE, num_processes=world_size, process_index=rank)
    return ours, DataLoader(read, batch_size=BATCH_SIZE, **settings)


def take(loader: Any, count: int | None = None) -> list[list[int]]:
    taken = []
    for samples, index in itertools.islice(loader, count):
        assert torch.equal(samples, index[:, None].expand(samples.shape))
        taken.append(index.tolist())
    return taken


def read(store: str, kind: str, config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return what one loader delivers in some epochs, or how that was refused."""
    prepares = settings.pop("prepares", True)
    ours, loader = make(store, kind, **settings)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            prepared = accelerator.prepare(loader) if prepares else loader
            passes = [take(prepared) for _ in range(EPOCHS)]
        except (ValueError, TypeError) as error:
            return {"refusal": f"{type(error).__name__}: {error}"}
    return {
        "epochs": passes,
        "length": len(prepared) if hasattr(loader.dataset, "__len__") else None,
        "chunks": ours.stats().chunks_read,
        "warnings": [str(w.message) for w in caught if w.category is UserWarning],
        "next": [ours.sample_order().tolist()] if isinstance(ours, ZarrIterableDataset) else [],
    }


def read_all(store: str, grid: list[Any], *, has_forkserver: bool) -> dict[str, Any]:
    """Return what `read` does for each (kind, workers, dispatch_batches, split_batches) of a grid, and for others."""
    results = {}
    for kind, workers, dispatch, split in grid:
        config = {"dispatch_batches": dispatch, "split_batches": split}
        results[f"{kind}/{workers}/{dispatch}/{split}"] = read(store, kind, config, **(FORK if workers else {}))
    default: dict[str, Any] = {}
    no_dispatch = {"dispatch_batches": False}
    if has_forkserver:
        results["forkserver, split"] = read(store, "samples", no_dispatch, **FORKSERVER)
        results["forkserver, dispatched"] = read(store, "batches", default, **FORKSERVER)
    results["in order, dispatched"] = read(store, "samples", default, dataset={"shuffle": False, "lanes": None})
    results["given rank, dispatched"] = read(store, "samples", default, dataset={"rank": 0, "world_size": 1})
    results["given rank, split"] = read(store, "samples", no_dispatch, dataset={"rank": 0, "world_size": 1})
    results["given rank, zarr"] = read(store, "zarr", default, dataset={"rank": 0, "world_size": 1})
    results["other rank"] = read(store, "samples", no_dispatch, dataset={"rank": 1, "world_size": 4})
    results["drop_last"] = read(store, "samples", no_dispatch, drop_last=True)
    results["stateful, dispatched"] = read(store, "batches", {"use_stateful_dataloader": True}, **FORK)
    results["stateful, split"] = read(store, "batches", {"use_stateful_dataloader": True, **no_dispatch})
    results["map"] = read(store, "map", default)
    results["forwarding, dispatched"] = read(store, "forwarding", default)
    results["forwarding, split"] = read(store, "forwarding", no_dispatch)
    results["opaque, split"] = read(store, "opaque", no_dispatch)
    results["their shard alone"] = read(store, "shard", default, prepares=False)
    results["their shard alone, workers"] = read(store, "shard", default, prepares=False, **FORK)
    for even in ("repeat", "off"):
        results[f"even={even}"] = read(store, "samples", no_dispatch, dataset={"even": even})
    return results


def resume(store: str, directory: Path) -> dict[str, Any]:
    """Save with `save_state` in the middle of the second epoch, and go on in new objects, for several loaders."""
    results = {}
    for workers in (0, 2):
        parts = []
        for folder in (None, directory / f"saved-{workers}"):
            accelerator = Accelerator(cpu=True)
            loader = accelerator.prepare(make(store, "zarr", **(FORK if workers else {}))[1])
            if folder is None:
                parts.append([take(loader) for _ in range(3)])
                continue
            begun = [take(loader), take(loader, 5)]
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
            accelerator = Accelerator(cpu=True)
            loader = accelerator.prepare(make(store, "zarr", **(FORK if workers else {}))[1])
            accelerator.load_state(str(folder))
            parts.append([begun[0], begun[1] + take(loader), take(loader)])
        results[str(workers)] = parts
    return results


def accumulate(store: str) -> dict[str, Any]:
    """Return in which steps accelerate applies gradients that it accumulates over 4 batches, and what it gathers."""
    results = {}
    for kind, config in (("zarr", {}), ("samples", {"dispatch_batches": False}), ("samples", {})):
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=4, dataloader_config=DataLoaderConfiguration(**config)
        )
        model = torch.nn.Linear(3, 1)
        model, loader = accelerator.prepare(model, make(store, kind)[1])
        applied, gathered = [], []
        for samples, index in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(samples.float()).sum())
                applied.append(accelerator.sync_gradients)
            gathered += accelerator.gather_for_metrics(index).tolist()
        results[f"{kind}/{config}"] = {
            "applied": applied,
            "gathered": gathered,
            "inside": accelerator.gradient_state.in_dataloader,
        }
    return results


def gather(store: str) -> dict[str, Any]:
    """Return what accelerate gathers of epochs whose last batch has repeated samples, for some numbers of workers."""
    results = {}
    for workers in (0, 2):
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(make(store, "zarr", dataset={"even": "repeat"}, **(FORK if workers else {}))[1])
        results[str(workers)] = [
            [i for _, index in loader for i in accelerator.gather_for_metrics(index).tolist()] for _ in range(EPOCHS)
        ]
    return results


def skip(store: str) -> dict[str, Any]:
    """Return what is left of an epoch by accelerate's own means, `skip_first_batches`, and the epoch after it."""
    results = {}
    for kind, config in (("zarr", {}), ("samples", {"dispatch_batches": False}), ("samples", {})):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
        whole = accelerator.prepare(make(store, kind)[1])
        epochs = [take(whole) for _ in range(2)]
        loader = accelerator.prepare(make(store, kind)[1])
        rest = take(accelerator.skip_first_batches(loader, 5))
        results[f"{kind}/{config}"] = [epochs, [rest, take(loader)]]
    return results


def identity(store: str) -> dict[str, Any]:
    """Return what `prepare()` makes of a `ZarrDataLoader`."""
    loader = make(store, "zarr")[1]
    moving, not_moving = Accelerator(cpu=True), Accelerator(cpu=True, device_placement=False)
    results = {"before": loader._is_accelerate_prepared, "same": moving.prepare(loader) is loader}
    results["device"] = loader._preparation.device == moving.device
    results["same by name"] = not_moving.prepare_data_loader(loader) is loader
    results["no device"] = loader._preparation.device is None
    results["asked again"] = loader._is_accelerate_prepared
    return results


def main(store: str, output: str, python: str, grid: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if python:
        start_forkserver(python, "accelerate.data_loader")
    directory = Path(output).parent
    result = {
        "read": read_all(store, json.loads(grid), has_forkserver=bool(python)),
        "resume": resume(store, directory),
        "accumulate": accumulate(store),
        "gather": gather(store),
        "skip": skip(store),
        "identity": identity(store),
    }
    Path(output).write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

"""A rank that reads by `zarrfeed.compat.zarrdataset`: each kind of order, with workers and without, two epochs each."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.ranks import meet
from zarrfeed.compat.zarrdataset import ZarrDataLoader, ZarrIterableDataset

SIZES: dict[str, Any] = {"batch_size": 8, "shuffle": True, "return_index": True}
CASES: dict[str, dict[str, Any]] = {
    "drawn seed": {"chunks_shuffle_seed": 1},
    "drawn seed, chunks in order": {"shuffle_chunks": False},
    "given seeds": {"chunks_shuffle_seed": 1, "buffer_shuffle_seed": 2},
    "chunks alone": {"chunks_shuffle_seed": 1, "shuffle_buffer": False},
    "in order": {"shuffle_chunks": False, "shuffle_buffer": False},
    "some chunks": {"chunks_shuffle_seed": 1, "selected_chunk_indexes": np.arange(3, 26)},
    "one chunk": {"chunks_shuffle_seed": 1, "selected_chunk_indexes": -1},
}
FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
WITH_WORKERS = ("drawn seed", "chunks alone", "in order", "some chunks")


def read_cases(directory: Path, meeting: str) -> dict[str, Any]:
    """Make datasets while torch.distributed is not initialised, and read them when it is.

    Parameters
    ----------
    directory
        The folder of the arrays.
    meeting
        A file that does not exist, by which ranks meet.
    """
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.distributed.destroy_process_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples: Any = zarr.open_array(directory / "train_samples", mode="r")
        targets: Any = zarr.open_array(directory / "train_targets", mode="r")
        made = {
            (case, workers): ZarrIterableDataset(samples=samples, targets=targets, **options)
            for case, options in CASES.items()
            for workers in ("none", "fork")
            if workers == "none" or case in WITH_WORKERS
        }
        late = ZarrIterableDataset(samples=samples, targets=None, chunks_shuffle_seed=5)
        # copied and pickled while there was one rank: what that found must not be carried on
        copied = copy.deepcopy(zarrfeed.ZarrIterableDataset(samples, **SIZES))
        meet(rank, world_size, meeting)
        result: dict[str, Any] = {}
        for (case, workers), dataset in made.items():
            loader = ZarrDataLoader(dataset=dataset, batch_size=8, **(FORK if workers == "fork" else {}))
            epochs = []
            for _ in range(2):
                epochs.append([y.tolist() for _, y in loader])
                assert len(epochs[-1]) == len(loader)
            result[f"{case}/{workers}"] = epochs
        # rank 0 forks its worker; the last rank pickles the dataset, and its worker has to draw the same rows
        dataset = ZarrIterableDataset(samples=samples, targets=targets, chunks_shuffle_seed=7)
        method = "forkserver" if rank == world_size - 1 else "fork"
        loader = ZarrDataLoader(dataset=dataset, batch_size=8, num_workers=1, multiprocessing_context=method)
        result["pickled/one"] = [[y.tolist() for _, y in loader] for _ in range(2)]
        # outside of our loader, in a worker, nobody can be asked
        try:
            list(DataLoader(late, batch_size=8, num_workers=1, multiprocessing_context="fork"))
        except ValueError as error:
            result["refusal"] = str(error)
        early = ZarrIterableDataset(samples=samples, targets=targets, chunks_shuffle_seed=9)
        plain: Any = DataLoader(early, batch_size=8, num_workers=1, multiprocessing_context="fork")
        result["plain/fork"] = [[y.tolist() for _, y in plain] for _ in range(2)]
        plain = DataLoader(copied, batch_size=None, num_workers=2, multiprocessing_context="fork")
        result["copied/fork"] = [[index.tolist() for _, index in plain] for _ in range(2)]
    return result

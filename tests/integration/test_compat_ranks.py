"""`zarrfeed.compat.zarrdataset` on several ranks: in real processes, which meet by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.paths import SUPPORT

N, CHUNK = 203, 8
TIMEOUT_S = 200

_RANK = """
import copy, json, sys, warnings
from pathlib import Path

import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from zarrfeed.compat.zarrdataset import ZarrDataLoader, ZarrIterableDataset

SIZES = {"batch_size": 8, "shuffle": True, "return_index": True}
CASES = {
    "drawn seed": {"chunks_shuffle_seed": 1},
    "drawn seed, chunks in order": {"shuffle_chunks": False},
    "given seeds": {"chunks_shuffle_seed": 1, "buffer_shuffle_seed": 2},
    "chunks alone": {"chunks_shuffle_seed": 1, "shuffle_buffer": False},
    "in order": {"shuffle_chunks": False, "shuffle_buffer": False},
    "some chunks": {"chunks_shuffle_seed": 1, "selected_chunk_indexes": np.arange(3, 26)},
    "one chunk": {"chunks_shuffle_seed": 1, "selected_chunk_indexes": -1},
}
FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
WITH_WORKERS = ("drawn seed", "chunks alone", "in order", "some chunks")


def main(rank, world_size, directory):
    warnings.simplefilter("ignore")
    samples = zarr.open_array(directory / "train_samples", mode="r")
    targets = zarr.open_array(directory / "train_targets", mode="r")
    # made before the ranks meet, as in a script for Lightning
    made = {
        (case, workers): ZarrIterableDataset(samples=samples, targets=targets, **options)
        for case, options in CASES.items()
        for workers in ("none", "fork")
        if workers == "none" or case in WITH_WORKERS
    }
    late = ZarrIterableDataset(samples=samples, targets=None, chunks_shuffle_seed=5)
    # copied and pickled while there was one rank: what that found must not be carried on
    copied = copy.deepcopy(zarrfeed.ZarrIterableDataset(samples, **SIZES))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'meeting'}", rank=rank, world_size=world_size
    )
    result = {}
    for (case, workers), dataset in made.items():
        loader = ZarrDataLoader(dataset=dataset, batch_size=8, **(FORK if workers == "fork" else {}))
        epochs = []
        for _ in range(2):
            epochs.append([y.tolist() for _, y in loader])
            assert len(epochs[-1]) == len(loader)
        result[f"{case}/{workers}"] = epochs
    if world_size == 2:  # each worker imports torch, which takes seconds
        spawned = ZarrIterableDataset(samples=samples, targets=targets, chunks_shuffle_seed=7)
        loader = ZarrDataLoader(dataset=spawned, batch_size=8, num_workers=1, multiprocessing_context="spawn")
        result["spawn/spawn"] = [[y.tolist() for _, y in loader] for _ in range(2)]
    # outside of our loader, in a worker, nobody can be asked
    try:
        list(DataLoader(late, batch_size=8, num_workers=1, multiprocessing_context="fork"))
    except ValueError as error:
        result["refusal"] = str(error)
    early = ZarrIterableDataset(samples=samples, targets=targets, chunks_shuffle_seed=9)
    plain = DataLoader(early, batch_size=8, num_workers=1, multiprocessing_context="fork")
    result["plain/fork"] = [[y.tolist() for _, y in plain] for _ in range(2)]
    loader = DataLoader(copied, batch_size=None, num_workers=2, multiprocessing_context="fork")
    result["copied/fork"] = [[index.tolist() for _, index in loader] for _ in range(2)]
    (directory / f"rank-{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write samples that say which they are."""
    directory = tmp_path_factory.mktemp("compat")
    for name, n in (("train", N), ("validation", 101)):
        index = np.arange(n)
        samples = index[:, None, None] + np.arange(6).reshape(2, 3) / 8
        zarr.create_array(directory / f"{name}_samples", data=samples.astype(np.float32), chunks=(CHUNK, 2, 3))
        zarr.create_array(directory / f"{name}_targets", data=index, chunks=(CHUNK,))
    return directory


def run(commands: list[list[str]]) -> None:
    """Run side by side; fail with what they said if one fails, and leave none behind."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(timeout=240)
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text[-4000:]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, directory: Path) -> Iterator[list[dict[str, Any]]]:
    world_size = request.param
    script = directory / "script.py"
    script.write_text(_RANK)
    run([[str(script), str(rank), str(world_size), str(directory)] for rank in range(world_size)])
    files = [directory / f"rank-{rank}.json" for rank in range(world_size)]
    yield [json.loads(file.read_text()) for file in files]
    for file in (*files, directory / "meeting"):
        file.unlink(missing_ok=True)


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_every_sample_comes_once_and_ranks_have_as_many(ranks: list[dict[str, Any]]) -> None:
    size_of = {"some chunks": N - 3 * CHUNK, "one chunk": N % CHUNK}
    cases = [case for case in ranks[0] if "/" in case]
    assert len(cases) == (14 if len(ranks) == 2 else 13)
    for case in cases:
        n = size_of.get(case.split("/")[0], N)
        orders = []
        for epoch in range(2):
            of_ranks = [rank[case][epoch] for rank in ranks]
            assert len({len(batches) for batches in of_ranks}) == 1, case
            flat = [[i for batch in batches for i in batch] for batches in of_ranks]
            assert {len(samples) for samples in flat} == {n // len(ranks)}, case
            everything = [i for samples in flat for i in samples]
            assert len(set(everything)) == len(everything), case
            assert set(everything) <= set(range(N)), case
            orders.append(everything)
        if not case.startswith(("in order", "one chunk")):  # three samples may come alike
            assert orders[0] != orders[1], case


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_worker_that_cannot_ask_for_the_seed_of_the_others_says_what_to_do(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "use zarrfeed.compat.zarrdataset.ZarrDataLoader, or give a seed" in rank["refusal"]


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_the_lightning_example_of_the_original_delivers_every_sample_once(directory: Path) -> None:
    run([[str(SUPPORT / "compat_lightning.py"), str(directory)]])
    ranks = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for rank in ranks:
        assert set(rank) == {"train", "val", "steps", "batches"}
    orders = []
    for epoch in map(str, range(3)):
        for stage, n in (("train", N), ("val", 101)):
            flat = [rank[stage][epoch] for rank in ranks]
            assert {len(samples) for samples in flat} == {n // 2}
            everything = flat[0] + flat[1]
            assert len(set(everything)) == n // 2 * 2
            if stage == "train":
                orders.append(everything)
    assert len({tuple(order) for order in orders}) == 3
    assert [rank["batches"] for rank in ranks] == [7, 7]
    assert [rank["steps"] for rank in ranks] == [21, 21]

"""Promises of docs/tasks/distributed.md and resume.md, for each kind of samples, shuffled and in order.

Plans are listed for 1 to 8 ranks and 0 to 3 workers, so no data is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.runs import Run
from zarrfeed.objects import ObjectIterableDataset
from zarrfeed.plan.schedule.state import EpochState

RANKS, WORKERS = range(1, 9), range(4)


def volumes(folder: Path) -> Any:
    path = str(folder / "volume.zarr")
    zarr.create_array(path, data=np.zeros((6, 11, 10), dtype="u1"), chunks=(2, 4, 4))
    return zarrfeed.open(path)


def rows(folder: Path, name: str, count: int, chunk: int) -> str:
    path = str(folder / f"{name}.zarr")
    zarr.create_array(path, data=np.arange(count), chunks=(chunk,))
    return path


def joined(folder: Path) -> Any:
    groups = []
    for name, hours in (("a", np.arange(0, 120, 2)), ("b", np.arange(0, 120, 3))):
        group = zarr.create_group(folder / f"{name}.zarr")
        group.create_array("x", data=hours.astype("f4"), chunks=(7,), dimension_names=["time"])
        group.create_array("time", data=hours, chunks=(7,), dimension_names=["time"])
        groups.append(zarrfeed.open(group["x"]))
    return zarrfeed.join(dict(zip("ab", groups, strict=True)))


def object_run(folder: Path, **options: Any) -> Run:
    for number in range(53):
        np.save(folder / f"{number:02}.npy", np.zeros(1))
    with ObjectIterableDataset(str(folder), decode="npy", batch_size=5, rank=0, world_size=1, **options) as dataset:
        return Run(dataset.session.schedule, 1, 0, EpochState(0))


KINDS: dict[str, Callable[[Path], Any]] = {
    "an array": lambda folder: zarrfeed.open(rows(folder, "x", 101, 8)),
    "one chunk": lambda folder: zarrfeed.open(rows(folder, "x", 50, 50)),
    "many stores": lambda folder: zarrfeed.open([rows(folder, str(n), 17 + n, 5) for n in range(4)]),
    "a selection": lambda folder: zarrfeed.open(rows(folder, "x", 200, 8)).select(np.arange(3, 200, 3) ** 2 % 199),
    "windows": lambda folder: zarrfeed.open(rows(folder, "x", 101, 8)).window((-3, 0, 4)),
    "a join": joined,
    "patches": lambda folder: volumes(folder).patch({1: 4, 2: 4}),
    "random patches": lambda folder: volumes(folder).patch({1: 4, 2: 4}, sampling="random", n=67),
}


@pytest.fixture(scope="module", params=[*KINDS, "objects"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Run]:
    """Return the run of one rank, in order and shuffled."""
    folder = tmp_path_factory.mktemp("kinds")
    if request.param == "objects":
        return {shuffle: object_run(folder, shuffle=shuffle, seed=3, even="off") for shuffle in (False, True)}
    data = KINDS[request.param](folder)
    return {shuffle: Run.of(data, shuffle=shuffle, batch_size=5, return_index=False) for shuffle in (False, True)}


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_comes_once_on_any_ranks_and_workers(runs: dict[bool, Run], shuffle: bool) -> None:
    """Shuffled, without workers, each step has the same sample; in order, one rank reads the samples in order."""
    for epoch in (0, 3):
        epoch_order = runs[shuffle].on(1, epoch=epoch).sample_order()
        assert len(set(epoch_order.tolist())) == len(epoch_order) == runs[shuffle].on(1, epoch=epoch).length
        for ranks in RANKS:
            for workers in WORKERS[(ranks + epoch) % 2 :: 2]:  # each of them in one of the two epochs
                found = runs[shuffle].on(ranks, workers, epoch).sample_order()
                assert np.sort(found).tolist() == np.sort(epoch_order).tolist(), (ranks, workers)
                assert not shuffle or workers > 1 or found.tolist() == epoch_order.tolist(), (ranks, workers)


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_are_even(runs: dict[bool, Run], shuffle: bool) -> None:
    for ranks in RANKS:
        n = runs[shuffle].on(ranks, epoch=1).length
        for even, wanted in (("drop", n // ranks), ("repeat", -(-n // ranks))):
            for workers in (0, 3):
                run = runs[shuffle].on(ranks, workers, 1, even=even)
                of_ranks = [np.concatenate(batches) for batches in run.all_batches()]
                assert [len(one) for one in of_ranks] == [wanted] * ranks, (even, ranks, workers)
                counts = Counter(np.concatenate(of_ranks).tolist())
                assert max(counts.values()) <= (1 if even == "drop" else 2), (even, ranks, workers)
                assert even == "drop" or len(counts) == n, (even, ranks, workers)


@examples(60, deadline=None)
@given(data=st.data())
def test_a_run_goes_on_with_the_samples_that_were_left(runs: dict[bool, Run], data: st.DataObject) -> None:
    """On other ranks and workers, again and again, and then with a whole epoch."""
    alone = runs[data.draw(st.booleans())]
    run = alone.on(data.draw(st.sampled_from(RANKS)), data.draw(st.sampled_from(WORKERS)), 1)
    expected, got = alone.on(1, epoch=1).sample_order(), []
    for may_stop in (True, True, False):
        taken = run.batches_left - (data.draw(st.integers(0, run.batches_left)) if may_stop else 0)
        got.append(run.sample_order(taken))
        run = run.after(taken, data.draw(st.sampled_from(RANKS)), data.draw(st.sampled_from(WORKERS)))
        if run.state.epoch > 1:
            break
    assert np.sort(np.concatenate(got)).tolist() == np.sort(expected).tolist()
    assert np.sort(run.sample_order()).tolist() == np.sort(alone.on(1, epoch=2).sample_order()).tolist()

"""`affinity="node"` in real processes: 4 ranks that are 2 nodes of 2, with workers of every start method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support import growing
from tests.support import ranks as on_ranks
from tests.support.examples import slow
from tests.support.nodes import on_nodes
from tests.support.ranks import Cell, RankError, Ranks
from tests.support.shares import assert_shared_out
from zarrfeed import Digest

N = 211

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("stores") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    return path


def cell(store: str, *, num_workers: int = 0, method: str | None = None, via: str = "zarrfeed", **options: Any) -> Cell:
    return Cell(store, {"batch_size": 6, "seed": 7, "affinity": "node"} | options, via, num_workers, method)


@pytest.mark.parametrize(
    ("num_workers", "method", "via", "even"),
    [
        *((0, None, "dataset", even) for even in ("drop", "repeat", "off")),
        (2, "fork", "zarrfeed", "drop"),
        slow(2, "fork", "zarrfeed", "off"),
        slow(3, "fork", "torch", "drop"),
        (3, "fork", "torch", "repeat"),
        (1, "forkserver", "zarrfeed", "off"),
        slow(2, "spawn", "torch", "repeat"),
    ],
)
def test_two_nodes_share_out_every_epoch_and_each_reads_its_part(
    store: str, ranks: Ranks, num_workers: int, method: str | None, via: str, even: str
) -> None:
    shuffle = num_workers != 3
    made = cell(store, num_workers=num_workers, method=method, via=via, even=even, shuffle=shuffle)
    delivered = ranks.run(on_nodes, 2, on_ranks.read, made, epochs=2, world_size=4)
    parts = []
    for epoch in range(2):
        of_ranks = [np.concatenate(one.epochs[epoch]) for one in delivered]
        assert_shared_out(of_ranks, N, even=even)
        parts.append([set(np.concatenate(pair).tolist()) for pair in (of_ranks[:2], of_ranks[2:])])
        assert parts[epoch][0].isdisjoint(parts[epoch][1])
    assert all(len(one.epochs[0]) == one.dataset_length == one.loader_length for one in delivered)
    if even != "drop":
        assert parts[0] == parts[1]
    else:
        assert all(len(first - second) <= 2 for first, second in zip(*parts, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_all_reduce_proves_an_epoch_of_two_nodes_exact(store: str, ranks: Ranks, num_workers: int) -> None:
    method = "fork" if num_workers else None
    made = cell(store, num_workers=num_workers, method=method, shuffle=True, even="off")
    totals = ranks.run(on_nodes, 2, on_ranks.audit_epoch, made, world_size=4)
    assert [total == Digest.of_range(N) for total in totals] == [True] * 4


@pytest.mark.parametrize("saver", [slow(0), 3])
def test_an_epoch_goes_on_with_other_ranks_workers_and_batches_on_as_many_nodes(
    store: str, ranks: Ranks, saver: int
) -> None:
    """5 batches of a rank with 2 workers: the state lies between the batches of two workers."""
    saved = cell(store, num_workers=2, method="fork", shuffle=True)
    taken = ranks.run(on_nodes, 2, on_ranks.save, saved, 5, world_size=4)
    state = taken[saver][1]
    assert all(other == state for _, other in taken), "every rank saves the same state"
    before = [i for batches, _ in taken for batch in batches for i in batch.tolist()]
    assert len(set(before)) == len(before) == 4 * 5 * 6
    for local, workers, size in ((1, 0, 7), (2, 3, 4), (2, 2, 6)):
        method = "fork" if workers else None
        others = cell(store, num_workers=workers, method=method, batch_size=size, shuffle=True, even="off")
        rests = ranks.run(on_nodes, local, on_ranks.resume, others, state, world_size=2 * local)
        rest = [i for batches in rests for batch in batches for i in batch.tolist()]
        assert sorted(before + rest) == list(range(N))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nodes_read_one_version_of_a_growing_store_and_resume_it(
    tmp_path: Path, ranks: Ranks, num_workers: int
) -> None:
    path = growing.create(tmp_path / "a", 64)
    options: dict[str, Any] = {"batches": 3, "num_workers": num_workers, "affinity": "node"}
    done = ranks.run(on_nodes, 1, growing.stop_and_resume, path, world_size=2, **options)
    before, rest, following = ([one for part in parts for one in part] for parts in zip(*done, strict=True))
    assert sorted(before + rest) == list(range(64))
    assert sorted(following) == list(range(88))


def test_a_dataset_made_before_the_process_group_learns_its_node(store: str, ranks: Ranks, tmp_path: Path) -> None:
    for number, (num_workers, method) in enumerate(((0, None), (1, "fork"), (1, "forkserver"))):
        made = cell(store, num_workers=num_workers, method=method, shuffle=True, even="off")
        function, rendezvous = on_ranks.read_made_before_the_group, str(tmp_path / f"group-{number}")
        delivered = ranks.run(on_nodes, 1, function, made, rendezvous, world_size=2)
        assert_shared_out([np.concatenate(one.epochs[0]) for one in delivered], N, even="off")


def test_nodes_with_different_numbers_of_ranks_are_refused(store: str, ranks: Ranks) -> None:
    with pytest.raises(RankError, match="world_size = 3, must be a multiple of 2"):
        ranks.run(on_nodes, 2, on_ranks.read, cell(store, shuffle=True), world_size=3)

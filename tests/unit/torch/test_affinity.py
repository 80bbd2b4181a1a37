"""`affinity="node"` of a dataset: every rank of every node is made in this process, and really reads.

Samples hold their index. `tests/unit/plan/shares/test_affinity.py` asks the plan about every combination.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.shares import assert_shared_out
from zarrfeed import ConfigError, Digest, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.torch.passes import session
from zarrfeed.torch.ranks.distributed import rank_in_node

N = 103

Make = Callable[..., ZarrIterableDataset]


@pytest.fixture
def store(tmp_path: Path) -> str:
    zarr.create_array(tmp_path / "x", data=np.arange(N)[:, None].repeat(3, 1), chunks=(4, 2))
    return str(tmp_path / "x")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, store: str) -> Make:
    """Return what makes the dataset of a rank on some nodes with `local` ranks each."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def make_rank(rank: int, nodes: int, local: int, source: Any = None, **options: Any) -> ZarrIterableDataset:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
        settings = {"batch_size": 5, "shuffle": True, "seed": 4, "num_threads": 1, "affinity": "node"} | options
        return iterable_dataset(source or store, rank=rank, world_size=nodes * local, **settings)

    return make_rank


def read(dataset: Any, batches: int | None = None) -> list[int]:
    """Read some batches, all unless told; return the samples. Each must be whole."""
    delivered: list[int] = []
    for batch in islice(dataset, batches):
        rows = batch[:, -1] if batch.ndim == 3 else batch  # of a window the last row
        assert (rows == rows[:, :1]).all()
        delivered += rows[:, 0].tolist()
    return delivered


@pytest.mark.parametrize("even", ["drop", "repeat", "off"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("nodes", "local"), [(2, 1), (2, 2), (3, 2), (4, 3)])
def test_ranks_of_all_nodes_share_epochs_out_exactly(
    make: Make, nodes: int, local: int, shuffle: bool, even: str
) -> None:
    made = [make(rank, nodes, local, shuffle=shuffle, even=even) for rank in range(nodes * local)]
    for epoch in (0, 1):
        delivered = [read(dataset) for dataset in made]
        assert_shared_out([np.array(samples) for samples in delivered], N, even=even)
        assert delivered == [dataset.sample_order(epoch).tolist() for dataset in made]
        assert [-(-len(samples) // 5) for samples in delivered] == [len(dataset) for dataset in made]


def test_a_node_reads_the_same_samples_in_every_epoch_in_another_order(make: Make) -> None:
    made = [make(rank, 2, 2, even="off") for rank in range(4)]
    epochs = [[made[rank].sample_order(epoch).tolist() for rank in (0, 1)] for epoch in range(4)]
    assert len({frozenset(first + second) for first, second in epochs}) == 1
    assert len({tuple(first) for first, _ in epochs}) == 4
    assert len({frozenset(first) for first, _ in epochs}) == 4, "ranks of a node share its part anew in each epoch"
    chunks = [{sample // 4 for rank in ranks for sample in made[rank].sample_order(0)} for ranks in ((0, 1), (2, 3))]
    assert len(chunks[0] & chunks[1]) <= 1, "nodes share the chunk that the border cuts"


def test_slabs_of_chunks_are_of_the_order_and_nodes_share_whole_chunks_as_ever(make: Make) -> None:
    slabs = {"even": "off", "mixing": {"block": 3}}
    for nodes, local in ((2, 1), (2, 2), (3, 1)):
        made = [make(rank, nodes, local, **slabs) for rank in range(nodes * local)]
        whole = [make(rank, nodes, local, even="off") for rank in range(nodes * local)]
        for node in range(nodes):
            ranks = range(node * local, (node + 1) * local)
            of_node = [sorted(i for rank in ranks for i in one[rank].sample_order(0)) for one in (made, whole)]
            assert of_node[0] == of_node[1], (nodes, local, node)
        assert [one.explain().slab_rows for one in made] == [3] * len(made)
        delivered = [read(dataset, 2) for dataset in made]
        state = json.loads(json.dumps(made[0].state_dict()))
        for rank, used in enumerate(delivered):
            resumed = make(rank, nodes, local, **slabs)
            resumed.load_state_dict(state)
            assert used + read(resumed) == made[rank].sample_order(0).tolist(), (nodes, local, rank)


@pytest.mark.parametrize("nodes", [1, 2])
def test_on_one_node_nothing_changes(make: Make, nodes: int) -> None:
    for rank, local in ((0, 1), (1, 3)):
        with_affinity, without = (make(rank, nodes, local, affinity=affinity) for affinity in ("node", None))
        same = with_affinity.sample_order(1).tolist() == without.sample_order(1).tolist()
        states = []
        for dataset in (with_affinity, without):
            running = iter(dataset)
            next(running)
            states.append(dataset.state_dict())
        assert same == (states[0] == states[1]) == (nodes == 1)
        assert ("node" in str(with_affinity.explain()).split()) == (nodes > 1)
        assert "node" not in str(without.explain()).split()


@pytest.mark.parametrize(
    "options",
    [
        {"select": slice(3, 90, 2)},
        {"select": [1, 5, *range(20, 60), 101]},
        {"blocks": [0, 3, 4, 9, -1]},
        {"offsets": (-2, 0)},
        {"offsets": (-2, 0), "memory_budget": "100KiB"},
        {"lanes": 3, "mix": 2},
        {"batch_size": None},
        {"memory_budget": "64KiB"},
    ],
    ids=str,
)
def test_options_work_together(make: Make, options: dict[str, Any]) -> None:
    whole = make(0, 1, 1, **options)
    made = [make(rank, 2, 2, even="off", **options) for rank in range(4)]
    wanted = sorted(whole.sample_order().tolist())
    for _ in range(2):
        if options.get("batch_size", 5) is None:
            delivered = [int(sample[0]) for dataset in made for sample in dataset]
        else:
            delivered = list(itertools.chain(*(read(dataset) for dataset in made)))
        assert sorted(delivered) == wanted


def test_an_explicit_mix_of_explicit_lanes_stays(make: Make) -> None:
    datasets = [make(node, 2, 1, mixing={"lanes": 4, "mix": 3}) for node in range(2)]
    assert {(d.explain().lanes, d.explain().mix) for d in datasets} == {(4, 3)}


def test_whole_shards_are_dealt_where_they_are_the_blocks(make: Make, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "s", data=np.arange(96)[:, None].repeat(3, 1), chunks=(2, 3), shards=(8, 3))
    made = [make(rank, 3, 1, str(tmp_path / "s"), block="shard", even="off") for rank in range(3)]
    shards = [{sample // 8 for sample in read(dataset)} for dataset in made]
    assert sorted(itertools.chain(*shards)) == list(range(12))


def test_chunks_that_windows_share_are_dealt_in_runs_of_neighbours(make: Make, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "w", data=np.arange(4000)[:, None].repeat(3, 1), chunks=(4, 3))
    made = [make(rank, 2, 1, str(tmp_path / "w"), offsets=(0, 1), even="off") for rank in range(2)]
    chunks = [{row // 4 for sample in dataset.sample_order() for row in (sample, sample + 1)} for dataset in made]
    assert len(chunks[0] | chunks[1]) == 1000
    assert len(chunks[0] & chunks[1]) < 130, "an eighth of the chunks is read by both"
    assert sorted(read(made[0]) + read(made[1])) == list(range(1, 4000))


def test_explain_says_which_node_it_is_of_and_counts_the_reads_of_its_part(make: Make) -> None:
    made = [make(rank, 2, 1) for rank in range(2)]
    explained = [dataset.explain() for dataset in made]
    assert [(one.node, one.num_nodes, one.num_selected, one.num_in_part) for one in explained] == [
        (0, 2, N, 52),
        (1, 2, N, 51),
    ]
    assert "1 of 2, counted from 0: its part has 51 samples, the same in every epoch" in str(explained[1])
    for dataset, one in zip(made, explained, strict=True):
        read(dataset)
        assert dataset.stats().chunks_read == one.fields[0].chunk_reads < 2 * 26


def test_a_digest_of_all_ranks_proves_an_epoch_exact(make: Make) -> None:
    made = [make(rank, 2, 2, even="off", return_index=True) for rank in range(4)]
    assert sum((zarrfeed.audit(i for _, i in dataset) for dataset in made), Digest()) == Digest.of_range(N)


# ---- resuming


@pytest.mark.parametrize("saver", range(4))
def test_an_epoch_goes_on_with_other_ranks_and_batches_from_a_state_of_any_rank(make: Make, saver: int) -> None:
    before: list[int] = []
    for rank in range(4):
        dataset = make(rank, 2, 2)
        before += read(dataset, 3)
        if rank == saver:
            state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["nodes"], state["order"]["affinity"], state["position"]) == (2, "2 nodes", 30)
    assert json.loads(json.dumps(state))["order"]["select"] is None, "the order is that of all samples"
    same, rest, following = [], [], []
    for rank in range(4):
        dataset = make(rank, 2, 2)
        dataset.load_state_dict(state)
        same.append(read(dataset))
        assert same[-1] == dataset.sample_order(0)[15:].tolist()
    for rank in range(6):
        dataset = make(rank, 2, 3, batch_size=4, even="off")
        dataset.load_state_dict(state)
        rest += read(dataset)
        following += read(dataset)
    assert sorted(before + rest) == sorted(following) == list(range(N))


@pytest.mark.parametrize("saver", range(3))
def test_a_state_of_the_end_of_an_epoch_is_the_beginning_of_the_next_one_on_all_nodes(make: Make, saver: int) -> None:
    """Parts have 35, 34 and 34 samples, so that ranks of even="off" end after different numbers of them."""
    dataset = make(saver, 3, 1, batch_size=17, even="off")
    running = iter(dataset)
    read(running)
    for state in (dataset.state_dict(), running.state_dict()):
        for rank in range(3):
            resumed = make(rank, 3, 1, batch_size=17, even="off")
            resumed.load_state_dict(json.loads(json.dumps(state)))
            if state["epoch"] == 0:
                assert read(resumed) == []
            assert read(resumed) == make(rank, 3, 1, even="off").sample_order(1).tolist()


def test_a_state_is_refused_on_another_number_of_nodes(make: Make) -> None:
    dataset = make(1, 2, 2)
    read(dataset, 2)
    state = dataset.state_dict()
    for nodes, local, affinity, now in ((4, 1, "node", "'4 nodes'"), (1, 4, "node", "None"), (2, 2, None, "None")):
        with pytest.raises(ConfigError, match=f"affinity was '2 nodes', is {now}"):
            make(0, nodes, local, affinity=affinity).load_state_dict(state)
    without = make(0, 2, 2, affinity=None)
    read(without, 2)
    with pytest.raises(ConfigError, match="affinity was None, is '2 nodes'"):
        dataset.load_state_dict(without.state_dict())


def test_a_state_of_a_worker_is_refused_on_another_node(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(dataset: ZarrIterableDataset) -> Any:
        info = torch.utils.data._utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=dataset)
        monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: info)
        return iter(dataset)

    saved = in_worker(make(2, 2, 2))
    next(saved)
    state = json.loads(json.dumps(saved.state_dict()))
    own, other = in_worker(make(2, 2, 2)), in_worker(make(0, 2, 2))
    own.load_state_dict(state)
    assert read(own) == make(2, 2, 2).sample_order(0)[5:].tolist()
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match="a worker can load only its own state"):
        next(other)


# ---- stores that grow


def test_each_version_of_a_growing_store_is_dealt_and_few_samples_change_node(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "g", shape=(2000, 3), chunks=(4, 3), dtype="i8", fill_value=-1)
    array[:] = np.arange(2000)[:, None].repeat(3, 1)
    data = zarrfeed.open(tmp_path / "g", refresh="epoch")

    def parts() -> list[list[int]]:
        # each rank by itself: ranks of one process cannot agree on a version
        found = []
        for node in range(2):
            rank_info = RankInfo(0, 1, 1, node=node, num_nodes=2)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "rank_in_node", lambda _, rank_info=rank_info: rank_info)
                dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, affinity="node", even="off")
                dataset.refresh()
                first = read(dataset, 3)
                state = json.loads(json.dumps(dataset.state_dict()))
                dataset.load_state_dict(state)
                found.append(first + read(dataset))
        return found

    before = parts()
    assert sorted(before[0] + before[1]) == list(range(2000))
    array.append(np.arange(2000, 2400)[:, None].repeat(3, 1))
    after = parts()
    assert sorted(after[0] + after[1]) == list(range(2400))
    assert len(set(before[0]) - set(after[0])) < 200


# ---- ranks


def test_a_rank_that_is_found_late_reads_the_part_of_its_node(make: Make) -> None:
    found: list[tuple[int, int]] = [(0, 1)]
    dataset = make(0, 2, 2)  # for LOCAL_WORLD_SIZE
    expected = make(3, 2, 2).sample_order(0).tolist()
    dataset = ZarrIterableDataset(
        dataset.data, batch_size=5, shuffle=True, seed=4, affinity="node", rank=lambda: found[0], even="drop"
    )
    assert len(dataset) == -(-N // 5)
    found[0] = (3, 4)
    assert len(dataset) == 5
    assert read(dataset) == expected


def test_workers_have_the_part_of_the_node_of_their_training_process(make: Make) -> None:
    delivered = []
    for rank in range(4):
        loader = ZarrDataLoader(make(rank, 2, 2, even="off"), num_workers=2, multiprocessing_context="fork")
        delivered += read(loader)
    assert sorted(delivered) == list(range(N))


def test_a_dataset_can_be_sent_after_it_knows_its_part(make: Make) -> None:
    dataset = make(2, 2, 2)
    expected = dataset.sample_order().tolist()
    assert read(pickle.loads(pickle.dumps(dataset))) == expected


@pytest.mark.parametrize("affinity", ["rank", "nodes", True, 1, ""])
def test_only_nodes_have_an_affinity(store: str, affinity: Any) -> None:
    with pytest.raises(ConfigError, match=r"affinity = .*, must be one of 'node'"):
        ZarrIterableDataset(store, affinity=affinity)


def test_nodes_must_have_as_many_ranks_each(make: Make) -> None:
    with pytest.raises(ConfigError, match="world_size = 3, must be a multiple of 2, the ranks of this node"):
        rank_in_node(RankInfo(0, 3, 2))
    found: list[tuple[int, int]] = [(0, 1)]
    dataset = make(0, 1, 2)
    dataset = ZarrIterableDataset(dataset.data, batch_size=5, affinity="node", rank=lambda: found[0])
    found[0] = (0, 3)
    asked: list[Callable[[], object]] = [
        *(lambda: len(dataset), lambda: next(iter(dataset)), dataset.explain, dataset.sample_order)
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match="world_size = 3, must be a multiple of 2"):
            ask()
    found[0] = (0, 1)
    assert read(dataset)[:5] == list(range(5)), "no epoch was taken"
    assert dataset.state_dict()["epoch"] == 1


def test_fewer_samples_than_nodes_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="3 samples for 4 nodes, must be at least one for each"):
        make(0, 4, 1, select=slice(0, 3))

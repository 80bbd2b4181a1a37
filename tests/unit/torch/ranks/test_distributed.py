"""How many ranks share a machine, by whatever launcher, and that they share its memory and cores."""

from __future__ import annotations

import functools
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed

from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, ZarrIterableDataset, rank_from_kubernetes, rank_from_slurm, rank_from_torchrun
from zarrfeed.base.system import usable_cores
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.torch.ranks.distributed import _open_training_process, find_rank, rank_in_node

MIB = 1 << 20
#: What launchers set and what torch's rendezvous is told; a test begins without any of it.
VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID", "GROUP_WORLD_SIZE"),
    *("JOB_COMPLETION_INDEX", "TORCHELASTIC_RUN_ID"),
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def process_group(tmp_path: Path, environment: pytest.MonkeyPatch) -> Iterator[None]:
    """Initialise torch.distributed with this process alone."""
    environment.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def budget(dataset: ZarrIterableDataset, num_workers: int = 1) -> int:
    """Return what each reader of this machine may use."""
    schedule, rank_info = dataset.session.schedule, dataset.session.rank_info()
    return schedule.resources(schedule.order, rank_info, rank_info.consumer(num_workers=num_workers)).memory.budget


def of_eight(**options: Any) -> ZarrIterableDataset:
    """Make a dataset of rank 5 of 8."""
    return iterable_dataset(np.arange(1000), batch_size=10, memory_budget="64MiB", rank=5, world_size=8, **options)


def test_ranks_of_a_machine_and_their_workers_share_its_memory_and_cores(environment: pytest.MonkeyPatch) -> None:
    dataset = of_eight()
    assert budget(dataset) == dataset.explain().memory.budget == 64 * MIB, "nothing says that ranks share a machine"
    environment.setenv("LOCAL_WORLD_SIZE", "4")
    dataset = of_eight()
    explained = dataset.explain()
    assert budget(dataset) == explained.memory.budget == 16 * MIB
    assert budget(dataset, num_workers=2) == 8 * MIB
    assert explained.memory.readers == 4
    assert explained.memory_bytes <= 16 * MIB
    assert explained.num_threads == max(1, usable_cores() // 4)
    assert "of a budget of 16.0 MiB" in str(explained)
    cores = usable_cores()
    environment.setattr("zarrfeed.plan.schedule.resources.usable_cores", lambda: 16 * cores)
    assert of_eight().explain().num_threads == 4 * cores


def test_what_is_sent_to_another_process_carries_how_many_share_the_machine(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LOCAL_WORLD_SIZE", "4")
    dataset = of_eight()
    sent = pickle.dumps(dataset)
    environment.delenv("LOCAL_WORLD_SIZE")
    info = torch.utils.data._utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=dataset)
    environment.setattr("torch.utils.data.get_worker_info", lambda: info)
    assert budget(pickle.loads(sent)) == 16 * MIB


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),  # torchrun
        ({"SLURM_NTASKS_PER_NODE": "2"}, 2),  # srun --ntasks-per-node
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, 4),  # torchrun in a Slurm job
        ({"LOCAL_WORLD_SIZE": "100"}, 8),  # no more than there are
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": ""}, 1),
        ({"LOCAL_WORLD_SIZE": "-4"}, 1),
        ({"LOCAL_WORLD_SIZE": "many", "SLURM_NTASKS_PER_NODE": "2"}, 2),
        ({"MASTER_ADDR": "127.0.0.1"}, 1),  # said by nobody that initialised torch.distributed
    ],
    ids=str,
)
def test_the_launcher_says_how_many_ranks_share_the_machine(
    variables: dict[str, str], expected: int, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert find_rank(5, 8) == RankInfo(5, 8, expected)
    assert find_rank(lambda: (5, 8)) == RankInfo(5, 8, expected)
    assert find_rank() == RankInfo(0, 1, 1), "one process shares with nobody"


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", 8), ("localhost", 8), ("::1", 8), ("10.0.0.7", 1), (None, 1)]
)
@pytest.mark.usefixtures("process_group")
def test_ranks_that_meet_on_loopback_are_all_of_one_machine(
    address: str | None, expected: int, environment: pytest.MonkeyPatch
) -> None:
    if address is not None:
        environment.setenv("MASTER_ADDR", address)
    assert find_rank() == RankInfo(0, 1, 1)
    assert find_rank(5, 8) == RankInfo(5, 8, expected)
    environment.setenv("LOCAL_WORLD_SIZE", "2")
    assert find_rank(5, 8) == RankInfo(5, 8, 2), "the launcher knows best"


def test_ranks_from_launchers_share_the_machine_as_these_say(environment: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}.items():
        environment.setenv(name, value)
    assert find_rank(rank_from_torchrun) == RankInfo(3, 6, 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        environment.delenv(name)
    for name, value in {"SLURM_PROCID": "7", "SLURM_NTASKS": "12", "SLURM_NTASKS_PER_NODE": "4"}.items():
        environment.setenv(name, value)
    assert find_rank(rank_from_slurm) == RankInfo(7, 12, 4)
    with pytest.raises(ConfigError, match="the environment variable RANK is None"):
        find_rank(rank_from_torchrun)


def test_a_pod_of_an_indexed_job_is_a_rank(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("JOB_COMPLETION_INDEX", "3")
    assert rank_from_kubernetes(4) == (3, 4)
    assert find_rank(functools.partial(rank_from_kubernetes, world_size=4)) == RankInfo(3, 4, 1)
    environment.setenv("WORLD_SIZE", "8")
    assert find_rank(rank_from_kubernetes) == RankInfo(3, 8, 1)
    assert rank_from_kubernetes(4) == (3, 4), "what is given counts"
    parts = []
    for index in range(3):
        environment.setenv("JOB_COMPLETION_INDEX", str(index))
        environment.setenv("WORLD_SIZE", "3")
        dataset = iterable_dataset(np.arange(300), batch_size=10, shuffle=True, rank=rank_from_kubernetes)
        parts += [sample for batch in dataset for sample in batch.tolist()]
    assert sorted(parts) == list(range(300))


@pytest.mark.parametrize(
    ("variables", "world_size", "message"),
    [
        ({"WORLD_SIZE": "4"}, None, "JOB_COMPLETION_INDEX is not set.*completionMode: Indexed"),
        ({"JOB_COMPLETION_INDEX": "one"}, 4, "JOB_COMPLETION_INDEX is 'one', must be a number"),
        ({"JOB_COMPLETION_INDEX": "-1"}, 4, "JOB_COMPLETION_INDEX is '-1', must be a number"),
        ({"JOB_COMPLETION_INDEX": "0"}, None, r"WORLD_SIZE is not set.*completions.*rank_from_kubernetes\(world_size="),
        ({"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": ""}, None, "WORLD_SIZE is '', must be a number"),
        ({"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "0"}, None, "world_size = 0, must be at least 1"),
        ({"JOB_COMPLETION_INDEX": "0"}, 0, "world_size = 0, must be at least 1"),
        ({"JOB_COMPLETION_INDEX": "0"}, "4", "world_size"),
        ({"JOB_COMPLETION_INDEX": "4", "WORLD_SIZE": "4"}, None, "JOB_COMPLETION_INDEX = 4, world_size = 4: the index"),
        ({"JOB_COMPLETION_INDEX": "4", "WORLD_SIZE": "8"}, 4, "JOB_COMPLETION_INDEX = 4, world_size = 4: the index"),
    ],
    ids=str,
)
def test_a_pod_without_a_rank_is_refused(
    variables: dict[str, str], world_size: Any, message: str, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        rank_from_kubernetes(world_size)


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        (rank_from_kubernetes, {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "8"}),
        (rank_from_slurm, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}),
    ],
    ids=["kubernetes", "slurm"],
)
def test_ranks_that_torchrun_started_have_numbers_of_their_own(
    source: Callable[[], tuple[int, int]], variables: dict[str, str], environment: pytest.MonkeyPatch
) -> None:
    """All ranks of a pod or a task would read the same samples."""
    for name, value in {**variables, "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"}.items():
        environment.setenv(name, value)
    with pytest.raises(ConfigError, match=r"torchrun started 4 ranks here.*use rank_from_torchrun"):
        source()
    environment.setenv("LOCAL_WORLD_SIZE", "1")
    assert source()[0] == 1


@pytest.mark.parametrize(
    ("rank", "rank_info"),
    [
        (RankInfo(5, 8, 4), RankInfo(1, 4, 4, node=1, num_nodes=2)),
        (RankInfo(5, 8, 1), RankInfo(0, 1, 1, node=5, num_nodes=8)),  # nothing says how many ranks a node has
        (RankInfo(5, 8, 8), RankInfo(5, 8, 8)),
        (RankInfo(), RankInfo()),
        (RankInfo(0, 1, 4, split_over=4), RankInfo(0, 1, 4, split_over=4)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("environment")
def test_ranks_of_a_node_follow_each_other(rank: RankInfo, rank_info: RankInfo) -> None:
    assert rank_in_node(rank) == rank_info


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LOCAL_RANK": "2"}, "With 4 ranks a node, rank 5 must be number 1 of its node, but LOCAL_RANK = 2"),
        ({"SLURM_LOCALID": "0"}, "rank 5 must be number 1 of its node, but SLURM_LOCALID = 0"),
        ({"GROUP_WORLD_SIZE": "3"}, "2 nodes of 4 ranks each, but torchrun says that there are 3"),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0", "GROUP_WORLD_SIZE": "2"}, None),  # torchrun in a Slurm job
        ({"SLURM_LOCALID": "1"}, None),
        ({"LOCAL_RANK": ""}, None),
    ],
    ids=str,
)
def test_a_launcher_that_numbers_the_ranks_of_a_node_otherwise_is_refused(
    variables: dict[str, str], message: str | None, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    if message is None:
        assert rank_in_node(RankInfo(5, 8, 4)).node == 1
        return
    with pytest.raises(ConfigError, match=message):
        rank_in_node(RankInfo(5, 8, 4))
    assert rank_in_node(RankInfo()) == RankInfo(), "one process"


@pytest.mark.usefixtures("environment")
def test_a_process_that_reads_for_several_nodes_has_no_affinity() -> None:
    with pytest.raises(ConfigError, match="affinity = 'node' on 2 nodes, but accelerate reads on process 0 alone"):
        rank_in_node(RankInfo(0, 1, 2, split_over=4))


def test_a_worker_whose_training_process_ended_does_not_watch_the_next_process_with_its_pid() -> None:
    (descriptor,) = _open_training_process(os.getppid())
    os.close(descriptor)
    younger = os.fork()
    if younger == 0:
        signal.pause()
    try:
        with pytest.raises(ProcessLookupError, match="began after this worker"):
            _open_training_process(younger)
    finally:
        os.kill(younger, signal.SIGKILL)
        os.waitpid(younger, 0)
    with pytest.raises(ProcessLookupError):
        _open_training_process(younger)

"""A launcher started several processes, and nobody told the dataset: every process reads everything and says so."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
from torch.utils.data import DataLoader

from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.ranks import distributed, launchers
from zarrfeed.torch.ranks.distributed import RankFinder

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in launchers._LAUNCHERS:
        monkeypatch.delenv(launcher.rank, raising=False)
        monkeypatch.delenv(launcher.world_size, raising=False)
    monkeypatch.setattr(launchers, "_warned", False)


def start(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def dataset(**options: Any) -> ZarrIterableDataset:
    return ZarrIterableDataset(np.arange(100), batch_size=10, num_threads=1, **options)


def said_in(*feeds: Any) -> list[str]:
    """Read some feeds to their ends, each twice, and return what was warned about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for feed in feeds:
            for _ in range(2):
                assert sum(len(batch) for batch in feed) > 0
    return [str(one.message) for one in caught if "launcher" in str(one.filename)]


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        (TORCHRUN, "rank=zarrfeed.rank_from_torchrun"),
        (SRUN, "rank=zarrfeed.rank_from_slurm"),
        ({**SRUN, "SLURM_PROCID": "0"}, "rank=zarrfeed.rank_from_slurm"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "rank=zarrfeed.rank_from_slurm"),
        ({"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "2"}, "rank=zarrfeed.rank_from_kubernetes"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", **SRUN},
            'rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"])',
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 'world_size=int(os.environ["PMI_SIZE"])'),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, 'rank=int(os.environ["MV2_COMM_WORLD_RANK"])'),
    ],
)
def test_ranks_that_all_read_everything_say_so_once_with_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], remedy: str
) -> None:
    start(monkeypatch, variables)
    len(dataset())
    dataset().explain()
    (text,) = said_in(dataset(), dataset(), ZarrDataLoader(dataset()))
    assert remedy in text
    assert "torch.distributed.init_process_group()" in text
    assert "reads all samples" in text


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1", **SRUN},
        {"WORLD_SIZE": "4"},
        {"RANK": "", "WORLD_SIZE": "four"},
        # a shell of srun, a shell of salloc, the script of a job
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "4"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_that_is_alone_says_nothing(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    start(monkeypatch, variables)
    assert not said_in(dataset())


@pytest.fixture
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_process_group_that_is_initialised_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, TORCHRUN)
    assert not said_in(dataset())
    carried = pickle.loads(pickle.dumps(RankFinder(None, None)))
    monkeypatch.setattr(distributed, "in_worker", lambda: True)
    monkeypatch.setattr(distributed, "_is_initialised", lambda: False)  # a spawned worker never is
    assert not carried.is_unknown()


def test_a_rank_that_was_given_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, TORCHRUN)
    assert not said_in(dataset(rank=0, world_size=1), dataset(rank=lambda: (1, 4)))


def test_of_a_training_process_and_its_workers_one_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start(monkeypatch, TORCHRUN)
    said = tmp_path / "said"

    def write_down(*_: Any) -> None:
        with said.open("a") as file:
            file.write(f"{os.getpid()}\n")

    monkeypatch.setattr(warnings, "showwarning", write_down)  # in workers, too
    fork: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}

    def who_says(loader: Any) -> list[int]:
        said.write_text("")
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            assert sum(len(batch) for _ in range(2) for batch in loader) == 200
        return [int(line) for line in said.read_text().split()]

    (worker,) = who_says(DataLoader(dataset(), batch_size=None, **fork))  # whose training process begins no pass
    assert worker != os.getpid()
    assert who_says(ZarrDataLoader(dataset(), **fork)) == [os.getpid()]

"""accelerate and transformers' Trainer on two ranks: every sample exactly once, however they are told to split it.

Each rank has the variables of torchrun, as `accelerate launch` and torchrun start it. All cases run in the same two
processes, forked from one that has imported transformers, which takes seconds; a test looks at one case.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support import warm
from tests.support.examples import slow
from tests.support.paths import ROOT

N, BATCH_SIZE, WORLD_SIZE = 211, 6, 2
KEPT = N - N % WORLD_SIZE
CHUNKS = -(-N // 4)
LIMIT_S = 400

pytestmark = pytest.mark.timeout(900)

Results = list[dict[str, Any]]


def launch(module: str, python: list[str], directory: Path, *arguments: str) -> Results:
    """Run `main(store, output, *arguments)` of a module on two ranks, and return what each wrote.

    Parameters
    ----------
    module
        Name of the module, which is imported when the variables of torchrun are set.
    python
        A command of `tests.support.warm` whose server has imported the framework. The ranks set the variables of
        torchrun themselves: a client that had them would become a real interpreter, as the framework reads some of
        them at its import. It reads them again when it is used.
    directory
        The folder of the store, and of what the ranks write.
    arguments
        More arguments of `main`.
    """
    store = str(directory / "samples.zarr")
    zarr.create_array(store, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outputs = [directory / f"{rank}.json" for rank in range(WORLD_SIZE)]
    processes = []
    for rank, output in enumerate(outputs):
        of_torchrun = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(WORLD_SIZE),
            "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ACCELERATE_USE_CPU": "true",
        }
        code = f"import os, sys; os.environ.update({of_torchrun}); import {module}; {module}.main(*sys.argv[1:])"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        processes.append(
            subprocess.Popen(
                [*python, "-c", code, store, str(output), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        logs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * WORLD_SIZE, "\n".join(logs)
    return [json.loads(output.read_text()) for output in outputs]


#: Ways to read by accelerate: (kind of loader, workers, dispatch_batches, split_batches).
GRID = tuple(itertools.product(("samples", "batches", "zarr"), (0, 2), (None, True, False), (False, True)))
#: The ways of the usual run: each two values of kind, workers and dispatch_batches, and both of split_batches.
USUAL = (
    ("samples", 0, None, False),
    ("samples", 0, False, False),
    ("samples", 0, True, True),
    ("samples", 2, False, True),
    ("samples", 2, None, False),
    ("batches", 0, True, False),
    ("batches", 0, False, False),
    ("batches", 2, None, False),
    ("batches", 2, None, True),
    ("zarr", 0, None, False),
    ("zarr", 0, True, True),
    ("zarr", 0, False, True),
    ("zarr", 2, False, False),
    ("zarr", 2, True, False),
)


def ways(*kinds: str) -> Any:
    """Return the ways to read loaders of some kinds as cases of `parametrize`."""
    return [way if way in USUAL else slow(*way) for way in GRID if way[0] in kinds]


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Results:
    python = warm.command(*warm.TRAINER)
    directory = tmp_path_factory.mktemp("accelerate")
    # a forkserver imports accelerate anew, in each rank
    of_forkserver, grid = (str(warm.executable()), GRID) if pytestconfig.getoption("--large") else ("", USUAL)
    return launch("tests.support.accelerate_rank", python, directory, of_forkserver, json.dumps(grid))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Results:
    python = warm.command(*warm.TRAINER)
    return launch("tests.support.trainer_rank", python, tmp_path_factory.mktemp("trainer"))


def counts(batches: Iterable[list[int]]) -> Counter[int]:
    return Counter(sample for batch in batches for sample in batch)


def case(results: Results, name: str) -> Results:
    return [of_rank["read"][name] for of_rank in results]


def assert_exactly_once(ranks: Results, *, kept: int = KEPT) -> None:
    """Check that each epoch has `kept` samples, each once, in another order than the epoch before."""
    for rank in ranks:
        assert "refusal" not in rank, rank["refusal"]
        assert rank["epochs"][0] != rank["epochs"][1]
    for epochs in zip(*(rank["epochs"] for rank in ranks), strict=True):
        seen = counts(batch for epoch in epochs for batch in epoch)
        assert len(seen) == kept
        assert max(seen.values()) == 1
        assert max(seen) < N
        assert len({sum(map(len, epoch)) for epoch in epochs}) == 1, "ranks got different numbers of samples"
        assert len({len(epoch) for epoch in epochs}) == 1, "ranks got different numbers of batches"


def assert_refused(ranks: Results, *patterns: str) -> None:
    """Check that every rank was refused, so that none waits for another."""
    for rank in ranks:
        for pattern in patterns:
            assert re.search(pattern, rank["refusal"]), rank["refusal"]


@pytest.mark.parametrize(("kind", "workers", "dispatch", "split"), ways("samples"))
def test_accelerate_delivers_single_samples_exactly_once(
    accelerate: Results, kind: str, workers: int, dispatch: bool | None, split: bool
) -> None:
    ranks = case(accelerate, f"{kind}/{workers}/{dispatch}/{split}")
    if workers and dispatch is not False:
        return assert_refused(ranks, "^ConfigError", r"dispatch_batches=False", "'dispatch_batches': False", "short")
    assert_exactly_once(ranks)
    batch_size = BATCH_SIZE // WORLD_SIZE if split else BATCH_SIZE
    for rank in ranks:
        assert all(len(batch) == batch_size for batch in rank["epochs"][0][:10])
        if workers == 0:  # of several workers, each may end with a short batch
            assert rank["length"] == len(rank["epochs"][0])
    return None


@pytest.mark.parametrize(("kind", "workers", "dispatch", "split"), ways("batches", "zarr"))
def test_accelerate_delivers_ready_batches_exactly_once(
    accelerate: Results, kind: str, workers: int, dispatch: bool | None, split: bool
) -> None:
    ranks = case(accelerate, f"{kind}/{workers}/{dispatch}/{split}")
    if split and kind == "zarr" and not dispatch:
        return assert_refused(ranks, "^ConfigError", "divide the dataset's batch_size by 2 and use split_batches=False")
    if split:  # accelerate refuses that itself
        return assert_refused(ranks, "^ValueError: In order to use `split_batches==True`")
    assert_exactly_once(ranks)
    for rank in ranks:
        assert {len(batch) for batch in rank["epochs"][0][:-1]} == {BATCH_SIZE}
        assert rank["length"] == len(rank["epochs"][0])
    return None


@pytest.mark.parametrize(
    "name",
    [
        slow("forkserver, split"),
        slow("forkserver, dispatched"),
        "in order, dispatched",
        "stateful, split",
        "stateful, dispatched",
        "forwarding, split",
        "forwarding, dispatched",
    ],
)
def test_accelerate_delivers_exactly_once_by_other_ways(accelerate: Results, name: str) -> None:
    assert_exactly_once(case(accelerate, name))


@pytest.mark.parametrize(("name", "others"), [("samples/0/False/False", 1), ("zarr/0/None/False", 1)])
def test_each_process_decodes_its_own_share_alone(accelerate: Results, name: str, others: int) -> None:
    read = [rank["chunks"] for rank in case(accelerate, name)]
    assert sum(read) <= 1.2 * 2 * CHUNKS  # in two epochs; a chunk that the end of a lane cuts is read twice
    assert min(read) > 0.8 * CHUNKS * others
    assert case(accelerate, name)[0]["warnings"] == []


def test_a_dispatcher_reads_on_process_0_alone_and_warns_there(accelerate: Results) -> None:
    first, second = case(accelerate, "samples/0/None/False")
    assert first["chunks"] <= 1.2 * 2 * CHUNKS
    assert second["chunks"] == 0
    assert all("dispatch_batches=False" in text for text in first["warnings"])
    assert len(first["warnings"]) == 2  # once an epoch, as the test shows repetitions
    assert second["warnings"] == []


@pytest.mark.parametrize("name", ["samples/0/None/False", "samples/0/False/False", "batches/2/None/False"])
def test_after_accelerate_the_ranks_agree_on_the_next_epoch(accelerate: Results, name: str) -> None:
    following = [rank["next"] for rank in case(accelerate, name)]
    assert counts(batch for batches in following for batch in batches).most_common(1)[0][1] == 1


def test_even_and_drop_last_mean_what_they_mean_elsewhere(accelerate: Results) -> None:
    assert_exactly_once(case(accelerate, "drop_last"), kept=KEPT // BATCH_SIZE // WORLD_SIZE * BATCH_SIZE * WORLD_SIZE)
    for even, total in (("repeat", N + 1), ("off", N)):
        for epochs in zip(*(rank["epochs"] for rank in case(accelerate, f"even={even}")), strict=True):
            seen = counts(batch for epoch in epochs for batch in epoch)
            assert len(seen) == N
            assert seen.total() == total


@pytest.mark.parametrize("name", ["given rank, dispatched", "given rank, split", "given rank, zarr", "map"])
def test_what_does_not_share_samples_out_is_left_to_accelerate(accelerate: Results, name: str) -> None:
    for epochs in zip(*(rank["epochs"] for rank in case(accelerate, name)), strict=True):
        seen = counts(batch for epoch in epochs for batch in epoch)
        assert len(seen) == N
        assert seen.total() <= N + BATCH_SIZE * WORLD_SIZE  # it repeats samples to fill the last batches


@pytest.mark.parametrize("name", ["opaque, split", "their shard alone", "their shard alone, workers"])
def test_a_second_split_that_cannot_be_stopped_is_refused(accelerate: Results, name: str) -> None:
    assert_refused(case(accelerate, name), "ConfigError", re.escape("ZarrDataLoader(dataset) to accelerator.prepare()"))


def test_another_rank_than_accelerates_is_refused(accelerate: Results) -> None:
    for rank, result in enumerate(case(accelerate, "other rank")):
        assert_refused([result], "^ConfigError", f"give the dataset rank={rank}, world_size=2")


def test_a_zarr_data_loader_stays_what_it_is(accelerate: Results) -> None:
    for rank in accelerate:
        assert rank["identity"] == {
            "before": False,
            "same": True,
            "device": True,
            "same by name": True,
            "no device": True,
            "asked again": True,
        }


def test_save_state_resumes_in_the_middle_of_an_epoch(accelerate: Results) -> None:
    for rank in accelerate:
        whole, resumed = rank["resume"]["0"]
        assert resumed == whole
    for workers in ("0", "2"):
        for epoch in range(3):
            seen = counts(batch for rank in accelerate for batch in rank["resume"][workers][1][epoch])
            assert len(seen) == seen.total() == KEPT


@pytest.mark.parametrize("name", ["zarr/{}", "samples/{'dispatch_batches': False}", "samples/{}"])
def test_gradients_are_applied_at_the_end_and_metrics_see_every_sample(accelerate: Results, name: str) -> None:
    for rank in accelerate:
        found = rank["accumulate"][name]
        steps = len(found["applied"])
        assert found["applied"] == [step % 4 == 0 or step == steps for step in range(1, steps + 1)]
        assert len(set(found["gathered"])) == len(found["gathered"]) == KEPT
        assert not found["inside"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_metrics_see_no_sample_that_was_repeated_for_an_even_share(accelerate: Results, workers: str) -> None:
    for rank in accelerate:
        first, second = rank["gather"][workers]
        assert sorted(first) == sorted(second) == list(range(N))
        assert first != second


@pytest.mark.parametrize("name", ["zarr/{}", "samples/{'dispatch_batches': False}", "samples/{}"])
def test_skip_first_batches_leads_to_the_rest_of_the_epoch(accelerate: Results, name: str) -> None:
    for rank in accelerate:
        (first, second), (rest, following) = rank["skip"][name]
        assert rest == first[5:]
        assert following == second


def assert_trained(results: Results, name: str) -> None:
    """Check that in each of two epochs, the model saw each sample once, on one of the ranks."""
    batches = [rank[name]["batches"] for rank in results]
    assert len(batches[0]) == len(batches[1]) == 2 * -(-KEPT // WORLD_SIZE // BATCH_SIZE)
    half = len(batches[0]) // 2
    epochs = [counts([*batches[0][part], *batches[1][part]]) for part in (slice(half), slice(half, None))]
    assert [len(epoch) for epoch in epochs] == [epoch.total() for epoch in epochs] == [KEPT, KEPT]
    assert batches[0][:half] != batches[0][half:]


@pytest.mark.parametrize("name", ["default", "own shares", "own shares, workers", "loader"])
def test_the_trainer_sees_every_sample_once_an_epoch(trainer: Results, name: str) -> None:
    assert_trained(trainer, name)
    warned = [len(rank[name]["warnings"]) for rank in trainer]
    assert warned == ([2, 0] if name == "default" else [0, 0])


@pytest.mark.parametrize("name", ["batched", "batched, own shares", "batched, workers"])
def test_the_trainer_cannot_make_batches_of_batches(trainer: Results, name: str) -> None:
    assert_refused(
        [rank[name] for rank in trainer],
        "^ConfigError",
        re.escape("leave out the dataset's batch_size, as for transformers' Trainer"),
    )


def test_the_trainers_default_with_workers_is_refused(trainer: Results) -> None:
    assert_refused(
        [rank["default, workers"] for rank in trainer],
        re.escape("TrainingArguments(accelerator_config={'dispatch_batches': False})"),
    )


@pytest.mark.parametrize("name", ["default", "own shares", "loader, epoch named"])
def test_the_trainer_resumes_where_it_stopped(trainer: Results, name: str) -> None:
    assert_trained(trainer, f"resumed, {name}")
    for rank in trainer:
        assert rank[f"resumed, {name}"]["batches"] == rank[name.removesuffix(", epoch named")]["batches"]


def test_the_trainer_does_not_resume_in_another_epoch(trainer: Results) -> None:
    assert_refused([rank["resumed, loader"] for rank in trainer], "^ConfigError", re.escape("dataset.set_epoch(1)"))


@pytest.mark.parametrize("name", ["evaluate", "evaluate, own shares"])
def test_the_trainer_evaluates_every_sample_once(trainer: Results, name: str) -> None:
    for rank in trainer:
        seen = rank[name]["metrics"]["eval_seen"]
        assert len(seen) == len(set(seen)) == KEPT

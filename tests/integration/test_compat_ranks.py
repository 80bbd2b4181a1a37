"""`zarrfeed.compat.zarrdataset` on several ranks: in real processes, which meet by gloo."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support import warm
from tests.support.compat_ranks import read_cases
from tests.support.examples import slow
from tests.support.paths import SUPPORT
from tests.support.ranks import Ranks

N, CHUNK = 203, 8
LIMIT_S = 400

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


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


@pytest.fixture(scope="module", params=[slow(2), 3])
def results(
    request: pytest.FixtureRequest, directory: Path, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Read all cases on three ranks; with --large on two, too."""
    meeting = tmp_path_factory.mktemp("meeting") / "file"
    return ranks.run(read_cases, directory, str(meeting), world_size=request.param)


def test_every_sample_comes_once_and_ranks_have_as_many(results: list[dict[str, Any]]) -> None:
    size_of = {"some chunks": N - 3 * CHUNK, "one chunk": N % CHUNK}
    cases = [case for case in results[0] if "/" in case]
    assert len(cases) == 14
    for case in cases:
        n = size_of.get(case.split("/")[0], N)
        orders = []
        for epoch in range(2):
            of_ranks = [rank[case][epoch] for rank in results]
            assert len({len(batches) for batches in of_ranks}) == 1, case
            flat = [[i for batch in batches for i in batch] for batches in of_ranks]
            assert {len(samples) for samples in flat} == {n // len(results)}, case
            everything = [i for samples in flat for i in samples]
            assert len(set(everything)) == len(everything), case
            assert set(everything) <= set(range(N)), case
            orders.append(everything)
        if not case.startswith(("in order", "one chunk")):  # three samples may come alike
            assert orders[0] != orders[1], case


def test_a_worker_that_cannot_ask_for_the_seed_of_the_others_says_what_to_do(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert "use zarrfeed.compat.zarrdataset.ZarrDataLoader, or give a seed" in rank["refusal"]


def test_the_lightning_example_of_the_original_delivers_every_sample_once(directory: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    python = warm.command(*warm.LIGHTNING)
    done = subprocess.run(
        [*python, str(SUPPORT / "compat_lightning.py"), str(directory), *python],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
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

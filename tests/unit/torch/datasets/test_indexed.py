"""What `ZarrDataset` and `ObjectDataset` have in common: one request at a time, and a reader for each process."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed import ClosedError, ConfigError
from zarrfeed.objects import ObjectDataset

N = 12


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return functions that make a dataset of samples whose items are their index."""
    folder = tmp_path_factory.mktemp("indexed")
    zarr.create_array(folder / "x.zarr", data=np.arange(N, dtype="u1")[:, None], chunks=(4, 1))
    (folder / "objects").mkdir()
    for i in range(N):
        (folder / "objects" / f"{i:02}").write_bytes(bytes([i]))

    def arrays(**options: Any) -> zarrfeed.ZarrDataset:
        return zarrfeed.ZarrDataset(folder / "x.zarr", **options)

    def objects(**options: Any) -> ObjectDataset:
        return ObjectDataset(folder / "objects", **options)

    return {"arrays": arrays, "objects": objects}


def values_of(batch: Any) -> list[int]:
    return [int(np.asarray(one).item()) for one in batch]


def test_one_index_gives_a_sample_and_several_give_a_batch(datasets: dict[str, Any]) -> None:
    for name, make in datasets.items():
        dataset = make()
        assert len(dataset) == N, name
        assert [values_of([dataset[i]]) for i in (0, -1, np.int64(3))] == [[0], [N - 1], [3]], name
        assert [values_of(dataset[one]) for one in ([3, 1, 3], np.array([-1]), range(2), [])] == [
            [3, 1, 3],
            [N - 1],
            [0, 1],
            [],
        ], name
        assert values_of(dataset.__getitems__([5, 0])) == [5, 0], name
        for index, error in ((N, IndexError), ([-N - 1], IndexError), ([[1]], ConfigError), ([0.5], ConfigError)):
            with pytest.raises(error):
                dataset[index]
        assert values_of(dataset[[7]]) == [7], f"{name}: after errors"


def test_reading_is_over_after_close_and_closing_twice_is_no_error(datasets: dict[str, Any]) -> None:
    for name, make in datasets.items():
        dataset = make()
        assert values_of(dataset[[1]]) == [1], name
        before = dataset.stats()
        dataset.close()
        dataset.close()
        assert dataset.stats().chunks_read == before.chunks_read, name
        for index in (0, [0, 1]):
            with pytest.raises(ClosedError, match="this dataset was closed"):
                dataset[index]


def test_copies_and_pickles_read_by_themselves(datasets: dict[str, Any]) -> None:
    for name, make in datasets.items():
        dataset = make()
        dataset[[0, 1]]
        others = [copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]
        for other in others:
            assert other.stats().chunks_read == 0, name
            assert values_of(other[[2, 9]]) == [2, 9], name
        dataset.close()
        assert [values_of(other[[4]]) for other in others] == [[4]] * 3, f"{name}: the first one was closed"


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_while_a_thread_of_its_parent_does(datasets: dict[str, Any]) -> None:
    for name, make in datasets.items():
        dataset = make(num_threads=1)
        dataset[[0]]
        reader = dataset._own.here
        with reader.lock:  # as another thread that reads
            child = os.fork()
            if child == 0:
                found = values_of(dataset[[3, 11]]) if dataset.stats().chunks_read == 0 else []
                os._exit(0 if found == [3, 11] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
        assert dataset._own.here is reader, name
        assert values_of(dataset[[5]]) == [5], name


@pytest.mark.timeout(120)
def test_threads_wait_for_each_other(datasets: dict[str, Any]) -> None:
    for name, make in datasets.items():
        dataset = make()
        failures: list[Any] = []

        def read(seed: int, dataset: Any = dataset, failures: list[Any] = failures) -> None:
            random = np.random.default_rng(seed)
            for _ in range(20):
                wanted = random.integers(0, N, 5).tolist()
                if (found := values_of(dataset[wanted])) != wanted:
                    failures.append((wanted, found))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == [], name


def test_options_of_requests_are_checked_alike(datasets: dict[str, Any]) -> None:
    for what, make in (("a sample", datasets["arrays"]), ("an object", datasets["objects"])):
        with pytest.raises(ConfigError, match=f"on_error = 'skip', must be 'raise': {what} that was asked for"):
            make(faults={"on_error": "skip"})
        with pytest.raises(ConfigError, match="num_threads"):
            make(num_threads=0)
    assert isinstance(datasets["arrays"](), torch.utils.data.Dataset)


def test_a_sample_owns_its_memory(datasets: dict[str, Any], tmp_path: Path) -> None:
    one = datasets["arrays"]()[3]
    torch.save(one, tmp_path / "one")
    assert (tmp_path / "one").stat().st_size < 4096

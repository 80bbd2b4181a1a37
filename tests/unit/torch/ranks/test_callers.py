"""What a dataset refuses when it sees who reads it: batches of batches, and subsets by index."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, Subset, default_collate, random_split
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.flat import split
from zarrfeed import ConfigError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset

N = 40
REMEDY = r"DataLoader\(dataset, batch_size=None\) or ZarrDataLoader\(dataset\), or leave out the dataset's batch_size"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("callers") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    return path


def make(store: str, batch_size: int | None = 8) -> ZarrIterableDataset:
    return ZarrIterableDataset(store, batch_size=batch_size, num_threads=1)


class Samples(IterableDataset[torch.Tensor]):
    """Somebody's dataset that cuts batches into samples."""

    def __init__(self, batches: ZarrIterableDataset) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self._batches:
            yield from batch


WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}


@pytest.mark.parametrize(
    "loader",
    [
        lambda dataset: DataLoader(dataset, batch_size=4),
        lambda dataset: DataLoader(dataset),
        lambda dataset: DataLoader(dataset, batch_size=4, drop_last=True),
        lambda dataset: DataLoader(dataset, batch_size=4, collate_fn=default_collate),
        lambda dataset: DataLoader(dataset, batch_size=4, **WORKERS),
        lambda dataset: StatefulDataLoader(dataset, batch_size=4),
        lambda dataset: DataLoader(dataset + dataset, batch_size=4),
        lambda dataset: DataLoader(ChainDataset([dataset]), batch_size=4, **WORKERS),
    ],
    ids=["batch_size", "default", "drop_last", "collate_fn", "worker", "torchdata", "sum", "chain in worker"],
)
def test_batches_of_batches_are_refused(store: str, loader: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=rf"batches of 8(.|\n)*{REMEDY}"):
        next(iter(loader(make(store))))


@pytest.mark.parametrize(
    ("loader", "shape"),
    [
        (lambda store: DataLoader(make(store), batch_size=None), (8, 3)),
        (lambda store: ZarrDataLoader(make(store)), (8, 3)),
        (lambda store: DataLoader(make(store, None), batch_size=4), (4, 3)),
        (lambda store: DataLoader(make(store), batch_size=2, collate_fn=torch.cat), (16, 3)),
        (lambda store: DataLoader(Samples(make(store)), batch_size=5), (5, 3)),
        (lambda store: DataLoader(make(store) + make(store), batch_size=None), (8, 3)),
        (lambda store: DataLoader(Samples(make(store)), batch_size=5, **WORKERS), (5, 3)),
    ],
    ids=["none", "ours", "samples", "own collate_fn", "wrapped", "sum", "wrapped in worker"],
)
def test_what_makes_no_batches_of_batches_is_not_refused(
    store: str, loader: Callable[[str], Any], shape: tuple[int, ...]
) -> None:
    batches = list(loader(store))
    assert batches[0].shape == shape
    seen = torch.cat(batches)[:, 0].bincount(minlength=N)
    assert len(set(seen.tolist())) == 1  # each sample as often as any other
    assert seen.min() >= 1


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("lengths", ["numbers", "fractions"])
def test_random_split_is_refused_at_once(store: str, batch_size: int | None, lengths: str) -> None:
    dataset = make(store, batch_size)
    parts: list[float] = [0.8, 0.2] if lengths == "fractions" else [len(dataset) - 1, 1]
    with pytest.raises(ConfigError, match=r"data\.split\(\(0\.8, 0\.2\)\)"):
        random_split(dataset, parts)
    assert sum(len(part) for part in split(make(store, None), [0.8, 0.2])) == N


def test_random_split_of_a_map_style_dataset_works(store: str) -> None:
    first, second = random_split(ZarrDataset(store), [0.5, 0.5])
    found = torch.cat([batch for part in (first, second) for batch in DataLoader(part, batch_size=7)])
    assert found[:, 0].sort().values.tolist() == list(range(N))


def test_an_index_into_a_stream_is_refused(store: str) -> None:
    dataset = make(store)
    subset: Subset[Any] = Subset(dataset, [1, 2])
    with pytest.raises(ConfigError, match=r"ZarrDataset, or Data\.split"):
        dataset[3]
    with pytest.raises(ConfigError, match=r"ZarrDataset, or Data\.split"):
        next(iter(DataLoader(subset, batch_size=2)))


def test_without_accelerate_nothing_is_looked_for(store: str) -> None:
    """A dataset in one process is read the same whether or not Hugging Face's libraries are there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate.data_loader import DataLoaderDispatcher, IterableDatasetShard
    alone = IterableDatasetShard(make(store, None), batch_size=4, num_processes=2, process_index=1)
    assert [int(x[0]) for x in alone] == [i for i in range(N) if i // 4 % 2]
    assert len(DataLoaderDispatcher(make(store), batch_size=None)) == N // 8

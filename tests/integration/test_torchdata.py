"""torchdata's StatefulDataLoader saves and resumes a dataset in the middle of an epoch, with workers and without."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.examples import slow
from tests.support.flat import iterable_dataset
from tests.support.ranks import take
from zarrfeed import ZarrDataLoader

Int64: TypeAlias = npt.NDArray[np.int64]

N = 211  # a prime
SETTINGS: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": 6}

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torchdata") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    return path


def assert_same(got: Sequence[Int64], expected: Sequence[Int64]) -> None:
    assert [b.tolist() for b in got] == [b.tolist() for b in expected]


def make(store: str, num_workers: int, **settings: Any) -> StatefulDataLoader[Any]:
    dataset = iterable_dataset(store, **SETTINGS, batch_size=7, return_index=True, num_threads=1)
    workers: dict[str, Any] = (
        {"num_workers": num_workers, "multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
    )
    return StatefulDataLoader(dataset, batch_size=None, **workers, **settings)


@pytest.mark.parametrize(
    ("num_workers", "persistent", "every"),
    [slow(0, False, 1), (0, False, 3), slow(2, False, 3), (2, True, 1)],
)
def test_torchdata_saves_and_resumes_mid_epoch(store: str, num_workers: int, persistent: bool, every: int) -> None:
    settings: dict[str, Any] = {"snapshot_every_n_steps": every, "persistent_workers": persistent}
    loader = make(store, num_workers, **settings)
    whole = [take(iter(loader)) for _ in range(3)]
    assert len({str(epoch) for epoch in whole}) == 3

    loader = make(store, num_workers, **settings)
    take(iter(loader))
    feed = iter(loader)
    seen: list[Any] = []
    states: dict[int, Any] = {}
    for steps in (1, 8, 29):
        seen += take(feed, steps - len(seen))
        assert_same(seen, whole[1][:steps])
        states[steps] = copy.deepcopy(loader.state_dict())
    assert_same(take(feed), whole[1][29:])

    for steps, state in states.items():
        resumed = make(store, num_workers, **settings)
        resumed.load_state_dict(state)
        assert_same(take(iter(resumed)), whole[1][steps:])
        assert_same(take(iter(resumed)), whole[2])


@pytest.mark.parametrize("steps", [1, slow(2)])
def test_torchdata_saves_and_resumes_what_our_loader_had_begun(store: str, steps: int) -> None:
    """Workers then begin in the middle of a round, and each saves how far it came with the share that it took over."""
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
    options: dict[str, Any] = {**SETTINGS, "batch_size": 7, "return_index": True, "num_threads": 1}
    whole = take(iter(ZarrDataLoader(iterable_dataset(store, **options), **settings)))
    ours = ZarrDataLoader(iterable_dataset(store, **options), **settings)
    feed = iter(ours)
    take(feed, 5)
    loader = make(store, 2)
    loader.dataset.load_state_dict(ours.state_dict())
    del feed
    feed = iter(loader)
    assert_same(take(feed, steps), whole[5 : 5 + steps])
    state = copy.deepcopy(loader.state_dict())
    del feed
    resumed = make(store, 2)
    resumed.load_state_dict(state)
    assert_same(take(iter(resumed)), whole[5 + steps :])


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), slow(2, True)])
def test_torchdata_saves_after_an_epoch(store: str, num_workers: int, persistent: bool) -> None:
    loader = make(store, num_workers, persistent_workers=persistent)
    take(iter(loader))
    state = copy.deepcopy(loader.state_dict())
    later = [take(iter(loader)) for _ in range(2)]
    resumed = make(store, num_workers, persistent_workers=persistent)
    resumed.load_state_dict(state)
    for epoch in later:
        assert_same(take(iter(resumed)), epoch)


def test_torchdata_batches_single_samples(store: str) -> None:
    """Without a batch size in the dataset, the loader collates; what it received counts."""

    def make_loader() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(iterable_dataset(store, **SETTINGS, return_index=True), batch_size=7)

    loader = make_loader()
    feed = iter(loader)
    seen = take(feed, 6)
    state = copy.deepcopy(loader.state_dict())
    later = take(feed)
    assert sorted(np.concatenate([*seen, *later])) == list(range(N))
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert_same(take(iter(resumed)), later)

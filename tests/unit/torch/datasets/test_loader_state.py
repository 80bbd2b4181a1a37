"""A loader's state in a distributed checkpoint: whole, whatever state the loader that loads it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.dcp import dcp
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.checkpoint import LoaderState, ZarrfeedReader, ZarrfeedWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("data") / "samples.zarr")
    zarr.create_array(path, data=np.arange(100), chunks=(4,))
    return path


def make_loader(store: str) -> ZarrDataLoader:
    return ZarrDataLoader(ZarrIterableDataset(store, batch_size=8, shuffle=True, seed=3, num_threads=1))


@pytest.mark.parametrize("steps", [0, 3, 13, 15])
@pytest.mark.parametrize("has_begun", [False, True])
def test_the_batches_that_follow_are_those_that_would_have_come(
    store: str, tmp_path: Path, steps: int, has_begun: bool
) -> None:
    loader = make_loader(store)
    taken = 0
    while taken < steps:
        for _ in loader:
            taken += 1
            if taken == steps:
                break
    dcp.save({"loader": LoaderState(loader)}, storage_writer=ZarrfeedWriter(tmp_path))
    saved = loader.state_dict()
    other = make_loader(store)
    if has_begun:
        next(iter(other))
    dcp.load({"loader": LoaderState(other)}, storage_reader=ZarrfeedReader(tmp_path))
    assert other.state_dict() == saved
    reference = make_loader(store)
    reference.load_state_dict(saved)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in reference]


def test_torch_alone_would_lose_keys(store: str, tmp_path: Path) -> None:
    """Why `LoaderState` is there: a loader that has not read has fewer keys, and torch loads those alone."""
    loader = make_loader(store)
    next(iter(loader))
    dcp.save({"loader": loader.state_dict()}, storage_writer=ZarrfeedWriter(tmp_path))
    state = {"loader": make_loader(store).state_dict()}
    dcp.load(state, storage_reader=ZarrfeedReader(tmp_path))
    assert set(state["loader"]) < set(loader.state_dict())


class _Unsaveable:
    def state_dict(self) -> dict[str, Any]:
        return {"array": np.arange(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


def test_what_has_no_plain_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have state_dict"):
        LoaderState([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the state of _Unsaveable is not what JSON can hold"):
        LoaderState(_Unsaveable()).state_dict()
    with pytest.raises(ConfigError, match=r"the state has the keys \['epoch'\]"):
        LoaderState(_Unsaveable()).load_state_dict({"epoch": "1"})
    with pytest.raises(ConfigError, match="must be what LoaderState saved"):
        LoaderState(_Unsaveable()).load_state_dict({"json": "{"})

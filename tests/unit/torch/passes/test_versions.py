"""A store that grows: each epoch reads what is complete when it begins, and a resumed one what it began with."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from zarrfeed import ConfigError, StoreReadError, ZarrDataLoader, ZarrIterableDataset

ROWS = 8  # of a chunk


def create(path: Path, samples: int, *, name: str = "", zarr_format: int = 3, shards: int | None = None) -> Path:
    """Make an array whose samples hold their index."""
    array = zarr.create_array(
        path / name,
        shape=(samples, 3),
        chunks=(ROWS, 2),
        shards=None if shards is None else (shards, 4),
        dtype="i8",
        zarr_format=zarr_format,  # type: ignore[arg-type]
        fill_value=-1,
    )
    array[:] = rows(0, samples)
    return path


def rows(begin: int, end: int) -> Any:
    return np.arange(begin, end)[:, None].repeat(3, 1)


def grow(path: Path, samples: int, *, name: str = "") -> None:
    """Append as zarr-python does: the shape first."""
    array = zarr.open_array(path / name, mode="r+")
    array.append(rows(array.shape[0], samples))


def make(path: Path, **options: Any) -> ZarrIterableDataset:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "num_threads": 1} | options
    return ZarrIterableDataset(zarrfeed.open(path, refresh="epoch"), **settings)


def values(batches: Any) -> list[int]:
    """Return what was delivered, in order; each sample must be whole."""
    delivered: list[int] = []
    for batch in batches:
        assert (batch == batch[:, :1]).all()
        delivered += batch[:, 0].tolist()
    return delivered


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shards", [None, 16])
def test_each_epoch_reads_what_is_complete_when_it_begins(tmp_path: Path, zarr_format: int, shards: int | None) -> None:
    if zarr_format == 2 and shards:
        return
    dataset = make(create(tmp_path / "a", 32, zarr_format=zarr_format, shards=shards))
    assert sorted(values(dataset)) == list(range(32))
    grow(tmp_path / "a", 64)
    assert len(dataset) == 8, "the version is the last one's until a pass looks"
    assert sorted(values(dataset)) == list(range(64))
    assert (len(dataset), dataset.explain().num_samples) == (16, 64)
    assert sorted(values(dataset)) == list(range(64))


def test_without_refresh_a_store_that_grew_is_read_as_if_nothing_had_happened(tmp_path: Path) -> None:
    dataset = ZarrIterableDataset(create(tmp_path / "a", 16), batch_size=4)
    assert len(values(dataset)) == 16
    grow(tmp_path / "a", 32)
    with pytest.raises(StoreReadError, match=r"shape is \(\d+, 3\), was \(16, 3\).* refresh='epoch'"):
        values(dataset)


def test_the_order_of_a_version_is_that_of_a_store_of_its_length(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 32))
    grow(tmp_path / "a", 64)
    still = ZarrIterableDataset(create(tmp_path / "b", 64), batch_size=4, shuffle=True, seed=3, num_threads=1)
    assert values(dataset) == values(still)


def test_refresh_looks_before_the_pass_does(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 16))
    grow(tmp_path / "a", 32)
    dataset.refresh()
    assert len(dataset) == 8
    grow(tmp_path / "a", 48)
    assert sorted(values(dataset)) == list(range(32)), "what refresh found"
    assert sorted(values(dataset)) == list(range(48))
    with pytest.raises(ConfigError, match="was not opened with refresh"):
        ZarrIterableDataset(tmp_path / "a").refresh()


@pytest.mark.parametrize("delivered", [0, 1, 5])
def test_a_resumed_epoch_is_read_at_its_version(tmp_path: Path, delivered: int) -> None:
    dataset = make(create(tmp_path / "a", 32))
    values(dataset)
    grow(tmp_path / "a", 56)
    running = iter(dataset)
    before = values(next(running) for _ in range(delivered))
    state = json.loads(json.dumps(dataset.state_dict()))
    rest = values(running)
    grow(tmp_path / "a", 80)
    again = make(tmp_path / "a")
    again.load_state_dict(state)
    if delivered:
        assert values(again) == rest
        assert sorted(before + rest) == list(range(56))
    else:
        assert sorted(values(again)) == list(range(80)), "an epoch that was not begun has no version"
    assert sorted(values(again)) == list(range(80))
    assert again.state_dict()["epoch"] == 3


def test_a_pass_goes_on_with_its_version_beside_another(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 32))
    first = iter(dataset)
    got = values([next(first)])
    grow(tmp_path / "a", 64)
    second = iter(dataset)
    more = values([next(second)])
    state = first.state_dict()
    assert sorted(got + values(first)) == list(range(32))
    assert sorted(more + values(second)) == list(range(64))
    again = make(tmp_path / "a")
    again.load_state_dict(state)
    assert sorted(got + values(again)) == list(range(32))
    assert dataset.stats().samples == 96


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 32))
    next(iter(dataset))
    state = dataset.state_dict()
    plain = ZarrIterableDataset(tmp_path / "a", batch_size=4, shuffle=True, seed=3)
    with pytest.raises(ConfigError, match="store that grows"):
        plain.load_state_dict(state)
    with pytest.raises(ConfigError, match="names no version"):
        dataset.load_state_dict(plain.state_dict())
    for damage in ({"samples": "32", "first": 0}, {"samples": 32}, {"samples": 32, "first": 32}, 7):
        with pytest.raises(ConfigError, match="damaged"):
            dataset.load_state_dict({**state, "store": damage})
    with pytest.raises(StoreReadError, match="had 40 samples"):
        dataset.load_state_dict({**state, "store": {"samples": 40, "first": 0}})


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loader", [ZarrDataLoader, DataLoader])
def test_all_workers_read_the_version_that_the_epoch_began_with(
    tmp_path: Path, start_method: str, persistent: bool, loader: Callable[..., Any]
) -> None:
    if start_method == "forkserver" and not persistent:
        return
    dataset = make(create(tmp_path / "a", 64))
    settings = {} if loader is ZarrDataLoader else {"batch_size": None}
    batches = loader(
        dataset,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context(start_method),
        persistent_workers=persistent,
        **settings,
    )
    end = 64
    for _ in range(3):
        running = iter(batches)
        got = values([next(running)])
        grow(tmp_path / "a", end + 64)
        assert sorted(got + values(running)) == list(range(end))
        end += 64


def test_a_loader_resumes_an_epoch_of_workers_at_its_version(tmp_path: Path) -> None:
    loader = ZarrDataLoader(make(create(tmp_path / "a", 64)), num_workers=2)
    running = iter(loader)
    before = values(next(running) for _ in range(5))
    state = loader.state_dict()
    del running
    grow(tmp_path / "a", 96)
    for num_workers in (0, 2):
        again = ZarrDataLoader(make(tmp_path / "a"), num_workers=num_workers)
        again.load_state_dict(state)
        assert sorted(before + values(again)) == list(range(64))
        assert sorted(values(again)) == list(range(96))


def test_a_dataset_that_is_pickled_goes_on_with_the_store(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 16))
    grow(tmp_path / "a", 32)
    assert sorted(values(pickle.loads(pickle.dumps(dataset)))) == list(range(32))


def test_several_ranks_that_cannot_agree_are_refused(tmp_path: Path) -> None:
    dataset = make(create(tmp_path / "a", 16), rank=0, world_size=2)
    with pytest.raises(ConfigError, match=r"on 2 ranks: torch\.distributed must be initialised"):
        next(iter(dataset))
    batches = DataLoader(dataset, batch_size=None, num_workers=1)
    with pytest.raises(ConfigError, match="use ZarrDataLoader"):
        next(iter(batches))


def test_small_arrays_that_are_read_into_memory_follow_too(tmp_path: Path) -> None:
    create(tmp_path / "a", 32)
    labels = zarr.create_array(tmp_path / "labels", shape=(32,), chunks=(16,), dtype="i8", fill_value=-1)
    labels[:] = np.arange(32)
    dataset = ZarrIterableDataset(
        zarrfeed.open({"x": tmp_path / "a", "label": tmp_path / "labels"}, refresh="epoch"), batch_size=8
    )
    for end in (32, 64, 96):
        seen = [(batch["x"][:, 0] == batch["label"]).all() for batch in dataset]
        assert all(seen)
        assert dataset.explain().num_samples == end
        grow(tmp_path / "a", end + 32)
        labels.append(np.arange(end, end + 32))


def test_options_of_growth_are_checked(tmp_path: Path) -> None:
    create(tmp_path / "a", 16)
    source: Any = tmp_path / "a"
    for options, message in (
        ({"refresh": "batch"}, "refresh = 'batch', must be"),
        ({"refresh": True}, "refresh = True, must be"),
        ({"refresh": "epoch", "complete": "all"}, "complete = 'all', must be"),
        ({"complete": "shape"}, "give refresh='epoch'"),
    ):
        with pytest.raises(ConfigError, match=message):
            zarrfeed.open(source, **options)
    with pytest.raises(ConfigError, match="in memory and cannot grow"):
        zarrfeed.open(source, np.arange(16), refresh="epoch")

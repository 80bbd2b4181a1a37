"""Epochs whose blocks lie in rotated combs, forced at small sizes: read, divided, saved and resumed as any epoch."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.plan.order import block_order

N, CHUNK = 403, 4

#: What release 0.2 wrote after 9 batches, and the two batches that it read then: in blocks permuted by sorted keys.
OF_SORTED_KEYS: dict[str, Any] = {
    "version": 2,
    "epoch": 0,
    "used": [],
    "lanes": 8,
    "first_block": 0,
    "mix": 7,
    "run": {
        "length": 403,
        "world_size": 1,
        "num_workers": 1,
        "batch_size": 8,
        "even": "off",
        "drop_last": False,
        "batches": 9,
    },
    "position": 72,
    "order": {
        "num_samples": 403,
        "block_rows": 4,
        "blocks": None,
        "select": None,
        "shuffle": True,
        "seed": 5,
        "mix": 7,
        "shuffle_rows": None,
        "row_seed": None,
    },
    "layout": {"samples": [403, 3, "int64"]},
}
NEXT_OF_SORTED_KEYS = [[85, 185, 294, 367, 194, 220, 47, 237], [160, 204, 61, 240, 377, 150, 30, 141]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an array whose samples have their index in each item."""
    path = tmp_path_factory.mktemp("combs") / "samples.zarr"
    zarr.create_array(str(path), data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(CHUNK, 3))
    return str(path)


@pytest.fixture
def combs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay blocks in combs wherever there are more than two."""
    monkeypatch.setattr(block_order, "COMBS_ABOVE", 2)


def make(store: Any, rank: int = 0, world_size: int = 1, **options: Any) -> ZarrIterableDataset:
    named: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5} | options
    return ZarrIterableDataset(store, rank=rank, world_size=world_size, **named)


def read(dataset: Any, count: int | None = None) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in islice(dataset, count)]


@pytest.mark.usefixtures("combs")
@pytest.mark.parametrize("world_size", [1, 2, 3, 12])
def test_each_sample_comes_once_over_all_ranks_and_batches_are_those_of_one_rank(store: str, world_size: int) -> None:
    for epoch in (0, 1):
        delivered = []
        for rank in range(world_size):
            dataset = make(store, rank, world_size, even="off")
            dataset.set_epoch(epoch)
            delivered.append(read(dataset))
            assert [i for batch in delivered[-1] for i in batch] == dataset.sample_order(epoch).tolist()
        assert sorted(i for rank in delivered for batch in rank for i in batch) == list(range(N))
    whole = make(store).sample_order(1)
    if world_size <= 8:
        for rank, batches in enumerate(delivered):
            assert [i for batch in batches for i in batch] == whole[rank::world_size].tolist()


@pytest.mark.usefixtures("combs")
def test_a_resumed_run_goes_on_where_the_saved_one_stopped(store: str) -> None:
    batches = read(make(store))
    for stop in (1, 7, 30, len(batches) - 1):
        dataset = make(store)
        passed = iter(dataset)
        assert read(passed, stop) == batches[:stop]
        state = dataset.state_dict()
        assert (state["version"], state["combs"]) == (3, 1024)
        again = make(store)
        again.load_state_dict(state)
        assert read(again) == batches[stop:]


@pytest.mark.usefixtures("combs")
def test_a_run_is_resumed_on_other_ranks_and_workers(store: str) -> None:
    dataset = make(store, batch_size=12)
    used = read(iter(dataset), 5)
    state = dataset.state_dict()
    left = []
    for rank in range(3):
        again = make(store, rank, 3, batch_size=4, even="off")
        again.load_state_dict(state)
        left += read(again)
    assert sorted(i for batch in used + left for i in batch) == list(range(N))
    loader = ZarrDataLoader(make(store), num_workers=2, multiprocessing_context="fork")
    loader.load_state_dict(state)
    assert sorted(i for batch in used + read(loader) for i in batch) == list(range(N))


@pytest.mark.usefixtures("combs")
def test_an_epoch_begun_by_sorted_keys_goes_on_by_them_and_the_next_one_has_combs(store: str) -> None:
    dataset = make(store, mixing={"mix": 7, "lanes": 8})
    dataset.load_state_dict(OF_SORTED_KEYS)
    rest = read(dataset)
    assert rest[:2] == NEXT_OF_SORTED_KEYS
    assert "combs" not in OF_SORTED_KEYS
    passed = iter(dataset)
    next(passed)
    assert dataset.state_dict()["combs"] == 1024
    assert dataset.state_dict()["epoch"] == 1


def test_an_epoch_begun_in_combs_goes_on_in_them_below_the_threshold(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(block_order, "COMBS_ABOVE", 2)
        dataset = make(store)
        batches = read(dataset)
        dataset = make(store)
        passed = iter(dataset)
        read(passed, 4)
        state = dataset.state_dict()
    again = make(store)
    again.load_state_dict(state)
    assert read(again) == batches[4:]
    assert "combs" not in again.state_dict()


def test_sorted_keys_are_kept_below_the_threshold(store: str) -> None:
    dataset = make(store, mixing={"mix": 7, "lanes": 8})
    batches = read(iter(dataset), 11)
    assert batches[9:] == NEXT_OF_SORTED_KEYS
    dataset = make(store, mixing={"mix": 7, "lanes": 8})
    passed = iter(dataset)
    read(passed, 9)
    assert dataset.state_dict() == OF_SORTED_KEYS


@pytest.mark.usefixtures("combs")
def test_states_with_combs_that_cannot_be_are_refused(store: str) -> None:
    dataset = make(store)
    passed = iter(dataset)
    next(passed)
    state = dataset.state_dict()
    for wrong in ("64", -1, 1 << 20, True):
        with pytest.raises(ConfigError, match="damaged"):
            make(store).load_state_dict(state | {"combs": wrong})
    with pytest.raises(ConfigError, match="combs = 1024"):
        make(store, shuffle=False).load_state_dict(state | {"order": state["order"] | {"shuffle": False}})


@pytest.mark.usefixtures("combs")
def test_selections_stores_and_nodes_have_combs_of_their_own_blocks(store: str, tmp_path: Path) -> None:
    lengths = (37, 64, 5, 118)
    for number, length in enumerate(lengths):
        first = sum(lengths[:number])
        values = np.repeat(np.arange(first, first + length), 3).reshape(length, 3)
        zarr.create_array(str(tmp_path / f"{number}.zarr"), data=values, chunks=(CHUNK, 3))
    many = zarrfeed.concat([zarrfeed.open(tmp_path / f"{number}.zarr") for number in range(len(lengths))])
    whole = zarrfeed.open(store)
    listed = np.sort(np.random.default_rng(1).choice(N, 150, replace=False))
    for data, wanted in (
        (many, range(sum(lengths))),
        (many.select(slice(30, 200)), range(30, 200)),
        (whole.select(slice(5, 380, 3)), range(5, 380, 3)),
        (whole.select(slice(9, 300)), range(9, 300)),
        (whole.select(listed), listed.tolist()),
    ):
        dataset = make(data)
        passed = iter(dataset)
        used = read(passed, 3)
        assert dataset.state_dict()["combs"] == 1024
        again = make(data)
        again.load_state_dict(dataset.state_dict())
        assert sorted(i for batch in used + read(again) for i in batch) == list(wanted)


@pytest.mark.usefixtures("combs")
def test_windows_and_bad_chunks_find_their_blocks_in_combs(store: str, tmp_path: Path) -> None:
    windows = zarrfeed.open(store).window(range(3))
    batches = [batch[:, :, 0].tolist() for batch in make(windows)]
    assert sorted(first for batch in batches for first, *_ in batch) == list(range(N - 2))
    assert all(window == list(range(window[0], window[0] + 3)) for batch in batches for window in batch)

    damaged = str(tmp_path / "damaged.zarr")
    zarr.create_array(damaged, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(CHUNK, 3))
    (Path(damaged) / "c" / "7" / "0").write_bytes(b"\0" * 9)
    dataset = make(damaged, faults={"on_error": "skip"})
    with pytest.warns(match="skipped"):
        found = read(dataset)
    session = make(store).session
    held_indices = session.schedule.order_of(session.settle(None, None).begin).held_indices(0)
    after = int(held_indices[(np.flatnonzero(held_indices == 7)[0] + 1) % len(held_indices)])
    replaced = {7 * CHUNK + row: after * CHUNK + row % min(CHUNK, N - after * CHUNK) for row in range(CHUNK)}
    assert found == [[replaced.get(i, i) for i in batch] for batch in read(make(store))]

"""`set_offsets`: windows that change between epochs, in this process, in workers, and after resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset

N = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollouts") / "x.zarr"
    zarr.create_array(path, data=np.arange(N, dtype="i4"), chunks=(6,))
    return path


def make(store: Path, **options: Any) -> ZarrIterableDataset:
    data = zarrfeed.open(store).window((0, 1), pad="edge")
    return ZarrIterableDataset(data, batch_size=8, shuffle=True, seed=3, return_index=True, **options)


def check(batches: Any, offsets: tuple[int, ...]) -> list[int]:
    """Check the rows of windows; return the samples in their order."""
    order = []
    for samples, index in batches:
        expected = np.minimum(index.numpy()[:, None] + offsets, N - 1)
        assert np.array_equal(samples.numpy(), expected)
        order += index.tolist()
    return order


def test_offsets_hold_from_the_next_epoch_on_and_leave_the_order_alone(store: Path) -> None:
    dataset, plain = make(store), make(store)
    expected = [[i for _, index in plain for i in index.tolist()] for _ in range(4)]
    assert check(dataset, (0, 1)) == expected[0]
    dataset.set_offsets((0, 1, 2, 5))
    assert len(dataset) == 5
    assert dataset.data.fields[0].shape == (4,)
    assert "(0, 1, 2, 5)" in repr(dataset.data)
    assert check(dataset, (0, 1, 2, 5)) == expected[1]
    assert check(dataset, (0, 1, 2, 5)) == expected[2]
    dataset.set_offsets((0, 1))
    assert check(dataset, (0, 1)) == expected[3]


def test_a_pass_under_way_keeps_its_offsets(store: Path) -> None:
    dataset = make(store)
    batches = iter(dataset)
    first = next(batches)
    dataset.set_offsets(range(3))
    assert len(check([first, *batches], (0, 1))) == N
    assert len(check(dataset, (0, 1, 2))) == N


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_read_windows_with_the_new_offsets(store: Path, persistent: bool) -> None:
    dataset = make(store)
    loader = ZarrDataLoader(dataset, num_workers=2, persistent_workers=persistent)
    assert sorted(check(loader, (0, 1))) == list(range(N))
    dataset.set_offsets((0, 3))
    assert sorted(check(loader, (0, 3))) == list(range(N))
    assert sorted(check(loader, (0, 3))) == list(range(N))


def test_a_state_brings_the_offsets_of_its_epoch_back(store: Path) -> None:
    dataset = make(store)
    dataset.set_offsets((0, 2, 4))
    whole = check(dataset, (0, 2, 4))
    dataset.set_epoch(0)
    batches = iter(dataset)
    taken = check([next(batches), next(batches)], (0, 2, 4))
    state = json.loads(json.dumps(dataset.state_dict()))
    again = make(store)
    again.load_state_dict(state)
    assert taken + check(again, (0, 2, 4)) == whole
    assert len(check(again, (0, 2, 4))) == N, "they hold in the next epoch, too"
    resumed = make(store)
    resumed.load_state_dict(state)
    with pytest.raises(ConfigError, match="begun with other offsets: set_epoch first"):
        resumed.set_offsets((0, 1))
    with pytest.raises(ConfigError, match="the samples are none"):
        ZarrIterableDataset(store, batch_size=8, shuffle=True, seed=3).load_state_dict(state)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_pass_under_way_is_saved_with_its_own_offsets(store: Path, shuffle: bool) -> None:
    def of(store: Path) -> ZarrIterableDataset:
        data = zarrfeed.open(store).window((0, 1), pad="edge")
        return ZarrIterableDataset(data, batch_size=8, shuffle=shuffle, return_index=True)

    dataset = of(store)
    for before, offsets, after in ((None, (0, 1), (0, 3, 5)), ((0, 2), (0, 2), (0, 1)), ((0, 3, 5), (0, 3, 5), (0, 2))):
        if before is not None:
            dataset.set_offsets(before)
        batches = iter(dataset)
        taken = check([next(batches)], offsets)
        dataset.set_offsets(after)  # of the next pass: the state is that of the one under way
        again = of(store)
        again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        assert check(again, offsets) == check(batches, offsets)
        assert len(taken) == 8
        next_one = of(store)
        next_one.load_state_dict(dataset.state_dict())
        assert len(check(next_one, after)) == N
        list(dataset)  # the next pass


def test_what_cannot_have_other_offsets_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match="samples are no windows"):
        ZarrIterableDataset(store, batch_size=4).set_offsets((0, 1))
    part, _ = zarrfeed.open(store).window((0, 1)).split((0.5, 0.5), by="contiguous")
    with pytest.raises(ConfigError, match="after split"):
        ZarrIterableDataset(part, batch_size=4).set_offsets((0, 1))
    dataset = make(store)
    with pytest.raises(ConfigError, match="must be an integer"):
        dataset.set_offsets("no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="offsets names 'y'"):
        dataset.set_offsets({"y": (0, 1)})
    with pytest.raises(ConfigError, match="a batch has samples, and would have samples, lead"):
        dataset.set_offsets((0, zarrfeed.lead(1, 2)))
    drawn = ZarrIterableDataset(zarrfeed.open(store).window((0, zarrfeed.lead(1, 2))), batch_size=8)
    with pytest.raises(ConfigError, match="a batch has samples, lead, and would have samples"):
        drawn.set_offsets((0, 1))
    assert len(check(dataset, (0, 1))) == N
    small = make(store, memory_budget="3KiB")
    with pytest.raises(zarrfeed.MemoryBudgetError):
        small.set_offsets(range(39))

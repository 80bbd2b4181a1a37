"""`return_coords=`: the coordinates that come with a batch are those of its samples, as xarray has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import zarrfeed as zf
from tests.support.oracle import NUMCODECS_WARNING
from zarrfeed import ConfigError, Data, UnsupportedError

pytestmark = [pytest.mark.filterwarnings(NUMCODECS_WARNING), pytest.mark.filterwarnings("ignore:.*specification")]

M, T = 3, 20
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(T) * np.timedelta64(6, "h")
NAMES = ("time", "member", "phase")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("coords") / "ens.zarr")
    x = np.arange(M * T * 2, dtype="f4").reshape(M, T, 2)
    coords = {"member": ["a", "b", "c"], "time": TIMES, "phase": ("time", np.linspace(0, 1, T, dtype="f4"))}
    xr.Dataset({"x": (("member", "time", "y"), x)}, coords=coords).to_zarr(
        path, encoding={"x": {"chunks": (2, 7, 2)}}, consolidated=False
    )
    return path


def _checked(batch: Any, seen: list[int]) -> None:
    """Compare coordinates with those of the index, and the values with the index too."""
    x, coords, index = batch
    (member, time), phase = divmod(index.numpy(), T), np.linspace(0, 1, T, dtype="f4")
    assert list(coords) == list(NAMES)
    assert (coords["time"].numpy().view("M8[ns]") == TIMES[time]).all()
    assert coords["member"] == [("a", "b", "c")[one] for one in member]
    assert (coords["phase"].numpy() == phase[time]).all()
    own = x["x"][..., 0] if x["x"].ndim == 2 else x["x"][:, -1, 0]
    assert (own.numpy() == 2 * index.numpy()).all()
    seen += index.tolist()


CHANGES: dict[str, Callable[[Data], Data]] = {
    "all": lambda data: data,
    "window": lambda data: data.window((-2, 0)),
    "sel": lambda data: data.sel(member=["c", "a"], time=slice("2020-01-02", None)),
    "given": lambda data: data.select([33, 4, 59, 4, 0], keep_order=True),
    "split": lambda data: data.split((0.6, 0.4), seed=3)[0],
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_sample_has_its_coordinates(store: str, change: str) -> None:
    data = CHANGES[change](zf.open(store, sample_dim=("member", "time"), variables=["x"]))
    numbers = zf.ZarrDataset(data, return_index=True)[range(len(data))][1].tolist()
    for shuffle in [False, True][: 1 + (change != "given")]:
        seen: list[int] = []
        options: dict[str, Any] = {"batch_size": 7, "shuffle": shuffle, "return_index": True, "return_coords": NAMES}
        with zf.ZarrIterableDataset(data, **options) as dataset:
            plain = zf.ZarrIterableDataset(data, batch_size=7, shuffle=shuffle, return_index=True)
            for batch, (_, index) in zip(dataset, plain, strict=True):
                assert batch[2].equal(index)  # coordinates change no order
                _checked(batch, seen)
        assert sorted(seen) == sorted(numbers)
    by_index = zf.ZarrDataset(data, return_coords=NAMES, return_index=True)
    _checked(by_index[[2, 0, 2]], [])
    assert by_index[1][1]["member"] in "abc"


def test_ranks_and_workers_resume_with_coordinates(store: str) -> None:
    data = zf.open(store, sample_dim=("member", "time"), variables=["x"])
    seen: list[int] = []
    for rank in range(2):

        def make(rank: int = rank) -> zf.ZarrIterableDataset:
            return zf.ZarrIterableDataset(
                data,
                batch_size=5,
                shuffle=True,
                rank=rank,
                world_size=2,
                return_coords=NAMES,
                return_index=True,
            )

        loader = zf.ZarrDataLoader(make(), num_workers=rank)
        passed = iter(loader)
        for _ in range(2):
            _checked(next(passed), seen)
        state = loader.state_dict()
        del passed
        rest = zf.ZarrDataLoader(make(), num_workers=rank)
        rest.load_state_dict(state)
        for batch in rest:
            _checked(batch, seen)
    assert sorted(seen) == list(range(M * T))


def test_stores_and_joins_have_the_coordinates_of_their_samples(tmp_path: Path) -> None:
    paths, dates = [], []
    for k, units in enumerate(("hours since 2000-01-01", "seconds since 2020-01-01")):
        times = (np.datetime64("2021-01-01") + np.arange(5 * k, 4 * k + 6) * np.timedelta64(1, "D")).astype("M8[ns]")
        paths.append(str(tmp_path / f"{k}.zarr"))
        stored = xr.Dataset({f"x{k}": ("time", np.arange(6 - k) + 10 * k)}, coords={"time": times})
        stored.to_zarr(paths[-1], consolidated=False, encoding={"time": {"units": units}})
        dates.append(times)
    both = [zf.open({"x": f"{path}/x{k}"}, sample_dim="time") for k, path in enumerate(paths)]
    batch, coords = next(iter(zf.ZarrIterableDataset(zf.concat(both), batch_size=11, return_coords="time")))
    assert coords["time"].tolist() == np.concatenate(dates).view("i8").tolist()
    assert batch["x"].tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14]
    joined = zf.join(dict(zip("ab", both, strict=True)), on="time")
    batch, coords = zf.ZarrDataset(joined, return_coords=["time"])[[0]]
    assert [one.item() for one in batch.values()] == [5, 10]
    assert coords["time"].tolist() == [dates[1][0].view("i8")]


def test_values_that_are_no_tensors_are_refused_by_name(store: str, tmp_path: Path) -> None:
    data = zf.open(store, sample_dim=("member", "time"), variables=["x"])
    with pytest.raises(ConfigError, match=r"no coordinate 'step' .* name a coordinate along the samples"):
        zf.ZarrDataset(data, return_coords=["step"])
    for wrong in (["time", "time"], [3]):
        with pytest.raises(ConfigError, match="must be names of coordinates"):
            zf.ZarrDataset(data, return_coords=wrong)  # type: ignore[arg-type]
    flat = zf.open(store, sample_dim="time", variables=["x"])
    with pytest.raises(ConfigError, match="samples are patches"):
        zf.ZarrDataset(flat.patch({"member": 2, "y": 2}), return_coords="time")
    early = xr.Dataset(
        {"x": ("time", np.arange(2))}, coords={"time": ("time", [0, 1], {"units": "days since 2300-01-01"})}
    )
    early.to_zarr(tmp_path / "early.zarr", consolidated=False)
    with pytest.raises(UnsupportedError, match="time: has dates that int64 nanoseconds since 1970 cannot hold"):
        zf.ZarrDataset(zf.open(str(tmp_path / "early.zarr"), sample_dim="time", variables=["x"]), return_coords="time")


def test_columns_of_segments_come_as_coordinates() -> None:
    data = zf.open(np.arange(9)).segments([2, 5, 9]).segment_field(task=["pick", "place", "pick"])
    _, coords = zf.ZarrDataset(data, return_coords=("segment", "task"))[[0, 4, 8]]
    assert (coords["segment"].tolist(), coords["task"]) == ([0, 1, 2], ["pick", "place", "pick"])
